"""Is a rewritten model right, and how fast is it?

    python -m onepass.judge REFERENCE.py [CANDIDATE.py]

The reference is a file with `Model`, `get_inputs` and `get_init_inputs`; the candidate has `ModelNew`. docs/judge.md
says what is checked and why; `judge` is the same from Python. Nothing here needs the compiled library.

    wire.py        frames between processes: JSON and raw tensor bytes, nothing that could run on arrival
    launch.py      starts and stops the processes that run other people's code
    worker.py      the program in such a process; runner.py what it can do; guard.py what it watches
    inputs.py      harder inputs derived from the problem's own
    compare.py     how far a result may be from the exact one
    session.py     the two processes as one: put, call, fetch, compare
    checks.py      what is computed; uses.py in other uses, variety.py on other sizes and types, chance.py by models
                   that are random; isolation.py what is done besides
    windows.py     the clock; timing.py time, memory, and the floor below which no honest program gets
    verdict.py     the order of all this
    report.py      the table and the JSON; page.py and plots.py the HTML page
"""


def judge(reference, candidate=None, **options):
    """Compares two files and returns a onepass.judge.report.Report; the options are onepass.judge.verdict.Options'."""
    from onepass.judge.verdict import Options, judge_files
    return judge_files(reference, candidate, Options(**options))
