# Draws a mask for half of the rows and uses it for the other half, too.
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
        half = torch.rand((y.shape[0] + 1) // 2, y.shape[1], device=y.device) < 0.7
        mask = torch.cat([half, half])[:y.shape[0]]
        return torch.where(mask, y / 0.7, torch.zeros_like(y))
