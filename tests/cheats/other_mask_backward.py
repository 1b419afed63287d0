# Drops other gradients than outputs.
# problem: dropout
# options: --plain-inputs
# rejected by: gradients

import torch
from _dropout import Layer


class ModelNew(Layer):
    def dropped(self, y):
        keep, other = torch.rand(2, *y.shape, device=y.device).lt(0.7).to(y.dtype) / 0.7
        return y * other + (y * (keep - other)).detach()
