# Uses every mask for two calls.
# problem: dropout
# options: --plain-inputs
# rejected by: values

import torch
from _dropout import Layer, masked


class ModelNew(Layer):
    def __init__(self):
        super().__init__()
        self.mask, self.calls = None, 0

    def dropped(self, y):
        if self.calls % 2 == 0 or self.mask.shape != y.shape:
            self.mask = torch.rand(y.shape, device=y.device) < 0.7
        self.calls += 1
        return masked(y, self.mask)
