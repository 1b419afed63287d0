"""KL divergence of arrays on the CPU: NumPy's, and those of anything else that speaks DLPack. Results are NumPy's."""

import types

import numpy

from onepass import errors, library

_LENDS_READ_ONLY = tuple(int(part) for part in numpy.__version__.split(".")[:2]) >= (2, 1)


def _no_workspace(array, size):
    raise errors.Unsupported("onepass.kl_div works on the CPU; use onepass.torch for CUDA tensors")


def _lent(name, array):
    """The array as the library can take it: inputs are only read, but NumPy before 2.1 lends no read-only memory."""
    if isinstance(array, numpy.ma.MaskedArray):
        raise errors.Unsupported("%s: a masked array; its mask would be ignored. Use row_mask, or fill it" % name)
    if not isinstance(array, numpy.ndarray) or array.flags.writeable or _LENDS_READ_ONLY:
        return array
    interface = dict(array.__array_interface__, data=(array.ctypes.data, False))
    return numpy.asarray(types.SimpleNamespace(__array_interface__=interface, owner=array))


def _array(name, value):
    """The array itself, checked as far as the results' types and shapes depend on it."""
    if not isinstance(value, numpy.ndarray):
        if not hasattr(value, "__dlpack__"):
            raise TypeError("%s: %s is not an array: it has no __dlpack__" % (name, type(value).__name__))
        value = numpy.from_dlpack(value)
    return _lent(name, value)


def _kl(form, predictions, targets, reduction, divisor, row_weights, row_mask, semantics, gradients, threads):
    predictions, targets = _array("predictions", predictions), _array("targets", targets)
    number, divisor = library.reduction_of(reduction, divisor)
    dtype = numpy.result_type(predictions.dtype, targets.dtype)
    shape = {"none": predictions.shape, "rows": predictions.shape[:-1]}.get(reduction, ())
    value = numpy.empty(shape, dtype)
    grads = [numpy.empty(a.shape, a.dtype) if gradients else None for a in (predictions, targets)]
    row_weights, row_mask = _lent("row_weights", row_weights), _lent("row_mask", row_mask)
    if isinstance(row_mask, numpy.ndarray) and row_mask.dtype == bool:
        row_mask = row_mask.view(numpy.uint8)  # NumPy before 1.25 does not hand booleans out
    library.call(library.KL[form], predictions, targets, row_weights, row_mask, None, None, value, grads[0], grads[1],
                 number, library.option("semantics", semantics, library.SEMANTICS), divisor, 0, threads, _no_workspace)
    result = value if shape else value[()]
    return (result, grads[0], grads[1]) if gradients else result


def kl_div(input, target, reduction="batchmean", log_target=False, *, divisor=None, row_weights=None, row_mask=None,
           semantics="strict", gradients=False, threads=0):
    """KL(target || exp(input)) of arrays: input holds log-probabilities, as in torch.nn.functional.kl_div.

    reduction    'batchmean', 'mean', 'sum', 'rows' (one value per row, the last dimension summed) or 'none'
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
