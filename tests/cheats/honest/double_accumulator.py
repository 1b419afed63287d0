# Sums in double precision.
# problem: kl_div
# options: --no-time

import torch


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        p, t = predictions.double(), targets.double()
        return ((torch.xlogy(t, t) - t * p.log()).sum() / predictions.shape[0]).to(predictions.dtype)
