"""Plots as inline SVG: horizontal bars on a linear axis, pairs of dots on a logarithmic one.

Colours and fonts come from the page's style sheet, so a plot is right in light and in dark. Every number that a plot
shows is also written next to its mark.
"""

import html
import math

WIDTH, LABEL, RIGHT = 860, 250, 92
ROW, GAP, TOP, BOTTOM = 20, 14, 6, 30


def escape(text):
    return html.escape(str(text), quote=True)


def short(value, unit=""):
    """A number in few characters."""
    if value is None or not math.isfinite(value):
        return "not known"
    if unit == "×":
        text = "%.2f" % value if value < 10 else "%.1f" % value
    elif value == 0:
        text = "0"
    elif abs(value) >= 1000 or abs(value) < 0.001:
        text = "%.1e" % value
    else:
        text = "%.3g" % value
    return text + unit


def nice_step(span, steps=5):
    """A step of 1, 2 or 5 times a power of ten that divides a span into about that many."""
    raw = span / steps
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)


def text(x, y, words, kind="", anchor="start"):
    return '<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>' % (x, y, kind, anchor, escape(words))


def line(x1, y1, x2, y2, kind):
    return '<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>' % (x1, y1, x2, y2, kind)


def frame(height, label, body):
    return ('<svg viewBox="0 0 %d %.0f" role="img" aria-label="%s" xmlns="http://www.w3.org/2000/svg">%s</svg>'
            % (WIDTH, height, escape(label), "".join(body)))


def bars(groups, unit, label, marker=None):
    """groups: [(name, [(who, value, (low, high) or None)], mark or None)]. marker: what the mark of a group means."""
    groups = [(name, [bar for bar in rows if bar[1] is not None], mark) for name, rows, mark in groups]
    values = [value for _, rows, _ in groups for _, value, _ in rows]
    if not values:
        return ""
    ends = values + [span[1] for _, rows, _ in groups for _, _, span in rows if span]
    ends += [mark for _, _, mark in groups if mark]
    # A whisker of a disturbed machine may not squeeze everything else into a corner.
    top = min(max(ends), 1.6 * max(values + [mark for _, _, mark in groups if mark])) or 1.0
    scale = (WIDTH - LABEL - RIGHT) / top
    body, marks, y = [], [], TOP
    for name, rows, mark in groups:
        body.append(text(0, y + ROW * 0.7, name, "name"))
        begin = y
        for who, value, span in rows:
            body.append(text(LABEL - 10, y + ROW * 0.7, who, "who", "end"))
            body.append('<rect x="%d" y="%.1f" width="%.1f" height="%d" class="bar %s"/>' % (
                LABEL, y + 3, max(1.0, value * scale), ROW - 6, who.split()[0].strip(".").replace(".", "")))
            end = value
            if span:
                high = min(span[1], top)
                body.append(line(LABEL + span[0] * scale, y + ROW / 2, LABEL + high * scale, y + ROW / 2, "whisker"))
                end = max(end, high)
            body.append(text(LABEL + end * scale + 7, y + ROW * 0.7, short(value, unit), "value"))
            y += ROW
        if mark:
            marks.append(line(LABEL + mark * scale, begin, LABEL + mark * scale, y, "mark"))
        y += GAP
    # Text is last, so that no line crosses a number.
    body = axis(top, scale, y - GAP, unit) + [part for part in body if not part.startswith("<text")] + marks + [
        part for part in body if part.startswith("<text")]
    if marker:
        body.append(line(LABEL, y + BOTTOM - 8, LABEL + 18, y + BOTTOM - 8, "mark"))
        body.append(text(LABEL + 25, y + BOTTOM - 4, marker, "tick"))
        y += 14
    return frame(y + BOTTOM, label, body)


def axis(top, scale, height, unit):
    step, parts = nice_step(top), []
    for number in range(int(top / step + 0.001) + 1):
        x = LABEL + number * step * scale
        parts.append(line(x, TOP, x, height, "grid"))
        parts.append(text(x, height + 15, "%g%s" % (number * step, unit), "tick", "middle"))
    return parts


def pairs(rows, label):
    """rows: [(name, candidate, reference)] on a logarithmic axis; a value of 0 sits at the left edge."""
    found = [value for _, first, second in rows for value in (first, second)
             if value and math.isfinite(value)]
    if not found:
        return ""
    low, high = math.floor(math.log10(min(found)) - 0.2), math.ceil(math.log10(max(found)) + 0.2)
    zeros = any(value == 0 for _, first, second in rows for value in (first, second))
    left = LABEL + (50 if zeros else 8)
    scale = (WIDTH - left - 2 * RIGHT) / (high - low)

    def place(value):
        if not value:
            return LABEL + 10
        if not math.isfinite(value):
            return WIDTH - 2 * RIGHT
        return left + (min(max(math.log10(value), low), high) - low) * scale
    height = TOP + len(rows) * (ROW + 4)
    body = []
    every = max(1, (high - low) // 8)
    for power in range(low, high + 1, every):
        body.append(line(left + (power - low) * scale, TOP, left + (power - low) * scale, height, "grid"))
        body.append(text(left + (power - low) * scale, height + 15, "1e%d" % power, "tick", "middle"))
    if zeros:
        body.append(text(LABEL + 10, height + 15, "0", "tick", "middle"))
    for number, (name, first, second) in enumerate(rows):
        y = TOP + number * (ROW + 4) + ROW / 2
        body.append(text(LABEL - 10, y + 4, name if len(name) <= 38 else name[:36] + "...", "who", "end"))
        body.append(line(min(place(first), place(second)), y, max(place(first), place(second)), y, "link"))
        body.append('<circle cx="%.1f" cy="%.1f" r="5.5" class="dot reference"/>' % (place(second), y))
        body.append('<circle cx="%.1f" cy="%.1f" r="4" class="dot candidate"/>' % (place(first), y))
        right = max(place(first), place(second)) + 11
        body.append(text(right, y + 4, "%s | %s" % (short(first), short(second)), "value"))
    return frame(height + BOTTOM - 6, label, body)
