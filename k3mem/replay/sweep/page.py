"""A sweep for people: a table in the terminal, and one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3mem.units import format_size

if TYPE_CHECKING:
    from rich.table import Table

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --line: #d5dae0; --soft: #5b6570; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --paper: #15181c; --line: #353c44; --soft: #9aa5b1; } }
body { color: var(--ink); background: var(--paper); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
       max-width: 64rem; padding: 0 1rem; }
figure { margin: 2rem 0; } figure svg { width: 100%; height: auto; color: var(--ink); }
figcaption, .soft { color: var(--soft); font-size: 0.9em; }
div.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 0.25rem 0.7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; } td:first-child, th:first-child { text-align: left; } td.error { text-align: left; }
code { font-size: 0.9em; overflow-wrap: anywhere; }
"""

Row = list[str]


def columns(data: Mapping[str, Any]) -> tuple[list[str], list[Row], list[Row]]:
    """(heads, rows of replays, rows of bounds): every number of the table; a cell that failed has its error instead."""
    cells = data["cells"]
    timed = any(cell["mode"] == "timed" for cell in cells)
    heads = ["policy", "pool", *(["at once", "admission"] if timed else []), "hit rate", "recomputed tokens",
             "amplification", *(["TTFT p50 (s)", "output tokens/s", "retractions", "rejected"] if timed else []),
             "CPU (s)"]
    rows, bounds = list[Row](), list[Row]()
    for cell in cells:
        pool = format_size(cell["pool_bytes"]) if cell["pool_bytes"] else "no limit"
        report = cell["report"]
        if cell["mode"] == "bound":
            found = [cell["error"]] if report is None else [
                f"{report[name]:.2%}" for name in ("feasible_hit_rate", "bound_hit_rate", "unlimited_hit_rate")]
            bounds.append([pool, *found])
            continue
        row = [cell["policy"], pool, *([str(cell["concurrency"]), cell["admission"]] if timed else [])]
        rows.append(row + ([cell["error"]] if report is None else _numbers(report, timed, cell["cpu_seconds"])))
    return heads, rows, bounds


def _numbers(report: Mapping[str, Any], timed: bool, seconds: float) -> Row:
    out = [f"{report['hit_rate']:.2%}", f"{report['recomputed_tokens']:,}",
           "-" if report["amplification"] is None else f"{report['amplification']:.3f}"]
    if timed:
        ttft, speed = report.get("ttft", {}).get("p50"), report.get("output_tokens_per_second")
        out += ["-" if ttft is None else f"{ttft:,.2f}", "-" if speed is None else f"{speed:,.2f}",
                f"{report['retractions']:,}", f"{report['rejected']:,}"]
    return [*out, f"{seconds:.1f}"]


BOUND_HEADS = ["pool", "a schedule reaches", "no schedule beats", "memory without limit"]


def table(data: Mapping[str, Any]) -> Table:
    """The sweep as a rich table; bounds are rows of the policies `a schedule reaches` and `no schedule beats`."""
    from rich.table import Table

    heads, rows, bounds = columns(data)
    out = Table(title="Sweep", title_justify="left")
    for i, head in enumerate(heads):
        out.add_column(head, justify="left" if i == 0 else "right")
    rate = heads.index("hit rate")
    for row in rows:
        out.add_row(*row)
    for pool, *found in bounds:
        for name, value in zip(("a schedule reaches", "no schedule beats"), found, strict=False):
            out.add_row(name, pool, *[""] * (rate - 2), value)
    return out


def write(data: Mapping[str, Any], folder: Path, plots: bool) -> list[Path]:
    """Write `report.html` and, with `plots`, an SVG file a figure; the paths. Raises OSError, and BadOption without
    matplotlib."""
    drawings, figures = [], list[str]()
    if plots:
        from k3mem.replay.sweep.figures import draw, to_svg

        drawings = draw(data)
        figures = [f"<figure>{to_svg(one, inline=True)}<figcaption>{escape(one.caption)}</figcaption></figure>"
                   for one in drawings]
    paths = [folder / "report.html"]
    paths[0].write_text(html(data, figures), encoding="utf-8")
    for one in drawings:
        paths.append(folder / f"{one.name}.svg")
        paths[-1].write_text(to_svg(one), encoding="utf-8")
    return paths


def html(data: Mapping[str, Any], figures: Sequence[str]) -> str:
    """The page: figures (SVG text), tables of the numbers, the command and the versions. It loads nothing."""
    heads, rows, bounds = columns(data)
    made = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    modes = {cell["mode"] for cell in data["cells"]} - {"bound"}
    cost = f"; cost model {data['cost']['name']} {data['cost']['hash']}" if "timed" in modes else ""
    about = f"{data['shape']}, pages of {data['page_tokens']} tokens, {' and '.join(sorted(modes))} mode{cost}"
    return "\n".join([
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>k3mem sweep: {escape(data['trace'])}</title>\n<style>{STYLE}</style>",
        f"<h1>Sweep of {escape(data['trace'])}</h1>\n<p>{escape(about)}</p>",
        f"<p><code>{escape(data['command'])}</code><br><span class=soft>{escape(made)}</span></p>",
        *figures,
        "<h2>Replays</h2>", _table(heads, rows),
        *(["<h2>Clairvoyant bound</h2>", _table(BOUND_HEADS, bounds)] if bounds else []),
        "</html>\n",
    ])


def _table(heads: Sequence[str], rows: Sequence[Row]) -> str:
    lines = ["<div class=wide><table><tr>" + "".join(f"<th>{escape(head)}</th>" for head in heads) + "</tr>"]
    for row in rows:
        cells = [f"<td>{escape(value)}</td>" for value in row]
        if len(row) < len(heads):
            cells[-1] = f"<td class=error colspan={len(heads) - len(row) + 1}>failed: {escape(row[-1])}</td>"
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</table></div>"])
