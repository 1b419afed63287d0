"""The program of the processes that run other people's code: a nursery that forks, and workers that answer.

Started by launch.py as `python -m onepass.judge.worker FD`. A worker takes a request, does it, answers, and waits. It
holds no clock that counts and no expected value: it gets inputs and weights, and returns tensors.
"""

import array
import contextlib
import ctypes
import importlib
import os
import signal
import socket
import sys
import time
import traceback

from onepass.judge import processes, wire
from onepass.judge.guard import KERNELS, kernels
from onepass.judge.runner import Runner

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
EVERYTHING = 1 << 62


def serve(channel):
    """Answers until the judge hangs up."""
    send, receive, closed, close = wire.send, wire.receive, wire.Closed, os.close
    runner = Runner()
    guard = runner.guard  # found out by nobody who replaces what runner has
    while True:
        for descriptor in runner.descriptors:
            close(descriptor)
        runner.descriptors = []
        try:
            number, message = receive(channel, EVERYTHING, descriptors=runner.descriptors)
        except closed:
            return
        try:
            do = guard.answer if message["request"] == "guard" else getattr(runner, "do_" + message["request"])
            answer = {"answer": do(**message["arguments"])}
            send(channel, number, answer)
            continue
        except closed:
            return
        except BaseException as error:  # SystemExit too: whatever the code did is the judge's to know
            trace = traceback.format_exc(limit=-6)
            raised = [type(error).__name__, str(error)[:4000], trace[-4000:]]
        send(channel, number, {"raised": raised})


def become_worker(channel, log):
    """The part of fork's child. Never returns."""
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what it starts stays in its tree
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    status = 1
    try:
        serve(socket.socket(fileno=channel))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def how_it_ended(pid):
    """The judge has seen the channel close. A worker that lives on without it is ended."""
    for _ in range(100):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        time.sleep(0.02)
    else:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return b"hung 0\n"
    if os.WIFSIGNALED(status):
        return b"signal %d\n" % os.WTERMSIG(status)
    return b"exit %d\n" % os.WEXITSTATUS(status)


def end_orphans(workers):
    """Ends processes that outlived the worker that started them, and returns the name of one in one word, or "-". Those
    that watch their parent have some time to see that it is gone."""
    def orphans():
        return processes.descendants(os.getpid(), but=workers)
    names = list(processes.left_behind(lambda: orphans()[0]).values())
    for _ in range(50):  # their own children become this process's in turn
        found = [pid for some in orphans() for pid in some]
        if not found:
            break
        processes.end(found)
        for pid in found:
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)
    return "_".join(names[0].split()) or "?" if names else "-"


def nursery(control):
    """Forks workers until the judge hangs up."""
    # The first gradient would import another 500 modules in every worker. Only the import: gradients themselves start
    # threads where there is a GPU, and no fork survives those.
    with contextlib.suppress(ImportError):
        importlib.import_module("torch.fx.experimental.symbolic_shapes")
    KERNELS.update(kernels())
    if sys.platform == "linux":  # what a worker's children leave behind becomes this process's, and is found
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    control.sendall(b"ready\n")
    workers = set()
    while True:
        data, extra, _, _ = control.recvmsg(64, socket.CMSG_SPACE(2 * array.array("i").itemsize))
        if not data:
            return
        words = data.split()
        if words[0] == b"start":
            channel, log = array.array("i", extra[0][2])
            pid = os.fork()
            if pid == 0:
                control.close()
                become_worker(channel, log)
            os.close(channel)
            os.close(log)
            workers.add(pid)
            control.sendall(b"started %d\n" % pid)
        elif words[0] == b"orphans":
            control.sendall(b"orphans %s\n" % end_orphans(workers).encode("utf-8", "replace"))
        else:
            workers.discard(int(words[1]))
            control.sendall(how_it_ended(int(words[1])))


if __name__ == "__main__":
    nursery(socket.socket(fileno=int(sys.argv[1])))
