"""Drop-in losses and heads for PyTorch, on the CPU and on CUDA.

    kl_div, KLDivLoss             torch.nn.functional.kl_div and torch.nn.KLDivLoss: the input holds log-probabilities
    kl_div_probs, KLDivProbsLoss  the input holds probabilities; the logarithm is part of the pass
    cross_entropy, CrossEntropyLoss
                                  torch.nn.functional.cross_entropy and torch.nn.CrossEntropyLoss
    kl_div_logits, reverse_kl_logits, js_logits, skew_kl_logits, skew_reverse_kl_logits, tv_logits, and modules
                                  divergences of logits from logits, probabilities or log-probabilities
    kl_div_top_k                  KL or reverse KL of logits from a teacher given as top-k values and indices
    linear_cross_entropy, LinearCrossEntropyLoss
                                  torch.nn.functional.linear_cross_entropy and torch.nn.LinearCrossEntropyLoss: of
                                  hidden states and a weight, in chunks, so that there are never all logits at once
    linear_kl_div, linear_reverse_kl, linear_js, linear_skew_kl, linear_skew_reverse_kl, linear_tv
                                  divergences of a student from a teacher, of the hidden states and weights of both
    linear_kl_div_top_k           kl_div_top_k of hidden states and a weight
    token_log_probs               log-probabilities of tokens, entropy and LSE of logits
    linear_token_log_probs        the same of hidden states and a weight
    linear                        torch.nn.functional.linear, with all digits of float32
    linear_batch_norm_softmax, LinearBatchNormSoftmax
                                  linear layer, batch normalisation, scale and softmax as one operator
    prepare_weight                a float32 weight on CUDA in the form it is multiplied in, kept for many calls
    rewrite                       replaces what it recognises in a model, and says what it did not

torch.compile(model, backend="onepass") does what rewrite does to the graphs that PyTorch captures (backend.py).

Works with PyTorch 1.10 and later; torch.func and whole compiled graphs from 2.1 on. docs/python.md has a table.
"""

import onepass.torch.losses_shards_operators
from onepass.torch.head import linear_batch_norm_softmax
from onepass.torch.kl import kl_div, kl_div_probs
from onepass.torch.linear import linear
from onepass.torch.losses import (cross_entropy, js_logits, kl_div_logits, reverse_kl_logits, skew_kl_logits,
                                  skew_reverse_kl_logits, tv_logits)
from onepass.torch.losses_linear import linear_cross_entropy
from onepass.torch.losses_linear_divergences import (linear_js, linear_kl_div, linear_reverse_kl, linear_skew_kl,
                                                     linear_skew_reverse_kl, linear_tv)
from onepass.torch.losses_linear_top_k import linear_kl_div_top_k
from onepass.torch.losses_linear_tokens import linear_token_log_probs
from onepass.torch.losses_modules import (CrossEntropyLoss, JSLogitsLoss, KLDivLogitsLoss, LinearCrossEntropyLoss,
                                          ReverseKLLogitsLoss, SkewKLLogitsLoss, SkewReverseKLLogitsLoss, TVLogitsLoss)
from onepass.torch.losses_tokens import token_log_probs
from onepass.torch.losses_top_k import kl_div_top_k
from onepass.torch.modules import KLDivLoss, KLDivProbsLoss, LinearBatchNormSoftmax
from onepass.torch.prepared_weights import prepare_weight
from onepass.torch.rewrite import rewrite

__all__ = ["kl_div", "kl_div_probs", "KLDivLoss", "KLDivProbsLoss", "cross_entropy", "CrossEntropyLoss",
           "kl_div_logits", "KLDivLogitsLoss", "reverse_kl_logits", "ReverseKLLogitsLoss", "js_logits", "JSLogitsLoss",
           "skew_kl_logits", "SkewKLLogitsLoss", "skew_reverse_kl_logits", "SkewReverseKLLogitsLoss", "tv_logits",
           "TVLogitsLoss", "kl_div_top_k", "linear_cross_entropy", "LinearCrossEntropyLoss", "linear_kl_div",
           "linear_reverse_kl", "linear_js", "linear_skew_kl", "linear_skew_reverse_kl", "linear_tv", "token_log_probs",
           "linear_token_log_probs", "linear_kl_div_top_k", "linear", "linear_batch_norm_softmax",
           "LinearBatchNormSoftmax", "prepare_weight", "rewrite"]
