# Counts labels that are to be ignored as if they were the first class.
# problem: cross_entropy
# rejected by: special
# needs: cpu

import torch


class ModelNew(torch.nn.Module):
    def forward(self, logits, labels):
        picked = logits.gather(1, labels.clamp_min(0).unsqueeze(1)).squeeze(1)
        return (logits.logsumexp(1) - picked).mean()
