"""How far a result may be from the exact one.

Three runs are compared: the candidate's c, the reference's r, both in the dtype under judgement, and the reference's x
in double precision on the same inputs. An element may be wrong by

    tolerance(x) = FACTOR * max(E(x), FLOOR * ulp(x), smallest normal number)

ulp(x) is the distance of neighbouring numbers of the dtype at x, E(x) how wrong the reference itself is on values of
that size: the largest |r - x| among all elements in the same power of two, smoothed so that no element is expected to
be more exact, absolutely, than a smaller one, or, relatively, than a larger one; a power of two with fewer than POOL
elements borrows from the larger ones. No constant of ours decides: where the reference loses digits, so may others.

Values that are small because large ones cancelled are rare and are the least exact, and the reference is sometimes
lucky with them. So one element in OUTLIERS may be wrong by more, up to FACTOR times the root mean square of |r - x|
over the whole result.
"""

import torch

FACTOR = 16.0
FLOOR = 1.0
POOL = 32
RARE, MILD = 1000, 4.0  # one element in RARE may be wrong by MILD tolerances, if the whole is as exact as it should be
OUTLIERS = 20
CHUNK = 1 << 22
STEPS = 16  # of a histogram of errors: none, up to half an ulp, up to 1, 2, 4, ...
LOW, HIGH = -1100, 1100  # exponents of double precision, with room
BINS = HIGH - LOW + 1


def holds_fractions(tensor):
    return tensor.is_floating_point() or tensor.is_complex()


def real(tensor):
    """Flat, without imaginary parts, in double precision."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.reshape(-1).double()


def bins_of(exact):
    """The power of two of every element, as an index; 0 and what is not finite count as the smallest."""
    exponent = torch.frexp(torch.where(torch.isfinite(exact), exact, torch.zeros_like(exact)))[1].long()
    exponent = torch.where(exact == 0, torch.full_like(exponent, LOW), exponent)
    return exponent.clamp(LOW, HIGH) - LOW


def chunks(*tensors, device="cpu"):
    for begin in range(0, max(1, tensors[0].numel()), CHUNK):
        yield [begin] + [real(tensor[begin:begin + CHUNK].to(device)) for tensor in tensors]


class Envelope:
    """E(x) of one result. The reference's errors are added as they come in; `table` then has the tolerances."""

    def __init__(self, dtype, device="cpu"):
        info = torch.finfo({torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype))
        # Half precision reaches down to its normal numbers in everyday use; elsewhere flushing to zero is no fault.
        self.smallest = info.tiny * info.eps if dtype is torch.float16 else info.tiny
        self.eps, self.device = info.eps, device
        self.largest = torch.zeros(BINS, dtype=torch.float64)
        self.count = torch.zeros(BINS, dtype=torch.float64)
        self.squares = 0.0
        self._table = None

    def add(self, reference, exact, scale=1.0):
        """scale: for a reference run in another dtype, the ratio of the two precisions."""
        self._table = None
        for _, r, x in chunks(reference, exact, device=self.device):
            error = (r - x).abs() * scale
            usable = torch.isfinite(error)
            error, where = error[usable], bins_of(x)[usable]
            counts = torch.bincount(where, minlength=BINS).cpu()
            for index in counts.nonzero().reshape(-1).tolist():
                self.largest[index] = max(float(self.largest[index]), float(error[where == index].max()))
            self.count += counts
            self.squares += float(error.square().sum())

    @property
    def elements(self):
        return int(self.count.sum())

    @property
    def outlier(self):
        """What an element in OUTLIERS may be wrong by."""
        return FACTOR * (self.squares / self.elements) ** 0.5 if self.elements else 0.0

    def table(self):
        """Tolerance for each power of two."""
        if self._table is None:
            present = self.count.nonzero().reshape(-1).tolist()
            count, largest = self.count.tolist(), self.largest.tolist()
            borrowed, below = torch.zeros(BINS, dtype=torch.float64), 0
            for place, index in enumerate(present):
                # The largest error in this power of two and as many larger ones as it takes to have POOL elements.
                # Powers of two below it in which nothing was seen borrow the same.
                found, worst = 0.0, 0.0
                for other in present[place:]:
                    found, worst = found + count[other], max(worst, largest[other])
                    if found >= POOL:
                        break
                borrowed[below:index + 1] = worst
                below = index + 1
            absolute = torch.cummax(borrowed, 0)[0]
            powers = torch.pow(torch.tensor(2.0, dtype=torch.float64),
                               torch.arange(BINS, dtype=torch.float64).add(LOW).clamp(-1020, 1020))
            relative = torch.cummax((self.largest / powers).flip(0), 0)[0].flip(0) * powers
            ulp = self.eps * powers / 2  # frexp's powers are those above the number
            self._table = FACTOR * torch.stack([absolute, relative, FLOOR * ulp,
                                                torch.full_like(ulp, self.smallest)]).max(0)[0]
        return self._table

    def ulp(self, bins):
        exponent = (bins + LOW).double().clamp(-1020, 1020)
        return (self.eps / 2 * torch.pow(torch.full_like(exponent, 2.0), exponent)).clamp_min(self.smallest)


class Difference:
    """What a comparison found. `worst`: the largest error as a multiple of the tolerance."""

    def __init__(self, elements, eps):
        self.elements, self.eps, self.wrong, self.worst, self.at = elements, eps, 0, 0.0, None
        self.value = self.exact = self.reference = self.allowed = None
        self.error_ulps = self.reference_ulps = 0.0
        self.histogram = [torch.zeros(STEPS, dtype=torch.int64) for _ in range(2)]  # of both sides' errors
        self._squares = [0.0, 0.0, 0.0]

    @property
    def ok(self):
        return self.wrong == 0

    @property
    def error(self):
        """|c - x| / |x|, in the Euclidean norm."""
        return _ratio(self._squares[0], self._squares[2])

    @property
    def reference_error(self):
        return _ratio(self._squares[1], self._squares[2])

    @property
    def near(self):
        """Whether the whole, in the Euclidean norm, is within its type's rounding or within the reference's own."""
        error, own, size = (square ** 0.5 for square in self._squares)
        return error <= FACTOR * max(own, self.eps * size)

    @property
    def mild(self):
        """Whether what is wrong is so rarely and by so little that only the reference's luck tells it from right."""
        return self.near and self.wrong * RARE <= self.elements and self.worst <= MILD

    def words(self):
        if self.ok:
            return "error %.1e, the reference's %.1e" % (self.error, self.reference_error)
        return ("%d of %d elements wrong; the worst is %.9g where %.9g is exact and the reference has %.9g "
                "(allowed: %.1e)" % (self.wrong, self.elements, self.value, self.exact, self.reference, self.allowed))


def _ratio(above, below):
    if above == 0:
        return 0.0
    return (above / below) ** 0.5 if below else float("inf")


def compare(candidate, reference, exact, envelope, slack=0.0, histogram=False):
    """A Difference. slack: more tolerance, in multiples of E; for an `exact` that is itself a run of the reference.
    histogram: count errors by their size, too."""
    result = Difference(exact.numel(), envelope.eps)
    more = 1 + slack / FACTOR
    table, outlier = (envelope.table() * more).to(envelope.device), envelope.outlier * more
    spared = 0
    for begin, c, r, x in chunks(candidate, reference, exact, device=envelope.device):
        bins = bins_of(x)
        allowed = table[bins]
        error, own = (c - x).abs(), (r - x).abs()
        fine = error <= allowed
        # Where a run is not finite: infinities must be the same, and where the reference is NaN nothing is promised.
        odd = ~(torch.isfinite(x) & torch.isfinite(r))
        if bool(odd.any()):
            fine = torch.where(odd, torch.isnan(r) | torch.isnan(x) | (c == r) | (c == x) | fine, fine)
        # Of those outside, the ones that may be spared; too many of them are wrong after all.
        mild = ~fine & (error <= outlier)
        spared += int(mild.sum())
        if spared <= exact.numel() // OUTLIERS:
            fine = fine | mild
            allowed = torch.where(mild, torch.full_like(allowed, outlier), allowed)
        result.wrong += int((~fine).sum())
        ratio = torch.where(fine, torch.where(odd, torch.zeros_like(error), error / allowed),
                            torch.where(torch.isnan(error), torch.full_like(error, float("inf")), error / allowed))
        if ratio.numel():
            top, place = ratio.max(0)
            if float(top) > result.worst or (result.at is None):
                place = int(place)
                result.worst, result.at = float(top), begin + place
                result.value, result.exact, result.reference = float(c[place]), float(x[place]), float(r[place])
                result.allowed = float(allowed[place])
        plain = ~odd
        if bool(plain.any()):
            ulp = envelope.ulp(bins)[plain]
            for counts, part in zip(result.histogram, (error, own) if histogram else ()):
                counts += steps_of(part[plain] / ulp)
            result.error_ulps = max(result.error_ulps, _largest(error[plain] / ulp))
            result.reference_ulps = max(result.reference_ulps, _largest(own[plain] / ulp))
            for index, part in enumerate((error, own, x)):
                result._squares[index] += float(part[plain].square().sum())
    return result


def steps_of(ulps):
    """How many are 0, up to 1/2, 1, 2, 4, ..."""
    steps = torch.where(ulps == 0, torch.zeros_like(ulps), (ulps.log2().ceil() + 2).clamp(1, STEPS - 1))
    return torch.bincount(torch.where(torch.isnan(steps), torch.full_like(steps, STEPS - 1), steps).long(),
                          minlength=STEPS).cpu()


def _largest(values):
    return float("inf") if bool(torch.isnan(values).any()) else float(values.max())


def same_bits(a, b):
    """True if two tensors hold the same bytes."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits_of(a), bits_of(b))


def bits_of(tensor):
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.contiguous().view(integer)
