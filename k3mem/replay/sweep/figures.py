"""Figures of a sweep: what a cache hits over its size, what is recomputed, and what the pool holds over time.

They need matplotlib (`k3mem[plots]`), and no display. Text and lines have one ink, which a page may replace by its own;
colours are of middle lightness, so that they can be read on white and on black.
"""

from __future__ import annotations

import importlib.util
import io
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from k3mem.replay.options import BadOption
from k3mem.units import format_size

INK = "#1b1f24"
COLOURS = ("#2f7fd0", "#d9731a", "#3a9a5c", "#b8508f", "#8a67c9", "#9a8412", "#4aa3a8", "#c0504a")
MARKERS = "osD^vPX*"
GREY = "#8a939e"
BANDS = {"kv pages": COLOURS[0], "working states": COLOURS[1], "targets": COLOURS[5], "state: prompt_end": COLOURS[2],
         "state: answer_end": COLOURS[6], "state: branch": COLOURS[3], "state: chunk_end": COLOURS[4],
         "state: interval": "#6d8f2f", "state: hint": "#a06b4f", "state: turn": "#d46fa0", "state: retract": "#5f6fb8",
         "holes": COLOURS[7], "free": GREY + "38"}
"""What a pool holds, from the bottom up."""
MOST_COMPOSITIONS = 8
"""Figures of what a pool holds."""

Cell = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure, with a title and a sentence for people."""

    name: str
    """Of its file."""
    title: str
    caption: str
    figure: Any


def need_matplotlib() -> None:
    """Raises BadOption without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise BadOption("figures need matplotlib: pip install 'k3mem[plots]', or give --no-plots")


def draw(data: Mapping[str, Any]) -> list[Drawing]:
    """All figures that a sweep (its JSON) has the cells for. Raises BadOption without matplotlib."""
    need_matplotlib()
    import matplotlib

    style = {"text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
             "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": INK,
             "grid.alpha": 0.15, "font.size": 10, "axes.titlesize": 11, "legend.frameon": False, "lines.linewidth": 1.8,
             "svg.fonttype": "path", "figure.facecolor": "none", "axes.facecolor": "none",
             "savefig.facecolor": "none"}
    with matplotlib.rc_context(style):
        return list(_all(data))


def to_svg(drawing: Drawing, *, inline: bool = False) -> str:
    """SVG text, the same for the same figure. `inline`: for a page: without a head, in the page's own ink, its ids
    unlike those of other figures; else on white."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "k3mem", "svg.fonttype": "path"}):
        drawing.figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None},
                               facecolor="none" if inline else "white")
    svg = text.getvalue()
    if not inline:
        return svg
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{drawing.name}-", svg)
    title = drawing.title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)


def _all(data: Mapping[str, Any]) -> Iterator[Drawing]:
    cells = [cell for cell in data["cells"] if cell["report"] is not None]
    replays = [cell for cell in cells if cell["mode"] != "bound"]
    bounds = sorted(((cell["pool_bytes"], cell["report"]) for cell in cells if cell["mode"] == "bound"),
                    key=lambda found: found[0])
    if len({cell["pool_bytes"] for cell in replays}) > 1:
        yield _hits(replays, bounds, data["trace"])
    if len({cell["concurrency"] for cell in replays}) > 1:
        yield _recomputed(replays, data["trace"])
    sampled = [cell for cell in replays if cell["report"].get("series", {}).get("t")]
    most = {pool: max(c["concurrency"] for c in sampled if c["pool_bytes"] == pool)
            for pool in {cell["pool_bytes"] for cell in sampled}}
    chosen = [cell for cell in sampled if cell["concurrency"] == most[cell["pool_bytes"]]]
    for i, cell in enumerate(chosen[:MOST_COMPOSITIONS]):
        yield _composition(cell, i, len(chosen))


def _hits(cells: Sequence[Cell], bounds: Sequence[tuple[int, Cell]], trace: str) -> Drawing:
    """Hit rate over pool size, a line a series; the bound's two sides with what is between them shaded."""
    figure, axes = _axes()
    limited = sorted({cell["pool_bytes"] for cell in cells if cell["pool_bytes"]})
    if bounds:
        x = [pool / 1e9 for pool, _ in bounds]
        low, high = ([100 * report[f"{side}_hit_rate"] for _, report in bounds] for side in ("feasible", "bound"))
        axes.fill_between(x, low, high, color=GREY, alpha=0.35, linewidth=0)
        axes.plot(x, high, color=GREY, linestyle="-", linewidth=1, marker="_", label="no schedule beats")
        axes.plot(x, low, color=GREY, linestyle="--", linewidth=1, marker="_", label="a schedule reaches")
    for i, (name, some) in enumerate(_series(cells, "pool_bytes")):
        points = [(cell["pool_bytes"] / 1e9, 100 * cell["report"]["hit_rate"]) for cell in some]
        finite = [point for point in points if point[0]]
        axes.plot(*zip(*finite, strict=True), color=_colour(i), marker=MARKERS[i % len(MARKERS)], markersize=5,
                  label=name or some[0]["policy"]) if finite else None
        for _, rate in points[: len(points) - len(finite)]:
            axes.axhline(rate, color=_colour(i), linestyle=":", linewidth=1.2, label=f"{name} without limit".strip())
    _sizes(axes, limited)
    axes.set_ylabel("prompt tokens that hit (%)")
    axes.set_title(f"Hit rate by pool size: {trace}", loc="left")
    _legend(axes)
    bounded = " Shaded: between what a schedule reaches that knows the future, and what none exceeds." if bounds else ""
    return Drawing("hit-rate", "Hit rate by pool size", f"Share of all prompt tokens that need no computing.{bounded}",
                   figure)


def _recomputed(cells: Sequence[Cell], trace: str) -> Drawing:
    """Recomputed tokens over sessions at a time, a line a series."""
    figure, axes = _axes()
    scale, word = _scale(max(cell["report"]["recomputed_tokens"] for cell in cells))
    for i, (name, some) in enumerate(_series(cells, "concurrency")):
        tokens = [cell["report"]["recomputed_tokens"] / scale for cell in some]
        axes.plot([cell["concurrency"] for cell in some], tokens, color=_colour(i),
                  marker=MARKERS[i % len(MARKERS)], markersize=5, label=name or some[0]["policy"])
    least = [cell["report"]["unavoidable_tokens"] / scale for cell in cells]
    axes.axhline(min(least), color=GREY, linestyle=":", linewidth=1.2, label="never seen before")
    _doubling(axes, sorted({cell["concurrency"] for cell in cells}), "{:d}".format)
    axes.set_xlabel("sessions at a time")
    axes.set_ylabel(f"prompt tokens computed{word}")
    axes.set_ylim(bottom=0)
    axes.set_title(f"Recomputed tokens by concurrency: {trace}", loc="left")
    _legend(axes)
    return Drawing("recomputed", "Recomputed tokens by concurrency",
                   "Prompt tokens that had to be computed; the dotted line is what any cache must compute.", figure)


def _composition(cell: Cell, index: int, count: int) -> Drawing:
    """What the pool holds over virtual time, stacked."""
    figure, axes = _axes()
    series = cell["report"]["series"]
    span = series["t"][-1] - series["t"][0]
    unit, word = (3600, "h") if span > 7200 else (60, "min") if span > 120 else (1, "s")
    skipped = {"fixed"} | (set() if cell["pool_bytes"] else {"free", "holes"})
    names = [name for name in BANDS if name in series["bytes"] and name not in skipped]
    top = max(sum(sizes) for sizes in zip(*(series["bytes"][name] for name in names), strict=True))
    names = [name for name in names if name == "free" or max(series["bytes"][name]) > top / 500]
    axes.stackplot([t / unit for t in series["t"]], *([size / 1e9 for size in series["bytes"][name]] for name in names),
                   labels=[name.replace("_", " ") for name in names], step="post", linewidth=0,
                   colors=[BANDS[name] for name in names])
    axes.set_xlim(series["t"][0] / unit, series["t"][-1] / unit)
    axes.set_ylim(0, top / 1e9)
    axes.set_xlabel(f"virtual time ({word})")
    axes.set_ylabel("bytes of the pool (GB)")
    label = _label(cell)
    axes.set_title(f"What the pool holds: {label}", loc="left")
    _legend(axes, upwards=True)
    more = f" One of {count}; the first {MOST_COMPOSITIONS} are drawn." if count > MOST_COMPOSITIONS else ""
    return Drawing(f"pool-{index + 1}", f"What the pool holds over time: {label}",
                   f"Samples at most every {series['interval']:g} s; a band as thin as a five-hundredth is left out."
                   f"{more}", figure)


def _series(cells: Sequence[Cell], along: str) -> Iterator[tuple[str, list[Cell]]]:
    """(name, cells in order of `along`) of the cells that agree in all else; named by what differs between them."""
    fields = [name for name in ("policy", "pool_bytes", "concurrency", "admission") if name != along]
    differ = [name for name in fields if len({cell[name] for cell in cells}) > 1]
    groups: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[tuple(cell[name] for name in fields)].append(cell)
    for some in groups.values():
        yield ", ".join(_word(name, some[0][name]) for name in differ), sorted(some, key=lambda cell: int(cell[along]))


def _word(name: str, value: Any) -> str:
    if name == "pool_bytes":
        return format_size(value) if value else "no limit"
    return f"{value} at once" if name == "concurrency" else f"admission {value}" if name == "admission" else str(value)


def _label(cell: Cell) -> str:
    fields = ("policy", "pool_bytes", "concurrency", "admission")
    return ", ".join(_word(name, cell[name]) for name in fields if cell[name] is not None)


def _axes() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.6, 4.2), layout="constrained")
    return figure, figure.add_subplot()


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _legend(axes: Any, *, upwards: bool = False) -> None:
    """Beside the axes, where no data is; in the order of a stack from its top with `upwards`."""
    handles, labels = axes.get_legend_handles_labels()
    if upwards:
        handles, labels = handles[::-1], labels[::-1]
    axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0)


def _sizes(axes: Any, pools: Sequence[int]) -> None:
    _doubling(axes, [pool / 1e9 for pool in pools], "{:g}".format)
    axes.set_xlabel("pool (GB)")


def _doubling(axes: Any, values: Sequence[float], form: Any) -> None:
    """A logarithmic axis with a tick at each value, those left out whose label would touch the one before."""
    if not values:
        return
    axes.set_xscale("log", base=2)
    span = math.log2(values[-1] / values[0]) or 1.0
    ticks = [values[0]]
    for value in values[1:]:
        if math.log2(value / ticks[-1]) > 0.055 * span:
            ticks.append(value)
    axes.set_xticks(ticks, [form(value) for value in ticks])
    axes.set_xticks([], minor=True)


def _scale(most: float) -> tuple[float, str]:
    for scale, word in ((1e9, " (billions)"), (1e6, " (millions)"), (1e3, " (thousands)")):
        if most >= 2 * scale:
            return scale, word
    return 1.0, ""
