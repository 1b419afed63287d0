"""How the program wants float32 matrices to be multiplied on CUDA: $ONEPASS_FP32_PRODUCTS and PyTorch's TF32 setting.

The library is not loaded here: the judge reads the settings too, and needs none.
"""

import os

import torch

# What $ONEPASS_FP32_PRODUCTS may say, the default first, and what it means.
PRODUCTS = {
    "full": "as accurate as float32, by the library on tensor cores where that is faster, else by cuBLAS without them",
    "split": "as accurate as float32, by the library on tensor cores",
    "vendor": "in float32, by cuBLAS without tensor cores",
}
TF32 = "PyTorch's setting allows it: operands are cut to 11 bits, by cuBLAS on tensor cores"


def wanted():
    """The name of what is wanted where TF32 is not allowed."""
    name = os.environ.get("ONEPASS_FP32_PRODUCTS") or "full"
    if name not in PRODUCTS:
        raise ValueError("$ONEPASS_FP32_PRODUCTS: %r; it must be full, split or vendor" % name)
    return name


_matmul = torch.backends.cuda.matmul


def _has_fp32_precision():
    try:
        return bool(_matmul.fp32_precision)
    except (AttributeError, AssertionError):  # before 2.9
        return False


if _has_fp32_precision():  # the older name fails once somebody has used this one

    def allows_tf32():
        """PyTorch's setting of this moment."""
        return _matmul.fp32_precision == "tf32"

else:

    def allows_tf32():
        """PyTorch's setting of this moment."""
        return _matmul.allow_tf32


def description():
    """The setting and what it means, for a reader."""
    try:
        name = wanted()
    except ValueError as error:
        return str(error)
    return "tf32: %s" % TF32 if allows_tf32() else "%s: %s" % (name, PRODUCTS[name])
