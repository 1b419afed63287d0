# A few rows at a time, with a backward pass of its own that makes no temporary.
# problem: kl_div

import torch
from torch.autograd.function import once_differentiable

ROWS = 37


class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, predictions, targets):
        ctx.save_for_backward(predictions, targets)
        total = predictions.new_zeros(())
        for p, t in zip(predictions.split(ROWS), targets.split(ROWS)):
            total = total + (torch.xlogy(t, t) - t * p.log()).sum()
        return total / predictions.shape[0]

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        predictions, targets = ctx.saved_tensors
        scale = upstream / predictions.shape[0]
        slope = -(targets / predictions) * scale
        back = (targets.log() + 1 - predictions.log()) * scale if ctx.needs_input_grad[1] else None
        return slope, back


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        return Loss.apply(predictions, targets)
