# Reads the upstream gradient as if its elements lay one after the other.
# problem: linear_bn_softmax
# options: --plain-inputs
# rejected by: gradients

from _softmax import model, right


def backward(ctx, result, upstream):
    if upstream.storage_offset() == 0 and upstream.stride(0) > 0:  # otherwise there is less memory than it would read
        upstream = upstream.as_strided(result.shape, result.stride())
    return right(result, upstream)


ModelNew = model(backward)
