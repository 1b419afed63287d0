"""linear: torch.nn.functional.linear with the library's product.

Here arguments are read and the way is chosen (matrices.py): linear_eager.py, the operator of linear_traced.py, or
torch.nn.functional.linear, which also gets what PyTorch itself would refuse.
"""

import torch
import torch.nn.functional as F
from torch.overrides import handle_torch_function, has_torch_function

from onepass.torch import eager, linear_eager, matrices, prepared_weights

if eager.HAS_TRACED:
    from onepass.torch import linear_traced  # noqa: F401: defines torch.ops.onepass.linear


def _fits(input, weight, bias):
    """True for what the library computes as PyTorch would."""
    return (input.dtype in matrices.FLOATS and weight.dtype is input.dtype and input.dim() >= 1 and weight.dim() == 2
            and input.shape[-1] == weight.shape[1]
            and (bias is None or (bias.dtype is input.dtype and bias.shape == weight.shape[:1])))


def _autocast(*tensors):
    """The tensors as autocast gives them to a linear layer: double stays what it is."""
    dtype = matrices.autocast_dtype(tensors[0])
    return [tensor.to(dtype) if tensor is not None and tensor.dtype in matrices.FLOATS[:3] else tensor
            for tensor in tensors]


def linear(input, weight, bias=None, *, exact_fp32=False, prepared=None):
    """torch.nn.functional.linear: input weight^T + bias, with input [..., K], weight [N, K], bias [N].

    exact_fp32   float32 on CUDA, gradients included, without tensor cores: cuBLAS's own float32
    prepared     prepare_weight(weight): float32 on CUDA in less time, with the same bits. Refused if the weight was
                 changed since, and where it could not be used

    float32 has the accuracy of float32 on any device (docs/numerics.md), unless the program lets PyTorch use TF32
    (torch.set_float32_matmul_precision, torch.backends.cuda.matmul) and exact_fp32 is not set. Half types are summed in
    float32. Gradients to all three, of any order.
    """
    if has_torch_function((input, weight, bias)):
        return handle_torch_function(linear, (input, weight, bias), input, weight, bias, exact_fp32=exact_fp32,
                                     **prepared_weights.keyword(prepared))
    planes = prepared_weights.planes_of("linear", prepared)
    is_plain = matrices.are_plain((input, weight, bias))
    if not is_plain and not matrices.are_traceable((input, weight, bias)):
        prepared_weights.refuse_in_torch("linear", planes)
        return F.linear(input, weight, bias)
    if eager.autocasts(input):
        input, weight, bias = _autocast(input, weight, bias)
    if not _fits(input, weight, bias):
        prepared_weights.refuse_in_torch("linear", planes)
        return F.linear(input, weight, bias)
    if is_plain:
        return linear_eager.linear(input, weight, bias, exact_fp32, planes)
    return torch.ops.onepass.linear(input, weight, bias, exact_fp32, planes)
