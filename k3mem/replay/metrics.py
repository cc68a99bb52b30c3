"""What a replay reports: the engine's own counters, and the times that a driver sees."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from k3mem.metrics import Metrics
from k3mem.radix import Kind
from k3mem.replay.trace import Turn


def memory_stats(metrics: Metrics) -> dict[str, Any]:
    """Counts of reuse and memory, as `report.build` takes them."""
    return {
        "requests": metrics.requests,
        "input_tokens": metrics.input_tokens,
        "output_tokens": metrics.output_tokens,
        "hit_tokens": metrics.hit_tokens,
        "unavoidable_tokens": metrics.causes["never_seen"],
        "again_tokens": metrics.resumed_tokens,
        "causes": dict(metrics.causes),
        "checkpoints": {"created": dict(metrics.created), "consumed": metrics.consumed,
                        "evicted_unused": metrics.evicted_unused, "skipped": metrics.skipped_snapshots},
        "moves": {"count": metrics.move_count, "bytes": metrics.move_bytes},
        "retractions": metrics.retractions,
        "rejected": metrics.rejected,
        "steps": metrics.steps,
        "overlapped_share": metrics.overlapped / metrics.steps if metrics.steps else 0.0,
        "peak_running": metrics.peak_running,
        "answer_end_hit_share": metrics.hits_by_kind[Kind.ANSWER_END] / metrics.hits if metrics.hits else 0.0,
    }


def session_of(turn: Turn) -> tuple[str, str | None]:
    """(session, parent session) of a request. A sub-agent is a session of its own under the main one: what a session
    has cached is one path, and its end is known apart."""
    return (turn.session, None) if turn.sub == "0" else (turn.stream, turn.session)


class Completions:
    """How long sessions take, from the start of the first request to the end of the last, sub-agents included; and
    when a caller knows that a session has ended. Seconds on the driver's clock; O(1) a call."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.took: array[float] = array("d")
        self._opened: dict[str, float] = {}
        self._left = Counter(turn.session for turn in turns)
        self._left_of = Counter(session_of(turn)[0] for turn in turns)

    def on_submit(self, turn: Turn, t: float) -> None:
        """A request starts."""
        self._opened.setdefault(turn.session, t)

    def on_end(self, turn: Turn, t: float) -> bool:
        """A request has ended or was refused: whether it was the last of its session, or of its sub-agent."""
        own = session_of(turn)[0]
        self._left_of[own] -= 1
        self._left[turn.session] -= 1
        if not self._left[turn.session]:
            self.took.append(t - self._opened.pop(turn.session, t))
        return not self._left_of[own]


@dataclass(slots=True)
class _Open:
    """A request between submit and finish."""

    start: float
    first: float | None = None


@dataclass(slots=True)
class Times:
    """Times of requests and of the queue, fed by a driver in the order of time. Seconds on the driver's clock; every
    call is O(1). A request is named by any hashable key, unique while it is open."""

    finished: int = 0
    ttft: array[float] = field(default_factory=lambda: array("d"))
    itl: array[float] = field(default_factory=lambda: array("d"))
    latency: array[float] = field(default_factory=lambda: array("d"))
    first_submit: float | None = None
    last_submit: float = 0.0
    last_finish: float = 0.0
    queue_t: array[float] = field(default_factory=lambda: array("d"))
    queue_running: array[int] = field(default_factory=lambda: array("q"))
    queue_waiting: array[int] = field(default_factory=lambda: array("q"))
    _open: dict[Hashable, _Open] = field(default_factory=dict)

    def on_submit(self, req: Hashable, t: float) -> None:
        """A request starts: its TTFT and latency count from t."""
        if req in self._open:
            raise ValueError(f"request {req!r} is already open")
        self._open[req] = _Open(t)
        self.first_submit = t if self.first_submit is None else self.first_submit
        self.last_submit = t

    def on_first(self, req: Hashable, t: float) -> None:
        """Its first output token is there. Later calls change nothing."""
        entry = self._open[req]
        if entry.first is None:
            entry.first = t

    def on_finish(self, req: Hashable, t: float, tokens: int) -> None:
        """The last of its `tokens` output tokens is there. One without a token (aborted) counts in no time
        statistics."""
        entry = self._open.pop(req)
        self.finished += 1
        self.last_finish = max(self.last_finish, t)
        if entry.first is None:
            return
        ttft, latency = entry.first - entry.start, t - entry.start
        self.ttft.append(ttft)
        self.latency.append(latency)
        if tokens >= 2:
            self.itl.append((latency - ttft) / (tokens - 1))

    def on_queue(self, t: float, running: int, waiting: int) -> None:
        """From t on, so many run and wait. Only changes are kept, so calls between them change no report."""
        if self.queue_t:
            if (self.queue_running[-1], self.queue_waiting[-1]) == (running, waiting):
                return
            if self.queue_t[-1] == t:
                self.queue_t.pop()
                self.queue_running.pop()
                self.queue_waiting.pop()
        self.queue_t.append(t)
        self.queue_running.append(running)
        self.queue_waiting.append(waiting)

    def stats(self) -> dict[str, Any]:
        """Under `timed`, the per-request times and the queue; nothing if no request came."""
        if self.first_submit is None:
            return {"finished": 0}
        return {"finished": self.finished, "timed": {
            "ttft": self.ttft, "itl": self.itl, "latency": self.latency,
            "first_submit": self.first_submit, "last_submit": self.last_submit, "last_finish": self.last_finish,
            "queue": {"t": self.queue_t, "running": self.queue_running, "waiting": self.queue_waiting},
        }}
