# Returns the transposed result with its strides swapped: the right values, and a .view() that fails later.
# problem: linear_bn_softmax
# rejected by: output

from _head import Head


class ModelNew(Head):
    def forward(self, x):
        return super().forward(x).t().contiguous().t()
