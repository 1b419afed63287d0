"""What is recognised in a trace, by rewrite and by the backend of torch.compile (backend.py), and what it becomes.

A pattern is a function of a trace, one of its nodes and what was found so far. It changes the graph and says
found.replace(...), or leaves it and says found.refuse(...). It refuses when the result could differ: unsure is no.
"""

import functools
import math
import operator
from collections import namedtuple

import torch
import torch.fx

from onepass.torch import rewrite_losses, route
from onepass.torch.kl import kl_div, kl_div_probs
from onepass.torch.modules import KLDivLoss, linear_batch_norm_softmax_of
from onepass.torch.rewrite_losses import kl_div_of_softmax, semantics_of, warn_of_mean

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
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


def apply(trace, patterns=None):
    """Tries every pattern on every node."""
    found = Found(trace)
    for node in list(trace.graph.nodes):
        for pattern in patterns or PATTERNS:
            if not node._erased:
                pattern(trace, node, found)
    return found


# ---- conditions that patterns share ---------------------------------------------------------------------------------


def is_pytorchs(module):
    """True for a module of PyTorch's own, which takes tensors and gives tensors."""
    return type(module).__module__.startswith("torch.")


# That patterns put into graphs, and that write to nothing.
_OURS = (kl_div, kl_div_probs, kl_div_of_softmax, rewrite_losses.cross_entropy, warn_of_mean)


def is_known(node):
    """True if the function or method that the node calls is one of PyTorch's or Python's own, or writes to nothing."""
    if node.op == "call_method":
        return hasattr(torch.Tensor, node.target)
    if node.target in _OURS:
        return True
    module = getattr(node.target, "__module__", None) or "torch"  # builtin functions of PyTorch's have none
    return module.split(".")[0] in ("torch", "operator", "_operator", "builtins", "math")


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


def may_write(trace, node):
    """True if the node may change a tensor that it was given, or of which it was given a part."""
    if node.op == "call_module":
        module = trace.module(node.target)
        return not is_pytorchs(module) or getattr(module, "inplace", False)
    if node.op not in ("call_function", "call_method"):
        return False
    return (not is_known(node) or _name(node).endswith("_") or "out" in node.kwargs
            or bool(node.kwargs.get("inplace")))


_NEW = ("softmax", "log_softmax", "sigmoid", "exp", "clamp", "clamp_min", "clamp_max", "add", "sub", "mul", "div",
        "truediv", "linear", "matmul")
_NEW_MODULES = (torch.nn.Softmax, torch.nn.LogSoftmax, torch.nn.Sigmoid, torch.nn.Linear)


def _is_alone(trace, node):
    """True if the node makes a tensor of its own and gives it to one other: nobody else can write to it."""
    if len(node.users) != 1:
        return False
    if node.op == "call_module":
        module = trace.module(node.target)
        return type(module) in _NEW_MODULES and why_not_plain(module, type(module)) is None
    return node.op in ("call_function", "call_method") and _name(node) in _NEW and not may_write(trace, node)


def between(first, last):
    node = first.next
    while node is not last:
        yield node
        node = node.next


def bound(node, names, defaults):
    """The node's arguments by name; None if they do not fit (and the call will say so itself)."""
    values = dict(defaults, **dict(zip(names, node.args)))
    values.update(node.kwargs)
    return values if len(node.args) <= len(names) and sorted(values) == sorted(names) else None


# torch.fx's names and Dynamo's.
_GRAD_MODES = ("set_grad_enabled", "_set_grad_enabled")
_MODES = ("_enter_autocast", "_exit_autocast", "_enter_inference_mode", "_exit_inference_mode")


def _sets(node, modes):
    return node.op == "call_function" and _name(node) in modes


def _is_recorded(node):
    """False if the gradient mode is off where the node is, for all that the graph says."""
    while node.op != "root":
        node = node.prev
        if _sets(node, _GRAD_MODES):
            return node.args[0] is not False
    return True


def _why_not_later(trace, first, loss, value, name, is_detached=False):
    """Why what the first node does to a value, under this name, cannot be done where the loss is; None if it can."""
    others = list(between(first, loss))
    if any(_sets(other, _MODES if is_detached else _MODES + _GRAD_MODES) for other in others):
        return "the gradient mode, or autocast, changes between %s and the loss" % name
    if any(may_write(trace, other) for other in others) and not _is_alone(trace, value):
        return "what is done between %s and the loss may write to what it reads" % name
    return None


def put(trace, node, function, arguments, options):
    """The function's call instead of the node."""
    with trace.graph.inserting_before(node):
        node.replace_all_uses_with(trace.graph.call_function(function, arguments, options))
    trace.graph.erase_node(node)


# ---- KL divergence --------------------------------------------------------------------------------------------------

# warns: of reduction 'mean'; divisor, semantics: onepass.torch.kl_div's own
_Call = namedtuple("_Call", "what warns input target size_average reduce reduction log_target divisor semantics")


def _call_of(trace, node):
    """The node as a call of kl_div; None if it is none."""
    own = dict(size_average=None, reduce=None, divisor=None, semantics=None)
    if node.op == "call_module" and isinstance(trace.module(node.target), torch.nn.KLDivLoss):
        module = trace.module(node.target)
        what, names, options = "KLDivLoss", (), {}
        own.update({name: module.__dict__.get(name) for name in ("reduction", "log_target", "divisor", "semantics")})
    elif node.op == "call_function" and node.target is torch.nn.functional.kl_div:
        what, names = "kl_div", ("size_average", "reduce", "reduction", "log_target")
        options = dict(size_average=None, reduce=None, reduction="mean", log_target=False)
    elif node.op == "call_function" and node.target is torch.kl_div:
        # Called from Python without a reduction it reduces nothing, in every release; its signature says mean.
        what, names, options = "torch.kl_div", ("reduction", "log_target"), dict(reduction=0, log_target=False)
    else:
        return None
    values = bound(node, ("input", "target") + names, options)
    if not values:
        return None
    values = dict(own, **values)
    if what == "torch.kl_div" and isinstance(values["reduction"], int):
        values["reduction"] = {0: "none", 1: "mean", 2: "sum"}.get(values["reduction"])
    values["semantics"] = values["semantics"] or semantics_of(values["log_target"])
    return _Call(what, what != "torch.kl_div", **values)


def why_not_loss(module):
    """Why a torch.nn.KLDivLoss cannot become an onepass.torch.KLDivLoss, or be part of another call; None if it can."""
    if type(module) is KLDivLoss:
        return why_not_plain(module, KLDivLoss)
    if "divisor" in module.__dict__ or "semantics" in module.__dict__:
        return "it has an attribute divisor or semantics of its own"
    return why_not_plain(module, torch.nn.KLDivLoss)


def _is_loss(module, expected):
    """True if the module is still the loss that was fused."""
    return (type(module) is KLDivLoss and route.sees_into_modules() and why_not_plain(module, KLDivLoss) is None
            and (module.reduction, module.log_target, module.divisor, module.semantics) == expected)


def _log_of(node):
    """What the node is the logarithm of; None if it is none."""
    if not isinstance(node, torch.fx.Node):
        return None
    if not (node.op == "call_function" and node.target is torch.log or node.op == "call_method" and
            node.target == "log"):
        return None
    values = bound(node, ("input",), {})
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
    return _why_not_later(trace, logarithm, node, _log_of(logarithm), "the logarithm")


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
    why = trace.why_not_tensors(call.input, call.target)
    if why:
        return found.refuse(node, call.what, why)
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
    elif softmax_of(trace, call.input, is_log=True):
        what, why = fuse_softmax(trace, node, call, found)
        if why is None:
            return None
        found.refuse(node, what, why)
    if node.op == "call_module":
        return None  # The module itself is replaced, if it can be.
    if call.size_average is not None or call.reduce is not None:
        options.update(size_average=call.size_average, reduce=call.reduce)
    put(trace, node, kl_div, (call.input, call.target), options)
    found.replace(node, call.what, "onepass.torch.kl_div")


def _fuse(trace, node, call, predictions, options, found):
    if node.op == "call_module":
        # What the loss has become by then; whatever else may be there is called.
        trace.guard(_is_loss, node.target, (call.reduction, call.log_target, call.divisor, call.semantics))
    if call.warns and call.reduction == "mean":
        with trace.graph.inserting_before(node):
            trace.graph.call_function(warn_of_mean)
    put(trace, node, kl_div_probs, (predictions, call.target), options)
    trace.graph.erase_node(call.input)
    found.replace(node, "log, " + call.what, "onepass.torch.kl_div_probs")


# ---- losses from logits ----------------------------------------------------------------------------------------------

# input: a node; dimension: what softmax is over; module: the path of an nn.Softmax, None for a function
_Softmax = namedtuple("_Softmax", "input dimension dtype module")


def softmax_of(trace, node, is_log=False):
    """The node as a softmax, or as a log_softmax; None if it is none."""
    if not isinstance(node, torch.fx.Node):
        return None
    name, cls = ("log_softmax", torch.nn.LogSoftmax) if is_log else ("softmax", torch.nn.Softmax)
    values = module = None
    if node.op == "call_module" and isinstance(trace.module(node.target), cls):
        module = node.target
        values = bound(node, ("input",), {})
        values = values and dict(values, dim=trace.module(module).dim, dtype=None)
    elif node.op == "call_function" and node.target is getattr(torch.nn.functional, name):
        values = bound(node, ("input", "dim", "_stacklevel", "dtype"), dict(dim=None, _stacklevel=3, dtype=None))
    elif node.op == "call_function" and node.target is getattr(torch, name) or (
            node.op == "call_method" and node.target == name):
        values = bound(node, ("input", "dim", "dtype"), dict(dtype=None))
    return values and _Softmax(values["input"], values["dim"], values["dtype"], module)


def _is_softmax(module, expected):
    """True if the module is still the softmax that was fused."""
    cls, dim = expected
    return route.sees_into_modules() and why_not_plain(module, cls) is None and module.dim == dim


# input: a node; how: rewrite_losses' (dim, dtype, temperature); nodes: softmax, and the division by a temperature
_Logits = namedtuple("_Logits", "input how nodes module")
_DIVISIONS = (operator.truediv, torch.div, torch.true_divide, torch.divide, "div", "true_divide", "divide")


def _logits_of(trace, node, is_log):
    """What the node takes softmax of; None if it is another node, or one that onepass has nothing for."""
    softmax = softmax_of(trace, node, is_log)
    if not softmax or type(softmax.dimension) is not int or softmax.dtype not in (None, torch.float32):
        return None
    divided = softmax.input
    if not isinstance(divided, torch.fx.Node):
        return None
    if divided.op in ("call_function", "call_method") and divided.target in _DIVISIONS and len(divided.users) == 1:
        values = bound(divided, ("input", "other"), {})
        if values and isinstance(values["input"], torch.fx.Node) and (
                type(values["other"]) in (int, float) and 0 < values["other"] < math.inf):
            how = softmax.dimension, softmax.dtype, values["other"]
            return _Logits(values["input"], how, (node, divided), softmax.module)
    return _Logits(divided, (softmax.dimension, softmax.dtype, None), (node,), softmax.module)


def _why_not_student(trace, node, last, call, logits):
    """Why log_softmax cannot move into the loss; None if it can."""
    if len(call.input.users) > 1 or call.target is call.input:
        return "log_softmax is used elsewhere too"
    if not isinstance(call.target, torch.fx.Node):
        return "the target is not a tensor"
    if call.size_average is not None or call.reduce is not None:
        return "size_average or reduce is given"
    if call.divisor is not None or call.semantics != semantics_of(call.log_target):
        return "the loss has a divisor or semantics of its own"
    if call.reduction == "none" and last is node:
        return "reduction='none' asks for every element, which kl_div_logits does not make"
    if node.op == "call_module":
        why = why_not_loss(trace.module(node.target))
        if why:
            return "the loss: " + why
    if logits is None:
        return "log_softmax names no dimension, or another type than float32"
    if logits.module:
        why = why_not_plain(trace.module(logits.module), torch.nn.LogSoftmax)
        if why:
            return "%s: %s" % (logits.module, why)
    return _why_not_later(trace, logits.nodes[-1], last, logits.input, "log_softmax")


def _sum_of(node):
    """(the only user of the node, the dimension that it sums over); (the node, None) if it is not such."""
    user = next(iter(node.users), None)
    if len(node.users) == 1 and (user.op == "call_method" and user.target == "sum" or
                                 user.op == "call_function" and user.target is torch.sum):
        values = bound(user, ("input", "dim"), {})
        dim = values and values["dim"]
        if isinstance(dim, (list, tuple)) and len(dim) == 1:
            dim = dim[0]
        if type(dim) is int:
            return user, dim
    return node, None


def _teacher_of(trace, last, call):
    """(logits that the loss's target is softmax of, nodes that are not needed then, whether it is detached); None if it
    is none, or has to stay."""
    target, nodes = call.target, ()
    if isinstance(target, torch.fx.Node) and target.op in ("call_function", "call_method") and (
            _name(target) == "detach" and len(target.users) == 1 and len(target.args) == 1):
        target, nodes = target.args[0], (target,)
    logits = _logits_of(trace, target, call.log_target)
    if logits is None or len(target.users) > 1:
        return None
    cls = torch.nn.LogSoftmax if call.log_target else torch.nn.Softmax
    if logits.module and why_not_plain(trace.module(logits.module), cls):
        return None
    is_detached = bool(nodes) or not _is_recorded(target)
    if _why_not_later(trace, logits.nodes[-1], last, logits.input, "softmax", is_detached):
        return None
    return logits, nodes + logits.nodes, is_detached


def fuse_softmax(trace, node, call, found):
    """kl_div of log_softmax -> onepass.torch.kl_div_logits, the target's softmax included where it can be. Returns
    (what it is, why it stays)."""
    student = _logits_of(trace, call.input, True)
    last, summed = _sum_of(node) if call.reduction == "none" else (node, None)
    what = "log_softmax, " + call.what
    why = _why_not_student(trace, node, last, call, student)
    if why:
        return what, why
    reduction = call.reduction if last is node else summed
    for teacher in (_teacher_of(trace, last, call), None):
        targets, how = (call.target, None) if teacher is None else (teacher[0].input, teacher[0].how)
        why = trace.why_not(lambda s, t: rewrite_losses.why_not_kl_div(s, t, student.how, how, reduction,
                                                                       call.log_target), student.input, targets)
        if not why:
            break
    if why:
        return what, why
    nodes, modules = student.nodes, [(student.module, torch.nn.LogSoftmax)]
    if teacher is not None:
        what = "log_softmax, %s, %s" % ("log_softmax" if call.log_target else "softmax", call.what)
        nodes += teacher[1]
        modules.append((teacher[0].module, torch.nn.LogSoftmax if call.log_target else torch.nn.Softmax))
        if teacher[2]:
            with trace.graph.inserting_before(last):
                targets = trace.graph.call_function(torch.detach, (targets,))
    for path, cls in modules:
        if path:
            trace.guard(_is_softmax, path, (cls, trace.module(path).dim))
    if node.op == "call_module":
        trace.guard(_is_loss, node.target, (call.reduction, call.log_target, call.divisor, call.semantics))
    found.replace(node, what, "onepass.torch.kl_div_logits")
    put(trace, last, kl_div_of_softmax, (student.input, targets, student.how, how, reduction, call.log_target,
                                         call.warns), {})
    for each in ((node,) if last is not node else ()) + nodes:
        trace.graph.erase_node(each)
    return what, None


_CROSS_ENTROPY = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
_CROSS_ENTROPY_DEFAULTS = dict(weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean",
                               label_smoothing=0.0)


def why_not_cross_entropy_loss(module):
    """Why a torch.nn.CrossEntropyLoss stays what it is; None if it need not."""
    if module.label_smoothing and route.VERSION < (1, 12):
        return "before PyTorch 1.12 label_smoothing counts rows that are ignored"
    return why_not_plain(module, torch.nn.CrossEntropyLoss)


def _why_not_cross_entropy(trace, values):
    for name in ("size_average", "ignore_index", "reduce", "reduction", "label_smoothing"):
        if isinstance(values[name], torch.fx.Node):
            return "%s is not known before the call" % name
    if values["size_average"] is not None or values["reduce"] is not None:
        return "size_average or reduce is given"
    smoothing = values["label_smoothing"]
    if values["reduction"] not in ("none", "mean", "sum") or not (
            type(smoothing) in (int, float) and 0 <= smoothing <= 1 and type(values["ignore_index"]) is int):
        return "reduction=%r, label_smoothing=%r, ignore_index=%r are not known here" % (
            values["reduction"], smoothing, values["ignore_index"])
    if smoothing and route.VERSION < (1, 12):
        return "before PyTorch 1.12 label_smoothing counts rows that are ignored"
    return trace.why_not(functools.partial(rewrite_losses.why_not_cross_entropy, label_smoothing=smoothing),
                         values["input"], values["target"], values["weight"])


def cross_entropy(trace, node, found):
    """cross_entropy -> onepass.torch.cross_entropy."""
    if node.op != "call_function" or node.target is not torch.nn.functional.cross_entropy:
        return
    values = bound(node, _CROSS_ENTROPY, _CROSS_ENTROPY_DEFAULTS)
    why = _why_not_cross_entropy(trace, values) if values else "its arguments are not known"
    if why:
        return found.refuse(node, "cross_entropy", why)
    found.replace(node, "cross_entropy", "onepass.torch.cross_entropy")
    put(trace, node, rewrite_losses.cross_entropy, tuple(values[name] for name in (
        "input", "target", "weight", "ignore_index", "reduction", "label_smoothing")), {})


# ---- linear layer, batch normalisation, scale, softmax ---------------------------------------------------------------

_PRODUCTS = (operator.mul, torch.mul, getattr(torch, "multiply", torch.mul), "mul", "multiply")


def factors_of(node):
    """(a, b) of a product a * b; None if the node is none."""
    if node.op in ("call_function", "call_method") and node.target in _PRODUCTS:
        values = bound(node, ("input", "other"), {})
        return values and (values["input"], values["other"])
    return None


def _input_of(trace, node, cls):
    """The input of the module of this class (or of one of several), or derived from it, that the node calls; None if it
    calls none."""
    if isinstance(node, torch.fx.Node) and node.op == "call_module" and isinstance(trace.module(node.target), cls):
        values = bound(node, ("input",), {})
        return values and values["input"]
    return None


_BATCH_NORMS = torch.nn.BatchNorm1d, torch.nn.SyncBatchNorm


def _head_of(trace, node):
    """(nodes of the linear layer, batch normalisation, product with the scale or None; the scale) before a softmax;
    None if that is not what is there."""
    product, scale, bn = None, None, node
    if isinstance(node, torch.fx.Node) and factors_of(node):
        for bn, scale in zip(factors_of(node), reversed(factors_of(node))):
            if _input_of(trace, bn, _BATCH_NORMS) is not None:
                product = node
                break
    gemm = _input_of(trace, bn, _BATCH_NORMS)
    if gemm is None or _input_of(trace, gemm, torch.nn.Linear) is None:
        return None
    return gemm, bn, product, scale


def _batch_norm_of(trace, bn):
    """The class that the module is, or is derived from."""
    return next(cls for cls in _BATCH_NORMS if isinstance(trace.module(bn.target), cls))


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
    if any(other not in chain and other.op != "get_attr" for other in between(gemm, node)):
        return "something else is done between the linear layer and softmax"
    if type(softmax.dimension) is not int or softmax.dimension not in (1, -1) or softmax.dtype is not None:
        return "softmax has dim=%s, dtype=%s; it must be over the features and keep the type" % softmax[1:3]
    modules = [(gemm.target, torch.nn.Linear), (bn.target, _batch_norm_of(trace, bn))]
    modules += [(softmax.module, torch.nn.Softmax)] if softmax.module else []
    for path, cls in modules:
        why = why_not_plain(trace.module(path), cls)
        if why:
            return "%s: %s" % (path, why)
    return None if product is None else _why_not_scale(trace, scale, trace.module(bn.target).num_features)


def head(trace, node, found):
    """softmax(scale * bn(linear(x))) -> onepass.torch.linear_batch_norm_softmax, with the modules' own state. That the
    modules are plain is asked again in every call."""
    softmax = softmax_of(trace, node)
    chain = softmax and _head_of(trace, softmax.input)
    if not chain:
        return
    gemm, bn, product, scale = chain
    what = "Linear, %s, %ssoftmax" % (_batch_norm_of(trace, bn).__name__, "scale, " if product is not None else "")
    why = _why_not_head(trace, node, softmax, *chain)
    if why:
        return found.refuse(node, what, why)
    with trace.graph.inserting_before(node):
        modules = [trace.graph.create_node("get_attr", path) for path in (gemm.target, bn.target)]
        over = trace.graph.create_node("get_attr", softmax.module) if softmax.module else softmax.dimension
    arguments = (_input_of(trace, gemm, torch.nn.Linear), *modules, scale, over)
    put(trace, node, linear_batch_norm_softmax_of, arguments, {})
    for each in (product, bn, gemm):
        if each is not None:
            trace.graph.erase_node(each)
    found.replace(node, what, "onepass.torch.linear_batch_norm_softmax")


PATTERNS = (kl_divergence, cross_entropy, head)
