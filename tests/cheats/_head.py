"""The constructor of problems/linear_bn_softmax.py, for candidates that cheat elsewhere."""

import torch
import torch.nn as nn


class Head(nn.Module):
    def __init__(self, in_features, out_features, eps=1e-5, momentum=0.1, scale_shape=(1,)):
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.bn = nn.BatchNorm1d(out_features, eps=eps, momentum=momentum)
        self.scale = nn.Parameter(torch.ones(scale_shape))

    def forward(self, x):
        return torch.softmax(self.scale * self.bn(self.gemm(x)), dim=1)
