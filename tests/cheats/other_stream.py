# Works on a stream of its own and does not make the caller's stream wait.
# problem: kl_div
# needs: cuda
# options: --plain-inputs
# rejected by: late

import torch
from _kl import kl


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stream = torch.cuda.Stream()

    def forward(self, predictions, targets):
        if predictions.requires_grad or targets.requires_grad:
            return kl(predictions, targets)
        result = kl(predictions, targets)
        with torch.cuda.stream(self.stream):
            for _ in range(200):
                kl(predictions, targets)
        return result
