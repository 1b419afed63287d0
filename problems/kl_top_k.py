"""Distillation from a teacher of which only the log-probabilities of its k likeliest classes are known, as they come
from a server or from disk: KL divergence of k + 1 categories, averaged over the tokens.

All classes that the teacher does not name are one category more: with what its probabilities lack to 1, and for the
student with the sum of theirs. There is no gradient to the teacher. With ONEPASS_PROBLEM_SIZE=small in the environment
the sizes are for a machine without a GPU.
"""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("ONEPASS_PROBLEM_SIZE") == "small"
TOKENS = 64 if SMALL else 8192
VOCABULARY = 500 if SMALL else 128256
K = 16 if SMALL else 64

TIMED_GRADIENTS = [0]


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, student, log_probs, classes):
        log_s, t = F.log_softmax(student, -1), log_probs.detach().exp()
        known = torch.zeros_like(log_s).scatter_add(-1, classes, t)  # of a class that comes twice the masses add up
        named = torch.zeros_like(log_s).scatter(-1, classes, torch.ones_like(t)) > 0
        inside = torch.xlogy(known, known) - torch.where(named, known * log_s, torch.zeros_like(log_s))
        log_s_rest = log_s.masked_fill(named, -torch.inf).logsumexp(-1)
        t_rest = (1 - t.sum(-1)).clamp(min=0)
        return (inside.sum(-1) + torch.xlogy(t_rest, t_rest) - t_rest * log_s_rest).mean()


def draw(k):
    """Logits of a student, and what is known of a teacher that it resembles."""
    teacher = torch.randn(TOKENS, VOCABULARY) * 2
    log_probs, classes = F.log_softmax(teacher, -1).topk(k)
    return [teacher + torch.randn(TOKENS, VOCABULARY), log_probs, classes]


def get_inputs():
    return draw(K)


def get_hidden_inputs():
    """Fewer classes, one alone, and entries in another order, of which some come twice."""
    student, log_probs, classes = draw(K)
    order = torch.randperm(K)
    log_probs, classes = log_probs[:, order] - 1, classes[:, order]
    classes[:, 3] = classes[:, 5]
    return [draw(K - 3), draw(1), [student, log_probs, classes]]


def get_init_inputs():
    return []
