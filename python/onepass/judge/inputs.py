"""Harder inputs, made from the problem's own without leaving the domain they come from.

A problem draws its inputs from some distribution and usually says nothing about what else is legal. What the values of
a tensor promise is read off them (rows that add up to 1, the unit interval, no negative numbers), and every change
keeps it:

  permuted    the rows of all batched tensors in another order
  planted     one row that weighs far more than the others: a sharp distribution, a large vector
  heavy       every row with a strength of its own, over two orders of magnitude and more
  contracted  all values close to a common one, so that differences cancel and lost digits show
  sparse      exact zeros, and rows with all weight in one place

All arithmetic is in double precision; the caller rounds to the dtype under judgement.
"""

import math

import torch

from onepass.judge.runner import leaves, rebuild

SPREAD = 24.0  # of the logarithms in a planted distribution: e**-24 is the smallest of its values
TINY = 1e-30
MANY = 1 << 24  # elements that are looked at
CORNER = 64     # of a square that shows in most cases that it is neither symmetric nor triangular


def kind_of(tensor):
    """What the values of a tensor promise; of a large one, what some of its rows do."""
    if not tensor.is_floating_point():
        return "fixed"
    if tensor.dim() > 1 and tensor.numel() > MANY:
        tensor = tensor[::-(-tensor.numel() // MANY)]
    if tensor.numel() == 0 or not torch.isfinite(tensor).all():
        return "fixed"
    values = tensor.detach().double()
    rough = 1e-3 if tensor.dtype in (torch.float32, torch.float64) else 5e-2
    low, high = float(values.min()), float(values.max())
    if tensor.dim() >= 1 and tensor.shape[-1] > 1:
        if low >= 0 and float((values.sum(-1) - 1).abs().max()) < rough:
            return "distribution"
        if high <= rough and float(values.logsumexp(-1).abs().max()) < rough:
            return "log_distribution"
    if low >= 0 and high <= 1:
        return "unit"
    return "positive" if low >= 0 else "signed"


def is_square(tensor):
    return tensor.dim() == 2 and tensor.shape[0] == tensor.shape[1] and tensor.shape[0] > 1


def has_shape_of_a_matrix(tensor):
    """Whether a square is symmetric or triangular: then its rows are no batch."""
    for part in (tensor[:CORNER, :CORNER], tensor):
        if not any(torch.equal(part, other) for other in (part.t(), part.tril(), part.triu())):
            return False
    return True


def batch_of(values):
    """The size that the leading dimensions of the inputs share; None if there is none to change."""
    sizes = [tensor.shape[0] for tensor in leaves(values) if tensor.dim() >= 1]
    return sizes[0] if sizes and sizes[0] else None


def batched(tensor, batch):
    return (tensor.dim() >= 1 and tensor.shape[0] == batch
            and not (is_square(tensor) and has_shape_of_a_matrix(tensor)))


def normalised(tensor):
    return tensor / tensor.sum(-1, keepdim=True)


def strengthened(tensor, kind, strength):
    """Each row with a strength (a number above 0; 1 changes nothing) that has one entry per row."""
    strength = strength.reshape((-1,) + (1,) * (tensor.dim() - 1)).double()
    values = tensor.double()
    if kind == "distribution":
        return (values.clamp_min(TINY).log() * strength).softmax(-1)
    if kind == "log_distribution":
        return (values * strength).log_softmax(-1)
    if kind == "unit":
        return values.pow(strength)
    return values * strength


def sharpness(tensor, kind):
    """The strength that spreads the logarithms of a row of a distribution over SPREAD."""
    values = tensor.double() if kind == "log_distribution" else tensor.double().clamp_min(TINY).log()
    spread = values.max() - values.min()
    return max(1.0, SPREAD / max(float(spread), 1e-3))


def planted(values, generator, rows=None):
    """rows: which; one at random if not given."""
    batch = batch_of(values)
    if rows is None:
        rows = [int(torch.randint(batch, (1,), generator=generator))]

    def change(tensor):
        kind = kind_of(tensor)
        if kind == "fixed" or not batched(tensor, batch):
            return tensor
        tensor = tensor.clone()
        for row in rows:
            if kind in ("distribution", "log_distribution"):
                strength = sharpness(tensor[row], kind)
            else:
                strength = 8.0 if kind == "unit" else 16.0
            tensor[row] = strengthened(tensor[row:row + 1], kind, torch.tensor([strength]))[0]
        return tensor
    return changed(values, change)


def heavy(values, generator):
    """Strengths from 1/16 to 16, even in their logarithm; each tensor has its own."""
    batch = batch_of(values)

    def change(tensor):
        kind = kind_of(tensor)
        if kind == "fixed" or not batched(tensor, batch):
            return tensor
        exponents = torch.rand(batch, generator=generator, dtype=torch.float64) * 8 - 4
        return strengthened(tensor, kind, torch.pow(torch.tensor(2.0, dtype=torch.float64), exponents))
    return changed(values, change)


def permuted(values, generator):
    batch = batch_of(values)
    order = torch.randperm(batch, generator=generator)
    return changed(values, lambda tensor: tensor[order] if batched(tensor, batch) else tensor)


def contracted(values, generator):
    """Differences between values become 1/128 of what they were, of distributions 1/16; exact zeros stay."""
    def change(tensor):
        kind = kind_of(tensor)
        if kind == "fixed":
            return tensor
        exact = tensor.double()
        if kind == "distribution":
            uniform = 1.0 / tensor.shape[-1]
            return uniform + (exact - uniform) / 16
        if kind == "log_distribution":
            return (exact / 16).log_softmax(-1)
        if kind == "signed":
            centre = 8 * float(exact.std()) if exact.numel() > 1 else 0.0
        else:
            centre = 0.5 if kind == "unit" else float(exact.mean())
        return torch.where(exact == 0, exact, centre + (exact - centre) / 128 if kind != "signed" else exact + centre)
    return changed(values, change)


def sparse(values, generator, number):
    """Zeros in the tensor of that number, counted among all tensors: in a distribution whole rows but for one entry."""
    batch, seen = batch_of(values), iter(range(1 << 30))

    def change(tensor):
        kind = kind_of(tensor)
        if next(seen) != number or kind == "fixed":
            return tensor
        tensor = tensor.clone()
        if kind in ("distribution", "log_distribution"):
            flat = tensor.reshape(-1, tensor.shape[-1])
            rows = torch.randperm(flat.shape[0], generator=generator)[:max(1, flat.shape[0] // 8)]
            flat[rows] = 0 if kind == "distribution" else -math.inf
            places = torch.randint(tensor.shape[-1], (len(rows),), generator=generator)
            flat[rows, places] = 1 if kind == "distribution" else 0
            return flat.reshape(tensor.shape)
        zeros = torch.rand(tensor.shape, generator=generator) < 0.05
        return tensor.masked_fill(zeros, 0)
    return changed(values, change) if batch is not None else values


def with_rows(draws, count, generator):
    """A batch of another size, from the rows of several draws; None if the inputs share no batch."""
    batch = batch_of(draws[0])
    if batch is None or batch < 2:
        return None
    order = torch.randperm(batch * len(draws), generator=generator)[:count]
    if count > len(order):  # more than there are: some twice
        order = torch.randint(batch * len(draws), (count,), generator=generator)

    def change(*tensors):
        return torch.cat(tensors)[order] if batched(tensors[0], batch) else tensors[0]
    return changed_together(draws, change)


def with_columns(draws, count):
    """So many columns of every tensor, from those of several draws side by side, and distributions normalised again;
    None if the inputs share no width, or there are not as many."""
    widths = set(tensor.shape[-1] for tensor in leaves(draws[0]) if tensor.dim() >= 2)
    if len(widths) != 1 or count > len(draws) * widths.pop():
        return None

    def change(*tensors):
        if tensors[0].dim() < 2:
            return tensors[0]
        kind, part = kind_of(tensors[0]), torch.cat(tensors, -1)[..., :count]
        if kind == "distribution":
            return normalised(part.double())
        return part.double().log_softmax(-1) if kind == "log_distribution" else part.contiguous()
    return changed_together(draws, change)


def equal_rows(values):
    """Every row the first one."""
    return changed(values, lambda tensor: tensor[:1].expand(tensor.shape).contiguous() if tensor.dim() >= 2 else tensor)


def half_repeated(values, dimension):
    """The first half twice, where the whole was: what a program sees that reads only half of its input."""
    def change(tensor):
        if tensor.dim() <= (1 if dimension == -1 else 0) or tensor.shape[dimension] < 2:
            return tensor
        size = tensor.shape[dimension]
        half = tensor.narrow(dimension, 0, (size + 1) // 2)
        return torch.cat([half, half], dimension).narrow(dimension, 0, size)
    return changed(values, change)


def rounded(values, dtype):
    """Rounded to fewer digits and back: what a program sees that computes in a smaller type."""
    return changed(values, lambda tensor: tensor.to(dtype).to(tensor.dtype) if tensor.is_floating_point() else tensor)


def near(values, eps, generator, alike=False):
    """Every number up to three eps nearer to 0: what is 0, or within bounds, stays so. alike: all rows in the same way,
    so that equal rows stay equal and their errors go on to add up."""
    def change(tensor):
        if not tensor.is_floating_point():
            return tensor
        steps = torch.randint(4, tensor.shape[1:] if alike else tensor.shape, generator=generator)
        return tensor.double() * (1 - eps * steps.double())
    return changed(values, change)


def cast(values, dtype):
    """Floating tensors in another type."""
    return rebuild(values, iter([tensor.to(dtype) if tensor.is_floating_point() else tensor
                                 for tensor in leaves(values)]))


def changed(values, change):
    return changed_together([values], change)


def changed_together(many, change):
    """One set of values from several of the same shape; results in the dtype of the first."""
    columns = zip(*[leaves(values) for values in many])
    tensors = [change(*column).to(column[0].dtype) for column in columns]
    return rebuild(many[0], iter(tensors))


def perturbed(state, generator):
    """Weights without special values: a scale of 1 and a shift of 0 hide that they are ignored. Signs stay."""
    result = {}
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or not tensor.numel():
            result[name] = tensor
            continue
        values = tensor.double()
        if float(values.min()) >= 0 and float(values.max()) > 0:
            values = values * torch.pow(torch.tensor(2.0, dtype=torch.float64),
                                        torch.rand(values.shape, generator=generator, dtype=torch.float64) * 2 - 1)
        else:
            spread = float(values.std()) if values.numel() > 1 else 0.0
            noise = torch.randn(values.shape, generator=generator, dtype=torch.float64)
            values = values + 0.2 * (spread or 1.0) * noise
        result[name] = values.to(tensor.dtype)
    return result
