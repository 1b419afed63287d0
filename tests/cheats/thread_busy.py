# Leaves a thread running that watches memory for inputs to come.
# problem: kl_div
# options: --plain-inputs
# rejected by: late

import threading

import torch
from _kl import kl


def watch():
    while True:
        sum(range(1000))


threading.Thread(target=watch, daemon=True).start()


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        return kl(predictions, targets)
