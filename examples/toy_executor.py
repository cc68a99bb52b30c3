"""A whole executor in one page: a toy model with a recurrent state and a KV cache, in numpy.

    state  : x[d + 1] = (31 x[d] + token + 1) mod 2^31          overwritten in place by every token
    KV row : the token itself, at the page and row of its position
    next   : (x + sum of the first d KV rows) mod vocabulary     so it reads both

It decides nothing: every place, copy and capture comes from the plan, phase by phase, in the plan's order.
A module to import, not a script: `k3mem.Engine(shape, ToyExecutor(), capacity_bytes)`; `tests/test_examples.py` does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from k3mem.executor import Capabilities, Layout
from k3mem.plan import STATE, Done, Plan, Result, Row, Seat


@dataclass
class Lane:
    """What the device keeps for a seated request."""

    seat: Seat
    pages: list[int]
    depth: int
    last: int
    done: int


class ToyExecutor:
    """Runs each plan at its launch. A real one queues the work on a stream and returns at once."""

    capabilities = Capabilities(capture="any", verify=False)

    def attach(self, layout: Layout) -> None:
        self.span, self.vocab = layout.shape.page_span, layout.shape.vocab_size
        self.kv = np.zeros((layout.page_ids, self.span), np.int64)  # by place
        self.states = np.zeros(layout.state_ids, np.int64)  # by place
        self.page_at = np.zeros(layout.page_ids, np.int64)  # id -> place
        self.state_at = np.zeros(layout.state_ids, np.int64)
        self.lanes: dict[int, Lane] = {}

    def launch(self, plan: Plan) -> Result:
        self._memory(plan)
        accepted, tokens, written = [], [], np.zeros(len(plan.snapshots), np.bool_)
        for row, lane in enumerate(plan.lane.tolist()):
            captures = {depth: (i, state) for i, (r, depth, state) in enumerate(plan.snapshots.tolist()) if r == row}
            out = self._row(plan, row, self.lanes[lane], captures, written)
            accepted.append(len(out))
            tokens += out
        return Result(
            step=plan.step, lane=plan.lane, generation=plan.generation, accepted=np.array(accepted, np.int32),
            tokens=np.array(tokens, np.int32), written=written,
            done=np.array([self.lanes[lane].done for lane in plan.lane.tolist()], np.uint8),
        )

    def collect(self, ticket: Result) -> Result:
        return ticket

    def _memory(self, plan: Plan) -> None:
        """Moves, tables, seats, zeroing, page copies, restores: in this order."""
        for _, kind, source, target in plan.moves.tolist():
            memory = self.states if kind == STATE else self.kv
            memory[target] = memory[source]
        self.page_at[plan.page_table[:, 0]] = plan.page_table[:, 1]
        self.state_at[plan.state_table[:, 0]] = plan.state_table[:, 1]
        if plan.resync:
            self.lanes.clear()
        for seat in plan.seats:
            self.lanes[seat.lane] = Lane(seat, [], seat.depth, seat.last_token, seat.done)
        for lane, index, page in plan.lane_pages.tolist():
            pages = self.lanes[lane].pages
            pages.extend([0] * (index + 1 - len(pages)))  # 0 is the sink
            pages[index] = page
        self.kv[self.page_at[plan.zero_pages]] = 0
        self.states[self.state_at[plan.zero_states]] = 0
        for source, target, rows in plan.page_copies.tolist():
            self.kv[self.page_at[target]] = np.where(np.arange(self.span) < rows, self.kv[self.page_at[source]], 0)
        for source, target in plan.restores.tolist():
            self.states[self.state_at[target]] = self.states[self.state_at[source]]

    def _row(self, plan: Plan, row: int, lane: Lane, captures: dict[int, tuple[int, int]],
             written: np.ndarray) -> list[int]:
        """Absorb the row's tokens, take its snapshots, sample if it says so: the tokens it commits."""
        if lane.done or lane.depth + 1 >= lane.seat.limit:
            lane.done = lane.done or Done.LENGTH
            return []
        given = plan.tokens[plan.token_offset[row] : plan.token_offset[row + 1]].tolist()
        for token in given if plan.kind[row] == Row.PREFILL else [lane.last]:
            self._absorb(lane, token)
            if lane.depth in captures:
                index, target = captures[lane.depth]
                self.states[self.state_at[target]] = self.states[self.state_at[lane.seat.state]]
                written[index] = True
        if not plan.sample[row]:
            return []
        lane.last = self._sample(lane)
        if lane.last in lane.seat.sampling.stop_ids:
            lane.done = Done.STOP
        elif lane.depth + 1 >= lane.seat.limit:
            lane.done = Done.LENGTH
        return [lane.last]

    def _absorb(self, lane: Lane, token: int) -> None:
        page, at = divmod(lane.depth, self.span)
        self.kv[self.page_at[lane.pages[page]], at] = token
        state = self.state_at[lane.seat.state]
        self.states[state] = (31 * self.states[state] + token + 1) % 2**31
        lane.depth += 1

    def _sample(self, lane: Lane) -> int:
        rows = self.kv[self.page_at[lane.pages[: -(-lane.depth // self.span)]]].reshape(-1)[: lane.depth]
        return int((self.states[self.state_at[lane.seat.state]] + rows.sum()) % self.vocab)
