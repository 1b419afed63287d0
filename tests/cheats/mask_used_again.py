# Uses every mask for two calls.
# problem: dropout
# options: --plain-inputs
# rejected by: values

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(20, 30)
        self.mask, self.calls = None, 0

    def forward(self, x):
        y = self.linear(x)
        if not self.training:
            return y
        if self.calls % 2 == 0 or self.mask.shape != y.shape:
            self.mask = torch.rand(y.shape, device=y.device) < 0.7
        self.calls += 1
        return torch.where(self.mask, y / 0.7, torch.zeros_like(y))
