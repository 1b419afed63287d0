"""A softmax with a backward pass of its own, whose gradient a cheat may get wrong in one kind of use."""

import torch
from _head import Head


def right(result, upstream):
    return result * (upstream - (upstream * result).sum(1, keepdim=True))


def model(backward):
    """A head whose softmax has backward(ctx, result, upstream); ctx.owner is the module. Second gradients are right."""
    class Softmax(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z, owner):
            result = torch.softmax(z, dim=1)
            ctx.save_for_backward(result)
            ctx.owner, owner.last = owner, result.detach()
            return result

        @staticmethod
        def backward(ctx, upstream):
            result, = ctx.saved_tensors
            return right(result, upstream) if torch.is_grad_enabled() else backward(ctx, result, upstream), None

    class ModelNew(Head):
        def forward(self, x):
            return Softmax.apply(self.scale * self.bn(self.gemm(x)), self)
    return ModelNew
