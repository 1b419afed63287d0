# Drops a little less than it should.
# problem: dropout
# options: --plain-inputs
# rejected by: values

import torch
from _dropout import Layer


class ModelNew(Layer):
    def dropped(self, y):
        return torch.where(torch.rand(y.shape, device=y.device) < 0.75, y / 0.75, torch.zeros_like(y))
