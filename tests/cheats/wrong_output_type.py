# Returns double precision: exact, and not what was asked for.
# problem: kl_div
# rejected by: output

import torch
from _kl import kl


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        return kl(predictions.double(), targets.double())
