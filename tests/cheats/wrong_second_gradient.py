# First gradients are right; the gradient of the gradient drops a factor.
# problem: linear_bn_softmax
# options: --plain-inputs
# rejected by: double_backward

import torch
from _head import Head


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        result = torch.softmax(z, dim=1)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, upstream):
        result = ctx.saved_tensors[0].detach()  # as if it did not depend on z
        return result * (upstream - (upstream * result).sum(1, keepdim=True))


class ModelNew(Head):
    def forward(self, x):
        return Softmax.apply(self.scale * self.bn(self.gemm(x)))
