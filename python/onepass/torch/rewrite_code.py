"""The Python that a rewriting makes: functions, subclasses, calls that fit a signature."""

import contextlib
import inspect
import linecache
import operator
import random
import sys

import torch

FILENAME = "<onepass.torch.rewrite>"
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _named_function(function):
    """The function as one that torch.fx writes as a call: of the operator itself it would make a statement, a += b,
    which in the case of a number changes another variable than it did."""
    def call(*arguments):
        return function(*arguments)
    call.__name__ = call.__qualname__ = function.__name__
    return call


IN_PLACE = {name: _named_function(getattr(operator, name)) for name in
            ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor",
             "ilshift", "irshift")}
setitem = _named_function(operator.setitem)


def subclass(base, namespace):
    """A class derived from base, of its name, whose objects may be base's and the other way round."""
    namespace = dict(namespace, __module__=base.__module__, __qualname__=base.__qualname__, __doc__=base.__doc__)
    # Derived afterwards: a registry that base keeps of its subclasses (__init_subclass__) must not hear of it.
    made = type(base)(base.__name__, (torch.nn.Module,), namespace)
    made.__bases__ = (base,)
    return made


def define(text, name, names, filename=FILENAME):
    """The function that the text defines. `names`: its globals."""
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    made = {}
    exec(compile(text, filename, "exec"), names, made)
    return made[name]


def inputs_of(signature, given):
    """Names of the arguments that are inputs of a trace: those without a default and the given ones. Not self."""
    parameters = list(signature.parameters.values())[1:]
    return [each.name for each in parameters
            if each.kind not in _VARIADIC and (each.default is each.empty or each.name in given)]


def arguments(signature, values):
    """(positional, by name) for a call with these values, and defaults for the rest."""
    positional, named = [], {}
    for each in list(signature.parameters.values())[1:]:
        if each.kind in _VARIADIC:
            continue
        value = values.get(each.name, each.default)
        if each.kind is each.KEYWORD_ONLY:
            named[each.name] = value
        else:
            positional.append(value)
    return positional, named


def function_of(run, inputs, names):
    """run(*values) as torch.fx wants it: with named arguments and the globals of the code it stands for."""
    text = "def make(onepass_run):\n    def forward(%s):\n        return onepass_run(%s)\n    return forward\n"
    listed = ", ".join(inputs)
    return define(text % (listed, listed), "make", names)(run)


@contextlib.contextmanager
def same_random_numbers():
    """Leaves the generators of random numbers as they were; the list it gives names those that were used."""
    used = []
    kept = [("random", random.getstate, random.setstate, lambda a, b: a == b),
            ("torch", torch.get_rng_state, torch.set_rng_state, torch.equal)]
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        kept.append(("numpy", numpy.get_state, numpy.set_state, lambda a, b: (a[1] == b[1]).all() and a[2:] == b[2:]))
    if torch.cuda.is_initialized():
        kept.append(("torch.cuda", torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all,
                     lambda a, b: all(map(torch.equal, a, b))))
    before = [read() for _, read, _, _ in kept]
    try:
        yield used
    finally:
        for (name, read, write, equal), state in zip(kept, before):
            if not equal(state, read()):
                used.append(name)
                write(state)
