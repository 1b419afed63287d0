# Has zeros for a second backward pass through the same call.
# problem: linear_bn_softmax
# options: --plain-inputs
# rejected by: gradients

from _softmax import model, right


def backward(ctx, result, upstream):
    again, ctx.done = getattr(ctx, "done", False), True
    return right(result, upstream) * (not again)


ModelNew = model(backward)
