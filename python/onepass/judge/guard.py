"""What a candidate has no business changing in its own process: the clock, PyTorch's functions, the judge's code.

No result depends on these: the clock that counts and the comparison are in another process. But a candidate that
replaces torch.allclose or time.perf_counter is written to deceive, and a program that imports it gets the replacement.
"""

import gc
import json
import os
import socket
import time

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
    """PyTorch itself wraps a few of its functions when its compiler is first imported."""
    code = getattr(value, "__code__", None)
    return (code is not None and os.path.abspath(code.co_filename).startswith(TORCH)
            and getattr(value, "__name__", None) == name)


class Guard:
    """Remembers how things are when it is made, and says later what is different."""

    def __init__(self, judges=()):
        """judges: (label, module or class) of the judge's own, of which private names are watched too."""
        self.places = [(label, place, False, functions_of(place)) for label, place in PLACES]
        self.places += [(label, place, True, functions_of(place, True)) for label, place in judges]
        self.settings = settings()

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
