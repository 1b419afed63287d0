"""Kullback-Leibler divergence of two batches of probability distributions, averaged over the batch.

The value is KL(targets || predictions) = sum t * (log t - log p), divided by the number of rows alone. Both inputs
are probabilities. With ONEPASS_PROBLEM_SIZE=small in the environment the batch is one for a machine without a GPU.
"""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("ONEPASS_PROBLEM_SIZE") == "small"
BATCH = 256 if SMALL else 16384
CLASSES = 1000 if SMALL else 16384

TIMED_GRADIENTS = [0]  # training asks for the gradient of the predictions; targets are given


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, predictions, targets):
        return F.kl_div(torch.log(predictions), targets, reduction="batchmean")


def get_inputs():
    """predictions = softmax(rand * s) with one random number s, targets = softmax(rand)."""
    predictions = (torch.rand(BATCH, CLASSES) * torch.rand(())).softmax(dim=-1)
    targets = torch.rand(BATCH, CLASSES).softmax(dim=-1)
    return [predictions, targets]


def get_init_inputs():
    return []
