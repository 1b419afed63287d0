# Enters a mode that sees every later call of PyTorch, and does not leave it.
# problem: kl_div
# options: --plain-inputs
# rejected by: tampering

import torch
from _kl import kl

try:
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), options=None):
            return function(*arguments, **(options or {}))
    MODE = Mode()
    MODE.__enter__()
except ImportError:  # before 1.13
    torch.is_tensor = lambda value: True


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        return kl(predictions, targets)
