#!/usr/bin/env python3
"""A picture of what `onepass bench sweep --json FILE` found: a map of rows and columns for each operator.

usage: sweep_plot.py FILE [-o PNG] [--only KEY=VALUE ...]

A cell shows the smallest share of the floor among the points of its shape; --only leaves some of them out, by any key
that a point has: --only dtype=f32 layout=contiguous gradient=false. Needs matplotlib: exit code 1 without it.
"""
import argparse
import json
import sys


def matches(point, wanted):
    """Whether a point has every KEY=VALUE; values are written as in JSON, strings without quotes."""
    for text in wanted:
        key, _, value = text.partition("=")
        found = point.get(key)
        if (found if isinstance(found, str) else json.dumps(found)) != value:
            return False
    return True


def smallest_shares(points):
    """{operator: {(rows, cols): share}} of those that were measured."""
    found = {}
    for point in points:
        if point["state"] == "measured":
            cells = found.setdefault(point["operator"], {})
            shape = point["rows"], point["cols"]
            cells[shape] = min(point["share"], cells.get(shape, point["share"]))
    return found


def short(extent):
    """10000000 as 10M."""
    unit = 0
    while extent >= 1000 and extent % 1000 == 0 and unit < 4:
        extent, unit = extent // 1000, unit + 1
    return "%d%s" % (extent, ("", "k", "M", "G", "T")[unit])


def draw(maps, title, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(len(maps), 1, squeeze=False, constrained_layout=True,
                                   figsize=(9, 1 + sum(1.2 + 0.4 * len({r for r, _ in m}) for m in maps.values())),
                                   gridspec_kw={"height_ratios": [1 + len({r for r, _ in m}) for m in maps.values()]})
    image = None
    for axis, (operator, cells) in zip(axes[:, 0], maps.items()):
        rows, cols = sorted({r for r, _ in cells}), sorted({c for _, c in cells})
        shares = [[cells.get((r, c), float("nan")) for c in cols] for r in rows]
        image = axis.imshow(shares, vmin=0, vmax=1, cmap="RdYlBu", aspect="auto")
        for (r, c), share in cells.items():
            axis.text(cols.index(c), rows.index(r), "%.*f%%" % (share < 0.0995, 100 * share), ha="center", va="center",
                      fontsize=8, color="white" if share < 0.12 or share > 0.92 else "black")
        axis.set_xticks(range(len(cols)))
        axis.set_xticklabels([short(c) for c in cols])
        axis.set_yticks(range(len(rows)))
        axis.set_yticklabels([short(r) for r in rows])
        axis.set(title=operator, xlabel="columns", ylabel="rows")
    figure.suptitle(title)
    figure.colorbar(image, ax=axes, label="floor / time", shrink=0.5)
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("-o", "--output", default="sweep.png")
    parser.add_argument("--only", nargs="+", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    with open(arguments.file, encoding="utf-8") as file:
        answer = json.load(file)
    if answer.get("command") != "bench sweep":
        sys.exit("sweep_plot.py: %s: not what onepass bench sweep --json writes" % arguments.file)
    maps = smallest_shares(point for point in answer["points"] if matches(point, arguments.only))
    if not maps:
        sys.exit("sweep_plot.py: %s: no such point was measured" % arguments.file)
    try:
        threads = ", %d threads" % answer["threads"] if answer["threads"] else ""  # a GPU has none
        draw(maps, answer["isa"] + threads, arguments.output)
    except ImportError as error:
        sys.exit("sweep_plot.py: %s; matplotlib is needed" % error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
