# Starts a process that stays in its own group, where it is ended with it, and that waits beside it until then.
# problem: kl_div
# options: --no-time --forward-only --plain-inputs
# rejected by: late

import subprocess

import torch
from _kl import kl


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        subprocess.Popen(["sleep", "600"])

    def forward(self, predictions, targets):
        return kl(predictions, targets)
