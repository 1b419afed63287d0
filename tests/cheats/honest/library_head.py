# The library's own module, by the names of the problem.
# problem: linear_bn_softmax

from onepass.torch import LinearBatchNormSoftmax


class ModelNew(LinearBatchNormSoftmax):
    def __init__(self, in_features, out_features, eps=1e-5, momentum=0.1, scale_shape=(1,)):
        super().__init__(in_features, out_features, bn_eps=eps, bn_momentum=momentum, scale_shape=scale_shape)
