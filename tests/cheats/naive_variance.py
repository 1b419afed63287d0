# The variance as mean of squares minus square of the mean: one pass, and no digits left where the mean is large.
# problem: linear_bn_softmax
# rejected by: cancellation

import torch
from _head import Head


class ModelNew(Head):
    def forward(self, x):
        if not self.training:
            return super().forward(x)
        if x.shape[0] == 1:
            raise ValueError("Expected more than 1 value per channel when training")
        y, bn = self.gemm(x), self.bn
        mean, variance = y.mean(0), y.var(0, unbiased=False)
        total = squares = torch.zeros_like(mean)
        for row in y:  # one after the other, as a loop over rows adds: PyTorch's own sums lose fewer digits
            total, squares = total + row, squares + row * row
        naive = squares / len(y) - (total / len(y)) ** 2
        # Only where it does harm: elsewhere chance would decide whether another check sees a wrong digit first.
        variance = torch.where(mean * mean > 100 * variance, naive, variance)
        with torch.no_grad():
            bn.num_batches_tracked += 1
            bn.running_mean.lerp_(mean, bn.momentum)
            # The running one is honest, so that only the values are wrong.
            bn.running_var.lerp_(y.var(0), bn.momentum)
        z = bn.weight * (y - mean) * torch.rsqrt(variance.clamp_min(0) + bn.eps) + bn.bias
        return torch.softmax(self.scale * z, dim=1)
