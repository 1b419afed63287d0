"""python -m onepass.judge: the command line. Exit codes: 0 accepted, 1 rejected, 2 wrong usage, 3 nothing to judge."""

import argparse
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
    add("reference", metavar="REFERENCE.py", help="the file with Model, get_inputs and get_init_inputs")
    add("candidate", metavar="CANDIDATE.py", nargs="?",
        help="the file with ModelNew; without it the reference's own ModelNew, or what onepass.torch.rewrite makes of "
             "Model")
    add("--device", type=device, help="cpu, cuda or cuda:N (default: cuda if there is one)")
    add("--dtype", choices=["float32", "float64", "bfloat16", "float16"], default="float32",
        help="type of parameters and inputs (default: float32)")
    add("--size", choices=["small", "full"],
        help="problem size, for files that know ONEPASS_PROBLEM_SIZE (default: full on cuda, small on cpu)")
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


class Progress:
    """Words on stderr: one line that changes on a terminal, a line for each step elsewhere."""

    def __init__(self, stream):
        self.stream, self.terminal, self.last, self.begun = stream, stream.isatty(), None, time.time()

    def __call__(self, word):
        if word == self.last:
            return
        self.last = word
        self.stream.write(("\r\x1b[K%5.1f s  %s" if self.terminal else "judge: %5.1f s  %s\n") % (
            time.time() - self.begun, word))
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
    try:
        import torch
    except ImportError as error:
        print("unusable: PyTorch is not installed: %s" % error)
        return 3
    from onepass.judge.verdict import Options, judge_files
    where = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    progress = None if options.quiet else Progress(sys.stderr)
    report = judge_files(options.reference, options.candidate, Options(
        device=where, dtype=options.dtype, size=options.size, seed=options.seed, timeout=options.timeout,
        repeats=options.trials, compile=options.compile, forward_only=options.forward_only,
        plain_inputs=options.plain_inputs, time=not options.no_time, fail_fast=options.fail_fast, progress=progress,
        nursery=nursery))
    if progress:
        progress.end()
    if options.json:
        report.write_json(options.json)
    if options.html:
        from onepass.judge.page import write_page
        write_page(report, options.html)
    if not options.quiet and not report.unusable:
        print(report.text())
        print()
    print(report.verdict, flush=True)
    return report.exit_code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
