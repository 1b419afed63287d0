# Updates the running statistics and forgets to count the batches.
# problem: linear_bn_softmax
# rejected by: buffers

from _head import Head


class ModelNew(Head):
    def forward(self, x):
        before = self.bn.num_batches_tracked.clone()
        result = super().forward(x)
        self.bn.num_batches_tracked.copy_(before)
        return result
