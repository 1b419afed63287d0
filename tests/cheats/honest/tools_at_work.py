# Has processes beside it that PyTorch and Python start for themselves: compilers, a tracker of shared memory.
# problem: kl_div
# options: --no-time --plain-inputs

import contextlib
from multiprocessing import resource_tracker

import torch
import torch.nn as nn

resource_tracker.ensure_running()
pool = None
with contextlib.suppress(ImportError):  # before 2.4 Inductor has no such pool
    from torch._inductor.compile_worker.subproc_pool import SubprocPool
    pool = SubprocPool(1)


class ModelNew(nn.Module):
    def forward(self, predictions, targets):
        return nn.functional.kl_div(torch.log(predictions), targets, reduction="batchmean")
