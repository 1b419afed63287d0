"""The layer of problems/dropout.py, for candidates that drop other numbers in training than it does."""

import torch
import torch.nn as nn


class Layer(nn.Module):
    """A subclass has dropped(y), its output in training mode."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(20, 30)

    def forward(self, x):
        y = self.linear(x)
        return self.dropped(y) if self.training else y


def masked(y, mask):
    return torch.where(mask, y / 0.7, torch.zeros_like(y))
