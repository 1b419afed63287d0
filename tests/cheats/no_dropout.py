# Drops nothing: its training is its evaluation.
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
        torch.rand(1)
        return y
