# Hangs a hook onto every module of the program.
# problem: kl_div
# options: --plain-inputs
# rejected by: tampering

import torch
from _kl import kl

torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, output: None)


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        return kl(predictions, targets)
