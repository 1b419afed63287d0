"""linear for whoever must see the call: onepass::linear and onepass::linear_backward in PyTorch's dispatcher."""

import torch
import torch.nn.functional as F

from onepass.torch import eager, linear_eager, matrices, operators, prepared_weights


def _linear_meta(input, weight, bias, exact_fp32=False, prepared=None):
    torch._check(input.shape[-1] == weight.shape[1],
                 lambda: "linear: weight: shape %s does not fit input %s; it must have as many columns" %
                 (list(weight.shape), list(input.shape)))
    return input.new_empty(input.shape[:-1] + weight.shape[:1])


def _linear_below_autograd(input, weight, bias, exact_fp32, prepared):
    with operators.below_autograd():
        return torch.ops.onepass.linear(input, weight, bias, exact_fp32, prepared)


class _Linear(linear_eager.Linear):
    @staticmethod
    def forward(ctx, input, weight, bias, exact_fp32, prepared):
        linear_eager.keep(ctx, input, weight, exact_fp32)
        return _linear_below_autograd(input, weight, bias, exact_fp32, prepared)


def _linear_autograd(input, weight, bias, exact_fp32=False, prepared=None):
    if matrices.wants_gradients(input, weight, bias):
        if eager.transforms():  # torch.func's, in a compiled graph: autograd's functions in an operator give it nothing
            prepared_weights.refuse_in_torch("linear", prepared)
            return F.linear(input, weight, bias)
        return _Linear.apply(input, weight, bias, exact_fp32, prepared)
    return _linear_below_autograd(input, weight, bias, exact_fp32, prepared)


def _all(upstream, gradients):
    return tuple(operators.not_asked_for(upstream) if gradient is None else gradient for gradient in gradients)


def _linear_backward(upstream, input, weight, to_bias, exact_fp32=False):
    return _all(upstream, linear_eager.gradients(upstream, input, weight, to_bias, exact_fp32))


def _linear_backward_meta(upstream, input, weight, to_bias, exact_fp32=False):
    return _all(upstream, linear_eager.empty_gradients(upstream, input, weight, to_bias))


# The dispatcher leaves out an argument that has its default.
operators.define("linear(Tensor input, Tensor weight, Tensor? bias, bool exact_fp32=False, Tensor? prepared=None) "
                 "-> Tensor", linear_eager.product, _linear_meta, _linear_autograd)
operators.define("linear_backward(Tensor upstream, Tensor? input, Tensor? weight, bool to_bias, "
                 "bool exact_fp32=False) -> (Tensor, Tensor, Tensor)", _linear_backward, _linear_backward_meta)
