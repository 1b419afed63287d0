# Starts a process that lives on when this one is ended.
# problem: kl_div
# options: --no-time --forward-only --plain-inputs
# rejected by: late

import subprocess

import torch
from _kl import kl


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        subprocess.Popen(["sleep", "600"], start_new_session=True)

    def forward(self, predictions, targets):
        return kl(predictions, targets)
