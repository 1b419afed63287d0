"""rewrite(model): the model with onepass's functions where it recognises what they compute, and a report of it.

Modules are taken one by one. A torch.nn.KLDivLoss becomes an onepass.torch.KLDivLoss, a torch.nn.CrossEntropyLoss one
of rewrite_losses.py. The forward of every class that is not PyTorch's own is checked (rewrite_source.py), traced by
torch.fx (rewrite_trace.py), searched for patterns (rewrite_patterns.py) and, if something is found, replaced for that
module alone. docs/rewrite.md says what is recognised and when it is refused.
"""

import copy
import copyreg
import functools
import inspect
import types
import weakref
from collections import namedtuple

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from onepass.torch import rewrite_patterns
from onepass.torch import rewrite_source as source
from onepass.torch.modules import KLDivLoss
from onepass.torch.rewrite_losses import CrossEntropyLoss
from onepass.torch.rewrite_trace import MISSING, VARIADIC, Setting, Trace, is_same, special_method, subclass, walk

# where: the module's path, "" for the model itself; line: "file.py:12" where there is one
Replaced = namedtuple("Replaced", "where what by line")
Refused = namedtuple("Refused", "where what why line")

_Change = namedtuple("_Change", "module before after attributes")


class Report:
    """What rewrite did: `replaced`, a list of (where, what, by, line), and `refused`, of (where, what, why, line)."""

    def __init__(self):
        self.replaced = []
        self.refused = []
        self._changes = []
        self._inplace = False

    def __str__(self):
        places = {}
        for word, rows, sign in (("replaced", self.replaced, "->"), ("refused", self.refused, "-")):
            for where, what, rest, line in rows:
                text = "%s%s %s %s" % (what, " (%s)" % line if line else "", sign, rest)
                places.setdefault((word, text), []).append(where or "the model")
        lines = ["%d replaced, %d refused" % (len(self.replaced), len(self.refused))]
        for (word, text), where in places.items():
            more = " and %d more" % (len(where) - 1) if len(where) > 1 else ""
            lines.append("  %-8s  %s%s: %s" % (word, where[0], more, text))
        return "\n".join(lines)

    def __repr__(self):
        return "<onepass.torch.rewrite: %d replaced, %d refused>" % (len(self.replaced), len(self.refused))

    def undo(self):
        """Makes a model that was rewritten in place what it was. Copies of it stay as they are."""
        if not self._inplace:
            raise RuntimeError("rewrite: undo: the model was not rewritten in place; the original is as it was")
        for change in self._changes:
            if type(change.module) is not change.after:
                raise RuntimeError("rewrite: undo: the class of a %s was changed again since; undo that first" %
                                   change.before.__name__)
        for change in self._changes:
            change.module.__class__ = change.before
            for name in change.attributes:
                del change.module.__dict__[name]
        self._changes = []


def _why_opaque(module):
    """Why neither this module nor what is inside it can be copied or changed; None if it can."""
    if isinstance(module, torch.jit.ScriptModule):
        return "it is scripted: its code is fixed; rewrite the model, then script what needs it"
    if module.__dict__.get("_compiled_call_impl") is not None:
        return "it was compiled by its method compile; rewrite the model, then compile it"
    if "forward" in module.__dict__:
        return "its forward was replaced on this very module"
    if isinstance(module, torch.fx.GraphModule):
        return "it is a torch.fx.GraphModule; rewrite the model, then trace it"
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        return "its parameters have no shape yet; call the model once, then rewrite it"
    if type(module).__module__.startswith(("torch.nn.parallel.", "torch.distributed.", "torch._dynamo.")):
        return "it wraps a model; rewrite the model, then wrap it"
    return None


def _plan(model, report):
    """[(module, its new class, attributes that come with it)]; fills the report."""
    changes = []

    def record(path, replaced, refused):
        report.replaced += [Replaced(path, what, by, line) for line, what, by in replaced]
        report.refused += [Refused(path, what, why, line) for line, what, why in refused]

    for path, module in walk(model, _why_opaque):
        name = type(module).__name__
        why = _why_opaque(module)
        if why is None and type(module) is torch.nn.KLDivLoss:
            why = rewrite_patterns.why_not_loss(module)
        elif why is None and type(module) is torch.nn.CrossEntropyLoss:
            why = rewrite_patterns.why_not_cross_entropy_loss(module)
        if why:
            record(path, [], [("", name, why)])
        elif type(module) is torch.nn.KLDivLoss:
            record(path, [("", name, "onepass.torch.KLDivLoss")], [])
            semantics = rewrite_patterns.semantics_of(module.log_target)
            changes.append((module, KLDivLoss, {"divisor": None, "semantics": semantics}))
        elif type(module) is torch.nn.CrossEntropyLoss:
            record(path, [("", name, "onepass.torch.cross_entropy")], [])
            changes.append((module, CrossEntropyLoss, {}))
        elif not (type(module).__module__.startswith(("torch.", "onepass.")) or _is_rewritten(module)):
            traces, replaced, refused = _find(module)
            record(path, replaced, refused)
            if traces:
                changes.append((module, _rewritten_class(type(module), traces), {}))
    report.replaced = list(dict.fromkeys(report.replaced))
    report.refused = list(dict.fromkeys(report.refused))
    return changes


def rewrite(model, inplace=False):
    """(the model with onepass's functions in it, a Report)

    model     any torch.nn.Module. It is not changed: the new model is a copy of its modules that shares its parameters
              and buffers, so that training either trains both, and a state_dict of one fits the other
    inplace   True: the model itself is changed and returned; report.undo() makes it what it was

    What is recognised is replaced per module, never in a class. Nothing is changed where the result could differ; the
    report says where that was and why. While rewrite runs, forward is run symbolically: no other thread may use models.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError("rewrite: model: %s; it must be a torch.nn.Module" % type(model).__name__)
    report = Report()
    report._inplace = inplace
    changes = _plan(model, report)
    copies = {} if inplace else _copy_modules(model)
    for module, after, attributes in changes:
        module = copies.get(id(module), module)
        report._changes.append(_Change(module, type(module), after, attributes))
        module.__class__ = after
        module.__dict__.update(attributes)
    return copies.get(id(model), model), report


# ---- copies of modules that share what the modules hold -------------------------------------------------------------

# Shared as tables, not only as tensors: what .to(), .half() or an assignment puts there is seen by both.
_SHARED = ("_parameters", "_buffers", "_non_persistent_buffers_set")
# What every module has and a copy must not share: hooks. (_modules is made anew.)
_OWN = tuple(name for name, value in torch.nn.Module().__dict__.items()
             if isinstance(value, dict) and name not in _SHARED + ("_modules",))


def _copy_modules(model):
    """{id(module): its copy} of the tree. A copy has children, hooks and a training flag of its own; all other
    attributes are the same objects, except that a module of the tree, or a method of one, becomes its copy's. An opaque
    module is its own copy."""
    modules = [module for _, module in walk(model, _why_opaque)]
    copies = {id(module): module if _why_opaque(module) else object.__new__(type(module)) for module in modules}
    for module in modules:
        made = copies[id(module)]
        if made is module:
            continue
        state = made.__dict__
        for name, value in module.__dict__.items():
            if name == "_modules":
                state[name] = type(value)((key, copies.get(id(child), child)) for key, child in value.items())
            elif name in _SHARED:
                state[name] = value
            elif name in _OWN:
                state[name] = type(value)((key, _mapped(hook, copies)) for key, hook in value.items())
            else:
                state[name] = _mapped(value, copies)
    return copies


def _mapped(value, copies):
    """The value, or if modules of the tree are in it one with their copies instead."""
    if isinstance(value, torch.nn.Module):
        return copies.get(id(value), value)
    if type(value) is types.MethodType and id(value.__self__) in copies:
        return types.MethodType(value.__func__, copies[id(value.__self__)])
    if type(value) is functools.partial:
        function, arguments, named = (_mapped(part, copies) for part in (value.func, value.args, value.keywords))
        return functools.partial(function, *arguments, **named)
    if type(value) in (list, tuple):
        mapped = [_mapped(part, copies) for part in value]
        return type(value)(mapped) if any(a is not b for a, b in zip(mapped, value)) else value
    if type(value) is dict:
        mapped = {key: _mapped(part, copies) for key, part in value.items()}
        return mapped if any(mapped[key] is not value[key] for key in value) else value
    return value


# ---- which traces a forward has -------------------------------------------------------------------------------------


def _why_not_traced(cls):
    """Why no forward of this class can be traced; None if it can."""
    special = special_method(cls)
    if special:
        return "its class has a %s of its own" % special
    if not isinstance(cls.forward, types.FunctionType):
        return "it is not a Python function"
    for each in list(inspect.signature(cls.forward).parameters.values())[:2]:
        if each.kind is each.VAR_POSITIONAL:
            return "its inputs have no names: it takes *%s" % each.name
    return None


def _words(setting):
    words = [] if setting.training else ["in eval mode"]
    words += [] if setting.grad else ["without gradients"]
    return ", ".join(["forward"] + words + ["with %s" % name for name in setting.given])


def _find(module):
    """([traces with something replaced], [replaced: (line, what, by)], [refused: (line, what, why)])"""
    if type(module).forward is torch.nn.Module.forward:
        return [], [], []
    why = _why_not_traced(type(module))
    if why:
        return [], [], [("", "forward", why)]
    signature = inspect.signature(type(module).forward)
    traces, replaced, refused = [], [], []
    # Optional arguments that are None by default are either all given or none is.
    optional = tuple(each.name for each in signature.parameters.values() if each.default is None)
    settings = [Setting(True, True, given) for given in dict.fromkeys([(), optional])]

    def also(condition, **flags):
        if condition and setting._replace(**flags) not in settings:
            settings.append(setting._replace(**flags))

    for setting in settings:
        trace = Trace(module, signature, setting)
        try:
            trace.run()
        except source.Refused as error:
            if all(str(error) != why for _, _, why in refused):
                refused.append(("", _words(setting), str(error)))
        else:
            found = rewrite_patterns.apply(trace)
            replaced += found.replaced
            refused += found.refused
            if found.replaced:
                traces.append(trace)
        also(trace.depends_on_training(), training=not setting.training)
        also(trace.depends_on_grad(), grad=not setting.grad)
    return traces, replaced, refused


# ---- the forward that chooses among them ----------------------------------------------------------------------------

# function(module, *inputs): the graph; inputs: names; defaults: [(name, value)] of the other arguments
# grad: the gradient mode that it is for, None if it does not depend on it
_Variant = namedtuple("_Variant", "function inputs defaults guards grad")


def _variant(trace):
    parameters = list(trace._signature.parameters.values())[1:]
    defaults = [(each.name, each.default) for each in parameters
                if each.kind not in VARIADIC and each.name not in trace.inputs]
    function = type(torch.fx.GraphModule(trace.module(""), trace.graph)).forward
    return _Variant(function, tuple(trace.inputs), tuple(defaults), tuple(trace.guards.values()),
                    trace.setting.grad if trace.depends_on_grad() else None)


def _holds(variant, module, values):
    if variant.grad is not None and torch.is_grad_enabled() is not variant.grad:
        return False
    for name in variant.inputs:
        if values.get(name) is None:
            return False
    for name, default in variant.defaults:
        if not is_same(values.get(name, default), default):
            return False
    for holder, path, test, expected in variant.guards:
        value = module if holder is None else holder
        for name in path:
            value = value.get(name, MISSING) if type(value) is dict else getattr(value, name, MISSING)
        if not test(value, expected):
            return False
    return True


def _forward(base, variants):
    """base.forward, by the first variant that holds."""
    parameters = list(inspect.signature(base.forward).parameters.values())[1:]
    positional = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    named = [each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)]
    original = base.forward

    @functools.wraps(original)
    def forward(self, *args, **kwargs):
        values = dict(zip(positional, args), **kwargs)
        if len(values) == len(args) + len(kwargs) and all(name in named for name in kwargs):
            for variant in variants:
                if _holds(variant, self, values):
                    inputs = [values[name] for name in variant.inputs]
                    if variant.grad is None:
                        return variant.function(self, *inputs)
                    try:
                        return variant.function(self, *inputs)
                    finally:
                        torch.set_grad_enabled(variant.grad)
        return original(self, *args, **kwargs)

    return forward


def _is_rewritten(module):
    return hasattr(type(module), "onepass_base")


def _as_base(copied):
    """A method that is done to the module as one of its original class; a copy has the rewritten class, too."""
    def method(self, *arguments):
        rewritten = type(self)
        self.__class__ = rewritten.onepass_base
        try:
            new = copied(self, *arguments)
        finally:
            self.__class__ = rewritten
        if type(new) is rewritten.onepass_base:
            new.__class__ = rewritten
        return new
    return method


def _reduce_ex(self, protocol):
    """What is pickled is rewritten again where it is loaded, by the code and the PyTorch that are there."""
    made = self.__reduce_ex__(protocol)
    function = _new if made[0] is copyreg.__newobj__ else made[0]  # pickle holds the former to the object's class
    return made if len(made) < 3 else (function,) + made[1:3] + (None, None, _restore)


def _new(cls, *arguments):
    return cls.__new__(cls, *arguments)


def _restore(module, state):
    module.__setstate__(state)
    traces = _find(module)[0]
    if traces:
        module.__class__ = _rewritten_class(type(module), traces)


# Modules whose graphs are the same share a class: torch.compile compiles what they do once.
_classes = weakref.WeakValueDictionary()


def _rewritten_class(base, traces):
    """The class for modules of the class base whose forward is traced by these."""
    def key_of(value):
        if type(value) is tuple:
            return tuple(map(key_of, value))
        return type(value), value if type(value) in (bool, int, float, str) else id(value)

    codes = [trace.graph.python_code("self") for trace in traces]
    key = (base, base.forward, tuple((trace.setting, trace.depends_on_grad()) for trace in traces),
           tuple(code.src for code in codes),
           tuple((name, id(value)) for code in codes for name, value in sorted(code.globals.items())),
           tuple((id(guard.holder), guard.path, guard.test, key_of(guard.expected))
                 for trace in traces for guard in trace.guards.values()))
    made = _classes.get(key)
    if made is None:
        made = _classes[key] = subclass(base, {
            "forward": _forward(base, [_variant(trace) for trace in traces]), "onepass_base": base,
            "__reduce_ex__": _as_base(_reduce_ex), "__copy__": _as_base(copy.copy),
            "__deepcopy__": _as_base(copy.deepcopy)})
    return made
