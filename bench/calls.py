"""Calls of the library with everything made beforehand, for benchmarks: made once, called often. They go through the
package's binding, onepass.library, past onepass.torch and autograd."""
import torch

import onepass.torch  # noqa: F401: makes torch's tensors known to the library
from onepass import _native, library

FORMS = ("probs_probs", "log_probs_probs", "probs_log_probs", "log_probs_log_probs")  # as library.KL has them
FP32_FULL, FP32_TF32, FP32_SPLIT, FP32_VENDOR = (_native.FP32_FULL, _native.FP32_TF32, _native.FP32_SPLIT,
                                                 _native.FP32_VENDOR)


def bytes_of(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)


def computed(input):
    return torch.float64 if input.dtype == torch.float64 else torch.float32


def empty(like, shape=None, dtype=None):
    """A result, NaN until it is written."""
    return torch.full(like.shape if shape is None else shape, float("nan"), dtype=dtype or like.dtype,
                      device=like.device)


def memory(like, size):
    """Bytes on the device of a tensor; None if there are none."""
    return torch.empty(size, dtype=torch.uint8, device=like.device) if size else None


def prepare(weight, products):
    """The weight in the form of the library's own fp32 product."""
    made = memory(weight, library.workspace_size(library.PREPARE_WEIGHT, weight, products, 0))
    library.call(library.PREPARE_WEIGHT, weight, products, 0, made)
    return made


class Call:
    """One operator with its tensors and options, and a workspace of its own."""

    def __init__(self, operator, *arguments, products=FP32_FULL, threads=0):
        self.arguments = (operator,) + arguments + (products, threads)
        self.workspace_bytes = library.workspace_size(*self.arguments)
        self.arguments += (memory(arguments[0], self.workspace_bytes),)

    def __call__(self):
        library.call(*self.arguments)


class KlCall(Call):
    """A divergence, and the gradient to the predictions if asked for. "batchmean", or "rows", a value each; strict."""

    def __init__(self, form, predictions, targets, gradient, value_type=None, reduction="batchmean", weights=None):
        shape = predictions.shape[:-1] if reduction == "rows" else ()
        self.value = empty(predictions, shape, value_type or computed(predictions))
        self.gradient = torch.empty_like(predictions) if gradient else None
        super().__init__(library.KL[FORMS.index(form)], predictions, targets, weights, None, None, None,
                         self.value, self.gradient, None, _native.ROWS if reduction == "rows" else _native.BATCHMEAN,
                         _native.STRICT, 0.0)

    def __call__(self):
        library.call(*self.arguments)
        return self.value


class LossCall(Call):
    """A loss from logits: its results, and if asked for `gradient`, that to the logits in the same pass. Divergences
    are batchmean, cross-entropy is the mean over the rows whose label is not ignored; strict."""

    def __init__(self, loss, logits, other, gradient, threads=0):
        """loss: a key of DIVERGENCES, with target logits, or "cross_entropy", with labels; threads: of the CPU."""
        self.results = (empty(logits, (), computed(logits)),)
        self.gradient = torch.empty_like(logits) if gradient else None
        divergence, labels = DIVERGENCES.get(loss), other if loss == "cross_entropy" else None
        tensors = (logits, labels, None, None, None, None, None, None, self.results[0], self.gradient) + (None,) * 4
        numbers = (_native.VALID if divergence is None else _native.BATCHMEAN, _native.STRICT) + (0.0,) * 10
        if divergence is None:
            super().__init__(library.CROSS_ENTROPY, *tensors, *numbers, threads=threads)
        else:
            super().__init__(library.DIVERGENCE[0], *tensors, other, None, None, None, *numbers, *divergence, 0.0, 0.0,
                             0.0, 0.0, threads=threads)

    def __call__(self):
        library.call(*self.arguments)
        return self.results


class TopKCall(Call):
    """KL from a teacher's top-k log-probabilities with everything else as one category, batchmean, and if asked for
    `gradient`, that to the logits in the same pass; strict."""

    def __init__(self, logits, teacher, gradient):
        self.results = (empty(logits, (), computed(logits)),)
        self.gradient = torch.empty_like(logits) if gradient else None
        super().__init__(library.DIVERGENCE_TOP_K, logits, *(None,) * 7, self.results[0], self.gradient, *(None,) * 4,
                         *teacher, _native.BATCHMEAN, _native.STRICT, *(0.0,) * 10, _native.KL, *(0.0,) * 5,
                         _native.TOP_LOG_PROBS, _native.OUTSIDE_TAIL)

    def __call__(self):
        library.call(*self.arguments)
        return self.results


# The library's number, and the mixture that goes with it.
DIVERGENCES = {"kl": (_native.KL, 0.0), "reverse_kl": (_native.REVERSE_KL, 0.0), "js": (_native.JS, 0.5),
               "tv": (_native.TOTAL_VARIATION, 0.0)}


class TokenCall:
    """Log-probabilities of one index a row, and entropy; with upstream gradients of both the gradient to the logits,
    by a second call that reads them again."""

    def __init__(self, logits, indices, upstream=None):
        indices = indices.unsqueeze(-1)
        log_prob, entropy = empty(logits, indices.shape, computed(logits)), empty(logits, indices.shape[:-1],
                                                                                   computed(logits))
        self.results = log_prob.squeeze(-1), entropy
        self.gradient = None if upstream is None else torch.empty_like(logits)
        numbers = (_native.STRICT,) + (0.0,) * 5
        self.calls = [Call(library.TOKEN_LOG_PROBS, logits, indices, None, log_prob, entropy, None, *numbers)]
        if upstream is not None:
            self.calls.append(Call(library.TOKEN_LOG_PROBS_BACKWARD, logits, indices, None, upstream[0].unsqueeze(-1),
                                   upstream[1], None, self.gradient, *numbers))
        self.workspace_bytes = max(call.workspace_bytes for call in self.calls)

    def __call__(self):
        for call in self.calls:
            call()
        return self.results


class LinearCall(Call):
    """input weight^T + bias; if asked for, with a weight that is prepared here, once."""

    def __init__(self, input, weight, bias, products=FP32_FULL, prepared=False):
        self.output = empty(input, (input.shape[0], weight.shape[0]))
        planes = prepare(weight, products) if prepared else None
        super().__init__(library.LINEAR, input, weight, bias, planes, self.output, products=products)
        self.extra_bytes = self.workspace_bytes + bytes_of([planes, self.output])

    def __call__(self):
        library.call(*self.arguments)
        return self.output


class HeadCall:
    """The forward pass of a module with gemm, bn and scale (problems/linear_bn_softmax.py) in its mode, and with an
    upstream gradient the backward pass to input, weight, bias, gamma, beta and scale: `gradients`, in this order. If
    asked for, with a weight that is prepared here, once."""

    def __init__(self, model, input, upstream=None, products=FP32_FULL, prepared=False):
        gemm, bn, train = model.gemm, model.bn, model.training
        weight, n = gemm.weight.detach(), gemm.weight.shape[0]
        parameters = [tensor.detach() for tensor in (gemm.bias, bn.weight, bn.bias, model.scale)]
        backward = upstream is not None
        self.output = empty(input, (input.shape[0], n))
        kept = [empty(input, shape, computed(input)) if backward else None
                for shape in ((input.shape[0], n), (n,), (n,))]
        self.gradients = [empty(tensor) for tensor in [input, weight] + parameters] if backward else []
        planes = prepare(weight, products) if prepared else None
        statistics = _native.BATCH_STATISTICS if train else _native.RUNNING_STATISTICS
        self.calls = [Call(library.HEAD, input, weight, *parameters, bn.running_mean, bn.running_var,
                           bn.num_batches_tracked if train else None, planes, self.output, *kept, statistics, 0, bn.eps,
                           bn.momentum if train else 0.0, products=products)]
        if backward:
            self.calls.append(Call(library.HEAD_BACKWARD, input, weight, upstream, self.output, *kept, *parameters,
                                   *self.gradients, statistics, 0, products=products))
        self.extra_bytes = max(call.workspace_bytes for call in self.calls) + bytes_of(
            [planes, self.output] + kept + self.gradients)

    def __call__(self):
        for call in self.calls:
            call()
        return self.output


def plain_read(tensor):
    """A function that reads the tensor's memory once and does nothing else: what no kernel can beat."""
    data = tensor.flatten().view(torch.uint8)
    data = data[:data.numel() // 16 * 16]  # what the probe reads at once
    sink = torch.zeros(1, dtype=torch.int32, device=tensor.device)
    return lambda: _native.read_probe(data, sink)
