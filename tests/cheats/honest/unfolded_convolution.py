# A convolution as one matrix product: in bfloat16 its gradients are added up in bfloat16.
# problem: convolution
# options: --no-time

import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, channels=8, filters=12):
        super().__init__()
        self.convolution = nn.Conv2d(channels, filters, 3, padding=1)

    def forward(self, x):
        columns = F.unfold(x, 3, padding=1)
        weight = self.convolution.weight
        y = weight.reshape(weight.shape[0], -1) @ columns + self.convolution.bias.unsqueeze(1)
        return y.reshape(x.shape[0], weight.shape[0], x.shape[2], x.shape[3])
