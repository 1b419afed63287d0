"""What was found, as a table for a terminal and as JSON. page.py has the same as HTML.

The JSON's form is in docs/judge.md; SCHEMA goes up when a field changes its meaning or goes away.
"""

import json
import math
import os

SCHEMA = 2

# Every check, in the order in which a verdict looks for one that failed: name, and what it is about.
CHECKS = {
    "protocol": "Only well-formed answers to the judge's own questions came from the candidate's process.",
    "timeout": "Every answer came in time.",
    "crash": "The candidate's process lived to the end.",
    "import": "The file can be imported and its ModelNew built with the reference's constructor arguments.",
    "weights": "Parameters and buffers have the reference's names, shapes and types, the same seed gives the same "
               "values, and either side loads the other's state_dict.",
    "tampering": "Neither clock nor PyTorch's functions nor the judge's own were replaced.",
    "output": "Outputs are plain tensors in real memory, with the reference's type, shape, strides, device, nesting.",
    "inputs": "Inputs are bit for bit what they were before the call.",
    "values": "Outputs on fresh inputs, in training mode, with and without gradients, against double precision.",
    "eval": "The same in evaluation mode.",
    "rows": "One row that dominates, rows of very different strength, rows in another order: every row is read.",
    "cancellation": "Inputs whose differences cancel: no digit of the type is given away.",
    "special": "Exact zeros, saturated rows, labels to ignore: infinities are where the reference has them.",
    "range": "Inputs and weights many times as large: nothing overflows that the reference's formula keeps finite.",
    "power": "Zeros, a constant, the input itself, an old answer, half of the input, fewer digits: the tests above "
             "notice each.",
    "buffers": "Buffers after a call, such as running statistics.",
    "gradients": "Gradients of all inputs and parameters for random upstream gradients, and of some of them; twice; "
                 "with another call in between; for upstream gradients that are not contiguous.",
    "double_backward": "Gradients of gradients, where the reference has them. Refusing is allowed, a wrong one is not.",
    "steps": "Parameters and buffers after five steps of SGD; evaluation after them, and after load_state_dict.",
    "shapes": "Batches of other sizes, thousands of rows, one row, sizes that are no multiple of 8, no rows, and the "
              "file's hidden cases.",
    "strides": "Inputs that are transposed, sliced, misaligned, expanded.",
    "dtypes": "Other floating types. Refusing one is allowed, a wrong result is not.",
    "aliasing": "An output shares no memory with inputs, weights or earlier outputs, unless the reference's does.",
    "repeat": "The same input twice gives the same bits.",
    "poison": "The same bits when free memory is filled with NaN or with other values: nothing is read before it is "
              "written.",
    "late": "An output is complete when the call returns; nothing works on elsewhere.",
    "cache": "New values at an old address, one changed row, an overwritten result: nothing old is returned; and a "
             "repeated input costs as much as a new one.",
    "timed": "Every result of every timed call, each on new values, is the reference's.",
    "timer": "CUDA's events in the candidate's process agree with the judge's clock.",
    "floor": "It is no faster than this machine can read the inputs and write the outputs, or multiply.",
}

WORDS = {"pass": "passed", "fail": "FAILED", "note": "passed, with a note", "skip": "not run"}


class Check:
    def __init__(self, name):
        self.name, self.status, self.text, self.details = name, "skip", "not reached", {}

    def passed(self, text):
        """Keeps an earlier failure or note."""
        if self.status not in ("fail", "note"):
            self.status, self.text = "pass", text

    def note(self, text):
        if self.status == "note":
            self.text += "; " + text
        elif self.status != "fail":
            self.status, self.text = "note", text

    def fail(self, text):
        """The first failure stays."""
        if self.status != "fail":
            self.status, self.text = "fail", text

    def skip(self, text):
        if self.status == "skip":
            self.text = text


class Report:
    def __init__(self):
        self.checks = {name: Check(name) for name in CHECKS}
        self.about = {}       # files, machine, options
        self.errors = []      # of results against double precision: dictionaries
        self.times = {}       # by kind of call
        self.memory = {}
        self.left_out = []    # what was not compared, in words
        self.unusable = None  # why nothing can be said

    def __getitem__(self, name):
        return self.checks[name]

    @property
    def failed(self):
        return [check for check in self.checks.values() if check.status == "fail"]

    @property
    def exit_code(self):
        return 3 if self.unusable else 1 if self.failed else 0

    @property
    def verdict(self):
        """One line."""
        if self.unusable:
            return "unusable: %s" % one_line(self.unusable)
        if self.failed:
            more = len(self.failed) - 1
            return "rejected: %s: %s%s" % (self.failed[0].name, one_line(self.failed[0].text),
                                           " (and %d more)" % more if more else "")
        return "accepted: %s" % ", ".join(self.praise())

    def praise(self):
        count = sum(check.status in ("pass", "note") for check in self.checks.values())
        words = ["%d checks passed" % count]
        for option in ("forward only", "plain inputs", "not timed"):
            if self.about.get(option.replace(" ", "_")):
                words.append(option)
        if self.left_out:
            words.append("not compared: %s" % " and ".join(self.left_out))
        words += ["%s %s" % (kind, pace(times)) for kind, times in self.times.items()]
        return words

    def as_dict(self):
        return {
            "schema": SCHEMA, "tool": "onepass.judge", "verdict": self.verdict, "exit_code": self.exit_code,
            "accepted": self.exit_code == 0, "rejected_by": [check.name for check in self.failed],
            "unusable": self.unusable, "left_out": self.left_out, "about": self.about,
            "checks": [{"name": check.name, "status": check.status, "text": check.text, "about": CHECKS[check.name],
                        "details": check.details} for check in self.checks.values()],
            "errors": self.errors, "times": self.times, "memory": self.memory,
        }

    def write_json(self, path):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(finite(self.as_dict()), file, indent=1, allow_nan=False, default=str)
            file.write("\n")

    def text(self):
        """The table, without the verdict's line."""
        lines = []
        if self.about.get("candidate"):
            lines += ["candidate  %s" % self.about["candidate"], "reference  %s" % self.about["reference"],
                      "on         %s" % self.about.get("machine", "")]
            if self.about.get("sides"):
                lines.append("with       %s" % self.about["sides"])
            if self.left_out:
                lines.append("not compared: %s" % "; ".join(self.left_out))
            if self.about.get("fp32_products"):
                lines.append("float32    products of onepass are %s" % self.about["fp32_products"])
            lines.append("")
        width = max(map(len, CHECKS))
        for check in self.checks.values():
            if check.status == "skip" and check.text == "not reached":
                continue
            mark = {"pass": "ok", "fail": "FAILED", "note": "ok *", "skip": "-"}[check.status]
            lines.append("%-*s  %-6s  %s" % (width, check.name, mark, one_line(check.text)))
        lines += self.measures()
        return "\n".join(lines)

    def main_errors(self):
        """The rows of errors that a reader wants first: outputs on every kind of values, gradients on fresh ones, and
        of the state after training steps the worst."""
        rows = [row for row in self.errors
                if row["key"].startswith("out.") and row["inputs"] in ("fresh", "planted", "heavy", "contracted")
                or row["key"].startswith("grad.") and row["inputs"] == "fresh, backward"
                or row["wrong"] and not row["key"].startswith("state.")
                and not (row["key"].startswith("out.") and "backward" in row["inputs"])]
        state = [row for row in self.errors if row["key"].startswith("state.")]
        return rows + ([max(state, key=lambda row: row["used"])] if state else [])

    def measures(self):
        """Lines about error, time and memory."""
        lines = []
        rows = self.main_errors()
        if rows:
            lines += ["", "%-44s %10s %10s %10s" % ("relative error against double precision", "candidate", "reference",
                                                    "tolerance")]
            for row in rows:
                errors = ("exact: 0", "") if row["zero"] else (number(row["candidate"]), number(row["reference"]))
                lines.append("%-44s %10s %10s %10s" % (
                    ("%s, %s" % (row["result"], row["inputs"].replace(", backward", "")),) + errors + (
                        "%.0f%% used" % (100 * row["used"]) if row["used"] < 100 else "exceeded",)))
        if self.times:
            lines += ["", "%-24s %12s %12s %9s %9s %9s" % ("time of a call, ms", "candidate", "reference", "speed-up",
                                                           "of floor", "GB/s")]
            for kind, times in self.times.items():
                floor = times.get("floor_share")
                lines.append("%-24s %12s %12s %9s %9s %9s" % (
                    kind, milliseconds(times["candidate"]), milliseconds(times["reference"]),
                    "%.2fx" % times["speedup"] if times.get("speedup") else "-",
                    "-" if floor is None else "%.0f%%" % (100 * floor),
                    "-" if floor is None else "%.3g" % (times["bytes"] / times["candidate"]["ms"] / 1e6)))
                events = by_events(times)
                if events:
                    lines.append("%-24s %12s %12s %9s" % ("  by CUDA events", *events))
                if times.get("compiled"):
                    lines.append("%-24s %12s %12s" % ("  torch.compile", "", number(times["compiled"]["ms"])))
            lines += noise(self.times)
        if self.memory:
            lines += ["", "%-24s %12s %12s" % ("memory of a call, MiB", "candidate", "reference")]
            for kind, sizes in self.memory.items():
                lines.append("%-24s %12s %12s" % (kind, mebibytes(sizes.get("candidate")),
                                                  mebibytes(sizes.get("reference"))))
        return lines


def pace(times):
    """A kind's speed-up in words, with what is uncertain about it."""
    if not times.get("speedup"):
        return "not measurable on this machine now"
    if not times["noisy"]:
        return speed(times["speedup"])
    return "%s (noise: %.2f to %.2f)" % (speed(times["speedup"]), times["speedup_low"], times["speedup_high"])


def noise(times):
    """A sentence for each kind whose times are not sure."""
    return ["%s: the machine is busy, and the speed-up is %s" % (
        kind, "not measurable" if not found.get("speedup") else "between %.2f and %.2f" % (
            found["speedup_low"], found["speedup_high"])) for kind, found in times.items() if found.get("noisy")]


def milliseconds(side):
    return number(side["ms"]) if side.get("measurable", True) else "-"


def speed(ratio):
    return "%.2f times as fast" % ratio if ratio >= 1 else "%.2f times as slow" % (1 / ratio)


def number(value):
    if value is None:
        return "-"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return "%.4g" % value
    return "%.1e" % value


def by_events(times):
    """(candidate, reference, speed-up) by the device's own clock, in words; None where it was not asked."""
    ours, theirs = (times[side].get("device") for side in ("candidate", "reference"))
    if not ours or not theirs:
        return None
    return number(ours["ms"]), number(theirs["ms"]), "%.2fx" % (theirs["ms"] / ours["ms"]) if ours["ms"] else "-"


def mebibytes(value):
    return "-" if value is None else "%.1f" % (value / 1048576.0)


def one_line(text):
    text = " ".join(printable(str(text), "utf-8").split())
    return text if len(text) <= 400 else text[:397] + "..."


def printable(text, encoding):
    """The text in characters that a stream can take: half a character from somebody's exception is none."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def finite(value):
    """JSON has no infinities: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def shown(path):
    """A path as the user would write it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
