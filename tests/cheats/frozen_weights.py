# Has no gradient for the input if the weights are frozen.
# problem: linear_bn_softmax
# options: --plain-inputs
# rejected by: gradients

import torch
from _head import Head


class ModelNew(Head):
    def forward(self, x):
        if not self.gemm.weight.requires_grad:
            x = x.detach() + 0 * x
        return super().forward(x)
