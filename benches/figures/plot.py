"""Draws the plots of docs/performance.md from the lines beside them: python3 benches/figures/plot.py [--check] [FOLDER]

FOLDER (docs/plots) holds `peers.jsonl`, written by `benches/peers/run --out`, and `growth.jsonl`, written by
`cargo bench --bench growth` with $EFFECTD_BENCH_JSONL. The same lines give the same drawing, byte for byte; `--check` says
whether the drawings are those of the lines, and draws nothing.
"""

import json
import math
import os
import sys
from xml.sax.saxutils import escape

WIDTH = 760
INK, FAINT, OURS, THEIRS = "#222222", "#d0d0d0", "#0b6e4f", "#8a94a0"
HUES = (
    "#c1440e", "#3b5998", "#b8860b", "#7d5ba6", "#d05a9a", "#4d9fb8", "#8c564b", "#999999", "#e08e45", "#7aa6da",
    "#a3b54a", "#b08ea2", "#444444", "#d0a0a0",
)  # fmt: skip


class Drawing:
    """Pieces of an SVG, in order."""

    def __init__(self, title, height):
        self.height, self.pieces = height, []
        self.text(16, 26, title, size=15, weight="bold")

    def text(self, x, y, words, size=12, anchor="start", weight="normal", fill=INK):
        self.pieces.append(
            '<text x="%.1f" y="%.1f" font-size="%d" text-anchor="%s" font-weight="%s" fill="%s">%s</text>'
            % (x, y, size, anchor, weight, fill, escape(words))
        )

    def box(self, x, y, width, height, fill):
        shape = (x, y, width, height, fill)
        self.pieces.append('<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>' % shape)

    def line(self, points, stroke, width=1.0):
        path = " ".join("%.1f,%.1f" % point for point in points)
        self.pieces.append('<polyline points="%s" fill="none" stroke="%s" stroke-width="%.1f"/>' % (path, stroke, width))

    def svg(self):
        head = (
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif">'
            '<rect width="100%%" height="100%%" fill="white"/>' % (WIDTH, self.height)
        )
        return "\n".join([head, *self.pieces, "</svg>", ""])


def decades(least, most):
    """Powers of ten from below the least to above the most."""
    return [10.0**power for power in range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)]


def scale(ticks, begin, end):
    """A logarithmic axis: a value to a place."""
    low, high = math.log10(ticks[0]), math.log10(ticks[-1])
    return lambda value: begin + (end - begin) * (math.log10(max(value, ticks[0])) - low) / (high - low)


def number(value):
    return "{:,.0f}".format(value)


def duration(micros):
    if micros < 1_000:
        return "%g µs" % micros
    return "%g ms" % (micros / 1_000) if micros < 1_000_000 else "%g s" % (micros / 1_000_000)


def named(line):
    return "%s: %s" % (line["peer"], line["work"])


def ours(line):
    return line["peer"].startswith("effectd")


def throughput(lines):
    """How many a second, with as many in flight as was best for each, the fastest first, on a logarithmic axis."""
    best = {}
    for line in lines:
        kept = best.get(named(line))
        if kept is None or line["per_second"] > kept["per_second"]:
            best[named(line)] = line
    rows = sorted(best.values(), key=lambda line: (-line["per_second"], named(line)))
    drawing = Drawing("A second, with as many in flight as was best for each (logarithmic)", 70 + 24 * len(rows))
    ticks = decades(min(line["per_second"] for line in rows) / 5, max(line["per_second"] for line in rows))
    place = scale(ticks, 290, WIDTH - 80)
    for tick in ticks:
        drawing.line([(place(tick), 40), (place(tick), 48 + 24 * len(rows))], FAINT)
        drawing.text(place(tick), 62 + 24 * len(rows), number(tick), size=11, anchor="middle")
    for row, line in enumerate(rows):
        top, end = 44 + 24 * row, place(line["per_second"])
        drawing.text(280, top + 14, "%s, %d" % (named(line), line["in_flight"]), size=11, anchor="end")
        drawing.box(290, top, max(end - 290, 1), 18, OURS if ours(line) else THEIRS)
        drawing.text(end + 6, top + 14, number(line["per_second"]), size=11)
    return drawing.svg()


def latency(lines):
    """How the latencies of one thing after another are distributed, a curve for each, on a logarithmic axis."""
    rows = [line for line in lines if line["in_flight"] == 1 and "quantiles_us" in line]
    rows.sort(key=lambda line: (line["p50_us"], named(line)))
    drawing = Drawing("One at a time: the share that was answered within so long (logarithmic)", 440 + 16 * ((len(rows) + 1) // 2))
    values = [micros for line in rows for micros in line["quantiles_us"].values()]
    ticks = decades(min(values), max(values))
    place = scale(ticks, 60, WIDTH - 30)
    points = sorted({float(point) for line in rows for point in line["quantiles_us"]})
    height = {point: 390 - 330 * index / (len(points) - 1) for index, point in enumerate(points)}
    for tick in ticks:
        drawing.line([(place(tick), 55), (place(tick), 395)], FAINT)
        drawing.text(place(tick), 410, duration(tick), size=11, anchor="middle")
    for point in points:
        drawing.line([(60, height[point]), (WIDTH - 30, height[point])], FAINT)
        drawing.text(54, height[point] + 4, "%g %%" % point, size=11, anchor="end")
    for index, line in enumerate(rows):
        hue = OURS if ours(line) else HUES[index % len(HUES)]
        curve = [(place(line["quantiles_us"][key]), height[float(key)]) for key in sorted(line["quantiles_us"], key=float)]
        drawing.line(curve, hue, 3.0 if ours(line) else 1.5)
        left, top = (60, 400)[index % 2], 430 + 16 * (index // 2)
        drawing.box(left, top - 8, 18, 6, hue)
        drawing.text(left + 24, top, "%s (p50 %s)" % (named(line), duration(float("%.3g" % line["p50_us"]))), size=11)
    return drawing.svg()


def growth(lines):
    """Receipts a second and resident memory against the number of receipts that are there."""
    rows = sorted((line for line in lines if line["work"] == "growth"), key=lambda line: line["receipts"])
    drawing = Drawing("The Store while it grows: receipts a second, and memory of the process", 320)
    left, right, top, bottom = 80, WIDTH - 80, 60, 270
    most = max(line["receipts"] for line in rows)
    rate_max = 1.2 * max(line["per_second"] for line in rows)
    mib_max = 1.2 * max(line["resident_mib"] for line in rows)
    across = lambda line: left + (right - left) * line["receipts"] / most
    for step in range(5):
        y = bottom - (bottom - top) * step / 4
        drawing.line([(left, y), (right, y)], FAINT)
        drawing.text(left - 6, y + 4, number(rate_max * step / 4), size=11, anchor="end", fill=OURS)
        drawing.text(right + 6, y + 4, number(mib_max * step / 4) + " MiB", size=11, fill=HUES[0])
        drawing.text(left + (right - left) * step / 4, bottom + 18, number(most * step / 4), size=11, anchor="middle")
    for key, limit, hue in (("per_second", rate_max, OURS), ("resident_mib", mib_max, HUES[0])):
        drawing.line([(across(line), bottom - (bottom - top) * line[key] / limit) for line in rows], hue, 2.0)
    drawing.text(left, bottom + 40, "receipts a second (left)", size=11, fill=OURS)
    drawing.text(right, bottom + 40, "resident memory (right)", size=11, anchor="end", fill=HUES[0])
    drawing.text((left + right) / 2, bottom + 40, "receipts in the store", size=11, anchor="middle")
    return drawing.svg()


PLOTS = (("throughput", "peers", throughput), ("latency", "peers", latency), ("growth", "growth", growth))


def main():
    words = [word for word in sys.argv[1:] if word != "--check"]
    check = "--check" in sys.argv[1:]
    here = os.path.dirname(os.path.abspath(__file__))
    folder = words[0] if words else os.path.join(here, "..", "..", "docs", "plots")
    stale = []
    for name, source, draw in PLOTS:
        lines = os.path.join(folder, source + ".jsonl")
        if not os.path.exists(lines):
            continue
        with open(lines, encoding="utf-8") as file:
            drawn = draw([json.loads(line) for line in file])
        path = os.path.join(folder, name + ".svg")
        if check:
            with open(path, encoding="utf-8") as file:
                if file.read() != drawn:
                    stale.append(name + ".svg")
        else:
            with open(path, "w", encoding="utf-8") as file:
                file.write(drawn)
    if stale:
        sys.exit("not what the lines beside them say, run `python3 benches/figures/plot.py`: " + ", ".join(stale))


main()
