# Draws a column less of its mask than it should, and uses one for two columns.
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
        mask = torch.rand(y.shape, device=y.device) < 0.7
        mask[:, 17] = mask[:, 4]
        return torch.where(mask, y / 0.7, torch.zeros_like(y))
