"""KL divergence of arrays on the CPU: NumPy's, and those of anything else that speaks DLPack. Results are NumPy's."""

import numpy

from onepass import errors, library


def _no_workspace(array, size):
    raise errors.Unsupported("onepass.kl_div works on the CPU; use onepass.torch for CUDA tensors")


def _array(name, value):
    """The array itself, checked as far as the results' types and shapes depend on it."""
    if not isinstance(value, numpy.ndarray):
        if not hasattr(value, "__dlpack__"):
            raise TypeError("%s: %s is not an array: it has no __dlpack__" % (name, type(value).__name__))
        value = numpy.from_dlpack(value)
    return value


def _kl(form, predictions, targets, reduction, divisor, row_weights, row_mask, semantics, gradients, threads):
    predictions, targets = _array("predictions", predictions), _array("targets", targets)
    number, divisor = library.reduction_of(reduction, divisor)
    dtype = numpy.result_type(predictions.dtype, targets.dtype)
    shape = {"none": predictions.shape, "rows": predictions.shape[:-1]}.get(reduction, ())
    value = numpy.empty(shape, dtype)
    grads = [numpy.empty(a.shape, a.dtype) if gradients else None for a in (predictions, targets)]
    if row_mask is not None and getattr(row_mask, "dtype", None) == bool:
        row_mask = row_mask.view(numpy.uint8)  # NumPy before 1.25 does not hand booleans out
    library.kl(form, predictions, targets, number, library.option("semantics", semantics, library.SEMANTICS), divisor,
               row_weights, row_mask, None, None, value, grads[0], grads[1], threads, _no_workspace)
    result = value if shape else value[()]
    return (result, grads[0], grads[1]) if gradients else result


def kl_div(input, target, reduction="batchmean", log_target=False, *, divisor=None, row_weights=None, row_mask=None,
           semantics="strict", gradients=False, threads=0):
    """KL(target || exp(input)) of arrays: input holds log-probabilities, as in torch.nn.functional.kl_div.

    reduction    'batchmean', 'mean', 'sum', 'rows' (one value a row, the last dimension summed) or 'none'
    log_target   the targets are logarithms too
    divisor      with 'sum': divides it
    row_weights  multiplies each row; row_mask (bool or uint8): rows where it is 0 are left out and never read.
                 Neither changes the divisor
    semantics    'strict': special values as in PyTorch; 'finite': the limits (0 where t = p = 0)
    gradients    also returns the gradients to input and to target: (value, grad_input, grad_target)
    threads      0: every core this process may use; results do not depend on it

    The value has the promoted dtype of the two. Shapes must be equal; broadcast with numpy.broadcast_to.
    """
    form = library.LOG_PREDICTIONS | (library.LOG_TARGETS if log_target else 0)
    return _kl(form, input, target, reduction, divisor, row_weights, row_mask, semantics, gradients, threads)


def kl_div_probs(predictions, targets, reduction="batchmean", log_target=False, *, divisor=None, row_weights=None,
                 row_mask=None, semantics="strict", gradients=False, threads=0):
    """KL(targets || predictions) of arrays of probabilities: kl_div(log(predictions), targets), without the logarithm's
    array and its rounding. The rest is as in kl_div."""
    form = library.LOG_TARGETS if log_target else 0
    return _kl(form, predictions, targets, reduction, divisor, row_weights, row_mask, semantics, gradients, threads)
