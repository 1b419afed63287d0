# Gives other bits every time, as sums by atomic additions do.
# problem: kl_div
# options: --plain-inputs
# rejected by: repeat

import itertools

import torch
from _kl import kl

CALLS = itertools.count()


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        return kl(predictions, targets) * (1 + next(CALLS) % 4 * torch.finfo(predictions.dtype).eps)
