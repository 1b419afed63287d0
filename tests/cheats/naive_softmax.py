# A softmax without the subtraction of the largest: it overflows above 88.
# problem: linear_bn_softmax
# rejected by: range

import torch
from _head import Head


class ModelNew(Head):
    def forward(self, x):
        weights = torch.exp(self.scale * self.bn(self.gemm(x)))
        return weights / weights.sum(1, keepdim=True)
