"""An executor that runs nothing: each row commits a token at once. It keeps just enough of a lane to end it."""

from __future__ import annotations

import numpy as np

from k3mem.executor import Capabilities, Layout, Ticket
from k3mem.plan import Done, Plan, Result, Row

_DECODE, _PREFILL = int(Row.DECODE), int(Row.PREFILL)


class NullExecutor:
    """Token 0 for every row that samples, until the lane's limit. No stop ids, no drafts. `rows`: (decode rows, other
    rows) of each plan."""

    capabilities = Capabilities(verify=False)

    def __init__(self) -> None:
        self.rows: list[tuple[int, int]] = []
        self._depth = np.zeros(0, np.int64)
        self._limit = np.zeros(0, np.int64)

    def attach(self, layout: Layout) -> None:
        """Forget all lanes."""
        self._depth = np.zeros(layout.lanes, np.int64)
        self._limit = np.zeros(layout.lanes, np.int64)

    def launch(self, plan: Plan) -> Ticket:
        """The result, at once. O(rows)."""
        for seat in plan.seats:
            self._depth[seat.lane], self._limit[seat.lane] = seat.depth, seat.limit
        lane, decode = plan.lane, plan.kind == _DECODE
        count = int(decode.sum())
        self.rows.append((count, len(lane) - count))
        alive = self._depth[lane] + 1 < self._limit[lane]
        accepted = np.where(decode, alive, plan.sample).astype(np.int32)
        self._depth[lane] += np.where(decode, alive, plan.length)
        done = np.where(self._depth[lane] + 1 >= self._limit[lane], int(Done.LENGTH), 0).astype(np.uint8)
        done[~(decode | plan.sample)] = 0
        return Result(step=plan.step, lane=lane, generation=plan.generation, accepted=accepted,
                      tokens=np.zeros(int(accepted.sum()), np.int32), done=done,
                      written=np.ones(len(plan.snapshots), np.bool_))

    def collect(self, ticket: Ticket) -> Result:
        """What `launch` made."""
        result: Result = ticket
        return result
