"""onepass: KL-divergence losses and softmax heads, each reading its inputs once.

    onepass.torch             functions and modules with PyTorch's names and signatures
    onepass.kl_div(...)       the same loss for NumPy arrays (and anything else on the CPU that speaks DLPack)
    python -m onepass.judge   is a rewritten model right, and how fast is it?
    python -m onepass.export  one self-contained file with a model in it

Importing the package is free: the C library is loaded when something of it is first used.
"""

import importlib

_HOME = {
    "kl_div": "onepass.arrays",
    "kl_div_probs": "onepass.arrays",
    "info": "onepass.library",
    "__version__": "onepass.library",
    "Error": "onepass.errors",
    "InvalidArgument": "onepass.errors",
    "Unsupported": "onepass.errors",
    "NoDevice": "onepass.errors",
    "OutOfMemory": "onepass.errors",
    "DeviceError": "onepass.errors",
}

__all__ = [name for name in _HOME if not name.startswith("_")]


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError("module 'onepass' has no attribute %r" % name)
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(list(globals()) + list(_HOME))
