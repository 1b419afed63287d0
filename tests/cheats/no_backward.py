# Has no backward pass: the result is cut off from its inputs.
# problem: kl_div
# rejected by: gradients

import torch
from _kl import kl


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        return kl(predictions.detach(), targets.detach())
