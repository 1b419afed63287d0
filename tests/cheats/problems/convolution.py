"""A convolution: its gradients are sums whose order an implementation chooses."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels=8, filters=12):
        super().__init__()
        self.convolution = nn.Conv2d(channels, filters, 3, padding=1)

    def forward(self, x):
        return self.convolution(x)


def get_inputs():
    return [torch.randn(6, 8, 14, 14)]


def get_init_inputs():
    return []
