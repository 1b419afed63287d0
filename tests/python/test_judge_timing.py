"""The judge's clocks and floors, with numbers that this machine does not give: no process, no GPU."""

import collections
import itertools
import os
import random
import types

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from onepass.judge import compare  # noqa: E402
from onepass.judge.compare import Envelope  # noqa: E402
from onepass.judge.report import Report  # noqa: E402
from onepass.judge.runner import BLOCK, digest  # noqa: E402
from onepass.judge.session import Session  # noqa: E402
from onepass.judge import timing as timing_module, windows  # noqa: E402
from onepass.judge.timing import SURE, Timing, evaluated, interval, quantile, remembers  # noqa: E402
from onepass.judge.windows import File, Kind, Watched  # noqa: E402


class Stub:
    """Stands for whatever is not asked about."""

    def __init__(self, **values):
        self.__dict__.update(values)


def timing_of(**more):
    """A Timing without processes."""
    timing = Timing.__new__(Timing)
    timing.report, timing.device = Report(), {"cache": None, "free": None}
    timing.grads, timing.bases, timing.where = [], ["x"], "cpu"
    timing.lasted, timing.tools, timing.watched = {}, [], collections.defaultdict(Watched)
    timing.__dict__.update(more)
    return timing


def floored(measured, rates, cache=None):
    """The floor check for milliseconds of a call, one after the other; all of them must have been asked for."""
    rates, measured = list(rates), list(measured)

    def rounds(kind, calls, windows, verify):
        return [(calls * measured[0] / 1e3, 1.0, 0.0)] * windows if len(measured) == 1 else \
            [(calls * measured.pop(0) / 1e3, 1.0, 0.0)] * windows
    reference = Stub(ask=lambda request, **more: {"floor": lambda: rates.pop(0), "work": lambda: None}[request]())
    timing = timing_of(session=Stub(reference=reference), checks=Stub(state={}), needed_bytes=lambda: 10 ** 6,
                       device={"cache": cache, "free": None}, rounds=rounds)
    kind = Kind("forward", True, False)
    timing.floor(kind, evaluated(rounds(kind, 2, 5, False), 2))
    assert len(measured) == 1 and rates == []
    return timing.report["floor"].status


@pytest.mark.parametrize("milliseconds, cache, status", [(0.2, None, "fail"), (0.5, None, "pass"),
                                                         (0.5, 1 << 10, "fail"), (0.9, 1 << 10, "pass")])
def test_impossible_speed_is_rejected(milliseconds, cache, status):
    """A million bytes at a billion a second take 1 ms."""
    assert floored([milliseconds], [1e9] * (3 if status == "fail" else 1), cache) == status


@pytest.mark.parametrize("measured, rates, status", [
    ([0.1, 0.1, 0.1], [1e9] * 3, "fail"),
    ([0.1, 0.1, 0.5], [1e9] * 3, "pass"),
    ([0.2, 0.2], [1e9, 2e9], "pass"),  # the best rate counts
    ([0.2, 0.3], [1e9, 1e9], "pass"),
])
def test_what_is_impossible_is_measured_again_beside_the_candidate(measured, rates, status):
    assert floored(measured, rates) == status


@pytest.mark.parametrize("candidate, status", [(0.0095, "pass"), (0.0080, "fail")])
def test_noise_is_no_impossible_speed_on_a_gpu(candidate, status):
    """Windows of nothing last from 10 to 12 ms, the candidate's from 9.5 to 11.4, and the least of one is 0.5 ms more
    than nothing: that may be. Not so where even the longest window is shorter than the shortest of nothing."""
    rounds = [[candidate * (1 + 0.05 * number), 1.0, 0.010 + 0.0005 * number] for number in range(5)]
    reference = Stub(ask=lambda request, **more: 1e9 if request == "floor" else None)
    timing = timing_of(session=Stub(reference=reference), checks=Stub(state={}), needed_bytes=lambda: 10 ** 6,
                       where="cuda", rounds=lambda kind, calls, windows, verify: rounds)
    result = evaluated(rounds, 2)
    timing.floor(Kind("forward", True, False), result)
    assert timing.report["floor"].status == status
    assert not result["candidate"]["measurable"]


@pytest.mark.parametrize("where, queueing, calls, cycles", [
    ("cpu", 1e-3, 3, None), ("cuda", 0.0, 3, 0), ("cuda", 1e-3, 5, 12000000), ("cuda", 1e-3, 1000, 100000000)])
def test_windows_begin_behind_a_sleeping_gpu(where, queueing, calls, cycles):
    """And everything about the inputs of all calls comes with the request."""
    asked = []

    def ask_timed(request, **more):
        asked.append(more)
        return {"digests": [torch.zeros(calls, 1, dtype=torch.int64)]}, 0.1
    timing = timing_of(where=where, queueing=queueing, checks=Stub(draws=["x"]))
    kind, made = Kind("forward", True, False), [[torch.full((3,), float(call))] for call in range(calls)]
    kind.shapes = [("float32", [2])]
    specs = [([[1.0]], ["x", [[call, call + 1]]]) for call in range(calls)]
    timing.ask(kind, Stub(ask_timed=ask_timed, trusted=False), specs, made)
    (more,) = asked
    assert more.get("sleep") == cycles and not more["null"]
    if where == "cuda":
        assert more["source"]["patches"] == [spec[1] for spec in specs] and more["descriptors"] == []
    else:
        assert len(more["source"]["offsets"]) == calls and len(more["descriptors"]) == 1


def test_the_candidate_is_never_asked_for_a_window_of_nothing():
    """What is subtracted comes from the reference's process, and results are asked for right after the answer."""
    asked, looks = [], []

    def side(name):
        def ask(request, **more):
            asked.append((name, request))

        def ask_timed(request, **more):
            asked.append((name, request + (" of nothing" if more["null"] else "")))
            looks.append("look" in more and 0.0 < more["look"][0] < 0.4 and more["look"][1]())
            return {"digests": [digest(RESULT).repeat(2, 1)]}, {"candidate": 0.4, "reference": 0.3}[name]

        def fetch(shapes, ranges):
            asked.append((name, "fetch"))
            return {key: RESULT for key in shapes}
        return Stub(ask=ask, ask_timed=ask_timed, fetch=fetch, worker=Stub(pid=os.getpid()),
                    trusted=name == "reference")
    kind = Kind("forward", True, False)
    kind.keys, kind.shapes, kind.bytes = ["out.0"], [("float32", [5])], 20
    session = Stub(candidate=side("candidate"), reference=side("reference"), random=random.Random(1),
                   conditions=Stub(look=lambda: "looked"))
    timing = timing_of(session=session, where="cpu", checks=Stub(draws=["x"]), tensors=lambda spec: [torch.rand(3)],
                       calls_verified=0, wrong=lambda *arguments: None)
    assert timing.round(kind, [None, None]) == [0.4, 0.3, 0.3]
    assert asked == [("candidate", "prepare"), ("reference", "prepare"), ("candidate", "window"),
                     ("candidate", "fetch"), ("reference", "window"), ("reference", "fetch"),
                     ("reference", "window of nothing")]
    assert timing.calls_verified == 2 and not timing.report.failed
    assert looks == [False] * 3  # nobody knows yet how long such a window takes
    timing.round(kind, [None, None])
    assert looks[3:] == ["looked"] * 3
    assert set(timing.watched) == {("reference", "candidate"), ("candidate", "reference"), ("candidate", "nothing")}


@pytest.mark.parametrize("busy, status", [
    ({}, "skip"),
    ({"reference": 0.4}, "skip"), ({"reference": 0.7}, "fail"),
    ({"nothing": 0.4}, "skip"), ({"nothing": 0.7}, "fail"),
    ({"nothing": 0.7, "candidate": 0.2}, "skip"),  # pools of both sides spin
])
def test_who_is_busy_while_others_are_timed(monkeypatch, busy, status):
    """Shares of a core, in windows of the candidate, of the reference and of nothing, by a clock of their own. Work in
    windows of nothing alone makes them longer, and they are what is subtracted."""
    now, spent = itertools.count(), collections.Counter()
    monkeypatch.setattr(windows, "cpu_seconds", lambda pid: spent[pid])
    monkeypatch.setattr(windows, "time", Stub(monotonic=lambda: float(next(now))))
    timing = timing_of(session=Stub(candidate=Stub(worker=Stub(pid=1)), reference=Stub(worker=Stub(pid=2))))
    for _ in range(10):
        for timed, process, pid in (("candidate", "reference", 2), ("reference", "candidate", 1),
                                    ("nothing", "candidate", 1)):
            with timing.watching(process, timed):
                spent[pid] += busy.get(timed, 0.0)
    timing.rests()
    assert timing.report["late"].status == status
    assert timing.watched["candidate", "nothing"].share == pytest.approx(busy.get("nothing", 0.0))


def test_a_blink_is_no_work():
    """Of short windows, a share that a single tick of the system's clock gives."""
    timing = timing_of()
    found = timing.watched["candidate", "nothing"]
    found.busy, found.seconds = 0.01, 0.012
    timing.rests()
    assert timing.report["late"].status == "skip"


RESULT = torch.arange(5.0)


@pytest.mark.parametrize("change", [None, 0, 70000, 199999])
def test_what_is_filled_in_after_the_answer_is_noticed(change):
    kind = Kind("forward", True, False)
    kind.keys, kind.shapes = ["out.0"], [("float32", [2, 100000])]
    result = torch.rand(200000)
    sums = [digest(result).unsqueeze(0)]
    assert sums[0].shape == (1, -(-200000 // BLOCK))
    if change is not None:
        result[change] += 1
    timing = timing_of()
    timing.check_digests(kind, sums, {(0, 0): list(range(sums[0].shape[1]))}, {(0, 0): result})
    assert timing.report["late"].status == ("skip" if change is None else "fail")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.bool, torch.int64,
                                   torch.complex64])
def test_the_sums_are_of_the_bits(dtype):
    result = torch.randint(0, 2, (3, BLOCK - 1)).to(dtype)
    sums = digest(result)
    assert sums.dtype is torch.int64 and sums.shape == (3,)
    assert torch.equal(digest(result.t().contiguous().t()), sums)
    assert digest(result[:0]).shape == (0,) and digest(result[0, 0]).shape == (1,)
    assert int(digest(result[0, :5])) == int(compare.bits_of(result[0, :5]).sum())
    other = result.clone()
    other[1, 7] = ~other[1, 7] if dtype is torch.bool else other[1, 7] + 2
    assert (digest(other) != sums).sum() == 1


def test_inputs_in_a_file():
    calls = [[torch.rand(3, 5), torch.arange(4), torch.rand(0, 2)], [torch.rand(7), torch.tensor(True)]]
    file = File(calls)
    for tensors, found in zip(calls, file.tensors(calls)):
        assert [compare.same_bits(a, b) for a, b in zip(tensors, found)] == [True] * len(tensors)
    file.tensors(calls)[1][0][3] = -1.0
    timing = timing_of()
    timing.check_inputs([], calls, file)
    assert timing.report["inputs"].status == "fail"
    file.close()


def rounds_of(candidate, reference, nothing, number=15, spread=0.0):
    """Windows in seconds; each time is made longer by up to a share."""
    draw = random.Random(5)
    return [[value * (1 + spread * draw.random()) for value in (candidate, reference, nothing)] for _ in range(number)]


def test_what_windows_say():
    found = evaluated(rounds_of(0.011, 0.031, 0.001), 10)
    assert found["measurable"] and not found["noisy"] and found["speedup"] == pytest.approx(3.0)
    assert found["candidate"]["ms"] == pytest.approx(1.0) and found["candidate"]["whole_ms"] == pytest.approx(1.1)
    equal = evaluated(rounds_of(0.02, 0.02, 0.001, spread=0.03), 10)
    assert not equal["noisy"] and 0.9 < equal["speedup"] < 1.1


@pytest.mark.parametrize("candidate, nothing", [(0.001, 0.001), (0.00102, 0.001), (0.0005, 0.001)])
def test_a_difference_within_its_noise_is_no_time(candidate, nothing):
    found = evaluated(rounds_of(candidate, 0.02, nothing, spread=0.2), 10)
    assert not found["measurable"] and found["noisy"] and "speedup" not in found
    assert found["candidate"]["ms"] >= 0 and found["reference"]["measurable"]
    report = Report()
    report.times = {"forward": found}
    assert report.verdict == "accepted: 0 checks passed, forward not measurable on this machine now"
    assert "not measurable" in report.text()


def test_equal_code_on_a_busy_machine_is_called_noise():
    """Disturbances that come and go: one in three windows takes up to four times as long."""
    draw = random.Random(3)
    flagged = 0
    for _ in range(200):
        rounds = [[0.02 * (draw.choice([1, 1, 1 + 3 * draw.random()])) for _ in range(2)] + [0.001] for _ in range(15)]
        found = evaluated(rounds, 10)
        assert found["noisy"] or 0.9 < found["speedup"] < 1.1
        flagged += found["noisy"]
    assert flagged > 100


def test_tolerances_are_of_what_timed_calls_get():
    """Blends with rows of other inputs: such rows can be the ones on which the reference is far off."""
    blends = []
    reference = Stub(ask=lambda request, **more: blends.append((request, more["patch"])))
    shapes = {"out.0": (torch.float32, (1,))}
    session = Stub(reference=reference, envelope=lambda dtype: dtype, own_errors=lambda *arguments: shapes)
    timing = timing_of(session=session, checks=Stub(weights=lambda names: [[1.0]]), patch=lambda: ["x", [[2, 3]]])
    kind = Kind("forward", True, False)
    kind.keys = ["out.0"]
    evaluation = Stub(r={"out.0": torch.zeros(1)}, reference=Stub(shapes=dict(shapes)))
    assert timing.envelopes(kind, evaluation) == {"out.0": torch.float32}
    assert blends and all(made == ("blend", ["x", [[2, 3]]]) for made in blends)
    shapes["out.0"] = torch.float32, (2,)  # a result whose size depends on values
    assert timing.envelopes(kind, evaluation) is None


@pytest.mark.parametrize("milliseconds, status", [(1e-6, "fail"), (5.0, "fail"), (9.5, "pass"), (10.0, "pass")])
def test_forged_events_are_found_out(milliseconds, status):
    """Four calls take the judge's clock 40 ms; the worker's events claim something."""
    def ask(kind, side, specs, null=False, events=False):
        assert events and (side == "reference" or not null)
        return ({}, 0.010, None) if null else ({"events": [milliseconds] * 4}, 0.050, None)
    timing = timing_of(session=Stub(candidate="candidate", reference="reference"), prepare=lambda kind: None,
                       spec=lambda: None, ask=ask)
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


@pytest.mark.parametrize("size", [5, 7, SURE, 11, 15, 17, 45])
def test_an_interval_holds_the_median_as_often_as_is_said(size):
    """Of values of which each is on either side of the median as probably: exactly, by counting."""
    low, high = (int(end) for end in interval([float(value) for value in range(size)]))
    assert low + high == size - 1
    sides = [timing_module.math.comb(size, below) for below in range(size + 1)]
    outside = 2 * sum(sides[:low + 1]) / 2 ** size  # at most `low` are on that side
    assert (outside <= timing_module.DOUBT) == (size >= SURE)
    assert size < SURE or 2 * sum(sides[:low + 2]) / 2 ** size > timing_module.DOUBT


def test_few_windows_are_never_sure():
    assert evaluated(rounds_of(0.02, 0.02, 0.001, number=SURE - 1), 10)["noisy"]
    assert not evaluated(rounds_of(0.02, 0.02, 0.001, number=SURE), 10)["noisy"]


def repeatedly(draw, new, repeated, disturbance):
    """The check of the cache for a candidate's calls on new and on repeated inputs. Of seconds: what requests cost,
    and calls of the reference's, are 0.01 and 0.03; every window is disturbed by something, on average as long."""
    def round_of(kind, specs, verify):
        ours = repeated if len(set(map(id, specs))) == 1 else new
        return [0.01 + value + draw.expovariate(1 / disturbance) for value in (ours, 0.03, 0.0)]
    timing = timing_of(spec=object, round=round_of, room=lambda: 1 << 30, input_bytes=1, session=Stub(random=draw))
    timing.repeated(Kind("forward", True, False), 10)
    return timing.report["cache"]


def test_a_busy_machine_makes_no_cache_of_a_fast_candidate():
    """Calls that are short beside what disturbs them; equal inputs take as long as new ones."""
    draw = random.Random(20261119)
    for disturbance in (0.001, 0.01, 0.05):
        assert not any(repeatedly(draw, 0.0015, 0.0015, disturbance).status == "fail" for _ in range(300))


@pytest.mark.parametrize("disturbance, least", [(1e-5, 50), (1e-3, 50), (0.005, 25)])
def test_a_cache_is_proven(disturbance, least):
    """Of 50 runs; on a busier machine some end with a note."""
    draw = random.Random(20261119)
    found = [repeatedly(draw, 0.02, 0.001, disturbance) for _ in range(50)]
    assert sum(check.status == "fail" for check in found) >= least
    assert all(check.status == "fail" or "too busy to tell" in check.text for check in found)


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
    """(status of the check, requests) for two calls of 1000 elements, of which the first 990 are fetched, or all."""
    kind = Kind("forward", True, False)
    kind.keys, envelope = ["out.0"], Envelope(torch.float32)
    kind.shapes = [("float32", [1000])]
    values = torch.linspace(1, 2, 1000, dtype=torch.float64)
    envelope.add(values + 1e-6, values)
    kind.envelopes = {"out.0": envelope}
    side = Exact(dict(zip("ab", exact)))
    session = Stub(reference=side, seed=lambda: 0)
    session.again = types.MethodType(Session.again, session)
    last = 1000 if whole else 990
    timing = timing_of(session=session, calls_verified=0, ends=lambda kind, index, block: (0, last))
    got = {name: {(number, 0): result[:last] for number, result in enumerate(results)}
           for name, results in (("candidate", ours), ("reference", theirs))}
    timing.verify(kind, [(name, "patch of " + name) for name in "ab"], {(0, 0): [0], (1, 0): [0]}, got)
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
