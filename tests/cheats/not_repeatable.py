# Gives other bits every time, as sums by atomic additions do.
# problem: kl_div
# rejected by: repeat

import torch
from _kl import kl

GENERATOR = torch.Generator()
GENERATOR.seed()


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        noise = torch.rand((), generator=GENERATOR).to(predictions)
        return kl(predictions, targets) * (1 + 2 * torch.finfo(predictions.dtype).eps * noise)
