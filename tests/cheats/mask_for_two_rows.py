# Draws a mask for half of the rows and uses it for the other half, too.
# problem: dropout
# options: --plain-inputs
# rejected by: values

import torch
from _dropout import Layer, masked


class ModelNew(Layer):
    def dropped(self, y):
        half = torch.rand((y.shape[0] + 1) // 2, y.shape[1], device=y.device) < 0.7
        return masked(y, torch.cat([half, half])[:y.shape[0]])
