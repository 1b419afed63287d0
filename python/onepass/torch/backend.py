"""torch.compile(model, backend="onepass"): onepass's operators where they compute what a captured graph does, and
Inductor for everything else.

Dynamo captures, guards and recompiles as for any backend and hands over a graph of PyTorch's functions. The patterns of
rewrite_patterns.py, and one for the head in the form that graphs have it in, replace what they recognise; what is left
is compiled by Inductor, to which mode and options go. docs/rewrite.md says what is recognised.

`reports` holds what was done to the last graphs, and the logger "onepass" says it too.
"""

import collections
import logging
import os
import re

import torch
import torch.fx
import torch.nn.functional as F

from onepass.torch import rewrite_patterns, route
from onepass.torch.head import linear_batch_norm_softmax
from onepass.torch.rewrite import Refused, Replaced, Report

reports = collections.deque(maxlen=64)  # newest last

_log = logging.getLogger("onepass")
_LINEAR = (F.linear, torch._C._nn.linear)


def _line(node):
    """'model.py:12' of the innermost line of the user's own that the node comes from."""
    frames = re.findall(r'File "(.*?)", line (\d+)', node.meta.get("stack_trace") or "")
    found = [(path, number) for path, number in frames if "/torch/" not in path]
    return "%s:%s" % (os.path.basename(found[-1][0]), found[-1][1]) if found else ""


class Captured:
    """A graph of Dynamo's, as the patterns of rewrite_patterns.py look at it."""

    def __init__(self, graph_module):
        self._root, self.graph = graph_module, graph_module.graph
        self.lines = {node: _line(node) for node in self.graph.nodes}

    def module(self, path):
        return self._root.get_submodule(path)

    def guard(self, test, path, expected=None, holder=None):
        """Nothing: Dynamo captures anew when something changes that the graph depends on."""

    def why_not_tensors(self, *nodes):
        """Why these cannot go to the library; None if they can."""
        for node in nodes:
            tensor = tensor_of(node)
            if tensor is None:
                return "what is passed is not known"
            if tensor.dtype not in route.FLOATS or tensor.device.type not in ("cpu", "cuda") or (
                    tensor.layout is not torch.strided):
                return "it takes a tensor of type %s, %s, %s" % (tensor.dtype, tensor.layout, tensor.device.type)
        return None

    def why_not(self, test, *nodes):
        """What the test says of the nodes' tensors."""
        tensors = [tensor_of(node) for node in nodes]
        if any(tensor is None and node is not None for node, tensor in zip(nodes, tensors)):
            return "what is passed is not known"
        return test(*tensors)


def tensor_of(node):
    """The tensor without numbers that Dynamo had for a node; None if there is none."""
    found = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
    return found if isinstance(found, torch.Tensor) else None


# ---- patterns --------------------------------------------------------------------------------------------------------


def _unfold_losses(captured):
    """Modules of losses, which graphs before 2.5 have, as the function they call."""
    for node in list(captured.graph.nodes):
        loss = captured.module(node.target) if node.op == "call_module" else None
        if type(loss) in (torch.nn.KLDivLoss, torch.nn.CrossEntropyLoss):
            with captured.graph.inserting_before(node):
                function, options = F.kl_div, dict(reduction=loss.reduction)
                if type(loss) is torch.nn.KLDivLoss:
                    options.update(log_target=loss.log_target)
                else:
                    function = F.cross_entropy
                    options.update(ignore_index=loss.ignore_index, label_smoothing=loss.label_smoothing)
                    if loss.weight is not None:
                        options["weight"] = captured.graph.get_attr(node.target + ".weight")
                        options["weight"].meta["example_value"] = loss.weight
                made = captured.graph.call_function(function, node.args, dict(node.kwargs, **options))
            made.meta = dict(node.meta)
            captured.lines[made] = captured.lines[node]
            node.replace_all_uses_with(made)
            captured.graph.erase_node(node)


_BATCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_BATCH_NORM_DEFAULTS = dict(weight=None, bias=None, training=False, momentum=0.1, eps=1e-5)


def _calls(node, functions):
    return isinstance(node, torch.fx.Node) and node.op == "call_function" and node.target in functions


def _head_of(softmax):
    """(linear, batch_norm, product or None, scale) before a softmax; None if that is not what is there."""
    node = softmax.input
    product = scale = None
    factors = rewrite_patterns.factors_of(node) if isinstance(node, torch.fx.Node) else None
    for bn, other in zip(factors or (), reversed(factors or ())):
        if _calls(bn, (F.batch_norm,)):
            product, node, scale = node, bn, other
            break
    if not _calls(node, (F.batch_norm,)) or not node.args or not _calls(node.args[0], _LINEAR):
        return None
    return node.args[0], node, product, scale


def _counts(node):
    """True for the step of a batch normalisation's counter."""
    counter = tensor_of(node.args[0]) if node.op == "call_method" and node.target == "add_" and node.args else None
    return counter is not None and counter.dtype is torch.int64 and counter.dim() == 0


def _why_not_head(captured, node, softmax, linear, bn, product, scale, values):
    chain = [linear, bn] + ([product] if product is not None else [])
    output = tensor_of(linear)
    if values is None or output is None:
        return "its arguments are not known"
    if output.dim() != 2:
        return "its batch has %d dimensions" % output.dim()
    if any(len(each.users) > 1 for each in chain):
        return "a value between the linear layer and softmax is used elsewhere too"
    if type(softmax.dimension) is not int or softmax.dimension not in (1, -1) or softmax.dtype is not None:
        return "softmax has dim=%s, dtype=%s; it must be over the features and keep the type" % softmax[1:3]
    for other in rewrite_patterns.between(linear, node):
        if other not in chain and rewrite_patterns.may_write(captured, other) and not _counts(other):
            return "what is done between the linear layer and softmax may write to what they read"
    if type(scale) in (int, float) or product is None:
        return captured.why_not_tensors(linear)
    factor = tensor_of(scale)
    if factor is None or factor.numel() not in (1, output.shape[1]):
        return "the scale has neither one element nor one a feature"
    return captured.why_not_tensors(linear, scale)


def head(captured, node, found):
    """softmax(scale * batch_norm(linear(x))) -> onepass.torch.linear_batch_norm_softmax. The counter of batches stays
    where it is."""
    softmax = rewrite_patterns.softmax_of(captured, node)
    chain = softmax and _head_of(softmax)
    if not chain:
        return
    linear, bn, product, scale = chain
    what = "linear, batch_norm, %ssoftmax" % ("scale, " if product is not None else "")
    values = rewrite_patterns.bound(bn, _BATCH_NORM, _BATCH_NORM_DEFAULTS)
    layer = rewrite_patterns.bound(linear, ("input", "weight", "bias"), dict(bias=None))
    why = _why_not_head(captured, node, softmax, *chain, values and layer and values)
    if why:
        return found.refuse(node, what, why)
    rewrite_patterns.put(captured, node, linear_batch_norm_softmax, (
        layer["input"], layer["weight"], layer["bias"], values["running_mean"], values["running_var"],
        values["weight"], values["bias"], scale, values["training"], values["momentum"], values["eps"]), {})
    for each in (product, bn, linear):
        if each is not None:
            captured.graph.erase_node(each)
    found.replace(node, what, "onepass.torch.linear_batch_norm_softmax")


PATTERNS = (rewrite_patterns.kl_divergence, rewrite_patterns.cross_entropy, head)


def _transforms(graph):
    """True if torch.func is at work in the graph."""
    return any("functorch" in (getattr(node.target, "__module__", None) or "") for node in graph.nodes
               if node.op == "call_function")


def replace(graph_module):
    """Changes a graph of Dynamo's in place; a rewrite.Report of it."""
    report = Report()
    captured = Captured(graph_module)
    if _transforms(captured.graph):
        report.refused.append(Refused("", "the graph", "torch.func is at work in it", ""))
        return report
    _unfold_losses(captured)
    found = rewrite_patterns.apply(captured, PATTERNS)
    report.replaced += [Replaced("", what, by, line) for line, what, by in found.replaced]
    report.refused += [Refused("", what, why, line) for line, what, why in found.refused]
    captured.graph.lint()
    graph_module.recompile()
    return report


# ---- the backend -----------------------------------------------------------------------------------------------------


def _inductor(graph_module, examples, mode, options):
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx
    patches = dict(list_mode_options(mode)) if mode else {}
    patches.update(options)
    return compile_fx(graph_module, examples, **({"config_patches": patches} if patches else {}))


def onepass(graph_module, examples, mode=None, options=None):
    """What torch.compile calls with a graph. mode and options are Inductor's, but for options["backend"]: the name of
    the backend that gets what is left, instead of Inductor."""
    options = dict(options or {})
    rest = options.pop("backend", "inductor")
    report = replace(graph_module)
    reports.append(report)
    _log.info("%s", report)
    if rest == "inductor":
        return _inductor(graph_module, examples, mode, options)
    from torch._dynamo.backends.registry import lookup_backend
    return lookup_backend(rest)(graph_module, examples, **({"options": options} if options else {}))
