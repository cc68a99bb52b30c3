"""k3mem's figures, one function a target. Microseconds of wall time are medians; sums and means are CPU time, which a
loaded machine does not stretch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench import cases, heap, shared
from bench.cases import Call
from bench.decode_step import measure as step_times
from bench.direct import Cost, Direct
from bench.serve import K3, same_bytes, serve
from k3mem import Policy
from k3mem.fuzz import bench as fuzz_bench
from k3mem.radix import Kind, Tree
from k3mem.replay.arrival import run_arrival
from k3mem.replay.options import ReplayOptions
from k3mem.replay.timed import run_timed
from k3mem.replay.trace import Trace, load
from k3mem.types import Int32, StateId

MOONCAKE = "mooncake_conversation_trace.jsonl.gz"
AGENTS = "weka_cc_a_c32.arrivals.jsonl.gz"
AGENT_TURNS = 4_000
"""Turns of the agent trace whose tree is weighed: all of it cached is some 200,000 pages."""


def require() -> None:
    """Raises Absent now rather than after minutes."""
    shared.scripts()
    for name in (MOONCAKE, AGENTS):
        shared.trace(name)


def micros(call: Call, n: int) -> float:
    """Median wall time of `n` calls, microseconds."""
    return statistics.median(_each(call, n))


def _each(call: Call, n: int) -> list[float]:
    out, clock = [], time.perf_counter_ns
    for _ in range(n):
        began = clock()
        call()
        out.append((clock() - began) / 1e3)
    return out


def cpu(call: Call) -> float:
    """CPU seconds of one call."""
    began = time.process_time()
    call()
    return time.process_time() - began


# -- host cost


def requests() -> dict[str, float]:
    """Match (median, mean) and everything for one request (mean, of CPU time) over `make_agentic()`, us."""
    pairs, cost = shared.make_agentic(), Cost()
    direct = Direct(K3, Policy(), same_bytes())

    def run() -> None:
        nonlocal cost
        cost = direct.run(pairs, 4)

    seconds = cpu(run)
    direct.cache.check()
    return {"match": statistics.median(cost.match) / 1e3, "match_mean": statistics.mean(cost.match) / 1e3,
            "request": 1e6 * seconds / len(pairs), "request_p50": statistics.median(cost.request) / 1e3,
            "hit_rate": cost.hit_rate}


def edge() -> dict[str, float]:
    """Match of one 512 K-token edge and a memcmp of the same tokens, taken in turn; us."""
    case, match, memcmp = cases.one_edge(), [], []
    for _ in range(200):
        match += _each(case.match, 1)
        memcmp += _each(case.memcmp, 1)
    return {"match": statistics.median(match), "memcmp": statistics.median(memcmp)}


def publish() -> dict[str, float]:
    """Publishing a 512 K-token prompt in chunks of 8 K: the last, the second, all; us, medians of nine prompts. The
    second tells whether the cost is flat in depth (the first grows the tree's tables)."""
    last, second, every = [], [], []
    for _ in range(9):
        case = cases.Publisher()
        took = _each(case.publish, case.left // cases.CHUNK)
        last.append(took[-1])
        second.append(took[1])
        every.append(sum(took))
    return {"last": statistics.median(last), "second": statistics.median(second), "all": statistics.median(every)}


def evict() -> float:
    """One eviction among 40,000 leaves, us."""
    tree = cases.leaves()
    return micros(tree.evict, 1000)


def lock() -> float:
    """Lock and unlock at depth 128, us."""
    return micros(cases.lock_pair(), 2000)


def decode_step() -> float:
    """plan + launch + commit of a step of 256 decoding requests, without the executor's own; us of CPU time."""
    return float(step_times(consume=False)["core_us"]["p50"])


def events(seconds: float = 10.0) -> float:
    """Scheduler events per CPU second on the mock executor, no full check."""
    return float(fuzz_bench.measure(seconds).events_per_second)


def _replay(run: Callable[..., dict[str, Any]], trace: Trace, options: ReplayOptions) -> float:
    return cpu(lambda: run(trace, K3, options, lambda done, total: None))


def replay_arrival() -> dict[str, float]:
    """Hit-only replay of the Mooncake conversation at 80 GB, by LRU: CPU seconds, and those of reading the file."""
    began = time.process_time()
    trace = load(shared.trace(MOONCAKE))
    read = time.process_time() - began
    return {"seconds": _replay(run_arrival, trace, ReplayOptions(policy="lru")), "read": read}


def replay_timed() -> float:
    """Timed replay of the Mooncake conversation, 32 streams, 80 GB, by LRU: requests per CPU second."""
    trace = load(shared.trace(MOONCAKE))
    return len(trace.turns) / _replay(run_timed, trace, ReplayOptions(mode="timed", policy="lru"))


# -- metadata


def plant(tree: Tree, prompt: Int32, output: Int32, first_page: int) -> int:
    """Publish a prompt's end and its answer's end as a server without memory limits would; the next unused page id."""
    span, root = tree.page_tokens, tree.root(cases.SCOPE)
    text = np.concatenate([prompt, output])
    found = tree.match(cases.SCOPE, prompt, len(prompt) - 1)
    node, depth = (found.node, found.depth) if found.depth else (root, 0)
    pages = np.arange(first_page, first_page + -(-len(text) // span), dtype=np.int32)
    for end, kind in ((found.known // span * span, Kind.BRANCH), ((len(prompt) - 1) // span * span, Kind.PROMPT_END),
                      (len(text) - 1, Kind.ANSWER_END)):
        if end > depth and (kind != Kind.ANSWER_END or len(output)):
            node = tree.publish(node, text, end, pages, StateId(8 * first_page + kind), kind, 1).node
            depth = end
    return first_page + len(pages)


def overhead(build: Callable[[], Tree]) -> dict[str, float]:
    """Bytes a cached page beyond 4 a token: on the heap (`real`), and by the tree's own count (`counted`). The second
    tree is weighed: what the first one left behind (caches of numpy and the C library) is no metadata."""
    build()
    before = heap.in_use()
    tree = build()
    after = heap.in_use()
    count = tree.counters()
    tokens = 4 * count.edge_tokens
    out = {"counted": (count.metadata_bytes - tokens) / count.kv_pages, "pages": float(count.kv_pages),
           "nodes": float(count.nodes)}
    if before is not None and after is not None:
        out["real"] = (after - before - tokens) / count.kv_pages
    return out


def metadata() -> dict[str, dict[str, float]]:
    """Overhead of three trees: both workloads with everything cached, and 40,000 leaves of one page."""
    agents = load(shared.trace(AGENTS), limit=AGENT_TURNS)
    nothing = np.zeros(0, np.int32)

    def from_pairs() -> Tree:
        tree, page = cases.new_tree(), 0
        for prompt, output in shared.make_agentic():
            page = plant(tree, prompt, output, page)
        return tree

    def from_trace() -> Tree:
        tree, page = cases.new_tree(), 0
        for turn in agents.turns:
            page = plant(tree, turn.prompt(), nothing, page)
        return tree

    shared.make_agentic()
    return {"make_agentic": overhead(from_pairs), "agents": overhead(from_trace), "leaves": overhead(cases.leaves)}


# -- hits


def hits() -> dict[str, float]:
    """Percent of prompt tokens not computed, by workload, at the peers' bytes and concurrency."""
    return {"make_agentic": serve(shared.make_agentic(), same_bytes(), 4).hit_rate,
            "agentic": serve(shared.agentic(), 40 << 30, 1).hit_rate}
