"""Under which conditions two processes run, and what they have started: with numbers that this machine does not give,
and with processes of our own."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from onepass.judge import processes  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
CANDIDATE, REFERENCE, THREAD, OTHER = 1001, 1002, 1003, 1004
NORMAL = {"policy": 0, "niceness": 5, "cores": [0, 1]}
WHOLE = {"stopped": False, "group": "0::/", "session": "0"}


@pytest.fixture
def system(monkeypatch):
    """{thread: conditions}, to be changed; both processes have another thread."""
    found = {number: dict(NORMAL, **WHOLE) for number in (CANDIDATE, REFERENCE, THREAD, OTHER)}
    monkeypatch.setattr(processes, "conditions", lambda thread: {name: found[thread][name] for name in NORMAL})
    monkeypatch.setattr(processes, "threads", lambda pid: [THREAD if pid == CANDIDATE else OTHER])
    monkeypatch.setattr(processes, "circumstances", lambda pid: {name: found[pid][name] for name in WHOLE})
    return found


@pytest.mark.parametrize("changes, words", [
    ({}, None),
    ({CANDIDATE: {"niceness": 0}}, "the candidate's process has niceness 0, was 5"),
    ({CANDIDATE: {"niceness": 9}}, None),  # its own loss
    ({CANDIDATE: {"policy": 1}}, "the candidate's process has policy 1, was 0"),
    ({CANDIDATE: {"cores": [1]}}, r"the candidate's process has cores \[1\], was \[0, 1\]"),
    ({REFERENCE: {"niceness": 9}}, "the reference's process has niceness 9, was 5"),
    ({REFERENCE: {"cores": [0]}}, r"the reference's process has cores \[0\], was \[0, 1\]"),
    ({REFERENCE: {"stopped": True}}, "the reference's process has stopped True, was False"),
    ({REFERENCE: {"group": "0::/slow"}}, "the reference's process has group 0::/slow, was 0::/"),
    ({REFERENCE: {"session": "19"}}, "the reference's process has session 19, was 0"),
    ({CANDIDATE: {"cores": [1]}, REFERENCE: {"cores": [1]}}, None),  # somebody moved both
    ({CANDIDATE: {"niceness": 9}, REFERENCE: {"niceness": 9}}, None),
    ({THREAD: {"niceness": 4}}, "a thread of the candidate's has niceness 4, was 5"),
    ({THREAD: {"policy": 2}}, "a thread of the candidate's has policy 2, was 0"),
    ({THREAD: {"niceness": 9}}, None),
    ({THREAD: {"cores": [1]}}, None),  # as OpenMP does it
    ({THREAD: {"niceness": 4}, OTHER: {"niceness": 4}}, None),
    ({THREAD: {"policy": 2}, OTHER: {"policy": 2}}, None),
])
def test_unequal_conditions(system, changes, words):
    conditions = processes.Conditions(CANDIDATE, REFERENCE)
    assert conditions.words() is None
    for number, change in changes.items():
        system[number].update(change)
    found = conditions.words()
    assert found is None if words is None else re.fullmatch(words, found), found


def test_conditions_of_a_moment(system):
    """What is put back before the window ends was seen in the middle of two."""
    conditions = processes.Conditions(CANDIDATE, REFERENCE)
    for number in range(2):
        conditions.look()
        system[CANDIDATE]["niceness"] = 0
        conditions.look()
        system[CANDIDATE]["niceness"] = 5
        assert (conditions.words() is None) == (number == 0)
    assert conditions.words() == "the candidate's process has niceness 0, was 5 in the middle of a timed window"


def test_what_applies_to_a_process():
    process = subprocess.Popen(["sleep", "60"])
    try:
        before = processes.circumstances(process.pid)
        assert before["stopped"] is False and set(before) == {"stopped", "group", "session"}
        process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 60
        while not processes.circumstances(process.pid)["stopped"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert processes.circumstances(process.pid) == dict(before, stopped=True)
    finally:
        process.kill()
        process.wait()
    assert processes.circumstances(process.pid) == {"stopped": False, "group": "", "session": ""}


def test_conditions_that_nobody_tells(monkeypatch):
    monkeypatch.setattr(processes, "conditions", lambda thread: None)
    assert processes.Conditions(os.getpid(), os.getppid()).words() is None


def test_cores_are_openmps_where_it_is_told_so(monkeypatch):
    assert "cores" in processes.conditions(os.getpid())
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    assert set(processes.conditions(os.getpid())) == {"policy", "niceness"}


@pytest.fixture
def family():
    """A process with a child and a grandchild, of which one is in a session of its own."""
    code = "import subprocess, sys; subprocess.Popen(['sleep', '60'], start_new_session=True); print(1, flush=True); " \
           "subprocess.call(['sleep', '60'])"
    process = subprocess.Popen([sys.executable, "-c", "import subprocess, sys; subprocess.call([sys.executable, '-c', "
                                "%r])" % code], stdout=subprocess.PIPE)
    process.stdout.readline()
    deadline = time.monotonic() + 60
    names = []
    while names.count("sleep") < 2 and time.monotonic() < deadline:  # at first a fork has its parent's name
        time.sleep(0.02)
        names = list(processes.descendants(process.pid)[0].values())
    yield process
    found = processes.descendants(process.pid)[0]
    processes.end([process.pid] + list(found))
    process.wait()
    process.stdout.close()


def test_descendants(family):
    found, tools = processes.descendants(family.pid)
    assert sorted(found.values())[-2:] == ["sleep", "sleep"] and len(found) == 3 and not tools
    child = next(pid for pid, name in found.items() if name != "sleep")
    assert processes.descendants(family.pid, but=[child]) == ({}, {})
    assert set(found) < set(processes.descendants(os.getpid())[0])
    assert processes.left_behind(lambda: processes.descendants(family.pid)[0], patience=0.2) == found


def test_who_ends_in_time_is_not_left_behind():
    process = subprocess.Popen(["sleep", "0.5"])
    assert process.pid in processes.descendants(os.getpid())[0]
    assert processes.left_behind(
        lambda: {pid: name for pid, name in processes.descendants(os.getpid())[0].items() if pid == process.pid},
        patience=60.0) == {}
    process.wait()


@pytest.mark.parametrize("words, tool", [
    (["-c", "from multiprocessing.resource_tracker import main;main(%d)"], True),
    (["-B", "-c", "from multiprocessing.resource_tracker import main;main(%d)"], True),
    (["-c", "import time; time.sleep(60) # from multiprocessing.resource_tracker import main;main(%d)"], False),
    (["-c", "import time; time.sleep(60)", "from multiprocessing.resource_tracker import main;main(%d)"], False),
])
def test_tools(words, tool):
    reader, writer = os.pipe()
    process = subprocess.Popen([sys.executable] + [word.replace("%d", str(reader)) for word in words],
                               pass_fds=[reader])
    try:
        deadline = time.monotonic() + 60  # until it is the program that it was forked for
        while "-c" not in open("/proc/%d/cmdline" % process.pid).read().split("\0") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert processes.is_tool(process.pid) is tool
        assert process.pid in processes.descendants(os.getpid())[1 if tool else 0]
    finally:
        process.kill()
        process.wait()
        os.close(reader)
        os.close(writer)
