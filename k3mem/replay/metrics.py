"""Counts and times of a replay, as its driver reports them; `stats()` is what `report.build` takes."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class _Open:
    """A request between submit and finish."""

    start: float
    input: int
    admitted: bool = False
    first: float | None = None
    tokens: int = 0


@dataclass(slots=True)
class Collector:
    """Fed by a driver, in the order of time. Times in seconds on the driver's clock. Every call is O(1).

    A request is named by any hashable key, unique while it is open.
    """

    requests: int = 0
    finished: int = 0
    rejected: int = 0
    retractions: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    hit_tokens: int = 0
    unavoidable_tokens: int = 0
    again_tokens: int = 0
    """Recomputed because of retractions; not part of the other counts."""
    hits: Counter[str] = field(default_factory=Counter)
    """Hit tokens by the kind of checkpoint resumed from."""
    causes: Counter[str] = field(default_factory=Counter)
    created: Counter[str] = field(default_factory=Counter)
    consumed: int = 0
    evicted_unused: int = 0
    moves: int = 0
    moved_bytes: int = 0
    steps: int = 0
    overlapped: int = 0
    peak_running: int = 0
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

    # -- requests

    def on_submit(self, req: Hashable, t: float, input_tokens: int) -> None:
        """A request starts: its TTFT and latency count from t."""
        if req in self._open:
            raise ValueError(f"request {req!r} is already open")
        self._open[req] = _Open(t, input_tokens)
        self.requests += 1
        self.input_tokens += input_tokens
        self.first_submit = t if self.first_submit is None else self.first_submit
        self.last_submit = t

    def on_admit(self, req: Hashable, hit: int, *, causes: Mapping[str, int] | None = None, kind: str = "",
                 unavoidable: int = 0, tokens: int | None = None) -> None:
        """It resumes at `hit`, from a checkpoint of this kind. `causes` explain the other input tokens;
        `unavoidable` of them an unlimited cache would also compute. Admitted again after a retraction, only what is
        computed again counts: `tokens` (prompt and output so far) - hit."""
        entry = self._open[req]
        if entry.admitted:
            self.again_tokens += (entry.input if tokens is None else tokens) - hit
            return
        entry.admitted = True
        self.hit_tokens += hit
        self.unavoidable_tokens += unavoidable
        self.causes.update(causes or {})
        if hit:
            self.consumed += 1
            self.hits[kind] += hit

    def on_first_token(self, req: Hashable, t: float) -> None:
        """Its first output token is there. Later calls (after a retraction) change nothing."""
        entry = self._open[req]
        if entry.first is None:
            entry.first = t

    def on_tokens(self, req: Hashable, count: int) -> None:
        """`count` more output tokens, the first included."""
        self._open[req].tokens += count
        self.output_tokens += count

    def on_finish(self, req: Hashable, t: float) -> None:
        """Its last token is there. One without a token (aborted) counts in no time statistics."""
        entry = self._open.pop(req)
        self.finished += 1
        self.last_finish = max(self.last_finish, t)
        if entry.first is None:
            return
        ttft, latency = entry.first - entry.start, t - entry.start
        self.ttft.append(ttft)
        self.latency.append(latency)
        if entry.tokens >= 2:
            self.itl.append((latency - ttft) / (entry.tokens - 1))

    def on_retract(self, req: Hashable) -> None:
        """It lost its seat and waits again."""
        if req not in self._open:
            raise ValueError(f"request {req!r} is not open")
        self.retractions += 1

    def on_reject(self, req: Hashable) -> None:
        """It can never run: it leaves `requests` and the token counts, and is counted as rejected."""
        entry = self._open.pop(req)
        self.requests -= 1
        self.input_tokens -= entry.input
        self.rejected += 1

    # -- memory and steps

    def on_checkpoint(self, kind: str, count: int = 1) -> None:
        """Checkpoints of this kind entered the tree."""
        self.created[kind] += count

    def on_evict(self, *, used: bool) -> None:
        """A checkpoint was evicted; `used`: something had resumed from it."""
        self.evicted_unused += not used

    def on_moves(self, count: int, nbytes: int) -> None:
        self.moves += count
        self.moved_bytes += nbytes

    def on_step(self, *, overlapped: bool, count: int = 1) -> None:
        """`count` steps launched; `overlapped`: planned while another was in flight."""
        self.steps += count
        self.overlapped += count if overlapped else 0

    def on_queue(self, t: float, running: int, waiting: int) -> None:
        """From t on, so many run and wait. Only changes are kept, so calls between them change no report."""
        self.peak_running = max(self.peak_running, running)
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

    # -- result

    def stats(self) -> dict[str, Any]:
        """Plain data for `report.build`: counts, and under `timed` the per-request times and the queue."""
        hits = sum(self.hits.values())
        out: dict[str, Any] = {
            key: getattr(self, key)
            for key in ("requests", "finished", "rejected", "retractions", "input_tokens", "output_tokens",
                        "hit_tokens", "unavoidable_tokens", "again_tokens", "peak_running", "steps")
        }
        out |= {
            "causes": dict(self.causes),
            "checkpoints": {"created": dict(self.created), "consumed": self.consumed,
                            "evicted_unused": self.evicted_unused},
            "moves": {"count": self.moves, "bytes": self.moved_bytes},
            "overlapped_share": self.overlapped / self.steps if self.steps else 0.0,
            "answer_end_hit_share": self.hits["answer_end"] / hits if hits else 0.0,
        }
        if self.latency:
            out["timed"] = {
                "ttft": self.ttft, "itl": self.itl, "latency": self.latency,
                "first_submit": self.first_submit, "last_submit": self.last_submit, "last_finish": self.last_finish,
                "queue": {"t": self.queue_t, "running": self.queue_running, "waiting": self.queue_waiting},
            }
        return out
