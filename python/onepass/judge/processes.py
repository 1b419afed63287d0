"""What the system says of processes: under which conditions they run, and which a candidate has started.

Both workers are forked alike and must stay alike: a candidate that gives itself a higher priority, another scheduling
policy or other cores than the reference has is timed under better conditions. What decides is a difference between the
two: an administrator or a container that changes the conditions of both is nobody's fault.

A worker is the one to which its descendants fall when their own parents end, so that nothing it has started, in
whatever group or session, gets out of its tree while it lives.
"""

import contextlib
import os
import random
import re
import signal
import sys
import time

import torch

REAL_TIME = {1, 2, 6}  # SCHED_FIFO, SCHED_RR, SCHED_DEADLINE
RESET_ON_FORK = 0x40000000
PINNED = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")  # by these OpenMP chooses cores itself
FEW = 4           # threads that are looked at in a timed window
LOOKS = 2         # at windows that must have seen a difference: the system may be changing one process after the other
GRACE = 5.0       # seconds in which a process that was started may end
TORCH = os.path.dirname(os.path.abspath(torch.__file__))
TRACKER = re.compile(r"from multiprocessing\.(resource|semaphore)_tracker import main; ?main\(\d+\)")


# ---- conditions ------------------------------------------------------------------------------------------------------

def conditions(thread):
    """How the system treats a thread; None where it does not tell."""
    try:
        found = {"policy": os.sched_getscheduler(thread) & ~RESET_ON_FORK,
                 "niceness": os.getpriority(os.PRIO_PROCESS, thread)}
        if not any(name in os.environ for name in PINNED):
            found["cores"] = sorted(os.sched_getaffinity(thread))
        return found
    except (OSError, AttributeError):
        return None


def circumstances(pid):
    """What applies to a whole process: whether it was stopped, and what the kernel's groups give it, among them the
    niceness of its session."""
    found = {"stopped": text("/proc/%d/stat" % pid).rsplit(")", 1)[-1].split()[:1] in (["T"], ["t"]),
             "group": text("/proc/%d/cgroup" % pid)}
    return dict(found, session=text("/proc/%d/autogroup" % pid).split("nice")[-1].strip())


def text(path):
    """Of a file of the system; empty where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def threads(pid):
    """Numbers of the other threads of a process."""
    try:
        return [int(entry) for entry in os.listdir("/proc/%d/task" % pid) if int(entry) != pid]
    except (OSError, ValueError):
        return []


class Conditions:
    """Of two processes, as they were at first and as they are."""

    def __init__(self, candidate, reference):
        self.candidate, self.reference = candidate, reference
        self.first = self.now()
        self.unequal = []  # what was seen in windows, in words

    def now(self):
        found = {}
        for name, pid in (("candidate", self.candidate), ("reference", self.reference)):
            treated = conditions(pid)
            if treated is not None:
                found[name] = dict(treated, **circumstances(pid))
        return found

    def unfair(self):
        """Words for what makes the two processes unequal and did not at first; None if nothing does."""
        now = self.now()
        if len(self.first) < 2 or len(now) < 2:
            return None
        for name in ("reference", "candidate"):
            changed = ["%s %s, was %s" % (what, now[name][what], value) for what, value in self.first[name].items()
                       if now[name][what] != value and now["candidate"][what] != now["reference"][what]
                       and not (what == "niceness" and name == "candidate" and now[name][what] > value)]
            if changed:
                return "the %s's process has %s" % (name, "; ".join(changed))
        return None

    def stopped(self):
        """Words for a reference's process that does not run while the candidate's may; None if both are alike."""
        if circumstances(self.reference)["stopped"] and not circumstances(self.candidate)["stopped"]:
            return "the reference's process was stopped"
        return None

    def unfair_threads(self, most=None):
        """The same of the candidate's other threads, which may be worse off than the reference's but not better. most:
        so many of them, at random."""
        first, others = self.first.get("candidate"), threads(self.candidate)
        if first is None:
            return None
        for thread in others if most is None else random.sample(others, min(most, len(others))):
            ours = conditions(thread)
            if not ours or ours["niceness"] >= first["niceness"] and ours["policy"] not in REAL_TIME:
                continue
            theirs = [treated for treated in map(conditions, [self.reference] + threads(self.reference)) if treated]
            if ours["niceness"] < min([first["niceness"]] + [treated["niceness"] for treated in theirs]):
                return "a thread of the candidate's has niceness %d, was %d" % (ours["niceness"], first["niceness"])
            if ours["policy"] in REAL_TIME - {treated["policy"] for treated in theirs}:
                return "a thread of the candidate's has policy %d, was %d" % (ours["policy"], first["policy"])
        return None

    def look(self):
        """In the middle of a timed window: conditions can be changed for a call and put back."""
        words = self.unfair() or self.unfair_threads(FEW)
        if words:
            self.unequal.append(words)

    def words(self):
        """What is to be held against the candidate; None: nothing."""
        return self.unfair() or self.unfair_threads() or (self.unequal[0] + " in the middle of a timed window"
                                                          if len(self.unequal) >= LOOKS else None)


# ---- what was started ------------------------------------------------------------------------------------------------

def table():
    """{pid: (parent, name)} of all processes that have not ended."""
    found = {}
    for entry in os.listdir("/proc") if sys.platform == "linux" else ():
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                with open("/proc/%s/stat" % entry, encoding="utf-8", errors="replace") as file:
                    name, rest = file.read().rsplit(")", 1)
                state, parent = rest.split()[:2]
                if state not in "ZX":
                    found[int(entry)] = int(parent), name.split("(", 1)[1]
    return found


def descendants(*roots, but=()):
    """({pid: name} of what processes have started, directly or not, {pid: name} of what belongs to tools). but: what
    does not count, with all it has started."""
    processes = table()
    children = {}
    for pid, (parent, name) in processes.items():
        children.setdefault(parent, []).append(pid)
    found, tools = {}, {}
    todo = [(pid, False) for root in roots for pid in children.get(root, [])]
    while todo:
        pid, of_tool = todo.pop()
        if pid in but:
            continue
        of_tool = of_tool or is_tool(pid)
        (tools if of_tool else found)[pid] = processes[pid][1]
        todo += [(child, of_tool) for child in children.get(pid, [])]
    return found, tools


def is_tool(pid):
    """Whether a process is one that PyTorch or Python's multiprocessing start for themselves and leave to end by
    itself: compilers that wait for work, trackers of shared memory."""
    try:
        with open("/proc/%d/cmdline" % pid, encoding="utf-8", errors="replace") as file:
            words = file.read().split("\0")[:-1]
        program = os.readlink("/proc/%d/exe" % pid)
    except OSError:
        return False
    if program == os.path.realpath(os.path.join(TORCH, "bin", "torch_shm_manager")):
        return True
    if program != os.path.realpath(sys.executable):
        return False
    compiler = os.path.join(TORCH, "_inductor", "compile_worker", "__main__.py")
    return words[1:2] == [compiler] or "-c" in words[:-1] and bool(TRACKER.fullmatch(words[words.index("-c") + 1]))


def environment():
    """Variables with which PyTorch's compilers, if they work in other processes, do so in ones that is_tool knows:
    before 2.4 they were forked, and a fork of a worker could be anything."""
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 4):
        return {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    return {"TORCHINDUCTOR_WORKER_START": "subprocess"}


def left_behind(look, patience=GRACE):
    """{pid: name} of processes that look() finds and that do not end within some time."""
    end = time.monotonic() + patience
    seen = look()
    while seen and time.monotonic() < end:
        time.sleep(0.05)
        now = look()
        seen = {pid: name for pid, name in seen.items() if pid in now}
    return seen


def end(pids):
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
