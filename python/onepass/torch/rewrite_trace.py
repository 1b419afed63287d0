"""Symbolic traces of a module's forward that may stand in for it.

torch.fx runs forward once with stand-ins for its inputs and records what is done to them. What forward does besides is
frozen or lost: attributes and flags are read once, no_grad regions vanish, attributes are set for good, random numbers
are drawn once. Here the module is a shadow whose every attribute access is seen, and

  - an attribute that was read becomes a guard: the trace holds while the attribute is what it was (a tensor: while it
    is one; its value is read anew in every call), and so does a module-level variable;
  - the gradient mode is part of the trace, and changes of it are recorded like operations;
  - everything else of this kind is a reason to refuse.

A trace is thus of one setting: a training flag, a gradient mode, and which optional arguments are given.
"""

import dataclasses
import enum
import functools
import gc
import inspect
import operator
import os
import sys
import types
import warnings
from collections import namedtuple

import torch
import torch.fx

from onepass.torch import eager, rewrite_bytecode, rewrite_code, rewrite_copy


class _Refused(Exception):
    """Ends a run of forward whose trace would not be the forward itself."""


# training, grad: flags; given: the optional arguments, None by default, that are given. All others have their defaults.
Setting = namedtuple("Setting", "training grad given")

# test: 'same' (as value), 'tensor' (is one), 'type' (is one of value); path: from the module to an attribute.
# test: 'global' (the same as value); path: a Python module and a name in it.
Guard = namedtuple("Guard", "test path value")

_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), type(...), torch.dtype, torch.device, torch.Size,
              torch.layout, torch.memory_format, enum.Enum, type, types.FunctionType, types.BuiltinFunctionType)
_MISSING = object()
# Of what torch.nn.Module itself offers, forward may use this; the rest walks over parameters or changes the module.
_HARMLESS = ("forward", "_call_impl", "_wrapped_call_impl", "_get_name", "extra_repr", "get_submodule", "get_parameter",
             "get_buffer")


def is_constant(value):
    """True if the value cannot change while it is the same object."""
    if type(value) in (tuple, frozenset):
        return all(is_constant(part) for part in value)
    return isinstance(value, _CONSTANTS)


def _is_own(frame):
    """True for code that is not the model's author's: PyTorch's and ours."""
    name = frame.f_globals.get("__name__") or ""
    return name == "torch" or name.startswith(("torch.", "importlib.")) or _is_ours(frame)


def _is_ours(frame):
    name = frame.f_globals.get("__name__") or ""
    return name.startswith("onepass.") or frame.f_code.co_filename == rewrite_code.FILENAME


def _line(frame):
    """'model.py:12' of the innermost line that is the author's; "" outside of a run of forward."""
    while frame is not None and _is_own(frame):
        if frame.f_code is Trace._run.__code__:
            return ""
        frame = frame.f_back
    return "" if frame is None else "%s:%d" % (os.path.basename(frame.f_code.co_filename), frame.f_lineno)


def _at(why, line):
    return "%s, %s" % (why, line) if line else why


# ---- stand-ins for values -------------------------------------------------------------------------------------------


class _Recorded:
    """What torch.fx.Proxy does not do: writing to a value is recorded, and nobody learns its class."""

    @property
    def __class__(self):
        if self.tracer.watch.asking:
            self.tracer.watch.refuse("it asks what a value is (isinstance)")
        return type(self)

    def __getattr__(self, name):
        if self.tracer.watch.asking:
            self.tracer.watch.refuse("it asks what a value has (hasattr)")
        return _Attribute(self, name)

    def __setitem__(self, key, value):
        self.tracer.create_proxy("call_function", rewrite_code.setitem, (self, key, value), {})


def _in_place(function):
    def record(self, other):
        return self.tracer.create_proxy("call_function", function, (self, other), {})
    return record


for _name, _function in rewrite_code.IN_PLACE.items():
    setattr(_Recorded, "__%s__" % _name, _in_place(_function))


class _Value(_Recorded, torch.fx.Proxy):
    pass


class _Attribute(_Recorded, torch.fx.proxy.Attribute):
    pass


# ---- the shadow -----------------------------------------------------------------------------------------------------


class Shadow:
    """A copy of a model whose modules tell `watch`, if there is one, what is done to them."""

    def __init__(self, model):
        self.watch = None
        self._classes = {}
        self._copies = rewrite_copy.copy_modules(model, rewrite_copy.has_no_python, self._spy_class)

    def of(self, module):
        return self._copies[id(module)]

    def _spy_class(self, module):
        base = type(module)
        if base not in self._classes:
            self._classes[base] = self._make_spy_class(base)
        return self._classes[base]

    def _make_spy_class(self, base):
        shadow = self

        def __getattribute__(module, name):
            watch = shadow.watch
            if watch is not None:
                if name == "__class__":
                    return base
                if not name.startswith("__"):
                    return watch.read(module, name, base)
            return base.__getattribute__(module, name)

        def __setattr__(module, name, value):
            if shadow.watch is None:
                base.__setattr__(module, name, value)
            elif not shadow.watch.is_set_to_itself(module, name, value):
                shadow.watch.refuse("it sets self.%s" % shadow.watch.path_of(module, name))

        def __delattr__(module, name):
            if shadow.watch is not None:
                shadow.watch.refuse("it deletes self.%s" % shadow.watch.path_of(module, name))
            base.__delattr__(module, name)

        return rewrite_code.subclass(base, {
            "__getattribute__": __getattribute__, "__setattr__": __setattr__, "__delattr__": __delattr__})


def _on_class(base, name):
    """(the class's own entry of that name, the class it is in)"""
    for cls in base.__mro__:
        if name in cls.__dict__:
            return cls.__dict__[name], cls
    return _MISSING, None


class _Watch:
    """Sees one run of forward: attributes that are read, code that is run, contexts that are entered."""

    def __init__(self, tracer, module):
        self.tracer = tracer
        self.guards = {}
        self.why = None
        self.asking = False  # isinstance or hasattr is running
        self.asked_for_grad = False
        self.codes = {}
        self._paths = {id(child): path for path, child in rewrite_copy.walk(module, rewrite_copy.has_no_python)}

    def refuse(self, why):
        # Kept besides: the author's code may catch every exception.
        self._note(why)
        raise _Refused(why)

    def path_of(self, module, name=None):
        path = self._paths.get(id(module))
        if path is None or (not path and name is None):
            self.refuse("it uses a module that is not one of its submodules")
        if name is None:
            return path
        return path + "." + name if path else name

    def guard(self, test, path, value=None):
        self.guards[Guard(test, path, value)] = True

    def read(self, module, name, base):
        """module.name, as Python finds it: descriptors of the class, instance, class, torch.nn.Module's tables."""
        state = object.__getattribute__(module, "__dict__")
        entry, owner = _on_class(base, name)
        if hasattr(type(entry), "__set__"):
            return base.__getattribute__(module, name)
        if name in ("_parameters", "_buffers"):
            self.refuse("it walks over parameters or buffers")
        if isinstance(entry, functools.cached_property) and name not in state:
            self.refuse("it sets self.%s, a cached property" % self.path_of(module, name))
        if name in state:
            if name == "_modules" or (name != "training" and name in _MODULE_STATE):
                return state[name]
            return self._value(module, name, state[name])
        if entry is not _MISSING:
            if owner is torch.nn.Module and name not in _HARMLESS:
                self.refuse("it calls %s of torch.nn.Module" % name)
            if hasattr(type(entry), "__get__"):
                return base.__getattribute__(module, name)
            return self._value(module, name, entry)
        for table in ("_parameters", "_buffers", "_modules"):
            if name in state[table]:
                return self._value(module, name, state[table][name])
        return base.__getattribute__(module, name)

    def is_set_to_itself(self, module, name, value):
        """True for the second half of self.tensor += 1, of which the first has done everything."""
        if not isinstance(value, _Value) or value.node.target not in rewrite_code.IN_PLACE.values():
            return False
        changed = value.node.args[0]
        return changed.op == "get_attr" and changed.target == self.path_of(module, name)

    def _value(self, module, name, value):
        path = self.path_of(module, name)
        if isinstance(value, torch.Tensor):
            self.guard("tensor", path)
            return self.tracer.create_proxy("get_attr", path, (), {})
        if is_constant(value):
            self.guard("same", path, value)
            return value
        if isinstance(value, torch.nn.Module) and id(value) in self._paths:
            return value
        if type(value) is types.MethodType and id(value.__self__) in self._paths:
            return value
        self.refuse("it reads self.%s, which may change: its type is %s" % (path, type(value).__name__))

    def profile(self, frame, event, what):
        """As sys.setprofile calls it."""
        if event == "call":
            self._called(frame)
        elif event == "c_call":
            self._called_builtin(frame, what)
        elif what is isinstance or what is hasattr:  # not by ==: the value that a function returns is in it, too
            self.asking = False

    def _called(self, frame):
        code = frame.f_code
        if not _is_own(frame):
            if code not in self.codes:
                enclosing = frame.f_locals if code.co_freevars else {}
                self.codes[code] = frame.f_globals, {name: enclosing.get(name) for name in code.co_freevars}
        elif frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            self._note("it uses torch.utils.checkpoint")
        if code.co_name == "__enter__" and code.co_argcount:
            self._entered(frame)

    def _called_builtin(self, frame, what):
        own = _is_own(frame)
        if what is isinstance or what is hasattr:
            self.asking = not own or frame.f_code is torch.is_tensor.__code__
        elif (what is print or what is warnings.warn) and not own:
            self._note("it prints or warns")
        elif what is torch.is_grad_enabled or what is torch._C._set_grad_enabled:
            self.asked_for_grad = self.asked_for_grad or not _is_ours(frame)
        elif isinstance(getattr(what, "__self__", None), type) and issubclass(what.__self__, torch.autograd.Function):
            self._note("it calls an autograd function, %s, whose gradient would be lost" % what.__self__.__name__)

    def _entered(self, frame):
        context = frame.f_locals.get(frame.f_code.co_varnames[0])
        if isinstance(context, (torch.no_grad, torch.enable_grad, torch.set_grad_enabled)):
            return
        # PyTorch enters contexts of its own; as a decorator of the author's it enters these two.
        if not _is_own(frame.f_back) or isinstance(context, (torch.autocast, torch.inference_mode)):
            self._note("it enters a context, %s" % type(context).__name__)

    def _note(self, why):
        """Refuses once forward has run: what sys.setprofile calls must not raise."""
        if self.why is None:
            self.why = _at(why, _line(sys._getframe(1)))


_MODULE_STATE = tuple(torch.nn.Module().__dict__)


# ---- the tracer -----------------------------------------------------------------------------------------------------


def _modes():
    """Modes that a trace does not record, so that they must not change."""
    return eager.autocast_is_on("cuda"), eager.autocast_is_on("cpu"), torch.is_inference_mode_enabled()


class _Tracer(torch.fx.Tracer):
    def __init__(self, module, grad):
        super().__init__()
        self.watch = _Watch(self, module)
        self.lines = {}
        self.changes_grad = False
        self._grad = grad
        self._modes = _modes()

    def create_node(self, kind, target, args, kwargs, name=None, type_expr=None):
        grad = torch.is_grad_enabled()
        if grad != self._grad:
            self._grad = grad
            self.changes_grad = True
            super().create_node("call_function", torch.set_grad_enabled, (grad,), {})
        if _modes() != self._modes:
            self.watch.refuse("it changes autocast or the inference mode")
        node = super().create_node(kind, target, args, kwargs, name, type_expr)
        self.lines[node] = _line(sys._getframe(1))
        return node

    def proxy(self, node):
        return _Value(node, self)

    def create_arg(self, a):
        if isinstance(a, torch.fx.Proxy):
            return a.node
        if isinstance(a, torch.Tensor):
            self.watch.refuse("it uses a tensor that is not made from its inputs nor held by it")
        if (isinstance(a, (tuple, list, dict)) and type(a) not in (tuple, list, dict, torch.Size)
                and not hasattr(a, "_fields") or dataclasses.is_dataclass(a)):
            self.watch.refuse("it uses a value of type %s, of which a trace would make another" % type(a).__name__)
        return super().create_arg(a)

    def call_module(self, m, forward, args, kwargs):
        if not _on_class(type(m), "__call__")[1].__module__.startswith("torch."):
            # It has run already, and would run again where the recorded call runs.
            self.watch.refuse("it calls a module whose class has a __call__ of its own")
        return self.create_proxy("call_module", self.watch.path_of(m), args, kwargs)

    def to_bool(self, obj):
        frame = sys._getframe(1)
        while _is_own(frame):
            frame = frame.f_back
        if rewrite_bytecode.is_assertion(frame):
            self.create_proxy("call_function", torch._assert, (obj, "assertion in " + _line(frame)), {})
            return True
        self.watch.refuse("its control flow depends on values")

    def iter(self, obj):
        self.watch.refuse("it iterates over a value")


class Trace:
    """One forward in one setting, as a graph that may be changed; or why there is none."""

    def __init__(self, shadow, module, signature, setting):
        """module: an original that is in the shadow; signature: of its forward."""
        shadowed = shadow.of(module)
        for _, child in rewrite_copy.walk(shadowed, rewrite_copy.has_no_python):
            if not rewrite_copy.has_no_python(child):
                child.__dict__["training"] = setting.training
        self.setting = setting
        self.inputs = rewrite_code.inputs_of(signature, setting.given)
        self.graph = None
        self._modules = dict(rewrite_copy.walk(module, rewrite_copy.has_no_python))
        with torch.set_grad_enabled(setting.grad):
            self._tracer = _Tracer(shadowed, setting.grad)
            self.why = self._run(shadow, shadowed, type(module).forward, signature)
        self._watch = self._tracer.watch

    def _run(self, shadow, shadowed, forward, signature):
        """Makes the graph. Returns why it must not be used, or None."""
        watch = self._tracer.watch
        profile, collects = sys.getprofile(), gc.isenabled()

        def run(*values):
            positional, named = rewrite_code.arguments(signature, dict(zip(self.inputs, values)))
            shadow.watch = watch
            gc.disable()  # finalizers and callbacks of a collection would be taken for calls that forward makes
            sys.setprofile(watch.profile)
            try:
                return forward(shadowed, *positional, **named)
            finally:
                sys.setprofile(profile)
                if collects:
                    gc.enable()
                shadow.watch = None

        author = inspect.unwrap(forward)
        with rewrite_code.same_random_numbers() as drawn:
            try:
                self.graph = self._tracer.trace(rewrite_code.function_of(run, self.inputs, author.__globals__))
            except Exception as error:
                return watch.why or _reason(error)
            finally:
                sys.setprofile(profile)  # an old torch.fx switches it off
        if watch.why is None and drawn:
            return "it draws random numbers that its inputs have no part in"
        if watch.why is None:
            watch.why, read = rewrite_bytecode.examine(
                watch.codes, author.__code__, any(map(self._may_be_none, self.graph.nodes)), is_constant)
            for place, value in read.items():
                watch.guard("global", place, value)
        return watch.why

    @property
    def lines(self):
        """{node: the line it comes from}"""
        return self._tracer.lines

    @property
    def changes_grad(self):
        """The gradient mode is set in the graph."""
        return self._tracer.changes_grad

    def depends_on_grad(self):
        return self._watch.asked_for_grad or self._tracer.changes_grad

    def _may_be_none(self, node):
        """True if a value that forward sees here could be None, or hold None."""
        if node.op == "call_module":
            return not is_pytorchs(self.module(node.target))
        if node.op in ("call_function", "call_method"):
            return not is_known(node) or node.target in (getattr, operator.getitem)
        return False

    def depends_on_training(self):
        return any(guard.test == "same" and guard.path.split(".")[-1] == "training" for guard in self._watch.guards)

    def module(self, path):
        """The original's module that a call_module node calls."""
        return self._modules[path]

    def guards(self):
        return tuple(self._watch.guards)

    def guard(self, test, path, value):
        """The graph holds only while this does, too."""
        self._watch.guard(test, path, value)


def is_pytorchs(module):
    """True for a module of PyTorch's own, which takes tensors and gives tensors."""
    return type(module).__module__.startswith("torch.")


def is_known(node):
    """True if the function or method that the node calls is one of PyTorch's or Python's own."""
    if node.op == "call_method":
        return hasattr(torch.Tensor, node.target)
    module = getattr(node.target, "__module__", None) or "torch"  # builtin functions of PyTorch's have none
    return module.split(".")[0] in ("torch", "operator", "_operator", "builtins", "math")


def _reason(error):
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    text = (str(error).strip().splitlines() or [""])[0]
    return _at("it cannot be traced: %s: %s" % (type(error).__name__, text), _line(frames[-1]))
