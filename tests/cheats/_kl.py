"""The loss of problems/kl_div.py, for candidates that cheat elsewhere."""

import torch


def kl(predictions, targets):
    return (torch.xlogy(targets, targets) - targets * torch.log(predictions)).sum() / predictions.shape[0]
