"""Processes of a torch.distributed group over Gloo, on this machine alone: started once, they run many functions.

    with Ranks(2) as ranks:
        answers = ranks.run(function, *arguments)    # function(rank, *arguments) in every process; one answer a rank

Functions, arguments and answers are pickled: functions belong to a module, and answers are numbers rather than tensors.
A rank that raises, ends or takes longer than the limit ends all of them, since the others may wait for it forever, and
`run` raises Failed with what it said. The next call starts new ones.
"""

import datetime
import multiprocessing
import multiprocessing.connection
import os
import tempfile
import time
import traceback

START = 180  # seconds for the processes to import PyTorch and find each other, on a busy machine
LIMIT = 90  # seconds for one function


class Failed(AssertionError):
    """What went wrong in which rank."""


def _join_group(rank, world, path):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=world,
                                         timeout=datetime.timedelta(seconds=START))


def _serve(rank, world, path, connection):
    """One process: joins the group, then does what it is told until it is told nothing more."""
    if path:
        _join_group(rank, world, path)
    connection.send((True, None))
    while True:
        try:
            task = connection.recv()
        except EOFError:  # the tests have ended
            return
        try:
            answer = True, task[0](rank, *task[1:])
        except BaseException:
            answer = False, traceback.format_exc()
        connection.send(answer)


class Ranks:
    """`world` processes. group=False: they know nothing of each other, nor of PyTorch."""

    def __init__(self, world, group=True):
        self.world, self.group = world, group
        self.connections, self.processes = [], []

    def _start(self):
        self.folder = tempfile.TemporaryDirectory()
        path = os.path.join(self.folder.name, "rendezvous") if self.group else None
        context = multiprocessing.get_context("spawn")
        for rank in range(self.world):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.world, path, theirs), daemon=True)
            process.start()
            theirs.close()
            self.connections.append(ours)
            self.processes.append(process)
        self._answers(START)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stop()

    def run(self, function, *arguments, limit=LIMIT):
        if not self.connections:
            self._start()
        for connection in self.connections:
            connection.send((function,) + arguments)
        return self._answers(limit)

    def _answers(self, limit):
        end, waiting = time.monotonic() + limit, dict(zip(self.connections, range(len(self.connections))))
        answers = [None] * len(waiting)
        while waiting:
            ready = multiprocessing.connection.wait(list(waiting), max(0, end - time.monotonic()))
            if not ready:
                self._fail("no answer from rank %s within %g s" % (", ".join(map(str, waiting.values())), limit))
            for connection in ready:
                rank = waiting.pop(connection)
                try:
                    fine, answers[rank] = connection.recv()
                except (EOFError, OSError):
                    self._fail("rank %d has ended" % rank)
                if not fine:
                    self._fail("rank %d:\n%s" % (rank, answers[rank]))
        return answers

    def _fail(self, why):
        self.stop()
        raise Failed(why)

    def stop(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        for connection in self.connections:
            connection.close()
        if self.processes:
            self.folder.cleanup()
        self.processes, self.connections = [], []


# ---- for the tests of this file ------------------------------------------------------------------------------------


def answer(rank, number):
    return rank + number


def misbehave(rank, how):
    """Rank 1 does, while rank 0 waits."""
    if rank == 0:
        time.sleep(LIMIT)
    if how == "raise":
        raise ValueError("rank %d has its reasons" % rank)
    if how == "end":
        os._exit(3)
    time.sleep(LIMIT)
