"""The head in PyTorch's operations, which decide what is allowed, and raise the errors."""

import torch
import torch.nn.functional as F


def head(input, weight, bias, running_mean, running_var, gamma, beta, scale, training, momentum, eps,
         num_batches_tracked):
    """linear_batch_norm_softmax."""
    y = F.linear(input, weight, bias)
    if y.dim() not in (2, 3):
        raise ValueError("expected 2D or 3D input (got %dD input)" % y.dim())
    counts = training and num_batches_tracked is not None
    if counts:
        num_batches_tracked.add_(1)
    if momentum is None and counts and running_mean is not None:
        z = _cumulative(y, running_mean, running_var, gamma, beta, eps, num_batches_tracked)
    else:
        factor = 0.0 if momentum is None else momentum
        z = F.batch_norm(y, running_mean, running_var, gamma, beta, training, factor, eps)
    return torch.softmax(z if scale is None else scale * z, 1)


def _cumulative(y, running_mean, running_var, gamma, beta, eps, count):
    """batch_norm with the cumulative average of the statistics, and no number read by the host: with momentum 1 PyTorch
    gives those of the batch (of an empty one, those that were)."""
    mean, var = running_mean.clone(), running_var.clone()
    z = F.batch_norm(y, mean, var, gamma, beta, True, 1.0, eps)
    with torch.no_grad():
        factor = count.to(running_mean.dtype).reciprocal()
        running_mean.add_((mean - running_mean) * factor)
        running_var.add_((var - running_var) * factor)
    return z
