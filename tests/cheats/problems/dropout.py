"""A linear layer and dropout: random in training mode."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(20, 30)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x):
        return self.dropout(self.linear(x))


def get_inputs():
    return [torch.randn(16, 20)]


def get_init_inputs():
    return []
