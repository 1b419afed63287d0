"""Copies of a model's modules that share everything the modules hold.

A copy has its own children, hooks and training flag. Parameters and buffers are shared as tables, not only as tensors:
what .to(), .half() or an assignment puts there is seen by both, in whichever it was done. All other attributes are the
same objects, except that a module of the tree, or a method of one, becomes its copy's.
"""

import functools
import types

import torch
from torch.nn.modules.lazy import LazyModuleMixin

_SHARED = ("_parameters", "_buffers", "_non_persistent_buffers_set")
# What every module has and a copy must not share: hooks. (_modules is made anew.)
_OWN = tuple(name for name, value in torch.nn.Module().__dict__.items()
             if isinstance(value, dict) and name not in _SHARED + ("_modules",))


def why_opaque(module):
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


def has_no_python(module):
    """True if what it does is not its class's forward, as Python has it."""
    return isinstance(module, (torch.jit.ScriptModule, torch.fx.GraphModule))


def walk(module, is_closed=why_opaque, path="", seen=None):
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


def copy_modules(model, is_closed=why_opaque, class_of=type):
    """{id(module): its copy} of the tree; class_of(module) is the copy's class. What is closed is its own copy."""
    modules = [module for _, module in walk(model, is_closed)]
    copies = {id(module): module if is_closed(module) else object.__new__(class_of(module)) for module in modules}
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
