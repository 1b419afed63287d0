"""Drop-in losses for PyTorch, on the CPU and on CUDA.

    kl_div, KLDivLoss             torch.nn.functional.kl_div and torch.nn.KLDivLoss: the input holds log-probabilities
    kl_div_probs, KLDivProbsLoss  the input holds probabilities; the logarithm is part of the pass
    rewrite                       replaces what it recognises in a model, and says what it did not

Works with PyTorch 1.10 and later; torch.func, torch.compile and torch.export from 2.1 on.
"""

from onepass.torch.kl import kl_div, kl_div_probs
from onepass.torch.modules import KLDivLoss, KLDivProbsLoss

__all__ = ["kl_div", "kl_div_probs", "KLDivLoss", "KLDivProbsLoss"]
