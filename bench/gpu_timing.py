"""Times and memory of work on a GPU, for gpu_bench.py, which has the protocol; cpu_losses.py shares the summary."""
import statistics
import time

import torch

GRAPH_CALLS = 50
FLUSH_BYTES = 256 << 20


def peak_growth(run):
    """Bytes that a run needs beyond what is there before it, its results included."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = run()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    del result
    return peak


class Flush:
    """Fills more memory than the cache holds, often enough that the device is still busy when the timed work arrives:
    otherwise the time between two events would hold the host's, too."""

    def __init__(self):
        self.memory = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")

    def __call__(self):
        for _ in range(8):
            self.memory.fill_(1)


def events():
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def time_cold(runs, flush, rounds):
    """Milliseconds of each run, a list per name; all take turns."""
    for run in runs.values():
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    samples = {name: [] for name in runs}
    for _ in range(rounds):
        pairs = {}
        for name, run in runs.items():
            begin, end = pairs[name] = events()
            flush()
            begin.record()
            result = run()
            end.record()
            del result
        torch.cuda.synchronize()
        for name, (begin, end) in pairs.items():
            samples[name].append(begin.elapsed_time(end))
    return samples


def graph_of(run, calls):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            run()
    return graph


def time_small(runs, rounds):
    """Milliseconds of one call inside a graph of many, and of one call launched from Python; warm cache."""
    graphs, refused = {}, {}
    for name, run in runs.items():
        for _ in range(3):
            run()
        torch.cuda.synchronize()
        try:
            graphs[name] = graph_of(run, GRAPH_CALLS)
        except RuntimeError as error:
            refused[name] = str(error).splitlines()[0]
    replay = time_cold({name: graph.replay for name, graph in graphs.items()}, lambda: None, rounds)
    samples = {name: [ms / GRAPH_CALLS for ms in values] for name, values in replay.items()}

    def many(run):
        def loop():
            for _ in range(GRAPH_CALLS):
                run()
        return loop
    launched = time_cold({name: many(run) for name, run in runs.items()}, lambda: None, max(5, rounds // 4))
    launches = {name: statistics.median(values) / GRAPH_CALLS for name, values in launched.items()}
    return samples, launches, refused


def host_milliseconds(run, calls=8):
    """What a call costs the host that only gives the device its work, the device still busy with the calls before."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(calls):
        run()
    taken = time.perf_counter() - begun
    torch.cuda.synchronize()
    return round(1e3 * taken / calls, 6)


def summary(values):
    ordered = sorted(values)

    def quantile(q):
        place = q * (len(ordered) - 1)
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (place - below) * (ordered[above] - ordered[below])
    return {"ms": round(quantile(0.5), 6), "ms_q20": round(quantile(0.2), 6), "ms_q80": round(quantile(0.8), 6)}
