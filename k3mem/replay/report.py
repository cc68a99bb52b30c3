"""From a replay's statistics to a report: plain JSON data, and tables to read. Pure functions.

Definitions, per request (those of NVIDIA's AIPerf, so that figures can be laid side by side), in seconds:

    TTFT    = time of the first output token - time the request was submitted
    latency = time of the last output token - time the request was submitted
    ITL     = (latency - TTFT) / (output tokens - 1), requests of two output tokens or more

    session completion = end of a session's last request - start of its first, sub-agents included
    wait    = time that a request was held back by session admission; over the requests that were

Percentiles are over requests or sessions, interpolated linearly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from k3mem.types import Float64
from k3mem.units import format_size

if TYPE_CHECKING:
    from rich.table import Table

CAUSES = ("never_seen", "no_state", "kv_evicted", "off_grid", "other_scope", "last_token")
"""Why an input token was computed; each has exactly one."""

PERCENTILES = (50, 90, 95, 99)


def build(stats: Mapping[str, Any]) -> dict[str, Any]:
    """The report of `stats` (see `metrics.memory_stats` and `metrics.Times.stats`; absent counts are 0). JSON-ready.

    Raises ValueError where causes are given that do not add up to the input tokens that did not hit.
    """
    tokens, hit = int(stats["input_tokens"]), int(stats["hit_tokens"])
    causes = {cause: int(stats.get("causes", {}).get(cause, 0)) for cause in CAUSES}
    unknown = set(stats.get("causes", {})) - set(CAUSES)
    if unknown:
        raise ValueError(f"unknown causes of misses: {', '.join(sorted(unknown))}")
    recomputed = tokens - hit
    if any(causes.values()) and sum(causes.values()) != recomputed:
        raise ValueError(f"causes explain {sum(causes.values())} tokens, {recomputed} were computed")
    unavoidable = int(stats.get("unavoidable_tokens", 0))
    checkpoints = stats.get("checkpoints", {})
    moves = stats.get("moves", {})
    out: dict[str, Any] = {
        "requests": int(stats["requests"]),
        "input_tokens": tokens,
        "output_tokens": int(stats.get("output_tokens", 0)),
        "hit_tokens": hit,
        "hit_rate": hit / tokens if tokens else 0.0,
        "recomputed_tokens": recomputed,
        "again_tokens": int(stats.get("again_tokens", 0)),
        "unavoidable_tokens": unavoidable,
        "amplification": recomputed / unavoidable if unavoidable else None,
        "causes": causes,
        "answer_end_hit_share": float(stats.get("answer_end_hit_share", 0.0)),
        "checkpoints": {
            "created": dict(sorted(checkpoints.get("created", {}).items())),
            "consumed": int(checkpoints.get("consumed", 0)),
            "evicted_unused": int(checkpoints.get("evicted_unused", 0)),
            "skipped": int(checkpoints.get("skipped", 0)),
        },
        "moves": {"count": int(moves.get("count", 0)), "bytes": int(moves.get("bytes", 0))},
        "retractions": int(stats.get("retractions", 0)),
        "rejected": int(stats.get("rejected", 0)),
        "overlapped_share": float(stats.get("overlapped_share", 0.0)),
        "peak_running": int(stats.get("peak_running", 0)),
        "steps": int(stats.get("steps", 0)),
        "wall_seconds": float(stats.get("wall_seconds", 0.0)),
    }
    if "timed" in stats:
        out |= _timed(stats["timed"], stats, out)
    if "sessions" in stats:
        out |= _sessions(stats)
    known = {*out, "timed", "finished", "loop", "max_running", "sessions"}
    return out | {key: value for key, value in stats.items() if key not in known}


def _timed(timed: Mapping[str, Any], stats: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
    queue = timed["queue"]
    start, arrived = float(timed["first_submit"]), float(timed["last_submit"])
    end = float(timed["last_finish"])
    loop = stats.get("loop", "open")
    t, waiting = np.asarray(queue["t"], float), np.asarray(queue["waiting"], float)
    if loop == "open":
        saturated = saturated_open(t, waiting, start, arrived)
    else:
        saturated = saturated_closed(t, np.asarray(queue["running"], float), waiting, start, end,
                                     int(stats.get("max_running", out["peak_running"])))
    took = end - start
    return {
        "ttft": distribution(timed["ttft"]),
        "itl": distribution(timed["itl"]),
        "latency": distribution(timed["latency"]),
        "loop": loop,
        "saturated": saturated,
        "mean_waiting": mean_over(t, waiting, start, end),
        "virtual_seconds": took,
        "requests_per_second": out["requests"] / took if took > 0 else None,
        "output_tokens_per_second": out["output_tokens"] / took if took > 0 else None,
        "cost": dict(stats.get("cost", {})),
    }


def _sessions(stats: Mapping[str, Any]) -> dict[str, Any]:
    """How long sessions took, and what admission did: `wait` is over the requests that were held, in seconds."""
    given = {"held": 0, "overdue": 0, "suspended": 0, "bound": None, **stats.get("admission", {})}
    return {"session_completion": distribution(stats["sessions"]),
            "admission": {**given, "wait": distribution(given.get("wait", ()))}}


def distribution(values: Sequence[float] | Float64) -> dict[str, Any]:
    """count, mean, min, max and p50 / p90 / p95 / p99; None where there are no values. O(n log n)."""
    data = np.asarray(values, float)
    keys = ["mean", *(f"p{q}" for q in PERCENTILES), "min", "max"]
    if not len(data):
        return {"count": 0, **dict.fromkeys(keys)}
    numbers = [data.mean(), *np.percentile(data, PERCENTILES), data.min(), data.max()]
    return {"count": len(data), **{key: float(number) for key, number in zip(keys, numbers, strict=True)}}


def mean_over(t: Float64, values: Float64, start: float, end: float) -> float:
    """Mean over [start, end] of the step function that is values[i] from t[i] on and 0 before t[0]. O(n)."""
    if end <= start or not len(t):
        return 0.0
    edges = np.clip(np.append(t, max(end, t[-1])), start, end)
    return float(np.dot(values, np.diff(edges)) / (end - start))


def saturated_open(t: Float64, waiting: Float64, start: float, end: float) -> bool:
    """Open loop: does the queue grow? True iff, over the time in which requests arrive, the mean number waiting in
    the last third exceeds that in the middle third by more than one request and more than a tenth. The first third
    is warm-up."""
    third = (end - start) / 3
    middle = mean_over(t, waiting, start + third, end - third)
    last = mean_over(t, waiting, end - third, end)
    return last - middle > max(1.0, 0.1 * middle)


def saturated_closed(t: Float64, running: Float64, waiting: Float64, start: float, end: float, most: int) -> bool:
    """Closed loop: is the server the bottleneck? True iff for more than half of the time as many run as may
    (`most`) and others wait."""
    full = ((running >= most) & (waiting > 0)).astype(float)
    return mean_over(t, full, start, end) > 0.5


def gap_closed(hit_rate: float, lru: float, bound: float) -> float | None:
    """Share of the way from LRU to the clairvoyant bound that a policy goes; None where there is no way to go."""
    return (hit_rate - lru) / (bound - lru) if bound > lru else None


def to_json(report: Mapping[str, Any]) -> str:
    """JSON text, keys in the report's order. Raises ValueError for NaN and infinities."""
    return json.dumps(report, indent=2, allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a report cannot hold a {type(value).__name__}")


def header(report: Mapping[str, Any]) -> str:
    """One line: what was replayed, on what, and how; of these what the report holds."""
    split, pool = report.get("split"), report.get("pool_bytes")
    timed = f"timed, {report['loop']} loop" if "loop" in report else "timed"
    facts = {
        "trace": report.get("trace"),
        "shape": report.get("shape"),
        "mode": timed if report.get("mode") == "timed" else report.get("mode"),
        "pool": None if pool is None else format_size(pool) if pool else "unlimited",
        "split": "none" if split is None else f"{split:g} for states",
        "policy": report.get("policy"),
        "admission": report.get("admission_mode"),
    }
    return " | ".join(f"{name} {fact}" for name, fact in facts.items() if fact is not None)


def tables(report: Mapping[str, Any]) -> list[Table]:
    """The report as rich tables: reuse, misses, memory, and times where there are any. Rows on answers and on running
    requests are left out in arrival mode, which has neither."""
    runs = report.get("mode") != "arrival"
    moves, checkpoints = report["moves"], report["checkpoints"]
    out = [
        _table("Reuse", [
            ("requests", f"{report['requests']:,}"),
            ("input tokens", f"{report['input_tokens']:,}"),
            ("hit tokens", f"{report['hit_tokens']:,} ({report['hit_rate']:.2%})"),
            *([("hits from answer ends", f"{report['answer_end_hit_share']:.1%}")] if runs else []),
            ("recomputed tokens", f"{report['recomputed_tokens']:,}"),
            ("amplification", _number(report["amplification"], "{:.3f}")),
        ]),
        _table("Why not more", [
            (cause.replace("_", " "), f"{count:,} ({count / max(1, report['input_tokens']):.2%})")
            for cause, count in report["causes"].items()
        ]),
        _table("Memory and scheduling" if runs else "Memory", [
            *((f"checkpoints: {kind.replace('_', ' ')}", f"{n:,}") for kind, n in checkpoints["created"].items()),
            ("checkpoints consumed", f"{checkpoints['consumed']:,}"),
            ("checkpoints evicted unused", f"{checkpoints['evicted_unused']:,}"),
            ("snapshots skipped", f"{checkpoints['skipped']:,}"),
            ("moves", f"{moves['count']:,} ({format_size(moves['bytes'])})"),
            *(_scheduling(report) if runs else []),
            ("wall time", f"{report['wall_seconds']:.2f} s"),
        ]),
    ]
    if "ttft" in report:
        out.append(_times_table(report))
    if "bound" in report:
        out.append(bound_table(report["bound"], [
            ("LRU", f"{report['lru_hit_rate']:.2%}"),
            ("share of the gap closed", _number(report["gap_closed"], "{:.1%}")),
        ]))
    if report.get("session_completion", {}).get("count"):
        out.append(_sessions_table(report))
    if "explain" in report:
        from k3mem.replay.explain import table as explained

        out.append(explained(report["explain"]))
    return out


def bound_table(bound: Mapping[str, Any], more: Sequence[tuple[str, str]] = ()) -> Table:
    """The clairvoyant bound (see `bound.run_bound`) as a rich table, with rows of the caller's below."""
    return _table("Clairvoyant", [
        ("memory without limit", f"{bound['unlimited_hit_rate']:.2%}"),
        ("no schedule beats", f"{bound['bound_hit_rate']:.2%}"),
        ("a schedule reaches", f"{bound['feasible_hit_rate']:.2%}"),
        *([("Belady's rule", f"{bound['belady_hit_rate']:.2%}")] if "belady_hit_rate" in bound else []),
        *more,
    ])


def _scheduling(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        ("retractions / rejected", f"{report['retractions']:,} / {report['rejected']:,}"),
        ("overlapped steps", f"{report['overlapped_share']:.1%}"),
        ("peak running", f"{report['peak_running']:,}"),
        *([("output tokens per virtual second", _number(report["output_tokens_per_second"], "{:.2f}"))]
          if "output_tokens_per_second" in report else []),
    ]


def _times_table(report: Mapping[str, Any]) -> Table:
    from rich.table import Table

    cost = report["cost"]
    note = f"{report['loop']} loop, {report['virtual_seconds']:.1f} s of virtual time"
    note += ", SATURATED" if report["saturated"] else ", not saturated"
    table = Table(title="Times (ms)", title_justify="left",
                  caption=f"{note}; cost model {cost.get('name', '?')} {cost.get('hash', '')}".rstrip())
    columns = ("mean", *(f"p{q}" for q in PERCENTILES))
    _columns(table, columns)
    for name in ("ttft", "itl", "latency"):
        table.add_row(name, *(_number(report[name][c], "{:,.2f}", 1e3) for c in columns))
    return table


def _sessions_table(report: Mapping[str, Any]) -> Table:
    from rich.table import Table

    admission, rows = report["admission"], [("completion", report["session_completion"])]
    note = f"{report['session_completion']['count']:,} sessions"
    if admission["bound"] is not None:
        rows.append(("held", admission["wait"]))
        note += (f"; {admission['held']:,} requests held, for at most {admission['bound']:,.0f} s and a step; "
                 f"{admission['overdue']:,} let in for that, {admission['suspended']:,} suspensions")
    table = Table(title="Sessions (s)", title_justify="left", caption=note)
    columns = ("mean", *(f"p{q}" for q in PERCENTILES), "max")
    _columns(table, columns)
    for name, values in rows:
        table.add_row(name, *(_number(values[c], "{:,.0f}") for c in columns))
    return table


def _columns(table: Table, names: Sequence[str]) -> None:
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")


def _table(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in rows:
        table.add_row(name, value)
    return table


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "-" if value is None else form.format(value * scale)
