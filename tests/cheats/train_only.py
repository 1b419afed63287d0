# Normalises by the batch in evaluation mode too.
# problem: linear_bn_softmax
# rejected by: eval

import torch
import torch.nn.functional as F
from _head import Head


class ModelNew(Head):
    def forward(self, x):
        if self.training:
            return super().forward(x)
        y = F.batch_norm(self.gemm(x), None, None, self.bn.weight, self.bn.bias, True, 0.0, self.bn.eps)
        return torch.softmax(self.scale * y, dim=1)
