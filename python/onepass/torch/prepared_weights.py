"""prepare_weight: a weight in the form that the library's float32 product on tensor cores multiplies, kept by the
caller for many calls. Each is then shorter, and its result has the same bits; backward passes do not look at it.

The library is given an address and believes it. Here is remembered which weight the bytes were made of and how it was
then, and a call whose weight is another one, or was written to since, is refused. That is looked at where the library
is called, inside of the operators of torch.ops.onepass too, so that a compiled graph is held to the same rules.
"""

import weakref

import torch

from onepass import _native, errors, library
from onepass.torch import route

_DEVICE = "cuda"  # what uses prepared weights

# {(device, address): PreparedWeight}: who the bytes that an operator is given belong to.
_living = weakref.WeakValueDictionary()

_UNUSED = {
    _native.FP32_TF32: "PyTorch's setting allows TF32 (torch.backends.cuda.matmul, torch.set_float32_matmul_precision)",
    _native.FP32_VENDOR: "exact_fp32=True or $ONEPASS_FP32_PRODUCTS=vendor leaves products to cuBLAS",
}


def _refuse_mode(operator, argument, products):
    if products in _UNUSED:
        raise errors.InvalidArgument("%s: %s: %s; only the library's own float32 product uses a prepared weight" % (
            operator, argument, _UNUSED[products]))


def _products(weight):
    """How calls with a weight that can be prepared multiply."""
    operator = "prepare_weight"
    if not isinstance(weight, torch.Tensor):
        raise TypeError("%s: weight: %s; it must be a tensor" % (operator, type(weight).__name__))
    if weight.device.type != _DEVICE:
        raise errors.Unsupported("%s: weight: on %s; only products on %s use prepared weights" % (
            operator, weight.device, _DEVICE.upper()))
    if weight.dtype is not torch.float32:
        raise errors.InvalidArgument("%s: weight: %s; it must be torch.float32" % (operator, weight.dtype))
    if weight.dim() != 2 or not weight.numel():
        raise errors.InvalidArgument("%s: weight: shape %s; it must be [N, K], neither of them 0" % (
            operator, list(weight.shape)))
    if route.way((weight,)) != route.EAGER:
        raise errors.Unsupported("%s: weight: %s; it must be a plain strided tensor, outside of torch.compile, traces "
                                 "and transforms" % (operator, type(weight).__name__))
    products = route.products(weight)
    _refuse_mode(operator, "weight", products)
    return products


_KNOWN = ("device", "dtype", "shape", "strides", "address", "version")


def _state(weight):
    """Values of _KNOWN. The version counts what PyTorch wrote to the tensor; those of the inference mode have none."""
    return (weight.device, weight.dtype, tuple(weight.shape), weight.stride(), weight.data_ptr(),
            None if weight.is_inference() else weight._version)


def _difference(before, now):
    """In words, the first one; None if there is none."""
    for name, a, b in zip(_KNOWN, before, now):
        if a != b:
            return "%s %s, now %s" % (name, a, b)
    return None


class PreparedWeight:
    """What prepare_weight makes.

    weight      the tensor that was prepared
    planes      what was made of it: uint8, on its device
    is_current  False if the weight was written to or moved since; calls would be refused
    update()    prepares the weight as it is now, in the same memory
    can_update  False if its shape or its device is another one by now
    """

    def __init__(self, weight):
        products = _products(weight)
        self.weight = weight
        size = library.workspace_size(library.PREPARE_WEIGHT, weight, products, 0)
        with torch.inference_mode(False):  # planes made in inference mode serve training, too
            self.planes = torch.empty(size, dtype=torch.uint8, device=weight.device)
        self._fill(products)
        _living[self.planes.device, self.planes.data_ptr()] = self

    def _fill(self, products):
        library.call(library.PREPARE_WEIGHT, self.weight, products, 0, self.planes)
        self._made_of = _state(self.weight)

    def update(self):
        """Prepares the weight as it is now. The memory stays where it is, so a CUDA graph that was captured with it
        goes on with the new weight."""
        products = _products(self.weight)
        if not self.can_update:
            raise errors.InvalidArgument("update: weight: %s; its shape and device are no longer those it was prepared "
                                         "with: prepare it anew" % _difference(self._made_of, _state(self.weight)))
        self._fill(products)

    @property
    def can_update(self):
        return _state(self.weight)[:3] == self._made_of[:3]

    @property
    def is_current(self):
        return _state(self.weight) == self._made_of

    def check(self, operator, weight):
        """Refuses a call with another weight than the one that was prepared, or with one that was changed since."""
        if weight.dtype is not torch.float32:
            raise errors.InvalidArgument("%s: prepared: given with a weight of %s (autocast casts weights); it must be "
                                         "torch.float32" % (operator, weight.dtype))
        # Both are looked at: a view that a compiled graph makes of the weight counts its versions anew, and so does
        # weight.data, whichever of the two was prepared.
        difference = _difference(self._made_of, _state(weight)) or _difference(self._made_of, _state(self.weight))
        if difference is not None:
            raise errors.InvalidArgument(
                "%s: prepared: of another weight, or of this one before it was changed (%s); it must be the call's "
                "weight as it is: update() prepares it again" % (operator, difference))

    def __reduce_ex__(self, protocol):
        raise errors.Unsupported("prepare_weight: a prepared weight is of one tensor's memory, and is neither copied "
                                 "nor pickled; prepare the copy's weight")

    def __repr__(self):
        return "PreparedWeight(shape=%s, device='%s', bytes=%d, is_current=%s)" % (
            list(self.weight.shape), self.weight.device, self.planes.numel(), self.is_current)


def prepare_weight(weight):
    """A PreparedWeight of a float32 weight [N, K] on CUDA, to be passed as `prepared` beside that weight:

        prepared = onepass.torch.prepare_weight(layer.weight)
        y = onepass.torch.linear(x, layer.weight, layer.bias, prepared=prepared)

    It takes as much memory as the weight (K counted in whole 64s) and 1/256 more. After a change of the weight,
    prepared.update(): a call before that is refused.
    """
    return PreparedWeight(weight)


# ---- calls -----------------------------------------------------------------------------------------------------------


def planes_of(operator, prepared):
    """What goes to the operator; None if nothing was prepared."""
    if prepared is None:
        return None
    if not isinstance(prepared, PreparedWeight):
        raise TypeError("%s: prepared: %s; it must be what onepass.torch.prepare_weight returns" % (
            operator, type(prepared).__name__))
    return prepared.planes


def keyword(prepared):
    """What a call that goes to somebody else takes along."""
    return {} if prepared is None else {"prepared": prepared}


def refuse_in_torch(operator, prepared):
    """For calls that PyTorch's own operations compute."""
    if prepared is not None:
        raise errors.Unsupported("%s: prepared: given to a call that is left to PyTorch's own operations, which use "
                                 "none (docs/head.md says which calls these are)" % operator)


def check(operator, weight, planes, products):
    """Refuses planes that a call of the library may not use."""
    if planes is None:
        return
    prepared = _living.get((planes.device, planes.data_ptr()))
    if prepared is None:
        raise errors.InvalidArgument("%s: prepared: bytes on %s that prepare_weight did not make in this process, or "
                                     "that were copied or given back; it must be a living PreparedWeight's planes" % (
                                         operator, planes.device))
    prepared.check(operator, weight)
    _refuse_mode(operator, "prepared", products)
