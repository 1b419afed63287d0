"""A trace of a module's forward by torch.fx, with what it depends on.

A trace is of one setting: a training flag, a gradient mode, and which optional arguments are given. It holds while its
guards do: the attributes and variables that forward reads still have the values they had. Tensors are read in every
call.
"""

import enum
import functools
import inspect
import operator
import os
import sys
import traceback
import types
from collections import namedtuple

import torch
import torch.fx

from onepass.torch import rewrite_patterns
from onepass.torch.rewrite_source import Refused, Source, is_torchs

Setting = namedtuple("Setting", "training grad given")

# test(value found, expected); holder: what the path begins at, None for the module itself
Guard = namedtuple("Guard", "holder path test expected")

VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
MISSING = object()
# A class may define these without being asked by a forward that uses its objects.
_UNRELATED = ("__init__", "__new__", "__call__", "__init_subclass__", "__repr__", "__str__", "__dir__", "__hash__",
              "__del__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__copy__", "__deepcopy__",
              "__annotate__", "__annotate_func__")


def special_method(cls):
    """The name of a method of the class's own that Python may call without its name in the source, or None."""
    for base in cls.__mro__:
        if not is_torchs(base.__module__) and base is not object:
            for name, entry in base.__dict__.items():
                if name.startswith("__") and name not in _UNRELATED and isinstance(entry, types.FunctionType):
                    return name
    return None


def is_same(a, b):
    """Equal, where 1 is not True."""
    return a is b or (type(a) is type(b) and a == b)


def _is_tensor(value, _):
    return isinstance(value, torch.Tensor)


def has_no_python(module):
    """True if what it computes is not what its class's forward says."""
    return isinstance(module, (torch.jit.ScriptModule, torch.fx.GraphModule))


def walk(module, is_closed, path="", seen=None):
    """(path, module) of every module once, parents first. What is closed is not entered."""
    seen = set() if seen is None else seen
    if id(module) in seen:
        return
    seen.add(id(module))
    yield path, module
    if not is_closed(module):
        for name, child in module._modules.items():
            if child is not None:
                yield from walk(child, is_closed, path + "." + name if path else name, seen)


def subclass(base, namespace):
    """A class derived from base, of its name, whose objects may become base's and the other way round."""
    namespace = dict(namespace, __module__=base.__module__, __qualname__=base.__qualname__, __doc__=base.__doc__)
    # Derived afterwards: a registry that base keeps of its subclasses (__init_subclass__) must not hear of it.
    made = type(base)(base.__name__, (torch.nn.Module,), namespace)
    made.__bases__ = (base,)
    return made


# ---- proxies --------------------------------------------------------------------------------------------------------


def _as_call(name):
    """An operator that torch.fx writes as a call. Of operator.iadd it makes a statement, a += b, which in the case of
    a number rebinds another variable than forward did."""
    function = getattr(operator, name)

    def call(*arguments):
        return function(*arguments)
    call.__name__ = call.__qualname__ = name
    return call


_IN_PLACE = {name: _as_call(name) for name in (
    "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor", "ilshift",
    "irshift")}
_setitem = _as_call("setitem")


class _Recorded:
    """Records what torch.fx.Proxy would lose: writing to a value, and what text is made of it."""

    def __getattr__(self, name):
        return _Attribute(self, name)

    def __setitem__(self, key, value):
        self.tracer.create_proxy("call_function", _setitem, (self, key, value), {})

    def _refuse_text(self, *_):
        self.tracer.refuse("it makes text of a value")

    __str__ = __repr__ = __format__ = _refuse_text


def _in_place(function):
    def record(self, other):
        return self.tracer.create_proxy("call_function", function, (self, other), {})
    return record


for _name, _function in _IN_PLACE.items():
    setattr(_Recorded, "__%s__" % _name, _in_place(_function))


class _Value(_Recorded, torch.fx.Proxy):
    pass


class _Attribute(_Recorded, torch.fx.proxy.Attribute):
    pass


# ---- the trace ------------------------------------------------------------------------------------------------------


def _line(frame):
    """'model.py:12' of the innermost line that is neither PyTorch's nor ours; "" outside of forward."""
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        if frame.f_code is Trace.run.__code__:
            return ""
        if not (is_torchs(name) or name.startswith(("onepass.", "importlib."))):
            return "%s:%d" % (os.path.basename(frame.f_code.co_filename), frame.f_lineno)
        frame = frame.f_back
    return ""


class Trace(torch.fx.Tracer):
    """One forward in one setting, as a graph that patterns may change.

    forward gets a stand-in for the module whose every attribute access comes here: tensors are given as proxies,
    constants become guards, the rest is refused.
    """

    def __init__(self, module, signature, setting):
        super().__init__()
        self.setting = setting
        self.inputs = [each.name for each in list(signature.parameters.values())[1:] if each.kind not in VARIADIC
                       and (each.default is each.empty or each.name in setting.given)]
        self.guards = {}
        self.lines = {}             # {node: the line it comes from}
        self.changes_grad = False   # the graph sets the gradient mode
        self._source = Source()
        self._grad = setting.grad
        self._signature = signature
        self._modules = dict(walk(module, has_no_python))
        self._paths = {id(each): path for path, each in self._modules.items()}
        self._stand_ins = {}        # {id(module): its stand-in}
        self._originals = {}        # {id(stand-in): module}
        classes = {}
        for each in self._modules.values():
            if not has_no_python(each):
                if type(each) not in classes:
                    classes[type(each)] = self._stand_in_class(type(each))
                made = object.__new__(classes[type(each)])
                self._stand_ins[id(each)], self._originals[id(made)] = made, each

    def run(self):
        """Makes the graph. Refused: why it must not be used."""
        module = self._modules[""]
        forward = type(module).forward
        self._source.check(forward, type(module), is_forward=True)

        def call(*values):
            values = dict(zip(self.inputs, values))
            positional, named = [], {}
            for each in list(self._signature.parameters.values())[1:]:
                if each.kind is each.KEYWORD_ONLY:
                    named[each.name] = values.get(each.name, each.default)
                elif each.kind not in VARIADIC:
                    positional.append(values.get(each.name, each.default))
            return forward(self._stand_ins[id(module)], *positional, **named)

        self._call = call
        profile = sys.getprofile()
        with torch.set_grad_enabled(self.setting.grad):
            try:
                self.trace(call)
            except Refused:
                raise
            except Exception as error:
                frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
                text = (str(error).strip().splitlines() or [""])[0]
                raise Refused(", ".join(filter(None, ["it cannot be traced: %s: %s" % (type(error).__name__, text),
                                                      _line(frames[-1])]))) from None
            finally:
                sys.setprofile(profile)  # an old torch.fx switches it off
        if self._source.tests_for_none and any(map(self._may_be_none, self.graph.nodes)):
            raise Refused("it compares a value by `is`, which may be None")
        for holder, name, value in self._source.variables.values():
            self.guard(is_same, name, value, holder)

    def refuse(self, why):
        raise Refused(", ".join(filter(None, [why, _line(sys._getframe(1))])))

    def module(self, path):
        """The module that a call_module node calls."""
        return self._modules[path]

    def guard(self, test, path, expected=None, holder=None):
        """The graph holds only while the test does."""
        guard = Guard(holder, tuple(path.split(".")), test, expected)
        self.guards[id(holder), path, test] = guard

    def why_not_tensors(self, *nodes):
        """None: what they are is seen in a call, which refuses what the library does not have."""

    def why_not(self, test, *nodes):
        """None: the test is made in a call."""

    def depends_on_training(self):
        return any(guard.path[-1] == "training" for guard in self.guards.values())

    def depends_on_grad(self):
        return self.changes_grad or self._source.reads_grad_mode

    def _may_be_none(self, node):
        if node.op == "call_module":
            return not rewrite_patterns.is_pytorchs(self.module(node.target))
        return node.op in ("call_function", "call_method") and (
            not rewrite_patterns.is_known(node) or node.target in (getattr, operator.getitem))

    # ---- attributes of modules

    def _stand_in_class(self, base):
        def __getattribute__(this, name):
            if name == "__class__":
                return base
            return base.__getattribute__(this, name) if name.startswith("__") else self._read(this, name)

        def __setattr__(this, name, value):
            # The second half of self.tensor += 1, of which the first has done everything, or a refusal.
            changed = value.node.args[0] if isinstance(value, _Value) and (
                value.node.target in _IN_PLACE.values()) else None
            if changed is None or changed.op != "get_attr" or changed.target != self._path(this, name):
                self.refuse("it sets self.%s" % self._path(this, name))

        return subclass(base, {"__getattribute__": __getattribute__, "__setattr__": __setattr__})

    def _path(self, stand_in, name=None):
        path = self._paths.get(id(self._originals.get(id(stand_in), stand_in)))
        if path is None or (not path and name is None):
            self.refuse("it uses a module that is not one of its submodules")
        return ".".join(filter(None, [path, name]))

    def _read(self, stand_in, name):
        """stand_in.name as Python finds it: the class's properties, the instance, the class, torch.nn.Module's
        tables."""
        module = self._originals[id(stand_in)]
        state, base = module.__dict__, type(module)
        owner = next((cls for cls in base.__mro__ if name in cls.__dict__), None)
        entry = owner.__dict__[name] if owner else MISSING
        if name == "_modules":
            return types.MappingProxyType({key: self._stand_ins.get(id(child), child) for key, child in
                                           module._modules.items()})
        if name == "training":
            return self._value(stand_in, name, self.setting.training)
        if not isinstance(entry, property):
            if name in state:
                return self._value(stand_in, name, state[name])
            if isinstance(entry, functools.cached_property):
                self.refuse("it sets self.%s, a cached property" % self._path(stand_in, name))
        if entry is MISSING:
            for table in ("_parameters", "_buffers", "_modules"):
                if name in state[table]:
                    return self._value(stand_in, name, state[table][name])
            raise AttributeError("'%s' object has no attribute '%s'" % (base.__name__, name))
        if owner is torch.nn.Module and name not in ("forward", "get_submodule"):
            self.refuse("it calls %s of torch.nn.Module" % name)
        if not hasattr(type(entry), "__get__"):
            return self._value(stand_in, name, entry)
        function = entry.fget if isinstance(entry, property) else getattr(entry, "__func__", entry)
        if not isinstance(function, types.FunctionType):
            self.refuse("it reads self.%s, a %s" % (self._path(stand_in, name), type(entry).__name__))
        # torch.fx reads forward of a module that is called, but does not run it.
        if not is_torchs(owner.__module__) and not (
                name == "forward" and is_torchs(sys._getframe(2).f_globals.get("__name__"))):
            self._source.check(function, base, is_bound_to_class=isinstance(entry, classmethod))
        return entry.__get__(stand_in, base)

    def _value(self, stand_in, name, value):
        path = self._path(stand_in, name)
        if isinstance(value, torch.Tensor):
            self.guard(_is_tensor, path)
            return self.create_proxy("get_attr", path, (), {})
        if isinstance(value, torch.nn.Module) and id(value) in self._paths:
            special = special_method(type(value))
            if special:
                self.refuse("self.%s: its class has a %s of its own" % (path, special))
            return self._stand_ins.get(id(value), value)
        if type(value) is types.MethodType and id(value.__self__) in self._stand_ins:
            self._source.check(value.__func__, type(value.__self__))
            return types.MethodType(value.__func__, self._stand_ins[id(value.__self__)])
        self._source.accept(value, "self." + path, self.refuse)
        self.guard(is_same, path, value)
        return value

    # ---- what torch.fx asks of a tracer

    def create_args_for_root(self, root_fn, is_module, concrete_args=None):
        return self._call, [self.create_proxy("placeholder", name, (), {}) for name in self.inputs]

    def create_node(self, kind, target, args, kwargs, name=None, type_expr=None):
        grad = torch.is_grad_enabled()
        if grad != self._grad:
            self._grad = grad
            self.changes_grad = True
            super().create_node("call_function", torch.set_grad_enabled, (grad,), {})
        node = super().create_node(kind, target, args, kwargs, name, type_expr)
        self.lines[node] = _line(sys._getframe(1))
        return node

    def proxy(self, node):
        return _Value(node, self)

    def create_arg(self, a):
        if isinstance(a, torch.Tensor):
            self.refuse("it uses a tensor that is not made from its inputs nor held by it")
        for kind in (int, float):
            if isinstance(a, kind) and type(a) not in (kind, bool):
                a = kind(a)  # of NumPy's, or of an enumeration: torch.fx writes numbers as they are printed
        if isinstance(a, enum.Enum):
            self.refuse("it computes with a value of type %s" % type(a).__name__)
        return super().create_arg(a)

    def call_module(self, m, forward, args, kwargs):
        call = next(cls for cls in type(m).__mro__ if "__call__" in cls.__dict__)
        if not is_torchs(call.__module__):
            # It has run already, and would run again where the recorded call runs.
            self.refuse("it calls a module whose class has a __call__ of its own")
        return self.create_proxy("call_module", self._path(m), args, kwargs)

    def to_bool(self, obj):
        frame = sys._getframe(1)
        while is_torchs(frame.f_globals.get("__name__")) or frame.f_globals is globals():
            frame = frame.f_back
        if (frame.f_code.co_filename, frame.f_lineno) not in self._source.assertions:
            self.refuse("its control flow depends on values")
        self.create_proxy("call_function", torch._assert, (obj, "assertion in " + _line(frame)), {})
        return True

    def iter(self, obj):
        self.refuse("it iterates over a value")
