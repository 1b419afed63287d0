"""Distillation: KL divergence of a student's softmax from a teacher's, both given as logits, averaged over the tokens.

The value is sum of T (log T - log S) with T = softmax(teacher / 2), S = softmax(student / 2), divided by the number of
rows and multiplied by the temperature's square, 4. With ONEPASS_PROBLEM_SIZE=small in the environment the sizes are for
a machine without a GPU.
"""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("ONEPASS_PROBLEM_SIZE") == "small"
TOKENS = 64 if SMALL else 8192
VOCABULARY = 500 if SMALL else 128256
TEMPERATURE = 2.0

TIMED_GRADIENTS = [0]  # training asks for the student's gradient; the teacher is given


class Model(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, student, teacher):
        log_s = F.log_softmax(student / self.temperature, dim=-1)
        log_t = F.log_softmax(teacher / self.temperature, dim=-1)
        return F.kl_div(log_s, log_t, reduction="batchmean", log_target=True) * self.temperature**2


def get_inputs():
    return [torch.randn(TOKENS, VOCABULARY) * 2, torch.randn(TOKENS, VOCABULARY) * 2]


def get_init_inputs():
    return [TEMPERATURE]
