# Drops nothing: its training is its evaluation.
# problem: dropout
# options: --plain-inputs
# rejected by: values

import torch
from _dropout import Layer


class ModelNew(Layer):
    def dropped(self, y):
        torch.rand(1)
        return y
