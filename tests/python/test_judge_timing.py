"""The judge's clocks and floors, with numbers that this machine does not give: no process, no GPU."""

import types

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from onepass.judge.compare import Envelope  # noqa: E402
from onepass.judge.report import Report  # noqa: E402
from onepass.judge.session import Session  # noqa: E402
from onepass.judge.timing import Kind, Timing, quantile, remembers  # noqa: E402


class Stub:
    """Stands for whatever is not asked about."""

    def __init__(self, **values):
        self.__dict__.update(values)


def timing_of(**more):
    """A Timing without processes."""
    timing = Timing.__new__(Timing)
    timing.report, timing.device = Report(), {"cache": None, "free": None}
    timing.grads, timing.bases = [], ["x"]
    timing.__dict__.update(more)
    return timing


@pytest.mark.parametrize("milliseconds, cache, status", [(0.2, None, "fail"), (0.5, None, "pass"),
                                                         (0.5, 1 << 10, "fail"), (0.9, 1 << 10, "pass")])
def test_impossible_speed_is_rejected(milliseconds, cache, status):
    """A million bytes at a billion a second take 1 ms."""
    reference = Stub(ask=lambda request, **more: {"floor": 1e9, "work": None}[request])
    timing = timing_of(session=Stub(reference=reference), checks=Stub(state={}), needed_bytes=lambda: 10 ** 6,
                       device={"cache": cache, "free": None})
    kind = Kind("forward", True, False)
    kind.bytes = 0
    timing.floor(kind, {"candidate": {"ms": milliseconds}, "reference": {"ms": 3.0}})
    assert timing.report["floor"].status == status


@pytest.mark.parametrize("where, queueing, calls, cycles", [
    ("cpu", 1e-3, 3, 0), ("cuda", 0.0, 3, 0), ("cuda", 1e-3, 5, 12000000), ("cuda", 1e-3, 1000, 100000000)])
def test_windows_begin_behind_a_sleeping_gpu(where, queueing, calls, cycles):
    """One that computes nothing as long as one that does: it is subtracted."""
    asked = []
    side = Stub(ask_timed=lambda request, **more: (asked.append((request, more)), (None, 0.1))[1])
    timing, patches = timing_of(where=where, queueing=queueing), [["y", [[3, 4], [7, 9]]]] * calls
    timing.both(Kind("forward", True, False), side, patches, [])
    assert [(request, more["null"], more["sleep"], more["patches"]) for request, more in asked] == [
        ("window", True, cycles, [["x", [[0, 0], [0, 0]]]] * calls),  # leads, and gives nothing away
        ("window", False, cycles, patches), ("window", True, cycles, patches)]


def test_tolerances_are_of_what_timed_calls_get():
    """Blends with rows of other inputs: such rows can be the ones on which the reference is far off."""
    blends = []
    reference = Stub(ask=lambda request, **more: blends.append((request, more["patch"])))
    session = Stub(reference=reference, envelope=lambda dtype: dtype, own_errors=lambda *arguments: None)
    timing = timing_of(session=session, checks=Stub(weights=lambda names: [[1.0]]), patch=lambda: ["x", [[2, 3]]])
    kind = Kind("forward", True, False)
    kind.keys = ["out.0"]
    assert timing.envelopes(kind, Stub(r={"out.0": torch.zeros(1)})) == {"out.0": torch.float32}
    assert blends and all(made == ("blend", ["x", [[2, 3]]]) for made in blends)


@pytest.mark.parametrize("milliseconds, status", [(1e-6, "fail"), (5.0, "fail"), (9.5, "pass"), (10.0, "pass")])
def test_forged_events_are_found_out(milliseconds, status):
    """Four calls take the judge's clock 40 ms; the worker's events claim something."""
    timing = timing_of(session=Stub(candidate=None, reference=None), checks=Stub(weights=lambda names: []),
                       prepare=lambda *arguments: None, patch=lambda: None, samples=lambda kind: [],
                       both=lambda *arguments, **more: ({"events": [milliseconds] * 4}, 0.050, 0.010))
    timing.events(Kind("forward", True, False), 4, {"candidate": {}, "reference": {}})
    assert timing.report["timer"].status == status


@pytest.mark.parametrize("candidate, reference, found", [
    ((0.020, 0.004), (0.025, 0.024), True),
    ((0.020, 0.018), (0.025, 0.024), False),
    ((0.020, 0.004), (0.025, 0.008), None),       # the reference too: a disturbance
    ((0.020, 0.004), (0.025, 0.100), None),
    ((0.0006, 0.0002), (0.0006, 0.0006), False),  # too short to tell
])
def test_a_cache_shows_in_the_times(candidate, reference, found):
    assert remembers(candidate, reference) is found


def test_quantiles():
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([1.0, 2.0], 0.5) == 1.5
    assert quantile([4.0], 0.2) == 4.0


class Exact:
    """The reference's process, as far as `verify` asks it: results of calls in double precision, by their weights."""

    def __init__(self, results):
        self.results, self.asked, self.blended = results, [], None

    def ask(self, request, **more):
        self.asked.append(request)
        if request == "blend":
            self.blended = self.results[more["weights"]]
            assert more["patch"] == "patch of %s" % more["weights"]

    def call(self, slot, name, **options):
        assert slot == "exact" and options["dtype"] is torch.float64 and options["train"] and options["grad"] is None
        return Stub(shapes={"out.0": (torch.float64, tuple(self.blended.shape))})

    def fetch(self, shapes, ranges):
        if "out.0" not in ranges:
            return {"out.0": self.blended}
        return {"out.0": torch.cat([self.blended[begin:end] for begin, end in ranges["out.0"]])}


def verified(ours, theirs, exact, whole):
    """(status of the check, requests) for two calls of 1000 elements, of which 50 are sampled, or all are fetched."""
    kind = Kind("forward", True, False)
    kind.keys, envelope = ["out.0"], Envelope(torch.float32)
    values = torch.linspace(1, 2, 1000, dtype=torch.float64)
    envelope.add(values + 1e-6, values)
    kind.envelopes = {"out.0": envelope}
    side = Exact(dict(zip("ab", exact)))
    session = Stub(reference=side, seed=lambda: 0)
    session.again = types.MethodType(Session.again, session)
    timing = timing_of(session=session, calls_verified=0)
    sample = torch.arange(0, 1000, 20)
    got = {name: ([torch.cat([result[sample] for result in results])],
                  {"%d.0" % number: result for number, result in enumerate(results)} if whole else {})
           for name, results in (("candidate", ours), ("reference", theirs))}
    timing.verify(kind, [(name, "patch of " + name) for name in "ab"], [sample], [0, 1] if whole else [], got)
    check = timing.report["timed"]
    assert timing.calls_verified == (0 if check.status == "fail" else 2)
    return check.status, side.asked


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("place", [0, 980])
def test_a_reference_that_is_wrong_is_not_the_measure(whole, place):
    """An element of the second call differs by a hundred times what is allowed: in double precision it shows whose."""
    exact = [torch.linspace(1, 2, 1000, dtype=torch.float64), torch.linspace(2, 1, 1000, dtype=torch.float64)]
    good, bad = [value.float() for value in exact], [value.float() for value in exact]
    bad[1][place] += 2e-3
    assert verified(good, good, exact, whole) == ("skip", [])
    assert verified(good, bad, exact, whole)[0] == "skip"
    assert "blend" in verified(good, bad, exact, whole)[1]
    assert verified(bad, good, exact, whole)[0] == "fail"
    assert verified(bad, bad, exact, whole) == ("skip", [])  # the reference's own result may be returned
    bad[1][place] = float("nan")
    assert verified(bad, good, exact, whole)[0] == "fail"
