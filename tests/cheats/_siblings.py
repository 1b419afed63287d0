"""The other processes of the judge, for candidates that do something to them."""

import contextlib
import os


def _parent(pid):
    with open("/proc/%s/stat" % pid) as file:
        return int(file.read().rsplit(")", 1)[1].split()[1])


def each(act):
    """act(pid) of every other process that this one's parent has forked."""
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            if entry.isdigit() and int(entry) != os.getpid() and _parent(entry) == os.getppid():
                act(int(entry))
