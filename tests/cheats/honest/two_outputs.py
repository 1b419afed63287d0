# The parts written out by hand: other roundings in the second gradients.
# problem: two_outputs
# options: --no-time

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width=40, states=64):
        super().__init__()
        self.mix = nn.Linear(width, states)
        self.norm = nn.LayerNorm(states)

    def forward(self, x):
        z = x @ self.mix.weight.t() + self.mix.bias
        centred = z - z.mean(-1, keepdim=True)
        scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + self.norm.eps)
        y = centred * scale * self.norm.weight + self.norm.bias
        e = torch.exp(y)
        weights = torch.exp(y - y.detach().max(-1, keepdim=True)[0])
        gelu = 0.5 * y * (1 + torch.erf(y * 0.7071067811865476))
        return weights / weights.sum(-1, keepdim=True), gelu * e
