"""What is recognised in a trace, and what it becomes.

A pattern is a function of a trace, one of its nodes and what was found so far. It changes the graph and says
found.replace(...), or leaves it and says found.refuse(...). It refuses when the result could differ: unsure is no.
"""

import operator
import warnings
from collections import namedtuple

import torch
import torch.fx

from onepass.torch import eager
from onepass.torch.head import linear_batch_norm_softmax_of
from onepass.torch.kl import kl_div, kl_div_probs
from onepass.torch.modules import KLDivLoss
from onepass.torch.rewrite_trace import is_known, is_pytorchs

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_LOSS = (KLDivLoss,)
_REDUCTIONS = ("none", "mean", "batchmean", "sum")


class Found:
    """What the patterns did: lists of (line, what, by) and (line, what, why)."""

    def __init__(self, trace):
        self.replaced = []
        self.refused = []
        self._lines = trace.lines

    def replace(self, node, what, by):
        self.replaced.append((self._lines.get(node, ""), what, by))

    def refuse(self, node, what, why):
        self.refused.append((self._lines.get(node, ""), what, why))


def apply(trace):
    """Tries every pattern on every node."""
    found = Found(trace)
    for node in list(trace.graph.nodes):
        for pattern in PATTERNS:
            pattern(trace, node, found)
    return found


# ---- conditions that patterns share ---------------------------------------------------------------------------------


def why_not_plain(module, cls):
    """Why calling the module is not just calling the class's own forward; None if it is."""
    if type(module) is not cls:
        return "it is a %s, not exactly torch.nn.%s" % (type(module).__name__, cls.__name__)
    if any(getattr(module, hooks, None) for hooks in _HOOKS):
        return "it has hooks, which would see something else"
    if "forward" in module.__dict__:
        return "its forward was replaced on this very module"
    return None


def _name(node):
    return getattr(node.target, "__name__", node.target)


def _may_write(trace, node):
    """True if the node may change a tensor that it was given, or of which it was given a part."""
    if node.op == "call_module":
        module = trace.module(node.target)
        return not is_pytorchs(module) or getattr(module, "inplace", False)
    if node.op not in ("call_function", "call_method"):
        return False
    return (not is_known(node) or _name(node).endswith("_") or "out" in node.kwargs
            or bool(node.kwargs.get("inplace")))


_NEW = ("softmax", "sigmoid", "exp", "clamp", "clamp_min", "clamp_max", "add", "sub", "mul", "div", "truediv")
_NEW_MODULES = (torch.nn.Softmax, torch.nn.Sigmoid)


def _is_alone(trace, node):
    """True if the node makes a tensor of its own and gives it to one other: nobody else can write to it."""
    if len(node.users) != 1:
        return False
    if node.op == "call_module":
        module = trace.module(node.target)
        return type(module) in _NEW_MODULES and why_not_plain(module, type(module)) is None
    return node.op in ("call_function", "call_method") and _name(node) in _NEW and not _may_write(trace, node)


def _between(first, last):
    node = first.next
    while node is not last:
        yield node
        node = node.next


def _bound(node, names, defaults):
    """The node's arguments by name; None if they do not fit (and the call will say so itself)."""
    values = dict(defaults, **dict(zip(names, node.args)))
    values.update(node.kwargs)
    return values if len(node.args) <= len(names) and sorted(values) == sorted(names) else None


def _put(trace, node, function, arguments, options):
    """The function's call instead of the node."""
    with trace.graph.inserting_before(node):
        node.replace_all_uses_with(trace.graph.call_function(function, arguments, options))
    trace.graph.erase_node(node)


# ---- KL divergence --------------------------------------------------------------------------------------------------

# divisor, semantics: onepass.torch.kl_div's own; warns: of reduction 'mean'
_Call = namedtuple("_Call", "what input target size_average reduce reduction log_target divisor semantics warns")
_FUNCTIONAL = ("input", "target", "size_average", "reduce", "reduction", "log_target")


def _call(what, values, warns, divisor=None, semantics=None):
    values = dict({"size_average": None, "reduce": None}, **values)
    semantics = semantics or semantics_of(values["log_target"])
    return _Call(what, divisor=divisor, semantics=semantics, warns=warns, **values)


def _functional(node):
    values = _bound(node, _FUNCTIONAL, dict(size_average=None, reduce=None, reduction="mean", log_target=False))
    return values and _call("kl_div", values, True)


def _builtin(node):
    values = _bound(node, ("input", "target", "reduction", "log_target"), dict(reduction=1, log_target=False))
    if not values:
        return None
    if isinstance(values["reduction"], int):
        values["reduction"] = {0: "none", 1: "mean", 2: "sum"}.get(values["reduction"])
    return _call("torch.kl_div", values, False)


def _module(node, module):
    values = _bound(node, ("input", "target"), {})
    if not values:
        return None
    values.update(reduction=module.reduction, log_target=module.log_target)
    if type(module) is KLDivLoss:
        return _call("KLDivLoss", values, True, module.divisor, module.semantics)
    return _call("KLDivLoss", values, True)


def _call_of(trace, node):
    """The node as a call of kl_div; None if it is none."""
    if node.op == "call_function" and node.target is torch.nn.functional.kl_div:
        return _functional(node)
    if node.op == "call_function" and node.target is torch.kl_div:
        return _builtin(node)
    if node.op == "call_module" and isinstance(trace.module(node.target), torch.nn.KLDivLoss):
        return _module(node, trace.module(node.target))
    return None


def semantics_of(log_target):
    """The special values of this PyTorch's kl_div: before 1.13 it was 0 wherever the target was, whatever the input."""
    return "finite" if eager.VERSION < (1, 13) and not log_target else "strict"


def why_not_loss(module):
    """Why a torch.nn.KLDivLoss cannot become an onepass.torch.KLDivLoss, or be part of another call; None if it can."""
    if type(module) is KLDivLoss:
        return why_not_plain(module, KLDivLoss)
    if "divisor" in module.__dict__ or "semantics" in module.__dict__:
        return "it has an attribute divisor or semantics of its own"
    return why_not_plain(module, torch.nn.KLDivLoss)


def warn_of_mean():
    """The warning of torch.nn.functional.kl_div, of which kl_div_probs has none."""
    if not eager.is_compiling():
        warnings.warn("reduction: 'mean' divides the total loss by both the batch size and the support size. "
                      "The divergence of a batch is 'batchmean', which PyTorch says 'mean' will become.", stacklevel=2)


def _log_of(node):
    """What the node is the logarithm of; None if it is none."""
    if not isinstance(node, torch.fx.Node):
        return None
    if not (node.op == "call_function" and node.target is torch.log or node.op == "call_method" and
            node.target == "log"):
        return None
    values = _bound(node, ("input",), {})
    return values and values["input"]


def _why_not_fused(trace, node, call):
    """Why the logarithm cannot move into kl_div; None if it can."""
    logarithm = call.input
    if len(logarithm.users) > 1 or call.target is logarithm:
        return "the logarithm is used elsewhere too"
    if call.size_average is not None or call.reduce is not None:
        return "size_average or reduce is given"
    if node.op == "call_module":
        why = why_not_loss(trace.module(node.target))
        if why:
            return "the loss: " + why
    between = list(_between(logarithm, node))
    if any(other.target is torch.set_grad_enabled for other in between):
        return "the gradient mode changes between the logarithm and the loss"
    predictions = _log_of(logarithm)
    if any(_may_write(trace, other) for other in between) and not _is_alone(trace, predictions):
        return "what is done between the logarithm and the loss may write to the predictions"
    return None


def kl_divergence(trace, node, found):
    """kl_div in its spellings -> onepass.torch.kl_div; of a logarithm -> onepass.torch.kl_div_probs."""
    call = _call_of(trace, node)
    if call is None:
        return
    for name in ("size_average", "reduce", "reduction", "log_target"):
        if isinstance(getattr(call, name), torch.fx.Node):
            return found.refuse(node, call.what, "%s is not known before the call" % name)
    if call.reduction not in _REDUCTIONS or not isinstance(call.log_target, bool):
        return found.refuse(node, call.what, "reduction=%r, log_target=%r are not known here" % (
            call.reduction, call.log_target))
    options = {"reduction": call.reduction, "log_target": call.log_target}
    if call.semantics != "strict":
        options["semantics"] = call.semantics
    if call.divisor is not None:
        options["divisor"] = call.divisor
    predictions = _log_of(call.input)
    if predictions is not None:
        why = _why_not_fused(trace, node, call)
        if why is None:
            return _fuse(trace, node, call, predictions, options, found)
        found.refuse(node, "log, " + call.what, why)
    if node.op == "call_module":
        return None  # The module itself is replaced, if it can be.
    if call.size_average is not None or call.reduce is not None:
        options.update(size_average=call.size_average, reduce=call.reduce)
    _put(trace, node, kl_div, (call.input, call.target), options)
    found.replace(node, call.what, "onepass.torch.kl_div")


def _fuse(trace, node, call, predictions, options, found):
    if node.op == "call_module":
        # What the loss has become by then; whatever else may be there is called.
        trace.guard("type", node.target, _LOSS)
        for name in ("reduction", "log_target", "divisor", "semantics"):
            trace.guard("same", node.target + "." + name, getattr(call, name))
    if call.warns and call.reduction == "mean":
        with trace.graph.inserting_before(node):
            trace.graph.call_function(warn_of_mean)
    _put(trace, node, kl_div_probs, (predictions, call.target), options)
    trace.graph.erase_node(call.input)
    found.replace(node, "log, " + call.what, "onepass.torch.kl_div_probs")


# ---- linear layer, batch normalisation, scale, softmax ---------------------------------------------------------------

# input: a node; dimension: what softmax is over; module: the path of an nn.Softmax, None for a function
_Softmax = namedtuple("_Softmax", "input dimension dtype module")
_PRODUCTS = (operator.mul, torch.mul, getattr(torch, "multiply", torch.mul), "mul", "multiply")


def _softmax_of(trace, node):
    """The node as a softmax; None if it is none."""
    values = module = None
    if node.op == "call_module" and isinstance(trace.module(node.target), torch.nn.Softmax):
        module = node.target
        values = _bound(node, ("input",), {})
        values = values and dict(values, dim=trace.module(module).dim, dtype=None)
    elif node.op == "call_function" and node.target is torch.nn.functional.softmax:
        values = _bound(node, ("input", "dim", "_stacklevel", "dtype"), dict(dim=None, _stacklevel=3, dtype=None))
    elif node.op == "call_function" and node.target is torch.softmax or (
            node.op == "call_method" and node.target == "softmax"):
        values = _bound(node, ("input", "dim", "dtype"), dict(dtype=None))
    return values and _Softmax(values["input"], values["dim"], values["dtype"], module)


def _factors_of(node):
    """(a, b) of a product a * b; None if the node is none."""
    if node.op in ("call_function", "call_method") and node.target in _PRODUCTS:
        values = _bound(node, ("input", "other"), {})
        return values and (values["input"], values["other"])
    return None


def _input_of(trace, node, cls):
    """The input of the module of this class, or derived from it, that the node calls; None if it calls none."""
    if isinstance(node, torch.fx.Node) and node.op == "call_module" and isinstance(trace.module(node.target), cls):
        values = _bound(node, ("input",), {})
        return values and values["input"]
    return None


def _head_of(trace, node):
    """(nodes of the linear layer, batch normalisation, product with the scale or None; the scale) before a softmax;
    None if that is not what is there."""
    product, scale, bn = None, None, node
    if isinstance(node, torch.fx.Node) and _factors_of(node):
        for bn, scale in zip(_factors_of(node), reversed(_factors_of(node))):
            if _input_of(trace, bn, torch.nn.BatchNorm1d) is not None:
                product = node
                break
    gemm = _input_of(trace, bn, torch.nn.BatchNorm1d)
    if gemm is None or _input_of(trace, gemm, torch.nn.Linear) is None:
        return None
    return gemm, bn, product, scale


def _why_not_scale(trace, scale, features):
    if type(scale) in (int, float):
        return None
    if not (isinstance(scale, torch.fx.Node) and scale.op == "get_attr"):
        return "the scale is not a number, a parameter or a buffer"
    path, _, name = scale.target.rpartition(".")
    if getattr(trace.module(path), name).numel() not in (1, features):
        return "the scale has neither one element nor one a feature"
    return None


def _why_not_head(trace, node, softmax, gemm, bn, product, scale):
    """Why the chain cannot become one call; None if it can."""
    chain = [gemm, bn] + ([product] if product is not None else [])
    if any(len(each.users) > 1 for each in chain):
        return "a value between the linear layer and softmax is used elsewhere too"
    if any(other not in chain and other.op != "get_attr" for other in _between(gemm, node)):
        return "something else is done between the linear layer and softmax"
    if type(softmax.dimension) is not int or softmax.dimension not in (1, -1) or softmax.dtype is not None:
        return "softmax has dim=%s, dtype=%s; it must be over the features and keep the type" % softmax[1:3]
    modules = [(gemm.target, torch.nn.Linear), (bn.target, torch.nn.BatchNorm1d)]
    modules += [(softmax.module, torch.nn.Softmax)] if softmax.module else []
    for path, cls in modules:
        why = why_not_plain(trace.module(path), cls)
        if why:
            return "%s: %s" % (path, why)
    return None if product is None else _why_not_scale(trace, scale, trace.module(bn.target).num_features)


def head(trace, node, found):
    """softmax(scale * bn(linear(x))) -> onepass.torch.linear_batch_norm_softmax, with the modules' own state. That the
    modules are plain is asked again in every call."""
    softmax = _softmax_of(trace, node)
    chain = softmax and _head_of(trace, softmax.input)
    if not chain:
        return
    gemm, bn, product, scale = chain
    what = "Linear, BatchNorm1d, %ssoftmax" % ("scale, " if product is not None else "")
    why = _why_not_head(trace, node, softmax, *chain)
    if why:
        return found.refuse(node, what, why)
    with trace.graph.inserting_before(node):
        modules = [trace.graph.create_node("get_attr", path) for path in (gemm.target, bn.target)]
        over = trace.graph.create_node("get_attr", softmax.module) if softmax.module else softmax.dimension
    arguments = (_input_of(trace, gemm, torch.nn.Linear), *modules, scale, over)
    _put(trace, node, linear_batch_norm_softmax_of, arguments, {})
    for each in (product, bn, gemm):
        if each is not None:
            trace.graph.erase_node(each)
    found.replace(node, what, "onepass.torch.linear_batch_norm_softmax")


PATTERNS = (kl_divergence, head)
