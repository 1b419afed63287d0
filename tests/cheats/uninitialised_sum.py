# Adds up in memory that is zero only because the system has just handed it out.
# problem: kl_div
# needs: cpu
# options: --plain-inputs
# rejected by: poison

import torch

ROOM = 1 << 24  # 64 MiB of floats: always new pages


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        terms = (torch.xlogy(targets, targets) - targets * torch.log(predictions)).sum(-1)
        sums = torch.empty(ROOM, device=terms.device, dtype=terms.dtype)[:terms.numel()]
        return (sums + terms.reshape(-1)).sum() / predictions.shape[0]
