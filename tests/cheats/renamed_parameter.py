# A parameter has another name: nobody's checkpoint can be loaded.
# problem: linear_bn_softmax
# rejected by: weights

import torch
from _head import Head


class ModelNew(Head):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.factor = self.scale
        del self.scale

    def forward(self, x):
        return torch.softmax(self.factor * self.bn(self.gemm(x)), dim=1)
