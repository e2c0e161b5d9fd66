"""Draws the records of ``benchmarks.figures`` as SVG, with matplotlib: with one version of it always the same bytes.

Text stays text. The colours are those of a light page; a style in the file changes them where the reader's is dark.
"""

from __future__ import annotations

import io
import itertools
import math
import re
import textwrap
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.figures import Dots, Lines, Panel, Plot

PAPER, INK, FAINT, RULE, OURS, OTHER = "#ffffff", "#1f2328", "#6a737d", "#d1d9e0", "#0969da", "#bc4c00"
DARK = {PAPER: "#0d1117", INK: "#e6edf3", FAINT: "#9198a1", RULE: "#3d444d", OURS: "#58a6ff", OTHER: "#f0883e"}

STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "docs/plots",
    "font.family": ["DejaVu Sans"],
    "font.size": 8,
    "text.color": INK,
    "axes.labelcolor": FAINT,
    "axes.edgecolor": RULE,
    "axes.facecolor": "none",
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": FAINT,
    "ytick.labelcolor": INK,
    "grid.color": RULE,
    "grid.linewidth": 0.5,
    "figure.facecolor": PAPER,
}
WIDTH, COLUMNS, ROW = 9.2, 3, 0.19
"""Inches of a page and of a row, and the panels beside each other."""


def svg(plot: Plot, digest: str) -> str:
    """The picture, with the digest in its metadata."""
    metadata = {"Title": plot.title, "Identifier": digest, "Creator": "python -m benchmarks.plots", "Date": None}
    written = io.StringIO()
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}):
        figure = _dots(plot) if isinstance(plot, Dots) else _lines(plot)
        figure.savefig(written, format="svg", metadata=metadata)
    text = written.getvalue().replace("</metadata>", f"</metadata>\n{_style()}", 1)
    for pattern, short in SHORTER.items():
        text = re.sub(pattern, short, text)
    return text


SHORTER = {
    r"font-family: 'DejaVu Sans'; |text-anchor: start; | transform=\"rotate\(-0 [^\"]*\"": "",
    r"\s*<g id=\"\w+\"/>| id=\"[a-z2.]+_\d+\"": "",
    r"(?<= [xy]=\")(-?\d+\.\d\d)\d+": r"\1",
    r" +(?=\n)": "",
}
"""What matplotlib says of each text, number and group, and need not be said."""


def _style() -> str:
    """The font, a rim around letters that lines cross, and the colours where the reader's page is dark."""
    text = "font-family: 'DejaVu Sans', Verdana, sans-serif; paint-order: stroke; stroke-width: 2px"
    dark = [
        f'[style*="{what}: {light}"] {{ {what}: {dark} !important }}'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
    ]
    dark.append(f"text {{ stroke: {DARK[PAPER]} }}")
    rules = "\n".join(dark)
    return f"<style>\ntext {{ {text}; stroke: {PAPER} }}\n@media (prefers-color-scheme: dark) {{\n{rules}\n}}\n</style>"


def _figure(plot: Plot, width: float, height: float, says: str) -> Figure:
    """Empty, with the title above, and below how to read it and where it was measured."""
    below = [says]
    below += textwrap.wrap(plot.where, int(width * 19), break_long_words=False, break_on_hyphens=False)
    foot = 0.13 * len(below) + 0.1
    total = height + foot + 0.3
    figure = Figure(figsize=(width, total), layout="constrained")
    figure.get_layout_engine().set(rect=(0, foot / total, 1, height / total), w_pad=0.06, h_pad=0.06)
    figure.text(0.01, 1 - 0.08 / total, plot.title, size=10, weight="bold", va="top")
    figure.text(0.01, 0.06 / total, "\n".join(below), size=6.5, color=FAINT, va="bottom")
    return figure


def _dots(plot: Dots) -> Figure:
    columns = min(COLUMNS, len(plot.panels))
    rows = math.ceil(len(plot.panels) / columns)
    line = f" Line: {plot.says}." if any(panel.limit is not None for panel in plot.panels) else ""
    figure = _figure(plot, WIDTH, rows * (ROW * len(plot.labels) + 0.75), f"Logarithmic scales.{line}")
    for number, panel in enumerate(plot.panels):
        axes = figure.add_subplot(rows, columns, number + 1)
        _panel(axes, panel, plot.labels)
        axes.set_yticks(range(len(plot.labels)), plot.labels if number % columns == 0 else [""] * len(plot.labels))
        for label in axes.get_yticklabels():
            if _ours(label.get_text()):
                label.set(weight="bold", color=OURS)
    return figure


def _panel(axes: Axes, panel: Panel, labels: tuple[str, ...]) -> None:
    low, high = _range(panel)
    axes.set(xscale="log", xlim=(low / (high / low) ** 0.08, high * (high / low) ** 0.32))
    axes.set(ylim=(len(labels) - 0.5, -0.5))
    axes.set_title(panel.title, loc="left")
    axes.set_xlabel(panel.axis, labelpad=1)
    ticks = _ticks(*axes.get_xlim())
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="both", length=0, labelsize=7.5)
    ends = axes.get_xlim()
    rows = [(*ends, math.nan) for _ in labels]
    axes.plot(np.ravel(rows), np.repeat(range(len(labels)), 3), ":", color=RULE, linewidth=0.6, zorder=0)
    if panel.limit is not None:
        axes.axvline(panel.limit, color=FAINT, linewidth=0.6, zorder=1)
    found = [(row, value) for row, value in enumerate(panel.values) if not isinstance(value, str)]
    for colour, ours in ((FAINT, False), (OURS, True)):
        points = [(value, row) for row, value in found if _ours(labels[row]) == ours]
        if points:
            axes.plot(*zip(*points, strict=True), "o", color=colour, markersize=5, clip_on=False)
    for row, value in enumerate(panel.values):
        _written(axes, row, value, low, _ours(labels[row]))


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers of a logarithmic scale: as few to a decade as show what the scale is."""
    for digits in (1,), (1, 2, 5), range(1, 10):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
        ticks = [float(f"{digit}e{power}") for power in powers for digit in digits]
        if len(inside := [tick for tick in ticks if low <= tick <= high]) > 2:
            break
    return inside


def _range(panel: Panel) -> tuple[float, float]:
    """The least and the most of what a panel shows, a factor of 2 apart or more."""
    shown = [value for value in (*panel.values, panel.limit) if value is not None and not isinstance(value, str)]
    low = min(shown, default=1)
    return low, max([2 * low, *shown])


def _written(axes: Axes, row: int, value: float | str, low: float, ours: bool) -> None:
    """A number beside its dot, or the word that stands for it."""
    word = isinstance(value, str)
    text, x = (value, low) if word else (_number(value), value)
    colour = OTHER if word else OURS if ours else INK
    weight = "bold" if ours else "normal"
    style = {"color": colour, "weight": weight, "size": 7, "va": "center_baseline"}
    axes.annotate(text, (x, row), xytext=(5, 0), textcoords="offset points", **style)


def _ours(label: str) -> bool:
    return label.startswith("pipeline")


def _number(value: float) -> str:
    """Three digits, or as many as there are before the point."""
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"


def _lines(plot: Lines) -> Figure:
    figure = _figure(plot, 0.7 * WIDTH, 2.4, f"Line: {plot.says}.")
    axes = figure.add_subplot()
    styles = itertools.cycle(itertools.product((OURS, OTHER), ("-", "--")))
    for (label, points), (colour, style) in zip(plot.series, styles, strict=False):
        axes.plot(*zip(*points, strict=True), style, color=colour, marker="o", markersize=4, label=label)
    axes.axhline(plot.limit, color=INK, linewidth=0.7)
    nodes = sorted({x for _, points in plot.series for x, _ in points})
    axes.set(xscale="log", xlabel=plot.axes[0], ylabel=plot.axes[1], ylim=(0, None))
    axes.set_xticks(nodes, [f"{x:,.0f}" for x in nodes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(length=0, labelcolor=FAINT)
    axes.grid(axis="y")
    axes.legend(frameon=False, fontsize=7.5)
    return figure
