"""A classifier's head: linear layer, batch normalisation, one learnable scale, softmax.

The model is in training mode unless somebody calls eval(): statistics are those of the batch, and the running ones are
updated. With ONEPASS_PROBLEM_SIZE=small in the environment the sizes are for a machine without a GPU.
"""

import os

import torch
import torch.nn as nn

SMALL = os.environ.get("ONEPASS_PROBLEM_SIZE") == "small"
BATCH = 96 if SMALL else 1024
IN_FEATURES = 256 if SMALL else 8192
OUT_FEATURES = 200 if SMALL else 8192
EPS = 1e-5
MOMENTUM = 0.1
SCALE_SHAPE = (1,)


class Model(nn.Module):
    def __init__(self, in_features, out_features, eps=1e-5, momentum=0.1, scale_shape=(1,)):
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.bn = nn.BatchNorm1d(out_features, eps=eps, momentum=momentum)
        self.scale = nn.Parameter(torch.ones(scale_shape))
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x):
        return self.softmax(self.scale * self.bn(self.gemm(x)))


def get_inputs():
    return [torch.rand(BATCH, IN_FEATURES)]


def get_init_inputs():
    return [IN_FEATURES, OUT_FEATURES, EPS, MOMENTUM, SCALE_SHAPE]


def get_hidden_cases():
    """(constructor arguments, inputs) of other sizes: features and batches that are no multiple of 8, one output."""
    cases = []
    for batch, inputs, outputs in ((33, 67, 41), (7, 130, 257), (5, 3, 1)):
        cases.append(([inputs, outputs, EPS, MOMENTUM, SCALE_SHAPE], [torch.rand(batch, inputs)]))
    return cases
