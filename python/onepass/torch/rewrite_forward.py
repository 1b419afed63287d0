"""A module's forward replaced by graphs, for that module alone.

The module's class becomes a subclass of its own, of the same name. Its forward asks which graph holds (see
rewrite_trace) and runs it; where none does it runs the forward that was always there. Everything else of the module
stays what and where it was, so changing the class back undoes it.
"""

import copy
import copyreg
import inspect
import itertools
import weakref

import torch

from onepass.torch import rewrite_code, rewrite_patterns
from onepass.torch.rewrite_trace import Setting, Shadow, Trace, is_constant

_numbers = itertools.count(1)


def is_same(a, b):
    """What guards ask of constants: equal, and 1 is not True."""
    return a is b or (type(a) is type(b) and a == b)


# ---- which graphs a forward has -------------------------------------------------------------------------------------


def _settings(signature):
    """The settings to begin with: optional arguments that are None by default are either all given or none is."""
    optional = [each.name for each in signature.parameters.values() if each.default is None]
    return [Setting(True, True, ())] + ([Setting(True, True, tuple(optional))] if optional else [])


def _words(setting):
    words = [] if setting.training else ["in eval mode"]
    words += [] if setting.grad else ["without gradients"]
    return ", ".join(["forward"] + words + ["with %s" % name for name in setting.given])


def _why_not_traced(cls):
    """Why no forward of this class's can be traced; None if it can."""
    if cls.__getattribute__ is not object.__getattribute__:
        return "its class has a __getattribute__ of its own"
    try:
        parameters = list(inspect.signature(cls.forward).parameters.values())
        inspect.unwrap(cls.forward).__code__
    except (TypeError, ValueError, AttributeError):
        return "it is not a Python function"
    for each in parameters[:2]:
        if each.kind is each.VAR_POSITIONAL:
            return "its inputs have no names: it takes *%s" % each.name
    for each in parameters:
        if each.default is not each.empty and not is_constant(each.default):
            return "the default of %s may change: its type is %s" % (each.name, type(each.default).__name__)
    return None


def find(shadow, module):
    """([traces with something replaced], [replaced: (line, what, by)], [refused: (line, what, why)])"""
    why = _why_not_traced(type(module))
    if why:
        return [], [], [("", "forward", why)]
    signature = inspect.signature(type(module).forward)
    traces, replaced, refused = [], [], []
    queue = _settings(signature)

    def also(condition, **flags):
        if condition and setting._replace(**flags) not in queue:
            queue.append(setting._replace(**flags))

    for setting in queue:
        trace = Trace(shadow, module, signature, setting)
        also(trace.depends_on_training(), training=not setting.training)
        also(trace.depends_on_grad(), grad=not setting.grad)
        if trace.why:
            if all(trace.why != why for _, _, why in refused):
                refused.append(("", _words(setting), trace.why))
            continue
        found = rewrite_patterns.apply(trace)
        replaced += found.replaced
        refused += found.refused
        if found.replaced:
            traces.append(trace)
    return traces, replaced, refused


# ---- the forward that chooses among them ----------------------------------------------------------------------------


class _Text:
    """Names for the objects in a text: an argument may be called type."""

    def __init__(self):
        self.names = {}

    def name(self, value):
        for name, known in self.names.items():
            if known is value:
                return name
        name = "onepass_%d" % len(self.names)
        self.names[name] = value
        return name

    def is_same(self, expression, value):
        """Python for whether the expression has the value."""
        if value is None or isinstance(value, bool):
            return "%s is %s" % (expression, value)
        return "%s(%s, %s)" % (self.name(is_same), expression, self.name(value))


def _attribute(text, module, path):
    """Python for an attribute; a child may have a number for a name."""
    for name in path.split("."):
        module = "%s.%s" % (module, name) if name.isidentifier() else "%s(%s, %r)" % (text.name(getattr), module, name)
    return module


def _conditions(text, signature, trace):
    """Python for whether the trace holds, in parts."""
    this, *others = signature.parameters.values()
    for each in others:
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            yield "not " + each.name
        elif each.name in trace.inputs:
            yield each.name + " is not None"
        else:
            yield text.is_same(each.name, each.default)
    if trace.depends_on_grad():
        yield "%s() is %s" % (text.name(torch.is_grad_enabled), trace.setting.grad)
    for test, path, value in trace.guards():
        if test == "global":
            yield text.is_same("%s.%s" % (text.name(path[0]), path[1]), value)
            continue
        found = _attribute(text, this.name, path)
        if test == "same":
            yield text.is_same(found, value)
        elif test == "tensor":
            yield "%s(%s, %s)" % (text.name(isinstance), found, text.name(torch.Tensor))
        else:
            yield "%s(%s) in %s" % (text.name(type), found, text.name(value))


def _listed(signature, text=None):
    """The arguments as in a definition, with defaults in text's names, or as in a call."""
    words, star = [], False
    parameters = list(signature.parameters.values())
    for at, each in enumerate(parameters):
        if each.kind is each.VAR_POSITIONAL:
            words.append("*" + each.name)
            star = True
        elif each.kind is each.VAR_KEYWORD:
            words.append("**" + each.name)
        elif text is None:
            words.append("%s=%s" % (each.name, each.name) if each.kind is each.KEYWORD_ONLY else each.name)
        else:
            if each.kind is each.KEYWORD_ONLY and not star:
                words.append("*")
                star = True
            words.append(each.name if each.default is each.empty else "%s=%s" % (each.name, text.name(each.default)))
            if each.kind is each.POSITIONAL_ONLY and (at + 1 == len(parameters)
                                                      or parameters[at + 1].kind is not each.POSITIONAL_ONLY):
                words.append("/")
    return ", ".join(words)


def is_rewritten(module):
    return hasattr(type(module), "onepass_base")


def _reduce_ex(self, protocol):
    """What was pickled is rewritten again where it is loaded, by the code and the PyTorch that are there."""
    base = type(self).onepass_base
    made = base.__reduce_ex__(self, protocol)
    if made[0] in (copyreg.__newobj__, copyreg._reconstructor):
        return (_loaded, (base,)) + made[2:]
    return (base if made[0] is type(self) else made[0],) + made[1:]


def _loaded(base):
    return object.__new__(rewrite_code.subclass(base, {"onepass_base": base, "__setstate__": _set_state}))


def _set_state(self, state):
    self.__class__ = base = type(self).onepass_base
    self.__setstate__(state)
    traces = find(Shadow(self), self)[0]
    if traces:
        self.__class__ = rewritten_class(base, traces)


def _copy(self):
    return _copied(self, "__copy__", lambda part: part, {})


def _deepcopy(self, memo):
    return _copied(self, "__deepcopy__", lambda part: copy.deepcopy(part, memo), memo, memo)


def _copied(self, method, copied, memo, *arguments):
    """A copy has the class, too. As the copy module does it, only that __reduce_ex__ is for pickle."""
    base = type(self).onepass_base
    if hasattr(base, method):
        return getattr(base, method)(self, *arguments)
    made = base.__reduce_ex__(self, 4)
    new = memo[id(self)] = made[0](*copied(made[1]))
    if len(made) > 2 and made[2] is not None:
        new.__setstate__(copied(made[2]))
    return new


# Modules whose graphs are the same share a class: torch.compile compiles what they do once.
_classes = weakref.WeakValueDictionary()


def rewritten_class(base, traces):
    """The class for modules of the class base whose forward is traced by these."""
    signature = inspect.signature(base.forward)
    this = next(iter(signature.parameters))
    text = _Text()
    lines = ["def forward(%s):" % _listed(signature, text)]
    graphs = []
    for number, trace in enumerate(traces):
        graphs.append(trace.graph.python_code("self"))
        call = "return onepass_graph_%d(%s)" % (number, ", ".join([this] + trace.inputs))
        lines.append("    if %s:" % (" and ".join(_conditions(text, signature, trace)) or "True"))
        if trace.changes_grad:
            lines += ["        try:", "            " + call, "        finally:",
                      "            %s(%s)" % (text.name(torch.set_grad_enabled), trace.setting.grad)]
        else:
            lines.append("        " + call)
    lines.append("    return %s(%s)\n" % (text.name(base.forward), _listed(signature)))
    sources = ["\n".join(lines)] + [graph.src for graph in graphs]
    key = (base, tuple(sources), tuple((type(value), _hashable(value)) for value in text.names.values()),
           tuple((name, _hashable(value)) for graph in graphs for name, value in sorted(graph.globals.items())))
    made = _classes.get(key)
    if made is None:
        names = dict(text.names)
        where = "<onepass.torch.rewrite of %s.forward, %d>" % (base.__qualname__, next(_numbers))
        for number, graph in enumerate(graphs):
            names["onepass_graph_%d" % number] = rewrite_code.define(
                graph.src, "forward", dict(graph.globals), "%s graph %d" % (where, number))
        forward = rewrite_code.define(sources[0], "forward", names, where)
        forward.__doc__ = base.forward.__doc__
        forward.__annotations__ = getattr(base.forward, "__annotations__", {})
        forward.__qualname__ = getattr(base.forward, "__qualname__", forward.__qualname__)
        made = _classes[key] = rewrite_code.subclass(base, {
            "forward": forward, "onepass_base": base, "__reduce_ex__": _reduce_ex, "__copy__": _copy,
            "__deepcopy__": _deepcopy})
    return made


def _hashable(value):
    return value if is_constant(value) else id(value)
