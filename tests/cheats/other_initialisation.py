# Draws random numbers of its own first: the same seed gives other weights.
# problem: linear_bn_softmax
# rejected by: weights

import torch
from _head import Head


class ModelNew(Head):
    def __init__(self, *arguments):
        torch.rand(7)
        super().__init__(*arguments)
