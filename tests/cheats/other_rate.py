# Drops a little less than it should.
# problem: dropout
# options: --plain-inputs
# rejected by: values

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(20, 30)

    def forward(self, x):
        y = self.linear(x)
        if not self.training:
            return y
        return torch.where(torch.rand(y.shape, device=y.device) < 0.75, y / 0.75, torch.zeros_like(y))
