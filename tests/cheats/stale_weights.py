# Prepares the weights once and does not notice that an optimizer changes them.
# problem: linear_bn_softmax
# options: --plain-inputs
# rejected by: steps

import torch
import torch.nn.functional as F
from _head import Head


class ModelNew(Head):
    prepared = None

    def forward(self, x):
        weight = self.gemm.weight
        if self.prepared is None or self.prepared.dtype is not weight.dtype:
            self.prepared = weight.detach().clone()
        # The gradient goes to the parameter, the value comes from the copy.
        y = F.linear(x, self.prepared + (weight - weight.detach()), self.gemm.bias)
        return torch.softmax(self.scale * self.bn(y), dim=1)
