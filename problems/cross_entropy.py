"""Cross-entropy of logits and labels, averaged over the tokens whose label is not ignored.

A vocabulary's width in the columns, one token per row. With ONEPASS_PROBLEM_SIZE=small in the environment the sizes are
for a machine without a GPU.
"""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("ONEPASS_PROBLEM_SIZE") == "small"
TOKENS = 64 if SMALL else 8192
VOCABULARY = 500 if SMALL else 128256

TIMED_GRADIENTS = [0]


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, logits, labels):
        return F.cross_entropy(logits, labels)


def draw(ignored):
    """Logits of a model that knows something, and labels of which that share is ignored."""
    logits = torch.randn(TOKENS, VOCABULARY) * 2
    labels = torch.randint(0, VOCABULARY, (TOKENS,))
    labels[torch.rand(TOKENS) < ignored] = -100
    return [logits, labels]


def get_inputs():
    """All labels count: of a batch of one ignored token old releases of PyTorch make 0, newer ones NaN."""
    return draw(0)


def get_hidden_inputs():
    return [draw(0.1)]


def get_init_inputs():
    return []
