# The divergence of the predictions from the targets: arguments the wrong way round.
# problem: kl_div
# rejected by: values

import torch
from _kl import kl


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        return kl(targets, predictions)
