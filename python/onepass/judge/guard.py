"""What a candidate has no business changing in its own process: the clock, PyTorch's functions, the judge's code.

No result depends on these: the clock that counts and the comparison are in another process. But a candidate that
replaces torch.allclose or time.perf_counter is written to deceive, and a program that imports it gets the replacement.
"""

import functools
import gc
import json
import os
import socket
import sys
import time
import types

import torch
import torch.nn.functional

from onepass import fp32

TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep

PLACES = [
    ("time", time), ("os", os), ("gc", gc), ("json", json), ("socket.socket", socket.socket),
    ("torch", torch), ("torch.Tensor", torch.Tensor), ("torch.autograd", torch.autograd),
    ("torch.cuda", torch.cuda), ("torch.cuda.Event", torch.cuda.Event), ("torch.cuda.Stream", torch.cuda.Stream),
    ("torch.nn.functional", torch.nn.functional), ("torch.nn.Module", torch.nn.Module), ("torch.random", torch.random),
    ("torch.testing", torch.testing),
]


def functions_of(place, private=False):
    """What a module or a class answers to, inherited methods included: {name: (function, its code)}."""
    found = {}
    for parent in reversed(place.__mro__) if isinstance(place, type) else [place]:
        found.update((name, (value, getattr(value, "__code__", None))) for name, value in vars(parent).items()
                     if callable(value) and (private or isinstance(place, type) or not name.startswith("_")))
    return found


def cudnn_tf32():
    try:
        return torch.backends.cudnn.allow_tf32
    except RuntimeError:  # since 2.9: it cannot be read after a newer name was set
        return "set by another name"


def settings():
    """Switches of PyTorch that are the whole program's, not one model's."""
    return {
        "torch.get_default_dtype()": str(torch.get_default_dtype()),
        "torch.is_grad_enabled()": torch.is_grad_enabled(),
        "torch.get_num_threads()": torch.get_num_threads(),
        "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled(),
        "TF32 in matrix products": fp32.allows_tf32(),
        "torch.backends.cudnn.allow_tf32": cudnn_tf32(),
        "torch.backends.cudnn.benchmark": torch.backends.cudnn.benchmark,
    }


def is_own_wrapper(value, name):
    """Whether a function is PyTorch's own: it wraps a few of its functions when its compiler is first imported or used,
    under the old name or, in torch._dynamo, under another. A file's name can be claimed by any code; so the file is
    compiled again, and must have that code in it."""
    function = getattr(value, "__func__", value)
    code, home = getattr(function, "__code__", None), getattr(function, "__globals__", {}).get("__name__")
    if code is None or getattr(sys.modules.get(home), "__dict__", None) is not function.__globals__:
        return False
    path = os.path.abspath(code.co_filename)
    if not path.startswith(TORCH + ("" if function.__name__ == name else "_dynamo" + os.sep)):
        return False
    return code in codes_of(path)


@functools.lru_cache(maxsize=None)
def codes_of(path):
    """Every piece of code that a file defines."""
    found = set()
    try:
        with open(path, encoding="utf-8") as file:
            todo = [compile(file.read(), path, "exec", dont_inherit=True)]
    except (OSError, SyntaxError, ValueError):
        return found
    while todo:
        found.add(todo[-1])
        todo += [constant for constant in todo.pop().co_consts if isinstance(constant, types.CodeType)]
    return found


def left_on():
    """What acts on every later call of PyTorch, by whomever: modes that were entered, hooks of all modules, operators
    of PyTorch's own that were given another kernel from Python."""
    found = {}
    for name in ("_len_torch_function_stack", "_len_torch_dispatch_stack"):
        if hasattr(torch._C, name):
            found["modes of torch.overrides or torch.utils._python_dispatch (%s)" % name] = getattr(torch._C, name)()
    for name, value in vars(torch.nn.modules.module).items():
        if name.startswith("_global_") and isinstance(value, dict):
            found["hooks in torch.nn.modules.module.%s" % name] = len(value)
    kernels = getattr(getattr(torch, "library", None), "_impls", ())
    # Shapes alone, which is what Meta kernels compute, are added as PyTorch's own modules are imported.
    found["kernels registered by torch.library for aten"] = len([name for name in kernels if name.startswith("aten/")
                                                                 and not name.endswith("/Meta")])
    return found


def kernels():
    """{operator: where its kernels come from}, as the dispatcher has them; empty where PyTorch does not say. Slow."""
    if not hasattr(torch._C, "_dispatch_get_all_op_names"):
        return {}
    return {name: hash(torch._C._dispatch_dump(name)) for name in torch._C._dispatch_get_all_op_names()
            if name.startswith("aten::")}


KERNELS = {}  # filled before any worker is forked


class Guard:
    """Remembers how things are when it is made, and says later what is different."""

    def __init__(self, judges=()):
        """judges: (label, module or class) of the judge's own, of which private names are watched too."""
        self.places = [(label, place, False, functions_of(place)) for label, place in PLACES]
        self.places += [(label, place, True, functions_of(place, True)) for label, place in judges]
        self.settings = settings()
        self.left_on = left_on()
        self.profile = sys.getprofile(), sys.gettrace()

    def answer(self, kernels_too=False):
        """All findings, as a worker sends them."""
        replaced = self.replaced() + ["%s: %d more than before" % (name, count - self.left_on.get(name, 0))
                                      for name, count in left_on().items() if count > self.left_on.get(name, 0)]
        if kernels_too and KERNELS:
            now = kernels()
            replaced += ["the kernels of %s" % name for name in KERNELS if now.get(name) != KERNELS[name]]
        notes = self.changed_settings()
        if (sys.getprofile(), sys.gettrace()) != self.profile:
            notes.append("a function is called at every call of a function (sys.setprofile or sys.settrace)")
        return {"replaced": replaced, "settings": notes}

    def replaced(self):
        """Names of functions that are not what they were."""
        found = []
        for label, place, private, before in self.places:
            now = functions_of(place, private)
            for name, (value, code) in before.items():
                new, new_code = now.get(name, (None, None))
                if (new is not value or new_code is not code) and not is_own_wrapper(new, name):
                    found.append("%s.%s" % (label, name))
        return found

    def changed_settings(self):
        now = settings()
        return ["%s: %s, was %s" % (name, now[name], value) for name, value in self.settings.items()
                if now[name] != value]
