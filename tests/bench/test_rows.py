"""Rows: what is met, how musts scale, what the peers' output says, when a run is void."""

from __future__ import annotations

from typing import Any

import pytest

from bench import rivals, rows

OURS: dict[str, Any] = {
    "requests": {"match": 8.0, "match_mean": 9.0, "request": 200.0}, "edge": {"match": 120.0, "memcmp": 100.0},
    "publish": {"last": 10.0, "second": 9.0, "all": 500.0}, "evict": 4.0, "lock": 0.5, "decode_step": 250.0,
    "events": 120_000.0, "replay_arrival": {"seconds": 0.9, "read": 1.0}, "replay_timed": 2500.0,
    "metadata": {"leaves": {"real": 92.0, "counted": 80.0}, "agents": {"counted": 120.0}},
    "hits": {"make_agentic": 76.0, "agentic": 90.0},
}
MICRO = """## match vs context length (page 64): one edge / 8K-token edges
L= 524288 python match one-edge   1318.4us (limit L-1:   1569.6)  8K-edges  18016.4us | insert last chunk   93743.0us, sum over chunks  2116.00ms
L= 524288 rust   match one-edge    466.8us (limit L-1:    674.6)  8K-edges    504.2us | insert last chunk   16227.9us, sum over chunks   367.92ms
leaves= 10000 rust   evict FULL 1 page     113.9us  evict STATE 1     37.6us  state alloc+free    4.5us
leaves= 40000 rust   evict FULL 1 page    1053.1us  evict STATE 1     40.0us  state alloc+free    4.4us
depth= 128 python lock+unlock    459.8us
depth= 128 rust   lock+unlock     14.9us
"""  # noqa: E501


def peers(slower: float) -> dict[str, Any]:
    """Peers that take `slower` times what they took where the targets were set."""
    then = {name: us * slower for name, us in rows.THEN.items()}
    unit = {"us_per_match": 80.0, "us_per_hash": 900.0, "hit_tokens": 660, "total_tokens": 1000}
    return {
        "sglang": {name: {"match_p50": then["match"], "cpu_us_per_request": then["request"], "hit_tokens": hits,
                          "total_tokens": 5_807_722} for name, hits in rivals.SGLANG_MUST.items()},
        "micro": {"match_edge": then["edge"], **{k: then[k] for k in ("publish_last", "publish_all", "evict", "lock")}},
        "vllm": {"make_agentic": {"block": unit, "64": unit}, "agentic": {"block": unit},
                 "decode": {"us_per_decode_alloc": then["decode"] / 256}},
    }



def test_every_target_is_a_row_once() -> None:
    built = rows.build(OURS, peers(1.0))
    assert len({row.id for row in built}) == len(built) == 11 + len(OURS["metadata"]) + 2


@pytest.mark.parametrize(("slower", "must"), [(1.0, 10.0), (2.0, 20.0), (0.5, 5.0)])
def test_a_must_in_microseconds_follows_the_machine(slower: float, must: float) -> None:
    match = rows.build(OURS, peers(slower))[0]
    assert match.must == pytest.approx(must)
    assert match.met == (must >= 8.0)


def test_one_odd_operation_of_a_peer_does_not_scale_the_machine() -> None:
    odd = peers(1.0)
    odd["micro"]["evict"] /= 100
    assert rows.build(OURS, odd)[0].must == pytest.approx(10.0)


def test_without_peers_musts_are_as_they_were_set() -> None:
    built = rows.build(OURS, None)
    assert built[0].must == 10 and not any(row.peers for row in built)


def test_ratios_rates_bytes_and_hits_are_not_scaled() -> None:
    slow, fast = ({row.id: row.must for row in rows.build(OURS, peers(x))} for x in (4.0, 1.0))
    same = [id for id in slow if slow[id] == fast[id]]
    assert [id.split(",")[0] for id in same] == [
        "match", "scheduler events", "replay", "replay", "metadata", "metadata", "hits", "hits"]


def test_met_is_said_both_ways() -> None:
    met = {row.id: row.met for row in rows.build(OURS, None)}
    assert met["match, one 512 K-token edge"] and met["metadata, leaves"]
    assert not met["metadata, agents"], "where the heap does not tell, the tree's own count stands"
    assert met["hits, make_agentic, 22.3 GB, 4 running"] and not met["hits, agentic(200, 10), 40 GiB"]


def test_the_default_core_is_read_from_the_micro_benchmark() -> None:
    assert rivals.parse_micro(MICRO) == {
        "match_edge": 466.8, "publish_last": 16227.9, "publish_all": 367_920.0, "evict": 1053.1, "lock": 14.9}


def test_a_missing_line_breaks_the_run() -> None:
    with pytest.raises(rivals.Broken, match="lock"):
        rivals.parse_micro(MICRO.replace("rust   lock", "other  lock"))


def test_a_run_is_void_unless_both_allocators_reproduce_their_hits() -> None:
    good = peers(1.0)["sglang"]
    assert rivals.void(good) is None
    for name in good:
        wrong = {**good, name: {**good[name], "hit_tokens": good[name]["hit_tokens"] - 64}}
        assert name in (rivals.void(wrong) or "")
