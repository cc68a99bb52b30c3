"""The oracle: a slow, obvious model of what an engine may do. It knows tokens, prefixes and clocks; no tree, no pool.

It is told what was asked for and what came out, and raises `Found` at the first thing that cannot be right.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from k3mem.executors.mock import fresh_output
from k3mem.plan import Plan, Sampling
from k3mem.request import Hit, Output, OutputRows, Request
from k3mem.sched.core import Core
from k3mem.shape import Shape
from k3mem.types import Int32

UInt64 = npt.NDArray[np.uint64]
By = Literal["oracle", "race", "check", "liveness", "floor"]


class Found(Exception):
    """Something is wrong, and who says so."""

    def __init__(self, by: By, what: str) -> None:
        super().__init__(f"{by}: {what}")
        self.by, self.what = by, what


@lru_cache(maxsize=256)
def _fresh(scope: bytes, prompt: bytes, sampling: Sampling, most: int, vocab: int) -> tuple[int, ...]:
    tokens = np.frombuffer(prompt, np.int32).tolist()
    return tuple(fresh_output(scope, tokens, sampling, most, vocab_size=vocab))


def chain_of(scope: bytes, tokens: Int32) -> UInt64:
    """[tokens + 1] hash of (scope, tokens[:depth]) for every depth: a sum of mixed tokens, each times a power of the
    place where it stands. The same in every process. O(tokens)."""
    mixed = tokens.astype(np.uint64) + np.uint64(1)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    if len(_POWERS[0]) < len(tokens):
        _POWERS[0] = np.multiply.accumulate(np.full(2 * len(tokens), 0xD6E8FEB86659FD93, np.uint64))
    out = np.empty(len(tokens) + 1, np.uint64)
    out[0] = int.from_bytes(scope[:7], "little")
    out[1:] = mixed * _POWERS[0][: len(tokens)]
    return np.add.accumulate(out)


_POWERS = [np.zeros(0, np.uint64)]
"""Powers of an odd number, as many as were needed so far."""


@dataclass(slots=True, eq=False)
class Line:
    """A request and all that must come of it."""

    number: int
    request: Request
    scope: bytes
    tokens: list[int]
    """The prompt as the cache's key sees it, then the whole answer."""
    chain: UInt64
    """[depth] hash of (scope, tokens[:depth])."""
    due: float | None
    prompt: int
    rank: tuple[int, int, int]
    """(-priority, 0, order of first admission), before that (-priority, 1, order of submission): the smallest goes
    first and is retracted last."""
    got: int = 0
    reason: str | None = None
    launched: int = 0
    """Depth up to which launched rows have computed its line."""
    resumed: int = -1
    """Deepest depth at which it was seated; -1: never."""
    wiped: int = -1
    """`launched` when everything that could go was last dropped: what it had left by then may be gone."""

    @property
    def answer(self) -> list[int]:
        return self.tokens[self.prompt :]


@dataclass(eq=False)
class Oracle:
    """All lines of one world."""

    shape: Shape
    budget: int
    path_cap: bool
    caching: bool
    answer_ends: bool
    """Finished requests leave their working state."""
    lines: dict[int, Line] = field(default_factory=dict)
    """By request id, the newest where an id was used again."""
    alike: dict[int, list[Line]] = field(default_factory=dict)
    """Hash of a scope and one token -> all lines, past ones too, that begin so."""
    living: dict[int, Line] = field(default_factory=dict)
    """Lines that have not ended."""
    deadlines: list[tuple[float, int, Line]] = field(default_factory=list)
    """Heap of (deadline, order of submission, line)."""
    kept: set[int] = field(default_factory=set)
    """Hashes of prefixes that must be resumable while memory is plenty ..."""
    pages: int = 0
    states: int = 0
    """... which it is while this demand of all requests together fits."""
    leaving: list[Line] = field(default_factory=list)
    """Ended with their full answer; their lane may still drain."""
    known: set[int] = field(default_factory=set)
    """Hashes of prefixes whose KV must be there while memory is plenty."""
    scopes: dict[bytes, object] = field(default_factory=dict)
    """Digest of a scope -> its key: no two keys may share one."""
    pictures: dict[object, object] = field(default_factory=dict)
    """Interned id -> digest of the picture that it stands for."""
    input: int = 0
    output: int = 0
    made: int = 0
    seated: int = 0
    fresh: list[tuple[Line, tuple[int, int, int]]] = field(default_factory=list)
    """Lines that the present plan seats for the first time, with their ranks before."""

    # -- what was asked for

    def submit(self, number: int, request: Request, key: Int32, scope: bytes,
               media: tuple[tuple[int, int, bytes], ...]) -> None:
        """A request was accepted; `key`: its prompt with `media` interned."""
        if self.scopes.setdefault(scope, request.scope) != request.scope:
            raise Found("oracle", f"scopes {self.scopes[scope]} and {request.scope} share a key")
        for first, count, picture in media:
            if self.pictures.setdefault(int(key[first]), (picture, count)) != (picture, count):
                raise Found("oracle", f"request {number}: two pictures share the key {key[first]}")
        answer = _fresh(scope, key.tobytes(), request.sampling, request.max_new_tokens, self.shape.vocab_size)
        tokens = [*key.tolist(), *answer]
        chain = chain_of(scope, np.array(tokens, np.int32))
        self.made += 1
        rank = (-request.priority, 1, self.made)
        line = Line(number, request, scope, tokens, chain, request.deadline, len(key), rank)
        self.lines[number] = self.living[number] = line
        self.alike.setdefault(int(chain[1]), []).append(line)
        if line.due is not None:
            heapq.heappush(self.deadlines, (line.due, self.made, line))
        limit = len(key) + request.max_new_tokens
        self.pages += -(-limit // self.shape.page_span) + 3
        self.states += 6 + len(request.hints) + len(request.turn_starts) + limit // self.shape.grid

    def wipe(self, slack: int = 0) -> None:
        """Nothing need be resumable any more (a flush, a failure, another arena). `slack`: requests that start over."""
        for line in self.alive:
            line.wiped = line.launched
        self.kept.clear()
        self.known.clear()
        self.leaving.clear()
        self.states += slack
        self.pages += slack

    @property
    def alive(self) -> list[Line]:
        return list(self.living.values())

    # -- what came out

    def take(self, out: Output, now: float) -> None:
        """An output must go on where the last one ended, with the tokens of a fresh computation."""
        line = self.lines.get(out.id)
        if line is None:
            raise Found("oracle", f"request {out.id}: output for an id that nobody submitted")
        if line.reason is not None:
            raise Found("oracle", f"request {out.id}: output after its end")
        end = line.got + len(out.tokens)
        want = line.tokens[line.prompt + line.got : line.prompt + end]
        overrun = 0 if out.keep is None else max(0, end - out.keep)
        sure = len(out.tokens) - overrun
        if out.tokens[:sure] != want[:sure] or (overrun == 0 and len(want) != len(out.tokens)):
            raise Found("oracle", f"request {out.id}: {out.tokens} at {line.got} is not {want}")
        line.got = end
        self.output += len(out.tokens)
        if out.finished:
            self._end(line, out, now)

    def take_rows(self, rows: OutputRows, now: float) -> None:
        """`take` of all outputs of a commit."""
        for out in rows.ends:
            self.take(out, now)
        lines, tokens, end, quiet = self.lines, rows.tokens.tolist(), 0, 0
        for row, (number, count) in enumerate(zip(rows.ids.tolist(), rows.accepted.tolist(), strict=True)):
            start, end = end, end + count
            if row in rows.own:
                own = rows.own[row]
                if own is not None:
                    self.take(own, now)
            elif count:
                line = lines[number]
                at, want = line.prompt + line.got, line.tokens
                if line.reason is not None or at + count > len(want) or want[at] != tokens[start] or (
                        count > 1 and want[at : at + count] != tokens[start:end]):
                    self.take(Output(number, tokens[start:end]), now)  # which says what is wrong
                line.got += count
                quiet += count
        self.output += quiet

    def _end(self, line: Line, out: Output, now: float) -> None:
        reason = line.reason = out.reason or ""
        del self.living[line.number]
        if reason in ("stop", "length"):
            if line.got != len(line.answer):
                raise Found("oracle", f"request {out.id}: ended with {line.got} of {len(line.answer)} tokens")
            stops = line.answer[-1] in line.request.sampling.stop_ids
            if stops != (reason == "stop"):
                raise Found("oracle", f"request {out.id}: ended by {reason}")
            self.leaving.append(line)
        elif reason == "deadline" and (line.due is None or now < line.due):
            raise Found("oracle", f"request {out.id}: deadline at {now}, due {line.due}")
        elif reason == "host_stop":
            if line.request.stop is None or line.request.stop(np.array(line.answer[: line.got], np.int32)) is None:
                raise Found("oracle", f"request {out.id}: its host did not stop it")
        elif reason not in ("abort", "deadline", "failed"):
            raise Found("oracle", f"request {out.id}: ended by {reason!r}")

    # -- what was planned

    def settle(self, running: Iterable[int], roomy: bool) -> None:
        """Before a plan: lines whose request is gone altogether have left what they leave. Not where memory is not
        plenty any more (`roomy`): it will not be again before everything is wiped."""
        if not self.leaving:
            return
        there = set(running)
        for line in [line for line in self.leaving if line.number not in there]:
            self.leaving.remove(line)
            if not roomy:
                continue
            grid = self.shape.grid
            last = (line.prompt - 1) // grid * grid
            if line.resumed < last and line.wiped < last:
                self.kept.add(int(line.chain[last]))
            if self.answer_ends:
                self.known.update(line.chain[1 : len(line.tokens)].tolist())
                self.kept.add(int(line.chain[len(line.tokens) - 1]))

    def expired(self, now: float) -> None:
        """After a plan: nobody past the deadline goes on."""
        while self.deadlines and self.deadlines[0][0] <= now:
            _, _, line = heapq.heappop(self.deadlines)
            if line.reason is None:
                raise Found("oracle", f"request {line.number}: due {line.due}, still there at {now}")

    def admitted(self, number: int, hit: Hit, depth: int, roomy: bool, key: int) -> None:
        """A request was seated at `depth`; `key`: its committed tokens. Raises where the hit is too deep, its account
        is not exact, or too little was reused."""
        line = self.lines[number]
        if depth >= key:
            raise Found("oracle", f"request {number} resumes at {depth} of {key} tokens: nothing is left to compute")
        if depth and not (self.caching and self._computed(line, depth)):
            raise Found("oracle", f"request {number} resumes at {depth}, which nobody computed in its scope")
        if line.rank[1]:
            self.seated += 1
            self.fresh.append((line, line.rank))
            line.rank = (line.rank[0], 0, self.seated)
        first, line.resumed = line.resumed < 0, max(line.resumed, depth)
        if not first:
            return
        self.input += hit.input
        if hit.hit != depth or hit.input != line.prompt or hit.hit + sum(hit.causes.values()) != hit.input:
            raise Found("oracle", f"request {number}: {hit} does not add up for a prompt of {line.prompt} at {depth}")
        if min(hit.causes.values(), default=0) < 0:
            raise Found("oracle", f"request {number}: {hit} has a negative cause")
        if roomy and self.caching and not self.path_cap:
            chain = line.chain.tolist()
            best = max((d for d in range(line.prompt) if chain[d] in self.kept), default=0)
            if depth < best:
                raise Found("floor", f"request {number} resumes at {depth}; {best} was there and memory is plenty")
            seen = max((d for d in range(1, line.prompt + 1) if chain[d] in self.known), default=0)
            if hit.known < seen or sum(hit.causes.get(c, 0) for c in ("never_seen", "other_scope")) > hit.input - seen:
                raise Found("floor", f"request {number}: {hit}, though {seen} tokens were seen")

    def unseated(self) -> None:
        """The launch had no effect: who was seated for the first time was not."""
        for line, rank in self.fresh:
            line.rank = rank

    def _computed(self, line: Line, depth: int) -> bool:
        """Whether launched rows have computed this prefix of the line, its own or another one's."""
        prefix = line.chain[depth]
        return any(other.launched >= depth and len(other.chain) > depth and other.chain[depth] == prefix
                   for other in reversed(self.alike[int(line.chain[1])]))

    def order(self, admitted: Iterable[int], passed: Iterable[int]) -> None:
        """Nobody is seated before a waiting request of better rank."""
        last = max((self.lines[n].rank for n in admitted), default=None)
        if last is None:
            return
        best = min((self.lines[n].rank for n in passed), default=None)
        if best is not None and best < last:
            raise Found("oracle", f"a request of rank {last} was seated before one of rank {best}")

    def retracted(self, number: int, others: Iterable[int]) -> None:
        """A request lost its lane: somebody of better rank must want it."""
        line = self.lines.get(number)
        if line is not None and not any(self.lines[n].rank < line.rank for n in others if n != number):
            raise Found("oracle", f"request {number} was retracted, though it has the best rank")

    def launched(self, core: Core, plan: Plan, made: list[int | None]) -> None:
        """A plan went out; `made`: request of each row. Its shape must obey the rules of scheduling."""
        total, lines = int(plan.length.sum()), self.lines
        if total > self.budget:
            raise Found("oracle", f"plan {plan.step} computes {total} tokens, the budget is {self.budget}")
        grid = self.shape.grid
        ends = plan.start + plan.length
        for i in np.flatnonzero(~plan.sample).tolist():
            if ends[i] % grid and plan.rows > 1:
                raise Found("oracle", f"plan {plan.step}: a chunk ends at {ends[i]}, off the grid, beside other rows")
        for row, depth, _ in plan.snapshots.tolist():
            if depth % grid:
                raise Found("oracle", f"plan {plan.step}: row {row} leaves a checkpoint at {depth}, off the grid")
        for number, end in zip(made, (ends + (plan.repeat - 1)).tolist(), strict=True):
            line = lines.get(number)  # type: ignore[arg-type]
            if line is not None and end > line.launched:
                line.launched = end
