"""A language model's loss: cross-entropy of the logits that its last layer makes of hidden states, averaged over the
tokens whose label is not ignored.

Whoever computes it chunk by chunk never has all logits, the largest tensor of a training step. With
ONEPASS_PROBLEM_SIZE=small in the environment the sizes are for a machine without a GPU.
"""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("ONEPASS_PROBLEM_SIZE") == "small"
TOKENS = 64 if SMALL else 8192
WIDTH = 48 if SMALL else 2048
VOCABULARY = 500 if SMALL else 32000


class Model(nn.Module):
    def __init__(self, width, vocabulary):
        super().__init__()
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, hidden, labels):
        return F.cross_entropy(self.head(hidden), labels)


def draw(tokens, width, vocabulary, ignored):
    """Hidden states that make some tokens likely, and labels of which that share is ignored."""
    labels = torch.randint(0, vocabulary, (tokens,))
    labels[torch.rand(tokens) < ignored] = -100
    return [torch.randn(tokens, width) * 3, labels]


def get_inputs():
    """All labels count: of a batch of one ignored token old releases of PyTorch make 0, newer ones NaN."""
    return draw(TOKENS, WIDTH, VOCABULARY, 0)


def get_hidden_inputs():
    return [draw(TOKENS, WIDTH, VOCABULARY, 0.1)]


def get_init_inputs():
    return [WIDTH, VOCABULARY]


def get_hidden_cases():
    """(constructor arguments, inputs) of other sizes: nothing is a multiple of 8; more rows than a small chunk has."""
    return [([width, vocabulary], draw(tokens, width, vocabulary, 0)) for tokens, width, vocabulary in (
        (33, 67, 301), (7, 130, 1), (601, 5, 43))]
