# Reads two-byte numbers as if they were whole, where it should refuse a type it does not know.
# problem: kl_div
# rejected by: dtypes

import torch
from _kl import kl


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        if predictions.dtype is torch.float64:
            return kl(predictions.float(), targets.float()).double()
        return kl(predictions, targets)
