# Adds up exponentials of the logits as they are.
# problem: cross_entropy
# rejected by: rows

import torch


class ModelNew(torch.nn.Module):
    def forward(self, logits, labels):
        counts = labels >= 0
        picked = logits.gather(1, labels.clamp_min(0).unsqueeze(1)).squeeze(1)
        losses = torch.log(torch.exp(logits).sum(1)) - picked
        return torch.where(counts, losses, torch.zeros_like(losses)).sum() / counts.sum()
