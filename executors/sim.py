"""The `sim` executor: a virtual clock and a cost model in place of a model.

It keeps lanes (`lanes.py`), checks that plans fit them, and says when each step ends (`cost.py`). Rows that fit run in
C; VERIFY rows, lanes with stop ids and whatever is wrong with a plan are for the Python below. It holds no bytes:
pages, tables and zeroing pass without effect. A plan's outcome is known when it is launched, since all it depends on
was launched before; `collect` lets the clock reach its end.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from k3mem.executor import Capabilities, Layout, Ticket
from k3mem.executors.cost import CostModel, nominal
from k3mem.executors.lanes import DEPTH, DONE, GENERATION, LAST, LIMIT, PROMPT, Lanes, Ran, budget
from k3mem.native import ffi, lib
from k3mem.plan import PAGE, Done, Plan, Result, Row
from k3mem.shape import Shape
from k3mem.types import Bool, Float64, Int32, Int64, UInt8

PREFILL, DECODE = int(Row.PREFILL), int(Row.DECODE)
HISTORY = 64
"""Ends of launched (sub-)steps kept for `fast_forward`: more than any number of steps in flight."""


@dataclass(slots=True)
class _Work:
    """A plan's rows, run: what came of them and what they cost."""

    accepted: Int32
    tokens: Int32
    done: UInt8
    before: Int64
    after: Int64
    prefill_tokens: int = 0
    prefill_context: int = 0
    decode_rows: int = 0
    context_sum: int = 0
    verify_tokens: int = 0


def _model(cost: CostModel, shape: Shape, capture: str) -> Any:
    """A `k3_sim_model`."""
    captures = {"any": lib.K3_SIM_ANY, "grid": lib.K3_SIM_GRID, "final": lib.K3_SIM_FINAL}
    return ffi.new("k3_sim_model *", {
        "cost": {name: getattr(cost, name) for name in ("base", "prefill_token", "prefill_context", "row", "context",
                                                        "idle", "copy_bytes_per_us")},
        "page_bytes": shape.page_bytes, "state_bytes": shape.state_bytes, "chunk": shape.state_chunk,
        "capture": captures[capture],
    })


class SimExecutor:
    """Runs plans in virtual time. `cost` defaults to the packaged nominal model, `vocab` to the shape's.

    `capture` and `max_window` are what `capabilities` claims and what plans are held to. A plan that does not fit the
    lanes (generation, start, a row without a seat) raises RuntimeError naming the step and the lane: the caller has a
    bug, and this executor is of no further use before the next `attach`.
    """

    def __init__(
        self,
        cost: CostModel | None = None,
        *,
        vocab: int | None = None,
        capture: Literal["any", "grid", "final"] = "any",
        max_window: int = 16,
        now: float = 0.0,
    ) -> None:
        self.cost = cost or nominal()
        self.now = now
        """Virtual time in seconds: the end of the last collected step, or later where `idle` advanced it."""
        self._vocab = vocab
        self._capabilities = Capabilities(capture=capture, verify=True, max_window=max_window, fast_forward=True)
        self._layout: Layout | None = None
        self._lanes = Lanes(0, 2)
        self._model: Any = None
        """What C knows of cost and capabilities."""
        self._flight: deque[Result] = deque()
        self._ends: deque[float] = deque(maxlen=HISTORY)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def clock(self) -> float:
        """`now`, for whoever is given a clock."""
        return self.now

    def attach(self, layout: Layout) -> None:
        """Forget all lanes and steps in flight; the clock goes on."""
        self._layout = layout
        self._lanes = Lanes(layout.lanes, self._vocab or layout.shape.vocab_size)
        self._model = _model(self.cost, layout.shape, self._capabilities.capture)
        self._flight.clear()

    # -- running

    def launch(self, plan: Plan) -> Ticket:
        """Run a plan: it starts when the last launched step ends, or now. O(rows + tokens out)."""
        if self._layout is None:
            raise RuntimeError("launch before attach")
        if plan.resync:
            self._lanes.clear()
        for seat in plan.seats:
            self._lanes.seat(seat)
        ran = self._lanes.run(plan, self._model, self._start()) or self._by_hand(plan)
        self._ends.extend(ran.times[-HISTORY:].tolist())
        result = Result(step=plan.step, lane=plan.lane, generation=plan.generation, accepted=ran.accepted,
                        tokens=ran.tokens, done=ran.done, written=ran.written, times=ran.times)
        self._flight.append(result)
        return result

    def _by_hand(self, plan: Plan) -> Ran:
        """A plan that C does not run."""
        k = plan.repeat
        work = self._run(plan, k)
        copied = np.zeros(k, np.int64)
        copied[0] = self._copied(plan)
        written = self._snapshots(plan, work.before, work.after, copied)
        times = self._times(work, copied, k, None if k == 1 else _live(work.accepted, k))
        return Ran(work.accepted, work.tokens, work.done, written, times)

    def collect(self, ticket: Ticket) -> Result:
        """The clock reaches the end of the oldest step in flight, which `ticket` must be."""
        if not self._flight or self._flight[0] is not ticket:
            raise RuntimeError("collect out of launch order, twice, or after attach")
        result = self._flight.popleft()
        self.now = max(self.now, float(result.times[-1]))
        return result

    def moment(self, depth: int) -> float:
        """When the next step is planned with `depth` steps in flight, in seconds: the end of the step launched
        1 + `depth` before it, sub-steps of a fast-forwarded plan counted one by one, and not before `now`. What
        arrived by then must be submitted first, or fast-forward changes who is admitted when."""
        ends = self._ends
        return max(self.now, ends[-(depth + 1)]) if len(ends) > depth else self.now

    def idle(self, until: float) -> None:
        """Advance the clock to `until` (never back). Raises RuntimeError while a step is in flight."""
        if self._flight:
            raise RuntimeError(f"idle with {len(self._flight)} steps in flight; collect them first")
        self.now = max(self.now, until)

    def fast_forward(self, plan: Plan, limit: int, until: float, depth: int = 1) -> int:
        """How many times, 1 .. limit, this DECODE-only plan may be repeated so that each repetition is planned
        before the moment `until`. Changes nothing. O(rows + answer).

        With `depth` steps in flight, sub-step j is planned when sub-step j - 1 - depth ends (steps launched earlier
        count, at their own ends), and never before `now`. The first needs no permission. Times are those that
        `launch` will give, bit for bit. 1 for a plan with seats, and where a lane has stop ids: when it ends is not
        known before.
        """
        if not 0 <= depth < HISTORY:
            raise ValueError(f"depth must be 0..{HISTORY - 1}, got {depth}")
        watched = self._lanes.stops and not self._lanes.stops.keys().isdisjoint(plan.lane.tolist())
        if limit <= 1 or plan.seats or plan.resync or not len(plan.kind) or watched:
            return 1
        ends = self._ends
        known = [ends[i] for i in range(-min(len(ends), depth + 1), 0)]
        planned = [self.now] * (depth + 1 - len(known)) + known
        answer = self._lanes.ahead(plan, self._model, self._start(), planned, self.now, until, limit)
        return self._ahead(plan, limit, until, planned) if answer is None else answer

    def _ahead(self, plan: Plan, limit: int, until: float, planned: list[float]) -> int:
        """The same for a plan that C does not look at."""
        rows = self._rows_of(plan, plan.lane, plan.generation)
        k = min(limit, 128)
        while True:
            moments = self._moments(plan, rows, k, planned)
            allowed = max(1, int(np.searchsorted(moments, until, side="left")))
            if allowed < k or k == limit:
                return allowed
            k = min(limit, 8 * k)

    def _moments(self, plan: Plan, rows: Int64, k: int, planned: list[float]) -> Float64:
        """When each of k repetitions is planned, ascending. `planned`: when the first of them are."""
        count, before = budget(rows, k), rows[:, DEPTH]
        copied = np.zeros(k, np.int64)
        copied[0] = self._copied(plan)
        self._snapshots(plan, before, before + count, copied)
        work = _Work(count.astype(np.int32), np.zeros(0, np.int32), rows[:, DONE].astype(np.uint8), before,
                     before + count, decode_rows=len(rows), context_sum=int(before.sum()))
        moments = np.array([*planned, *self._times(work, copied, k, _live(count, k))])
        np.maximum(moments, self.now, out=moments)
        return moments[:k]

    # -- time

    def _start(self) -> float:
        """When the next launched step begins."""
        return max(self.now, self._ends[-1]) if self._ends else self.now

    def _times(self, work: _Work, copied: Int64, k: int, live: Int64 | None) -> Float64:
        """Ends of the k sub-steps."""
        start = self._start()
        if k > 1:
            return self.cost.decode_times(work.decode_rows, work.context_sum, k, start=start, live=live, copied=copied)
        took = self.cost.step_us(
            prefill_tokens=work.prefill_tokens, prefill_context=work.prefill_context, decode_rows=work.decode_rows,
            context_sum=work.context_sum, verify_tokens=work.verify_tokens, copied_bytes=int(copied[0]),
        )
        return np.array([start + took * 1e-6])

    def _copied(self, plan: Plan) -> int:
        """Bytes read plus bytes written by moves, page copies and restores."""
        assert self._layout is not None
        shape = self._layout.shape
        pages, states = len(plan.page_copies), len(plan.restores)
        if len(plan.moves):
            moved = int(np.count_nonzero(plan.moves[:, 1] == PAGE))
            pages += moved
            states += len(plan.moves) - moved
        return 2 * (pages * shape.page_bytes + states * shape.state_bytes)

    def _snapshots(self, plan: Plan, before: Int64, after: Int64, copied: Int64) -> Bool:
        """Which snapshots are written; adds their bytes to the sub-step that writes them."""
        assert self._layout is not None
        written = np.zeros(len(plan.snapshots), np.bool_)
        if not len(written):
            return written
        shape, capture = self._layout.shape, self._capabilities.capture
        for i, (row, depth, _) in enumerate(plan.snapshots.tolist()):
            written[i] = before[row] < depth <= after[row]
            if plan.kind[row] == PREFILL:
                start, end = int(plan.start[row]), int(plan.start[row] + plan.length[row])
                fits = capture == "any" or depth == end or (
                    capture == "grid" and (depth - start) % shape.state_chunk == 0)
                if not start < depth <= end or not fits:
                    raise RuntimeError(f"step {plan.step}: lane {int(plan.lane[row])}: snapshot at {depth} cannot be "
                                       f"taken in a PREFILL row of {start}..{end} with capture {capture!r}")
            if written[i]:
                at = 0 if len(copied) == 1 else depth - int(before[row]) - 1
                copied[at] += 2 * shape.state_bytes
        return written

    # -- rows

    def _rows_of(self, plan: Plan, lane: Int32, generation: Int32) -> Int64:
        """Copies of the lanes' rows. Raises RuntimeError unless each is seated as the plan says."""
        lanes = lane.tolist()
        if lanes and not 0 <= min(lanes) <= max(lanes) < len(self._lanes.table):
            raise RuntimeError(f"step {plan.step}: a row's lane is outside 0..{len(self._lanes.table) - 1}")
        rows: Int64 = self._lanes.table[lane]
        if (rows[:, GENERATION] != generation).any():
            i = int(np.argmax(rows[:, GENERATION] != generation))
            raise RuntimeError(f"step {plan.step}: lane {lanes[i]}: row of generation {int(generation[i])}, seated is "
                               f"{int(rows[i, GENERATION])}")
        return rows

    def _run(self, plan: Plan, k: int) -> _Work:
        lanes = plan.lane.tolist()
        if len(set(lanes)) != len(lanes):
            raise RuntimeError(f"step {plan.step}: two rows of one lane")
        if (plan.kind == DECODE).all():
            if not lanes:
                none = np.zeros(0, np.int64)
                return _Work(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.uint8), none, none)
            return self._decode(plan, k, plan.lane, plan.generation, plan.start)
        if k != 1:
            raise RuntimeError(f"step {plan.step}: repeat {k} with rows that are not DECODE")
        return self._mixed(plan)

    def _decode(self, plan: Plan, k: int, lane: Int32, generation: Int32, start: Int32) -> _Work:
        rows = self._rows_of(plan, lane, generation)
        before = rows[:, DEPTH].copy()
        if (before > start).any():
            i = int(np.argmax(before > start))
            raise RuntimeError(f"step {plan.step}: lane {int(lane[i])}: start {int(start[i])} is behind its depth "
                               f"{int(before[i])}")
        if (rows[:, LAST] < 0).any():
            i = int(np.argmax(rows[:, LAST] < 0))
            raise RuntimeError(f"step {plan.step}: lane {int(lane[i])}: DECODE before its prompt is absorbed")
        count, tokens, done = self._lanes.decode(lane, rows, k)
        return _Work(count.astype(np.int32), tokens, done, before, before + count, decode_rows=len(rows),
                     context_sum=int(before.sum()))

    def _mixed(self, plan: Plan) -> _Work:
        """Rows of several kinds: DECODE rows at once, the others one by one."""
        n = len(plan.kind)
        zero = np.zeros(n, np.int64)
        work = _Work(np.zeros(n, np.int32), np.zeros(0, np.int32), np.zeros(n, np.uint8), zero, zero.copy())
        single: dict[int, list[int]] = {}
        for i in np.flatnonzero(plan.kind != DECODE).tolist():
            row = self._prefill if plan.kind[i] == PREFILL else self._verify
            single[i] = row(plan, i, work)
            work.accepted[i] = len(single[i])
            lane = self._lanes.table[plan.lane[i]]
            work.after[i], work.done[i] = lane[DEPTH], lane[DONE]
        at = np.flatnonzero(plan.kind == DECODE)
        part: _Work | None = None
        if len(at):
            part = self._decode(plan, 1, plan.lane[at], plan.generation[at], plan.start[at])
            work.accepted[at], work.done[at], work.before[at], work.after[at] = (
                part.accepted, part.done, part.before, part.after)
            work.decode_rows = part.decode_rows
            work.context_sum += part.context_sum
        offset = np.cumsum(work.accepted) - work.accepted
        work.tokens = np.zeros(int(work.accepted.sum()), np.int32)
        for i, tokens in single.items():
            work.tokens[offset[i] : offset[i] + len(tokens)] = tokens
        if part is not None:
            work.tokens[offset[at[part.accepted > 0]]] = part.tokens
        return work

    def _prefill(self, plan: Plan, i: int, work: _Work) -> list[int]:
        lane, start, length = int(plan.lane[i]), int(plan.start[i]), int(plan.length[i])
        row = self._rows_of(plan, plan.lane[i : i + 1], plan.generation[i : i + 1])[0]
        depth = work.before[i] = int(row[DEPTH])
        low, high = int(plan.token_offset[i]), int(plan.token_offset[i + 1])
        if start != depth or length < 1 or high - low != length:
            raise RuntimeError(f"step {plan.step}: lane {lane}: PREFILL of {length} ({high - low} given) tokens from "
                               f"{start}, its depth is {depth}")
        work.prefill_tokens += length
        work.prefill_context += length * start
        if row[DONE]:
            return []
        end = start + length
        if plan.sample[i] and end < row[PROMPT]:
            raise RuntimeError(f"step {plan.step}: lane {lane}: sampled at depth {end}, inside its prompt of "
                               f"{int(row[PROMPT])}")
        self._lanes.table[lane, DEPTH] = end
        if not plan.sample[i]:
            return []
        if end >= row[LIMIT]:
            self._lanes.table[lane, DONE] = int(Done.LENGTH)
            return []
        token = self._lanes.token(lane, end, int(plan.tokens[high - 1]))
        self._lanes.table[lane, LAST] = token
        self._lanes.table[lane, DONE] = self._lanes.ends(lane, token, end + 1)
        return [token]

    def _verify(self, plan: Plan, i: int, work: _Work) -> list[int]:
        lane, window = int(plan.lane[i]), int(plan.length[i])
        row = self._rows_of(plan, plan.lane[i : i + 1], plan.generation[i : i + 1])[0]
        depth, last = int(row[DEPTH]), int(row[LAST])
        drafts = plan.tokens[plan.token_offset[i] : plan.token_offset[i + 1]].tolist()
        work.before[i] = depth
        if depth > plan.start[i] or last < 0:
            raise RuntimeError(f"step {plan.step}: lane {lane}: VERIFY from {int(plan.start[i])}, its depth is "
                               f"{depth}, its last token {last}")
        if not 1 <= window <= self._capabilities.max_window or len(drafts) != window - 1:
            raise RuntimeError(f"step {plan.step}: lane {lane}: window {window} of at most "
                               f"{self._capabilities.max_window} with {len(drafts)} drafts")
        work.verify_tokens += window
        work.context_sum += depth
        out: list[int] = []
        done = int(row[DONE]) or (int(Done.LENGTH) if depth + 1 >= row[LIMIT] else 0)
        while not done and len(out) < window and out == drafts[: len(out)]:
            last = self._lanes.token(lane, depth + len(out) + 1, last)
            out.append(last)
            done = self._lanes.ends(lane, last, depth + len(out) + 1)
        self._lanes.table[lane, [DEPTH, LAST, DONE]] = (depth + len(out), last, done)
        return out


def _live(count: Int32 | Int64, k: int) -> Int64:
    """How many rows add a token in sub-step j: those that commit more than j."""
    live: Int64 = len(count) - np.cumsum(np.bincount(count, minlength=k + 1)[:k])
    return live
