# Forks a daemon that works beside it, in a session of its own, and that ends when it is gone.
# problem: kl_div
# options: --no-time --forward-only --plain-inputs
# rejected by: late

import os
import time

import torch
from _kl import kl


def daemonise():
    candidate = os.getpid()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    while os.path.exists("/proc/%d" % candidate):
        deadline = time.monotonic() + 0.02
        while time.monotonic() < deadline:
            pass
        time.sleep(0.02)
    os._exit(0)


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        daemonise()

    def forward(self, predictions, targets):
        return kl(predictions, targets)
