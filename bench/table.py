#!/usr/bin/env python3
"""Writes the tables of the documents from the files in bench/results, each between <!-- NAME --> and <!-- /NAME -->:
a few rows in README.md (results), all of them in docs/performance.md (all results), fp32 products there too (products),
losses and small calls on a CPU (cpu losses, cpu calls), and the releases of PyTorch in docs/python.md (releases).

  table.py --write   puts them there
  table.py --check   exit 1 if what is there is not what would be written
  table.py           prints them
"""
import argparse
import json
import os
import sys

import evidence
import releases

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
    "kl_rows_forward": "P1, one value per row, forward",
    "kl_rows_forward_backward": "P1, one value per row, forward + backward",
    "kl_rows_weights_forward": "P1, weighted rows, forward",
    "kl_rows_weights_forward_backward": "P1, weighted rows, forward + backward",
    "kl_rows_1000000x10_forward": "1 000 000 x 10, one value per row, forward",
    "kl_rows_1000000x10_forward_backward": "1 000 000 x 10, one value per row, forward + backward",
    "kl_rows_65536x1000_forward": "65536 x 1000, one value per row, forward",
    "kl_rows_65536x1000_forward_backward": "65536 x 1000, one value per row, forward + backward",
    "kl_transposed_forward": "P1, targets transposed, forward",
    "kl_transposed_forward_backward": "P1, targets transposed, forward + backward",
    "kl_small_6e-3": "divergence of 6e-3, forward",
    "kl_small_8e-5": "divergence of 8e-5, forward",
    "kl_small_8e-7": "divergence of 8e-7, forward",
    "kl_logits_bf16_forward": "KL of logits, 8192 x 128256 bf16, forward",
    "kl_logits_bf16_forward_backward": "KL of logits, 8192 x 128256 bf16, forward + backward",
    "kl_top_k_bf16_forward_backward": "KL from a top-64 teacher, 8192 x 128256 bf16, forward + backward",
    "reverse_kl_logits_bf16_forward_backward": "reverse KL of logits, 8192 x 128256 bf16, forward + backward",
    "js_logits_bf16_forward_backward": "JS of logits, 8192 x 128256 bf16, forward + backward",
    "tv_logits_bf16_forward_backward": "total variation of logits, 8192 x 128256 bf16, forward + backward",
    "cross_entropy_bf16_forward_backward": "cross-entropy, 8192 x 128256 bf16, forward + backward",
    "token_log_probs_bf16_forward": "token log-probabilities and entropy, 8192 x 128256 bf16, forward",
    "token_log_probs_bf16_forward_backward": "token log-probabilities and entropy, 8192 x 128256 bf16, forward, then backward",
    "kl_logits_fp32_4096x32000_forward_backward": "KL of logits, 4096 x 32000, forward + backward",
    "kl_logits_fp32_256x1000_forward_backward": "KL of logits, 256 x 1000, forward + backward *",
    "kl_logits_fp32_4096x1000_forward_backward": "KL of logits, 4096 x 1000, forward + backward *",
    "kl_logits_fp32_65536x100_forward_backward": "KL of logits, 65536 x 100, forward + backward *",
    "p2_bf16_train": "P2 bf16 training forward",
    "p2_tf32_train": "P2 TF32 training forward",
    "p2_fp32_train": "P2 training forward",
    "p2_bf16_eval": "P2 bf16 eval",
    "p2_fp32_eval": "P2 eval",
    "p2_bf16_forward_backward": "P2 bf16 training forward + backward",
    "p2_fp32_forward_backward": "P2 training forward + backward",
    "linear_fp32": "linear, 1024 x 8192 x 8192",
    "linear_cross_entropy_bf16_8192x4096x128256":
        "cross-entropy from hidden states, 8192 x 4096 x 128256 bf16, all gradients",
    "linear_cross_entropy_bf16_8192x2304x256000":
        "cross-entropy from hidden states, 8192 x 2304 x 256000 bf16, all gradients",
    "linear_kl_bf16_8192x4096x128256": "KL from hidden states of both sides, 8192 x 4096 x 128256 bf16, all gradients",
    "linear_token_log_probs_bf16_8192x4096x128256":
        "token log-probabilities and entropy from hidden states, 8192 x 4096 x 128256 bf16, forward",
    "linear_cross_entropy_fp32_4096x2048x32000":
        "cross-entropy from hidden states, 4096 x 2048 x 32000, all gradients",
}
for _loss, _words in (("kl_logits", "KL of logits"), ("cross_entropy", "cross-entropy of logits")):
    for _width in (100, 1000, 32000, 50257, 128257, 151936, 256000):
        WORDS["%s_bf16_width_%d_forward_backward" % (_loss, _width)] = (
            "%s, 2^27 of them in rows of %d, bf16, forward + backward" % (_words, _width))


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
    floor = "; of P2 and linear, the matrix products alone" if any("operator" in row for row in result["rows"]) else ""
    if any("fp16" in row.get("floor", "") for row in result["rows"]):
        floor += ", for one in fp32 three of fp16 operands"
    columns = ["work", "onepass", "in PyTorch", "floor", "eager", "torch.compile", "error", "eager's error", "memory",
               "eager's memory"]
    lines = [
        "%s, driver %s, PyTorch %s, %s (`%s`). Milliseconds, median; floor: the same bytes read, or read and written,"
        " and nothing else%s. In PyTorch: through onepass.torch, autograd included. Error: relative, against float64."
        " Memory: beyond the inputs, a gradient included." % (
            result["device"], result["driver"], result.get("torch", "not there"), result["date"], path,
            floor),
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
    return "\n".join(lines + ways_table([rows[name] for name in order]))


def ways_table(rows):
    """Lines: the rows that were measured with other ways to make their fp32 products, too; none if there are none."""
    rows = [row for row in rows if "vendor" in row["rivals"]]
    if not rows:
        return []
    columns = ["work", "onepass", "weight prepared", "cuBLAS fp32", "error", "cuBLAS's error"]
    lines = ["", "fp32 products on tensor cores: the library's default, the same with the weight prepared once for many"
             " calls, and the same with cuBLAS's fp32 products.", "", "| " + " | ".join(columns) + " |",
             "|---" * len(columns) + "|"]
    for row in rows:
        prepared, vendor = row["rivals"].get("prepared", {}), row["rivals"]["vendor"]
        lines.append("| %s | **%s** | %s | %s | %s | %s |" % (
            WORDS.get(row["id"], row["id"]), milliseconds(row["ms"]), milliseconds(prepared.get("ms")),
            milliseconds(vendor.get("ms")), error(row.get("error")), error(vendor.get("error"))))
    return lines


NOT_MEASURED = "No GPU has been measured yet: `./dev gpu` does it."

# README's rows: what a reader asks first.
FEW = ("kl_logits_bf16_forward_backward", "cross_entropy_bf16_forward_backward", "p1_forward", "p1_forward_backward",
       "p2_fp32_forward_backward", "p2_bf16_train")


def short_table(path, result):
    rows = {row["id"]: row for row in result["rows"]}
    columns = ["work", "onepass", "torch.compile", "eager", "error", "eager's error", "memory", "eager's memory"]
    lines = ["%s, PyTorch %s, %s. Milliseconds, median, cold cache; error relative to float64; memory beyond the inputs."
             % (result["device"], result.get("torch", "not there"), result["date"]), "",
             "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for name in FEW:
        if name not in rows:
            continue
        row = rows[name]
        eager, compiled = row["rivals"].get("eager", {}), row["rivals"].get("compile", {})
        lines.append("| %s | **%s** | %s | %s | %s | %s | %s | %s |" % (
            WORDS[name], milliseconds(row["ms"]), milliseconds(compiled.get("ms")), milliseconds(eager.get("ms")),
            error(row.get("error")), error(eager.get("error")), size(row.get("extra_bytes")),
            size(eager.get("extra_bytes"))))
    return "\n".join(lines)


def short_tables(found):
    return "\n\n".join(short_table(path, result) for path, result in found) or NOT_MEASURED


def tables(found):
    return "\n\n".join(table(path, result) for path, result in found) or NOT_MEASURED


# ---- products --------------------------------------------------------------------------------------------------------

CHOICES = {"vendor": "cuBLAS", "split": "split"}


def choice(entry):
    """Which way the library takes; if that was the slower one, by how much; or why there is no answer."""
    if "failed" in entry:
        return "failed: " + entry["failed"].replace("|", "/")
    name = CHOICES.get(entry["chosen"], entry["chosen"])
    return name + ", slower by %.0f%%" % (100 * entry["slower_by"]) if "slower_by" in entry else name


def product_table(path, result):
    columns = ["m x n x k", "cuBLAS", "split", "prepared", "chosen", "cuBLAS's error", "split's error"]
    entries = result["products"]
    late = sum("slower_by" in entry for entry in entries)
    lines = [
        "%s, driver %s, %s (`%s`). Milliseconds, median; cold cache. Of %d shapes the way chosen took over 10%% longer"
        " than the other for %s." % (result["device"], result["driver"], result["date"], path, len(entries),
                                     late or "none"),
        "",
        "| " + " | ".join(columns) + " |",
        "|---" * len(columns) + "|",
    ]
    for entry in entries:
        lines.append("| %s | %s | %s | %s | %s | %s | %s |" % (
            " x ".join("%d" % extent for extent in entry["shape"]), milliseconds(entry.get("vendor_ms")),
            milliseconds(entry.get("split_ms")), milliseconds(entry.get("prepared_ms")), choice(entry),
            error(entry.get("vendor_error")), error(entry.get("split_error"))))
    return "\n".join(lines)


def product_tables(found):
    found = [(path, result) for path, result in found if result.get("products")]
    if not found:
        return "No GPU's products have been measured yet: `./dev gpu` does it."
    return "\n\n".join(product_table(path, result) for path, result in found)


# ---- on a CPU --------------------------------------------------------------------------------------------------------

NO_CPU = "Nothing has been measured yet: `python3 bench/cpu_losses.py` does it."


def cpu_result():
    """What cpu_losses.py wrote; None if it is not there."""
    if not os.path.exists(evidence.CPU_LOSSES):
        return None
    with open(evidence.CPU_LOSSES, encoding="utf-8") as file:
        return json.load(file)


def circumstances(result):
    return "%s, %s, %d of %d cores, PyTorch %s, %s (`%s`), time %s." % (
        result["machine"], result["level"], result["threads"], result["cores"], result["torch"], result["date"],
        os.path.relpath(evidence.CPU_LOSSES, evidence.ROOT), result["clock"])


CPU_WORDS = {"kl": "KL of logits", "cross_entropy": "cross-entropy"}


def cpu_loss_table(result):
    if result is None:
        return NO_CPU
    columns = ["value and gradient", "onepass", "eager", "torch.compile", "eager / onepass", "compile / onepass",
               "library alone", "of reading", "error", "eager's error", "gradient's", "eager's"]
    lines = [circumstances(result) + " Milliseconds, median of rounds in turn; ratios: the median over rounds.", "",
             "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for row in result["rows"]:
        eager, compiled = row["rivals"]["eager"], row["rivals"]["compile"]
        lines.append("| %s, %s, %s | **%s** | %s | %s | %.2f | %.2f | %s | %.0f%% | %s | %s | %s | %s |" % (
            CPU_WORDS[row["loss"]], row["dtype"], " x ".join("%d" % extent for extent in row["shape"]),
            milliseconds(row["ms"]), milliseconds(eager["ms"]), milliseconds(compiled["ms"]), eager["ratio"],
            compiled["ratio"], milliseconds(row["library"]["ms"]), 100 * row["library"]["share_of_read"],
            error(row["error"]), error(eager["error"]),
            error(row["grad_error"]), error(eager["grad_error"])))
    return "\n".join(lines)


def cpu_call_table(result):
    if result is None:
        return NO_CPU
    columns = ["call", "shape", "work", "onepass", "eager", "onepass / eager"]
    lines = [circumstances(result) + " Microseconds, median of rounds in turn.", "", "| " + " | ".join(columns) + " |",
             "|---" * len(columns) + "|"]
    for call in result["calls"]:
        lines.append("| %s | %s | %s | **%.1f** | %.1f | %.2f |" % (
            call["function"], " x ".join("%d" % extent for extent in call["shape"]), call["work"], call["us"],
            call["eager_us"], call["share"]))
    return "\n".join(lines)


# ---- releases of PyTorch ---------------------------------------------------------------------------------------------


def release_table(entries):
    """Of what releases.load() gives: checks passed in each part, failures in bold; what is left out."""
    if not entries:
        return "No release has been tried yet: `./dev releases` does it."
    lines = ["Checks that passed (`./dev releases`; 1.10.2 and the newest run the whole suite in `./dev test`):", "",
             "| PyTorch | Python | " + " | ".join(releases.PARTS) + " |", "|---" * (2 + len(releases.PARTS)) + "|"]
    for version, entry in entries.items():
        cells = []
        for part in releases.PARTS:
            count = entry["parts"].get(part)
            cells.append("not tried" if count is None else
                         "%d" % count["passed"] + (", **%d failed**" % count["failed"] if count["failed"] else ""))
        lines.append("| %s | %s | %s |" % (version, entry["python"], " | ".join(cells)))
    lines += ["", "What a release cannot do, as its tests say (how many checks that leaves out):", ""]
    for version, entry in entries.items():
        reasons = ["%s (%d)" % (why, count) for why, count in sorted(entry["left_out"].items())]
        lines.append("- %s: %s." % (version, "; ".join(reasons) or "nothing is left out"))
    return "\n".join(lines)


# ---- the documents ---------------------------------------------------------------------------------------------------

# document, name of its section, who makes it of the results
SECTIONS = (("README.md", "results", short_tables), ("docs/performance.md", "all results", tables),
            ("docs/performance.md", "products", product_tables))
CPU_SECTIONS = (("docs/performance.md", "cpu losses", cpu_loss_table),
                ("docs/performance.md", "cpu calls", cpu_call_table))
RELEASES = "docs/python.md", "releases"


def with_section(text, name, made):
    """The text with `made` between the section's two marks; None if they are not there once each, in this order."""
    begin, end = "<!-- %s -->" % name, "<!-- /%s -->" % name
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        return None
    before, rest = text.split(begin)
    return before + begin + "\n" + made + "\n" + end + rest.split(end)[1]


def put(root, document, name, made, check):
    """Writes or checks one section; 0, or 1 having said what is wrong."""
    path = os.path.join(root, document)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    wanted = with_section(text, name, made)
    if wanted is None:
        print("%s: it must hold <!-- %s --> and <!-- /%s --> once each, in this order" % (document, name, name))
        return 1
    if not check:
        with open(path, "w", encoding="utf-8") as file:
            file.write(wanted)
    elif text != wanted:
        print("%s: the %s are not what bench/results says; ./dev table writes them anew" % (document, name))
        return 1
    else:
        print("%s: the %s are those of bench/results" % (document, name))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    found, on_cpu = evidence.results(), cpu_result()
    if not arguments.write and not arguments.check:
        print("\n\n".join([make(found) for _, _, make in SECTIONS] + [make(on_cpu) for _, _, make in CPU_SECTIONS]
                          + [release_table(releases.load())]))
        return 0
    made = [(document, name, make(found)) for document, name, make in SECTIONS]
    made += [(document, name, make(on_cpu)) for document, name, make in CPU_SECTIONS]
    made.append(RELEASES + (release_table(releases.load()),))
    return max([put(evidence.ROOT, *each, not arguments.write) for each in made])


if __name__ == "__main__":
    sys.exit(main())
