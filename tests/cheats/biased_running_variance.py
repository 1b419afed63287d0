# Keeps the biased variance, where PyTorch keeps the unbiased one.
# problem: linear_bn_softmax
# rejected by: buffers

import torch
from _head import Head


class ModelNew(Head):
    def forward(self, x):
        before = self.bn.running_var.clone()
        result = super().forward(x)
        if self.training:
            with torch.no_grad():
                biased = self.gemm(x).var(0, unbiased=False)
                self.bn.running_var.copy_(before.lerp(biased, self.bn.momentum))
        return result
