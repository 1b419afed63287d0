# Drops other gradients than outputs.
# problem: dropout
# options: --plain-inputs
# rejected by: gradients

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
        keep, other = torch.rand(2, *y.shape, device=y.device).lt(0.7).to(y.dtype) / 0.7
        return y * other + (y * (keep - other)).detach()
