# Never returns.
# problem: kl_div
# options: --timeout 10
# rejected by: timeout

import torch


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        while True:
            pass
