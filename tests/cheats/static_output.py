# Returns the same memory at every call: a result changes when the next one is computed.
# problem: linear_bn_softmax
# options: --plain-inputs
# rejected by: aliasing

import torch
from _head import Head


class ModelNew(Head):
    result = None

    def forward(self, x):
        value = super().forward(x)
        if torch.is_grad_enabled():
            return value
        if self.result is None or self.result.shape != value.shape or self.result.dtype != value.dtype:
            self.result = torch.empty_like(value)
        return self.result.copy_(value)
