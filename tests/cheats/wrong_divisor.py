# Divides by all elements, not by the batch.
# problem: kl_div
# rejected by: values

import torch
from _kl import kl


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        return kl(predictions, targets) / predictions.shape[1]
