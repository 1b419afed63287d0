"""What the Python tests share: a fresh seed that is printed, and a summary that names whatever was left out.

$ONEPASS_TEST_SEED repeats a run. Every test begins with the generators of random, NumPy and PyTorch seeded from it and
from the test's own name, so that a test gets the same inputs alone as among the others.
"""
import gc
import hashlib
import os
import random
import sys
import time

import pytest

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None

collect_ignore = ["test_wheel.py"]  # a program of its own: ./dev test runs it on the wheel, with every Python

SEED = int(os.environ.get("ONEPASS_TEST_SEED") or time.time())


@pytest.fixture(autouse=True)
def seed(request):
    """The seed of this test."""
    value = int.from_bytes(hashlib.sha256(("%d %s" % (SEED, request.node.nodeid)).encode()).digest()[:4], "little")
    random.seed(value)
    if numpy:
        numpy.random.seed(value)
    if torch:
        torch.manual_seed(value)
    return value


@pytest.fixture(autouse=True)
def subnormals():
    """Every test begins with subnormal numbers. What Inductor compiles on PyTorch 2.4 is linked with -ffast-math, and
    gcc before 13 then has the library flush them in the thread that loads it, for whatever runs there afterwards."""
    if torch:
        torch.set_flush_denormal(False)


@pytest.fixture(scope="module")
def nursery():
    """The judge's processes. They compute with one thread: several that wait for each other on a busy machine take
    minutes."""
    from onepass.judge.launch import Nursery
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        with Nursery() as result:
            yield result


def pytest_configure(config):
    if config.pluginmanager.hasplugin("hypothesispytest"):
        from hypothesis import HealthCheck, settings
        # Nothing that a busy machine decides: no deadline, and inputs may take their time to be drawn.
        settings.register_profile("onepass", deadline=None, print_blob=True,
                                  suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("onepass")
        if config.getoption("--hypothesis-seed") is None:
            config.option.hypothesis_seed = str(SEED)


def pytest_sessionstart(session):
    """Not in pytest's own header, which -q leaves out."""
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if not reporter:
        return
    import onepass
    versions = "PyTorch %s, CUDA %s" % (torch.__version__, "there" if torch.cuda.is_available() else "not there") \
        if torch else "no PyTorch"
    reporter.write_line("seed %d (ONEPASS_TEST_SEED repeats it); %s; onepass %s from %s" % (
        SEED, versions, onepass.__version__, os.path.dirname(onepass.__file__)))


def pytest_unconfigure():
    """PyTorch keeps file locks to the end of the process, and modules that their finalizer needs are gone by then: it
    would complain. So they are released here, where an error is an error, and have nothing to do afterwards."""
    filelock = sys.modules.get("filelock")
    if filelock and "__del__" in vars(filelock.BaseFileLock):
        for thing in gc.get_objects():
            if issubclass(type(thing), filelock.BaseFileLock):
                thing.release(force=True)
        del filelock.BaseFileLock.__del__


def pytest_terminal_summary(terminalreporter):
    def count(*kinds):
        return sum(len(terminalreporter.stats.get(kind, [])) for kind in kinds)

    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        terminalreporter.write_line("left out: %s: %s" % (report.nodeid, str(reason).replace("Skipped: ", "", 1)))
    failed = count("failed", "error")
    terminalreporter.write_line("%d checks, %d failed" % (count("passed", "xfailed") + failed, failed))
