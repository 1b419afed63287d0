"""Drop-in losses and heads for PyTorch, on the CPU and on CUDA.

    kl_div, KLDivLoss             torch.nn.functional.kl_div and torch.nn.KLDivLoss: the input holds log-probabilities
    kl_div_probs, KLDivProbsLoss  the input holds probabilities; the logarithm is part of the pass
    linear                        torch.nn.functional.linear, with all digits of float32
    linear_batch_norm_softmax, LinearBatchNormSoftmax
                                  linear layer, batch normalisation, scale and softmax as one operator
    prepare_weight                a float32 weight on CUDA in the form it is multiplied in, kept for many calls
    rewrite                       replaces what it recognises in a model, and says what it did not

Works with PyTorch 1.10 and later; torch.func from 2.1, torch.compile(fullgraph=True) and torch.export from 2.4 on.
"""

from onepass.torch.head import LinearBatchNormSoftmax, linear_batch_norm_softmax
from onepass.torch.kl import kl_div, kl_div_probs
from onepass.torch.linear import linear
from onepass.torch.modules import KLDivLoss, KLDivProbsLoss
from onepass.torch.prepared_weights import prepare_weight
from onepass.torch.rewrite import rewrite

__all__ = ["kl_div", "kl_div_probs", "KLDivLoss", "KLDivProbsLoss", "linear", "linear_batch_norm_softmax",
           "LinearBatchNormSoftmax", "prepare_weight", "rewrite"]
