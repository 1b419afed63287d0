"""Starts and stops the processes that run other people's code.

Importing PyTorch takes seconds, so it is done once: a nursery process imports it, does nothing else, and forks a worker
whenever one is asked for. A worker has a channel to the judge, a log file for whatever it prints, a session of its own
(so that it can be ended with everything it started), and nothing of the judge's memory. When the judge ends, however it
ends, the nursery sees its channel close and ends too, and with it the workers.
"""

import array
import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

from onepass.judge import processes, wire

START_SECONDS = 180.0   # for the import of PyTorch
ANSWER_SECONDS = 60.0   # for anything else that is asked of the nursery; it takes a few at most
WATCH_SECONDS = 5.0     # between looks at a process that is waited for
LOG_TAIL = 4000


class Trouble(Exception):
    """A worker that cannot go on; `check` names the check that this fails."""

    check = "crash"

    def __init__(self, reason):
        super().__init__(reason)
        self.reason = reason


class Died(Trouble):
    check = "crash"


class TimedOut(Trouble):
    check = "timeout"


class Forged(Trouble):
    check = "protocol"


class Stopped(Trouble):
    check = "tampering"


class Raised(Exception):
    """The code in the worker raised; the worker itself is well and can be asked again. trusted: it was the
    reference's."""

    trusted = False

    def __init__(self, kind, text, trace):
        super().__init__("%s: %s" % (kind, text))
        self.kind, self.text, self.trace = kind, text, trace

    @property
    def reason(self):
        """One line."""
        text = " ".join(self.text.split())
        return "%s: %s" % (self.kind, text if len(text) <= 300 else text[:300] + "...")


GONE = "the process that has PyTorch imported, and forks the others, does not answer"


class Nursery:
    """One process with PyTorch imported, and the workers forked from it. A context manager."""

    def __init__(self):
        here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        paths = [here] + [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        self._control, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "onepass.judge.worker", str(theirs.fileno())], pass_fds=[theirs.fileno()],
                env=dict(os.environ, PYTHONPATH=os.pathsep.join(paths), **processes.environment()),
                stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)
        self._control.settimeout(START_SECONDS)
        self._ready, self._workers = False, set()
        self.alive = True  # as far as anybody has noticed

    def _line(self):
        line = b""
        while not line.endswith(b"\n"):
            byte = self._control.recv(1)
            if not byte:
                raise Died("the process that imports PyTorch ended: %s" % tail(self._log))
            line += byte
        return line.decode().split()

    def _ask(self, request, descriptors=()):
        """What the process answers. One that does not is ended: it was stopped or killed, and is of no use any more."""
        if not self.alive:
            raise Died(GONE)
        try:
            if not self._ready:
                self._line()
                self._control.settimeout(ANSWER_SECONDS)
                self._ready = True
            extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            self._control.sendmsg([request], extra)
            return self._line()
        except (OSError, Died) as error:
            self.alive = False
            self._process.kill()
            raise error if isinstance(error, Died) else Died(GONE)

    def start(self):
        """A new worker."""
        ours, theirs = socket.socketpair()
        log = tempfile.TemporaryFile(mode="a+b")
        with theirs:
            pid = int(self._ask(b"start\n", [theirs.fileno(), log.fileno()])[1])
        self._workers.add(pid)
        return Worker(self, pid, ours, log)

    def end_of(self, pid):
        """How a worker ended, in words; waits for it."""
        self._workers.discard(pid)
        try:
            how, number = self._ask(b"wait %d\n" % pid)
        except Died:
            return "so is the process it was forked from"
        if how == "hung":
            return "it closed the channel to the judge"
        if how == "signal":
            try:
                return "it was killed by %s" % signal.Signals(int(number)).name
            except ValueError:
                return "it was killed by signal %s" % number
        return "it ended with exit status %s" % number

    def started(self, *workers):
        """What these workers have started, and what got out of the tree of its worker: see processes.descendants."""
        return processes.descendants(self._process.pid, *workers, but=self._workers)

    def orphans(self):
        """Ends what workers that are gone have left behind; the name of such a process, or None."""
        try:
            name = self._ask(b"orphans\n")[1]
        except Died:
            return None
        return None if name == "-" else name

    def close(self):
        self._control.close()
        self._process.kill()
        self._process.wait()
        self._log.close()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()


class Worker:
    """A process that answers requests, one at a time."""

    def __init__(self, nursery, pid, channel, log):
        self._nursery, self.pid, self._channel, self._log = nursery, pid, channel, log
        self._random = random.SystemRandom()
        self._end = None
        self.timeout = 60.0
        self.watch = None  # called every few seconds in which there is no answer; its words end the wait

    def ask(self, request, limit=1 << 20, timeout=None, **arguments):
        """The worker's answer. limit: bytes of tensors that it may hold."""
        return self.ask_timed(request, limit, timeout, **arguments)[0]

    def ask_timed(self, request, limit=1 << 20, timeout=None, descriptors=(), look=None, **arguments):
        """(answer, seconds from before the request to the last byte of the answer), by the clock of this process.
        descriptors: of open files that go with the request. look: (seconds, function): what to do if there is no answer
        after that time."""
        if self._end:
            raise Died(self._end)
        deadline = time.monotonic() + (timeout or self.timeout)
        number = self._random.getrandbits(64)
        try:
            begin = time.perf_counter()
            wire.send(self._channel, number, {"request": request, "arguments": arguments}, deadline,
                      descriptors)
            if look is not None and not answered(self._channel, look[0]):
                look[1]()
            self._watch_until(deadline)
            got, answer = wire.receive(self._channel, limit, deadline)
            seconds = time.perf_counter() - begin
        except wire.Late:
            self._watch_once()
            self.stop()
            raise TimedOut("no answer to '%s' within %g seconds" % (request, timeout or self.timeout))
        except wire.Closed:
            self._end = "its process is gone: %s" % self._nursery.end_of(self.pid)
            printed = self.printed()
            raise Died("during '%s' %s%s" % (request, self._end, "; last words: " + printed if printed else ""))
        except wire.WireError as error:
            self.stop()
            raise Forged("during '%s' its process sent %s" % (request, error))
        if got != number:
            self.stop()
            raise Forged("during '%s' its process sent a frame that answers no request" % request)
        if not isinstance(answer, dict) or set(answer) not in ({"answer"}, {"raised"}):
            self.stop()
            raise Forged("during '%s' its process sent a frame without an answer" % request)
        if "raised" in answer:
            raised = answer["raised"]
            if not (isinstance(raised, list) and len(raised) == 3 and all(isinstance(part, str) for part in raised)):
                self.stop()
                raise Forged("during '%s' its process sent an exception in an unknown form" % request)
            raise Raised(*raised)
        return answer["answer"], seconds

    def _watch_until(self, deadline):
        while self.watch is not None and not answered(self._channel, WATCH_SECONDS) and time.monotonic() < deadline:
            self._watch_once()

    def _watch_once(self):
        words = self.watch() if self.watch is not None else None
        if words:
            self.stop()
            raise Stopped(words)

    def printed(self):
        """The end of what the process has printed, on one line."""
        return " ".join(tail(self._log).split())[-300:]

    def stop(self):
        """Ends the process and all it started."""
        if self._end is None:
            self._end = "its process was ended by the judge"
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(self.pid, signal.SIGKILL)
            self._nursery.end_of(self.pid)
        self._channel.close()


def answered(channel, seconds):
    """Waits for the first bytes of an answer; False if there were none in that time."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return bool(poll.poll(1e3 * seconds))


def tail(log):
    end = log.seek(0, os.SEEK_END)
    log.seek(max(0, end - LOG_TAIL))
    return log.read().decode("utf-8", "replace").strip()
