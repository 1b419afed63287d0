# Gives a gradient to the predictions alone, although both inputs were asked about.
# problem: kl_div
# rejected by: gradients

import torch
from _kl import kl


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        return kl(predictions, targets.detach())
