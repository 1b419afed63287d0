class ModelNew(nn.Module):
    """kl_div(log(predictions), targets, reduction="batchmean") of two tensors of probabilities.

    The sum of t * (log t - log p) over all elements, divided by the size of the predictions' first dimension: what
    torch.nn.functional.kl_div gives for the logarithm of the predictions, special values included. Both inputs are read
    once and nothing of their size is stored but the gradients that are required.
    """

    def forward(self, predictions, targets):
        divisor = predictions.size(0)
        if predictions.shape != targets.shape:
            predictions, targets = torch.broadcast_tensors(predictions, targets)
        if torch.is_grad_enabled() and (predictions.requires_grad or targets.requires_grad):
            return _KlDiv.apply(predictions, targets, divisor)
        return _forward(predictions, targets, divisor, False, False)[0]


def _forward(predictions, targets, divisor, want_predictions, want_targets):
    """Value and wanted gradients in one pass. Under autocast PyTorch computes this loss in float32, or in float64."""
    return _extension(predictions).forward(predictions, targets, divisor, _autocast(predictions), want_predictions,
                                           want_targets)


class _KlDiv(torch.autograd.Function):
    """The loss where a gradient is required: it is made together with the value, for an upstream gradient of 1."""

    @staticmethod
    def forward(ctx, predictions, targets, divisor):
        value, *ctx.made = _forward(predictions, targets, divisor, *ctx.needs_input_grad[:2])
        ctx.save_for_backward(predictions, targets)
        ctx.divisor = divisor
        return value

    @staticmethod
    def backward(ctx, grad_value):
        predictions, targets = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:2]
        # A gradient is handed over once and never written again: autograd may keep that very tensor as .grad.
        made = [gradient for gradient, want in zip(ctx.made, wanted) if want]
        ctx.made = [None if want else gradient for gradient, want in zip(ctx.made, wanted)]
        if any(gradient is None for gradient in made):
            made = []
        arguments = (grad_value, predictions, targets, ctx.divisor, made, wanted)
        gradients = _KlDivGrad.apply(*arguments) if torch.is_grad_enabled() else _gradients(*arguments)
        return (*gradients, None)


def _gradients(grad_value, predictions, targets, divisor, made, wanted):
    """The wanted gradients for an upstream gradient: those that were made if it is 1, new ones if not."""
    return _extension(predictions).backward(predictions, targets, divisor, grad_value, made, *wanted)


class _KlDivGrad(torch.autograd.Function):
    """The gradients, -(u/d) t/p and (u/d) (log(t/p) + 1), where they are to be differentiated in turn.

    Their own derivatives are PyTorch's operators, so that any further ones follow.
    """

    @staticmethod
    def forward(ctx, grad_value, predictions, targets, divisor, made, wanted):
        ctx.save_for_backward(grad_value, predictions, targets)
        ctx.divisor = divisor
        return _gradients(grad_value, predictions, targets, divisor, made, wanted)

    @staticmethod
    def backward(ctx, to_predictions, to_targets):
        u, p, t = ctx.saved_tensors
        real = torch.float64 if torch.float64 in (p.dtype, t.dtype) else torch.float32
        u, p, t = (tensor.to(real) for tensor in (u, p, t))
        a = torch.zeros_like(p) if to_predictions is None else to_predictions.to(real)
        b = torch.zeros_like(t) if to_targets is None else to_targets.to(real)
        # d/du, d/dp and d/dt of  (u/d) sum(b (log t - log p + 1) - a t/p)
        scale = u / ctx.divisor
        to_u = (b * (torch.log(t) - torch.log(p) + 1) - a * t / p).sum() / ctx.divisor
        to_p = scale * (a * t / p - b) / p
        to_t = scale * (b / t - a / p)
        gradients = (gradient.to(saved.dtype) for gradient, saved in zip((to_u, to_p, to_t), ctx.saved_tensors))
        return (*gradients, None, None, None)
