#!/usr/bin/env python3
"""Writes the tables of README.md between <!-- results --> and <!-- /results --> from the files in bench/results.

  table.py --write README.md   puts them there
  table.py --check README.md   exit 1 if what is there is not what would be written
  table.py                     prints them
"""
import argparse
import sys

import evidence

BEGIN, END = "<!-- results -->", "<!-- /results -->"

# The rows by their ids, in words; ids that are not here are shown as they are, after these.
WORDS = {
    "p1_forward": "P1 forward",
    "p1_forward_backward": "P1 forward + backward",
    "p1_bf16_forward": "P1 bf16 forward",
    "p1_bf16_forward_backward": "P1 bf16 forward + backward",
    "p1_f16_forward": "P1 fp16 forward",
    "p1_f64_forward": "P1 fp64 forward",
    "p1_f64_forward_backward": "P1 fp64 forward + backward",
    "kl_log_probs_probs_forward": "log-probabilities, probabilities, forward",
    "kl_log_probs_probs_forward_backward": "log-probabilities, probabilities, forward + backward",
    "kl_log_probs_log_probs_forward": "log-probabilities both, forward",
    "kl_log_probs_log_probs_forward_backward": "log-probabilities both, forward + backward",
    "kl_1x1000_forward": "1 x 1000 forward *",
    "kl_1x1000_forward_backward": "1 x 1000 forward + backward *",
    "kl_128x1000_forward": "128 x 1000 forward *",
    "kl_128x1000_forward_backward": "128 x 1000 forward + backward *",
    "kl_4096x1024_forward": "4096 x 1024 forward *",
    "kl_4096x1024_forward_backward": "4096 x 1024 forward + backward *",
    "kl_16384x16381_forward": "16384 x 16381 forward",
    "kl_16384x16381_forward_backward": "16384 x 16381 forward + backward",
    "kl_1x300000000_forward": "1 x 300 000 000 forward",
    "kl_1x300000000_forward_backward": "1 x 300 000 000 forward + backward",
    "kl_misaligned_forward": "P1, 4 bytes off alignment, forward",
    "kl_misaligned_forward_backward": "P1, 4 bytes off alignment, forward + backward",
    "kl_small_6e-3": "divergence of 6e-3, forward",
    "kl_small_8e-5": "divergence of 8e-5, forward",
    "kl_small_8e-7": "divergence of 8e-7, forward",
    "p2_bf16_train": "P2 bf16 training forward",
    "p2_tf32_train": "P2 TF32 training forward",
    "p2_fp32_train": "P2 training forward",
    "p2_bf16_eval": "P2 bf16 eval",
    "p2_fp32_eval": "P2 eval",
    "p2_bf16_forward_backward": "P2 bf16 training forward + backward",
    "p2_fp32_forward_backward": "P2 training forward + backward",
    "linear_fp32": "linear, 1024 x 8192 x 8192",
}


def milliseconds(value):
    if value is None:
        return "-"
    return "%.4f" % value if value < 0.1 else "%.3f" % value if value < 10 else "%.1f" % value


def error(value):
    return "-" if value is None else "%.1e" % value


def size(value):
    if value is None:
        return "-"
    if value < 1 << 10:
        return "%d B" % value
    if value < 1 << 20:
        return "%.0f KiB" % (value / 1024)
    return "%.0f MiB" % (value / (1 << 20))


def table(path, result):
    rows = {row["id"]: row for row in result["rows"]}
    order = [name for name in WORDS if name in rows] + [name for name in rows if name not in WORDS]
    has_products = any("operator" in row for row in result["rows"])
    columns = ["work", "onepass", "in PyTorch", "floor", "eager", "torch.compile", "error", "eager's error", "memory",
               "eager's memory"]
    lines = [
        "%s, driver %s, PyTorch %s, %s (`%s`). Milliseconds, median; floor: the same bytes read, or read and written,"
        " and nothing else%s. In PyTorch: through onepass.torch, autograd included. Error: relative, against float64."
        " Memory: beyond the inputs, a gradient included." % (
            result["device"], result["driver"], result.get("torch", "not there"), result["date"], path,
            "; of P2 and linear, the matrix products alone" if has_products else ""),
        "",
        "| " + " | ".join(columns) + " |",
        "|---" * len(columns) + "|",
    ]
    for name in order:
        row = rows[name]
        eager, compiled = row["rivals"].get("eager", {}), row["rivals"].get("compile", {})
        lines.append("| %s | **%s** | %s | %s | %s | %s | %s | %s | %s | %s |" % (
            WORDS.get(name, name), milliseconds(row["ms"]), milliseconds(row.get("pytorch", {}).get("ms")),
            milliseconds(row.get("floor_ms")),
            milliseconds(eager.get("ms")), milliseconds(compiled.get("ms")), error(row.get("error")),
            error(eager.get("error")), size(row.get("extra_bytes")), size(eager.get("extra_bytes"))))
    if any("graph" in row.get("protocol", "") for row in result["rows"]):
        lines += ["", "\\* one call within a CUDA graph of many, warm cache; all others: cold cache."]
    return "\n".join(lines)


def tables():
    found = evidence.results()
    if not found:
        return "No GPU has been measured yet: `./dev gpu` does it."
    return "\n\n".join(table(path, result) for path, result in found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", metavar="FILE")
    parser.add_argument("--check", metavar="FILE")
    arguments = parser.parse_args()
    made = tables()
    path = arguments.write or arguments.check
    if not path:
        print(made)
        return 0
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        print("%s: it must hold %s and %s once each, in this order" % (path, BEGIN, END))
        return 1
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    wanted = before + BEGIN + "\n" + made + "\n" + END + after
    if arguments.check:
        if text != wanted:
            print("%s: the results are not what bench/results says; ./dev table writes them anew" % path)
            return 1
        print("%s: the results are those of bench/results" % path)
        return 0
    with open(path, "w", encoding="utf-8") as file:
        file.write(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
