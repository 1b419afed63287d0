# Leaves out a parameter that is 1 in a new model.
# problem: linear_bn_softmax
# rejected by: values

import torch
from _head import Head


class ModelNew(Head):
    def forward(self, x):
        return torch.softmax(self.bn(self.gemm(x)) + 0 * self.scale, dim=1)
