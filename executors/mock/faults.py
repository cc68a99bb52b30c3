"""Failures of steps: which ones, and what they leave of the bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Literal

from k3mem.errors import Effect
from k3mem.executors.mock.tables import NOWHERE
from k3mem.plan import PAGE, STATE, Plan, Row

if TYPE_CHECKING:
    from k3mem.executors.mock.compiled import CompiledDevice
    from k3mem.executors.mock.device import Device


@dataclass(frozen=True, slots=True)
class Fault:
    """One step that fails."""

    step: int
    at: Literal["launch", "collect"] = "collect"
    effect: Effect = Effect.UNKNOWN


class Faults:
    """Which steps fail: the scripted ones, and each other one with probability `rate`, chosen by the seed.

    A scripted fault strikes once, so that a step number used again after a failed launch gets through.
    """

    def __init__(self, script: Iterable[Fault] = (), *, rate: float = 0.0, seed: int = 0) -> None:
        self.script = {fault.step: fault for fault in script}
        self.rate, self.rng = rate, Random(seed)

    def strike(self, step: int) -> Fault | None:
        """The fault of a step that is being launched. Called once a launch."""
        fault = self.script.pop(step, None)
        if fault is None and self.rate and self.rng.random() < self.rate:
            fault = Fault(step, self.rng.choice(("launch", "collect")), self.rng.choice(list(Effect)))
        return fault


@dataclass(slots=True)
class Damage:
    """What a plan may leave in any condition: whole pages, rows of pages, states. Physical places."""

    pages: set[int]
    rows: list[tuple[int, int, int]]
    """(page place, first row, end row) written by forward passes."""
    states: set[int]

    @classmethod
    def of(cls, plan: Plan, device: Device | CompiledDevice) -> Damage:
        """The damage of a plan that has not run yet, from the plan and the device's tables before it."""
        tables, span = device.tables, device.span
        updates = (dict(plan.page_table.tolist()), dict(plan.state_table.tolist()))
        seats = {seat.lane: seat for seat in plan.seats}

        def place(kind: int, entry: int) -> int:
            known = tables.places[kind]
            found = int(updates[kind].get(entry, known[entry] if 0 <= entry < len(known) else NOWHERE))
            return found if device.memory.holds(kind, found) else NOWHERE

        pages = {place(PAGE, page) for page in plan.zero_pages.tolist() + plan.page_copies[:, 1].tolist()}
        states = {place(STATE, state) for state in plan.zero_states.tolist() + plan.restores[:, 1].tolist()}
        states |= {place(STATE, state) for state in plan.snapshots[:, 2].tolist()}
        for _, kind, source, destination in plan.moves.tolist():
            (pages if kind == PAGE else states).update(p for p in (source, destination) if device.memory.holds(kind, p))
        rows: list[tuple[int, int, int]] = []
        for i, lane in enumerate(plan.lane.tolist()):
            seat, tenant = seats.get(lane), tables.lanes[lane] if 0 <= lane < tables.lane_count else None
            state = seat.state if seat else tenant.state if tenant else NOWHERE
            states.add(place(STATE, state))
            lists = dict(enumerate(tenant.pages)) if tenant and not seat and not plan.resync else {}
            lists |= {index: page for who, index, page in plan.lane_pages.tolist() if who == lane}
            depth = seat.depth if seat else tenant.depth if tenant else int(plan.start[i])
            low = int(plan.start[i]) if plan.kind[i] == Row.PREFILL else min(depth, int(plan.start[i]))
            high = int(plan.start[i]) + int(plan.length[i]) * plan.repeat
            for index in range(low // span, -(-high // span)):
                where = place(PAGE, lists.get(index, NOWHERE))
                if where != NOWHERE:
                    rows.append((where, max(0, low - index * span), min(span, high - index * span)))
        return cls(pages - {NOWHERE}, rows, states - {NOWHERE})

    def scribble(self, device: Device | CompiledDevice) -> None:
        """Poison all of it."""
        for page in self.pages:
            device.memory.poison_page(page)
        for page, low, high in self.rows:
            device.memory.poison_rows(page, low, high)
        for state in self.states:
            device.memory.poison_state(state)
