# Reads from address 0, as a kernel with a wrong pointer does.
# problem: kl_div
# rejected by: crash

import ctypes

import torch


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        return ctypes.string_at(0)
