"""Which of two pieces of work takes less of the processor's time, on a machine that has other things to do as well."""

import statistics
import time

LEAST, MOST = 15, 600  # rounds


def share(one, other, bound, clock=time.thread_time):
    """(share, seconds of one, of the other), medians over rounds: of what `one` takes, how much it is of what `other`
    takes beside it. They are run in turn, by a clock that stands still while others have the processor, until it is
    clear on which side of the bound the share is: then the rounds on that side outnumber the others by four standard
    deviations of a fair coin's tosses. Chance does that once in ten thousand times. 600 rounds have to do."""
    taken = []
    below = 0
    for work in (one, other):  # once before, as the first call is dearer
        work()
    while len(taken) < MOST:
        seconds = []
        for work in (one, other) if len(taken) % 2 else (other, one):
            begun = clock()
            work()
            seconds.append(clock() - begun)
        taken.append(tuple(seconds if len(taken) % 2 else reversed(seconds)))
        below += taken[-1][0] < bound * taken[-1][1]
        if len(taken) >= LEAST and abs(2 * below - len(taken)) > 4 * len(taken) ** 0.5:
            break
    columns = [statistics.median(column) for column in zip(*taken)]
    return statistics.median(a / max(b, 1e-9) for a, b in taken), columns[0], columns[1]
