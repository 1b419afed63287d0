"""python -m onepass.judge: the command line. Exit codes: 0 accepted, 1 rejected, 2 wrong usage, 3 nothing to judge."""

import argparse
import contextlib
import os
import sys
import time

EPILOG = """\
A reference file defines
  class Model(torch.nn.Module)   what is to be computed
  get_inputs()                   a list of inputs, drawn anew at every call
  get_init_inputs()              a list of arguments for Model(...)
and may define get_hidden_inputs() (a list of such lists), get_hidden_cases() (a list of pairs: constructor arguments,
inputs), and TIMED_GRADIENTS (numbers of the inputs whose gradient the timed backward pass is asked for).
A candidate file defines class ModelNew with the same constructor, forward, parameters and buffers.
ONEPASS_PROBLEM_SIZE in the environment of both is what --size says.

The last line of stdout is the verdict: 'accepted: ...' or 'rejected: CHECK: reason'. A right but slow candidate is
accepted; the speed is reported. What each check does, and what the judge cannot find out: docs/judge.md.

exit codes:
  0  accepted
  1  rejected
  2  wrong usage
  3  nothing can be said: a file is missing, the reference fails, there is no such device
"""


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def seconds(text):
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def device(text):
    if text != "cpu" and text != "cuda" and not (text.startswith("cuda:") and text[5:].isdigit()):
        raise argparse.ArgumentTypeError("must be cpu, cuda or cuda:N")
    return text


def parser():
    result = argparse.ArgumentParser(
        prog="python -m onepass.judge", formatter_class=argparse.RawDescriptionHelpFormatter, epilog=EPILOG,
        description="Is a rewritten model right, and how fast is it? Compares values, gradients, state, memory and "
                    "time of a candidate with a reference, against double precision, and looks for cheating.")
    add = result.add_argument
    add("reference", metavar="REFERENCE.py", nargs="?", help="the file with Model, get_inputs and get_init_inputs")
    add("candidate", metavar="CANDIDATE.py", nargs="?",
        help="the file with ModelNew; without it the reference's own ModelNew, or what onepass.torch.rewrite makes of "
             "Model")
    add("--device", type=device, help="cpu, cuda or cuda:N (default: cuda if there is one)")
    add("--dtype", choices=["float32", "float64", "bfloat16", "float16"], default="float32",
        help="type of parameters and inputs (default: float32)")
    add("--size", choices=["small", "full"],
        help="problem size, for files that know ONEPASS_PROBLEM_SIZE (default: full on cuda, small on cpu)")
    add("--suite", metavar="DIR", help="judge all pairs in a folder, KernelBench's layout among others; --html and "
                                       "--json are then of all of them")
    add("--json", metavar="OUT", help="write everything that was found as JSON")
    add("--html", metavar="OUT", help="write one self-contained page with plots")
    add("--trials", type=positive, default=15, metavar="N", help="timed windows of each kind of call (default: 15)")
    add("--no-time", action="store_true", help="only check, measure nothing")
    add("--fail-fast", action="store_true", help="stop at the first check that fails")
    add("--compile", action="store_true", help="also time the reference under torch.compile")
    add("--forward-only", action="store_true", help="no gradients; the verdict says so")
    add("--plain-inputs", action="store_true",
        help="only get_inputs() and the hidden ones: for problems whose inputs may not be varied")
    add("--seed", type=int, metavar="N", help="repeat a run; by default a new seed is drawn and printed")
    add("--timeout", type=seconds, default=120.0, metavar="S",
        help="seconds for one answer of the candidate; five times that for its import (default: 120)")
    add("--quiet", action="store_true", help="no progress, no table: the verdict only")
    return result


# The words of progress in their order, and the share of a run that is over when each begins, on a small problem.
SHARES = {"import": 0.0, "drawing inputs": 0.03, "values": 0.05, "eval": 0.08, "gradients": 0.1, "permuted": 0.11,
          "planted": 0.13, "heavy": 0.16, "contracted": 0.19, "power": 0.22, "aliasing": 0.23, "repeat": 0.25,
          "late": 0.3, "cache": 0.32, "double_backward": 0.35, "steps": 0.36, "chance": 0.37, "other gradients": 0.38,
          "other weights": 0.41, "range": 0.43, "shapes": 0.45, "strides": 0.5, "dtypes": 0.52, "timing: forward": 0.56,
          "timing: forward + backward": 0.72, "timing: forward, evaluation": 0.86, "memory": 0.96, "afterwards": 0.98}
BAR = 24


class Progress:
    """Words on stderr: a bar that grows on a terminal, with the time that seems to be left; elsewhere a line for each
    step."""

    def __init__(self, stream):
        self.stream, self.terminal, self.last, self.begun = stream, stream.isatty(), None, time.time()
        self.share = 0.0

    def __call__(self, word):
        if word == self.last:
            return
        self.last, seconds = word, time.time() - self.begun
        self.share = max(self.share, SHARES.get(word, 0.0))
        if not self.terminal:
            self.stream.write("judge: %5.1f s  %s\n" % (seconds, word))
        else:
            full = round(BAR * self.share)
            left = ", about %.0f s left" % (seconds / self.share - seconds) if self.share > 0.1 else ""
            self.stream.write("\r\x1b[K[%s%s] %.1f s%s  %s" % ("#" * full, "." * (BAR - full), seconds, left, word))
        self.stream.flush()

    def end(self):
        if self.terminal and self.last is not None:
            self.stream.write("\r\x1b[K")
            self.stream.flush()


def main(arguments=None, nursery=None):
    options = parser().parse_args(arguments)
    for path in (options.json, options.html):
        if path and not os.path.isdir(os.path.dirname(os.path.abspath(path))):
            parser().error("%s: there is no such directory" % os.path.dirname(path))
    if (options.reference is None) == (options.suite is None):
        parser().error("there must be a reference, or --suite with a folder")
    if options.suite is not None and not os.path.isdir(options.suite):
        parser().error("%s: there is no such directory" % options.suite)
    try:
        return judged(options, nursery)
    except Exception as error:  # a full disk, a closed pipe, a fault of the judge's own: no verdict about anybody
        words = "unusable: the judge itself failed: %s: %s" % (type(error).__name__, " ".join(str(error).split()))
    try:
        say(words)
    except (OSError, ValueError):
        print(words, file=sys.stderr)
    return 3


def judged(options, nursery):
    try:
        import torch
    except ImportError as error:
        print("unusable: PyTorch is not installed: %s" % error)
        return 3
    from onepass.judge import launch
    from onepass.judge.verdict import Options, judge_files
    where = options.device or ("cuda" if torch.cuda.is_available() else "cpu")

    def judge(reference, candidate, nursery=nursery):
        progress = None if options.quiet else Progress(sys.stderr)
        report = judge_files(reference, candidate, Options(
            device=where, dtype=options.dtype, size=options.size, seed=options.seed, timeout=options.timeout,
            repeats=options.trials, compile=options.compile, forward_only=options.forward_only,
            plain_inputs=options.plain_inputs, time=not options.no_time, fail_fast=options.fail_fast, progress=progress,
            nursery=nursery))
        if progress:
            progress.end()
        return report
    if options.suite is None:
        return one(judge(options.reference, options.candidate), options)
    with contextlib.ExitStack() as stack:
        own = [nursery or stack.enter_context(launch.Nursery())]

        def judge_next(reference, candidate):
            if not own[0].alive:  # a candidate has ended it: not the others' fault
                own[0] = stack.enter_context(launch.Nursery())
            return judge(reference, candidate, own[0])
        return many(judge_next, options)


def say(text):
    from onepass.judge.report import printable
    print(printable(text, sys.stdout.encoding), flush=True)


def written(path, write):
    """None, or why a file could not be written: a full disk, or a fault in what writes it."""
    try:
        write(path)
    except Exception as error:
        return "%s cannot be written: %s: %s" % (path, type(error).__name__, error)
    return None


def one(report, options):
    """Writes and prints a report."""
    from onepass.judge.page import write_page
    for path, write in ((options.html, lambda path: write_page(report, path)), (options.json, report.write_json)):
        report.unusable = (path and written(path, write)) or report.unusable
    for text in ([report.text(), ""] if not options.quiet and not report.unusable else []) + [report.verdict]:
        say(text)
    return report.exit_code


def many(judge, options):
    from onepass.judge import suite
    from onepass.judge.page import write_suite
    found = suite.judge_suite(options.suite, judge, say)
    faults = [path and written(path, lambda path, write=write: write(found, path))
              for path, write in ((options.html, write_suite), (options.json, suite.write_json))]
    faults = [words for words in faults if words]
    say("unusable: " + faults[0] if faults else suite.verdict(found))
    return 3 if faults else suite.exit_code(found)


def program():
    """main, and 3 if nobody took what it printed."""
    try:
        code = main()
    except KeyboardInterrupt:
        return 130
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python's own end would try again
        return 3
    return code


if __name__ == "__main__":
    sys.exit(program())
