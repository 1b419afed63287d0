# Draws its mask in another way than PyTorch does.
# problem: dropout
# options: --no-time

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
        return torch.where(torch.rand(y.shape, device=y.device) < 0.7, y / 0.7, torch.zeros_like(y))
