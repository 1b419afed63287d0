# Draws a column less of its mask than it should, and uses one for two columns.
# problem: dropout
# options: --plain-inputs
# rejected by: values

import torch
from _dropout import Layer, masked


class ModelNew(Layer):
    def dropped(self, y):
        mask = torch.rand(y.shape, device=y.device) < 0.7
        mask[:, 17] = mask[:, 4]
        return masked(y, mask)
