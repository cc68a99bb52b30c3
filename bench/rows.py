"""The targets as rows: what k3mem must reach, beside what the peers reached in the same run.

A must in microseconds is scaled to the machine: must x factor, where the factor is the median, over all operations
that a peer was timed at, of (the peer now / the peer where the targets were set). One operation of a peer alone would
be a poor measure of a machine: the same eviction takes it 1,000 us in one run and 5,000 in another. Where the target is
a ratio (the memcmp), it is taken from the same run as it is. Rates, seconds, bytes and hit rates are not scaled.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import msgspec

Figures = Mapping[str, Any]

THEN = {"match": 62, "edge": 713, "publish_last": 50_400, "publish_all": 502_000, "evict": 5_000, "lock": 17,
        "request": 3_522, "decode": 7_700}
"""Microseconds of the first peer of each operation, where the targets were set."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One target."""

    id: str
    unit: str
    k3mem: float
    peers: dict[str, float]
    must: float
    met: bool
    rule: str
    """How `must` was found."""


def build(ours: Figures, peers: Figures | None) -> list[Row]:
    """All rows. `peers` None: measured alone, musts unscaled. Figures as `bench.ours` and `bench.rivals` give them."""
    told = _peers(peers)
    times = factor(told)

    def most_us(id: str, value: float, name: str, must: float, unit: str = "us p50") -> Row:
        rule = f"<= {must:g}" + (f" x {times:.3f}, the machine" if peers is not None else "")
        return Row(id=id, unit=unit, k3mem=value, peers=told[name], must=must * times, met=value <= must * times,
                   rule=rule)

    return [
        most_us("match, make_agentic (mean prompt 11 k)", ours["requests"]["match"], "match", 10),
        _ratio("match, one 512 K-token edge", ours["edge"]["match"], told["edge"], ours["edge"]["memcmp"], 1.3),
        most_us("publish the last 8 K chunk at depth 512 K", ours["publish"]["last"], "publish_last", 100),
        most_us("all publishes of one 512 K prompt", ours["publish"]["all"], "publish_all", 3000),
        most_us("evict one page among 40 K leaves", ours["evict"], "evict", 5),
        most_us("lock + unlock at depth 128", ours["lock"], "lock", 5),
        most_us("everything for one request, make_agentic", ours["requests"]["request"], "request", 250,
                "us of CPU, mean"),
        most_us("plan + commit at 256 decoding", ours["decode_step"], "decode", 300, "us of CPU, p50"),
        _least("scheduler events, mock executor", "1/s of CPU", ours["events"], {}, 100_000),
        _most("replay, hit-only, Mooncake conversation", "s of CPU", ours["replay_arrival"]["seconds"], 1),
        _least("replay, timed, Mooncake conversation", "requests/s of CPU", ours["replay_timed"], {}, 2000),
        *(_most(f"metadata, {name}", "B a cached page beyond 4 a token", tree.get("real", tree["counted"]), 100)
          for name, tree in ours["metadata"].items()),
        _least("hits, make_agentic, 22.3 GB, 4 running", "%", ours["hits"]["make_agentic"], told["hits_make_agentic"],
               74),
        _least("hits, agentic(200, 10), 40 GiB", "%", ours["hits"]["agentic"], told["hits_agentic"], 92),
    ]


def factor(told: Mapping[str, Mapping[str, float]]) -> float:
    """How much longer this machine takes than the one where the targets were set; 1 without peers."""
    return statistics.median([next(iter(told[name].values())) / then for name, then in THEN.items() if told[name]]
                             or [1.0])


def _peers(figures: Figures | None) -> dict[str, dict[str, float]]:
    """Operation -> the peers' figures; the first is the one of THEN."""
    if figures is None:
        return dict.fromkeys(("match", "edge", "publish_last", "publish_all", "evict", "lock", "request", "decode",
                              "hits_make_agentic", "hits_agentic"), {})
    sglang, micro, vllm = figures["sglang"], figures["micro"], figures["vllm"]
    units = vllm["make_agentic"]
    best = min(units, key=lambda unit: units[unit]["us_per_match"])
    return {
        "match": {"sglang static": sglang["static"]["match_p50"], "sglang unified": sglang["unified"]["match_p50"],
                  f"vllm, unit {best}, hashing included":
                      units[best]["us_per_match"] + units[best]["us_per_hash"]},
        "edge": {"sglang static": micro["match_edge"]},
        "publish_last": {"sglang static": micro["publish_last"]},
        "publish_all": {"sglang static": micro["publish_all"]},
        "evict": {"sglang static": micro["evict"]},
        "lock": {"sglang static": micro["lock"]},
        "request": {"sglang static": sglang["static"]["cpu_us_per_request"],
                    "sglang unified": sglang["unified"]["cpu_us_per_request"]},
        "decode": {"vllm, allocate alone": 256 * vllm["decode"]["us_per_decode_alloc"]},
        "hits_make_agentic": {
            **{f"sglang {name}": 100 * run["hit_tokens"] / run["total_tokens"] for name, run in sglang.items()},
            **_hits(units)},
        "hits_agentic": _hits(vllm["agentic"]),
    }


def _hits(units: Figures) -> dict[str, float]:
    return {f"vllm, unit {unit}": 100 * run["hit_tokens"] / run["total_tokens"] for unit, run in units.items()}


def _most(id: str, unit: str, value: float, must: float) -> Row:
    return Row(id=id, unit=unit, k3mem=value, peers={}, must=must, met=value <= must, rule=f"<= {must:g}")


def _least(id: str, unit: str, value: float, peers: dict[str, float], must: float) -> Row:
    return Row(id=id, unit=unit, k3mem=value, peers=peers, must=must, met=value >= must, rule=f">= {must:g}")


def _ratio(id: str, value: float, peers: dict[str, float], base: float, times: float) -> Row:
    return Row(id=id, unit="us p50", k3mem=value, peers=peers, must=times * base, met=value <= times * base,
               rule=f"<= {times:g} x memcmp of the same tokens now {base:.4g}")
