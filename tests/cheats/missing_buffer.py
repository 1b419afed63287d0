# Keeps no running statistics in its state.
# problem: linear_bn_softmax
# rejected by: weights

import torch.nn as nn
from _head import Head


class ModelNew(Head):
    def __init__(self, in_features, out_features, eps=1e-5, momentum=0.1, scale_shape=(1,)):
        super().__init__(in_features, out_features, eps, momentum, scale_shape)
        self.bn = nn.BatchNorm1d(out_features, eps=eps, momentum=momentum, track_running_stats=False)
