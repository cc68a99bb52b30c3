"""Root causes in the order of things: phases of a step, the event at its end, a restore and the write it needs."""

from __future__ import annotations

from typing import Any

from k3mem.executors.mock.device import Device, Phase, Run
from k3mem.executors.mock.streams import Streams
from k3mem.executors.mock.tables import LaneState, Tables
from k3mem.fuzz import spoils
from k3mem.fuzz.patching import Plant, all_of, patched
from k3mem.sched import admit, launch, prefill
from k3mem.sched.builder import Builder
from k3mem.sched.core import Core


def moves_come_last() -> Plant:
    """The phase order is reversed: entries move after tables, zeroing and restores, just before the rows."""

    def preparation(old: Any) -> Any:
        return lambda self, run: [phase for phase in old(self, run) if phase[0] != "moves"]

    def work(old: Any) -> Any:
        def phases(self: Device, run: Run) -> list[Phase]:
            out: list[Phase] = old(self, run)
            if len(run.plan.moves):
                at = next((i for i, (name, _) in enumerate(out) if name in ("rows", "end")), len(out))
                out.insert(at, ("moves", self.move))
            return out
        return phases

    return all_of(patched(Device, "preparation", preparation), patched(Device, "work", work))


def event_of_the_step_before() -> Plant:
    """Events are reversed: who collects a step waits for the end of the one before it."""
    return patched(Streams, "until", lambda old: lambda self, event: old(self, event - 1) if event > 1 else None)


def snapshots_come_late() -> Plant:
    """A snapshot is written only after the restores of the following plan."""

    def make(old: Any) -> Any:
        def snapshot(self: Device, run: Run, target: int, number: int, *state: Any) -> None:
            run.written[number] = True
            if not hasattr(self, "late"):
                self.late = []  # type: ignore[attr-defined]
            self.late.append((run, target, number, state))  # type: ignore[attr-defined]
        snapshot.old = old  # type: ignore[attr-defined]
        return snapshot

    def begin(old: Any) -> Any:
        def begin_rows(self: Device, run: Run) -> None:
            write = Device._snapshot.old  # type: ignore[attr-defined]
            for before, target, number, state in getattr(self, "late", []):
                if self.tables.places[1][target] >= 0:
                    write(self, before, target, number, *state)
            self.late = []  # type: ignore[attr-defined]
            old(self, run)
        return begin_rows

    return all_of(patched(Device, "_snapshot", make), patched(Device, "begin_rows", begin))


def restored_before_the_write() -> Plant:
    """A chunk's checkpoints are in the tree while their plan is made: a restore of the same plan comes before the
    write that it needs."""

    def add(old: Any) -> Any:
        def add_targets(core: Core, b: Builder) -> None:
            old(core, b)
            launch._publish(core, b, b.step - 1)
            b.published = True  # type: ignore[attr-defined]
            rows = len(b.prefill)
            admit.admit(core, b)
            for row in b.prefill[rows:]:
                row.targets = []
        return add_targets

    def publish(old: Any) -> Any:
        def published(core: Core, b: Builder, step: int) -> None:
            if step < b.step:
                old(core, b, step)
        return published

    return all_of(patched(prefill, "add_targets", add), patched(launch, "_publish", publish))


def generation_is_ignored() -> Plant:
    """The device computes a row for whoever sits on the lane now."""

    def make(old: Any) -> Any:
        def tenant(self: Tables, lane: int, generation: int) -> LaneState | None:
            found = self.lanes[lane] if 0 <= lane < self.lane_count else None
            return found if found is not None else old(self, lane, generation)
        return tenant

    return all_of(patched(Tables, "tenant", make), spoils.spoilt(spoils.generation_ignored))


def overlapping_moves() -> Plant:
    """A batch moves an entry there and back."""
    return spoils.spoilt(spoils.overlapping_moves)


def chain_in_one_batch() -> Plant:
    """A move's destination moves on within the batch."""
    return spoils.spoilt(spoils.chain_in_one_batch)


def restore_of_a_target() -> Plant:
    """A restore reads a target of its own plan."""
    return spoils.spoilt(spoils.restore_of_a_target)


def restores_overlap() -> Plant:
    """A restore writes back to where another one reads."""
    return spoils.spoilt(spoils.restore_chain)


def target_is_the_working_state() -> Plant:
    """A snapshot's target is the row's own working state."""
    return spoils.spoilt(spoils.target_is_its_own_state)


def target_is_anothers_state() -> Plant:
    """A snapshot's target is another row's working state."""
    return spoils.spoilt(spoils.target_is_anothers_state)


def rows_share_a_page() -> Plant:
    """Two prompts write into one page in one step."""
    return spoils.spoilt(spoils.two_rows_on_one_page)


def rows_share_a_state() -> Plant:
    """Two rows of one step update one working state."""
    return spoils.spoilt(spoils.two_lanes_on_one_state)


def page_in_use_is_zeroed() -> Plant:
    """A page that a decoding lane reads is zeroed in the same plan."""
    return spoils.spoilt(spoils.page_in_use_is_zeroed)


def state_in_use_is_zeroed() -> Plant:
    """A working state is zeroed under its request."""
    return spoils.spoilt(spoils.state_in_use_is_zeroed)


def page_of_two_ids() -> Plant:
    """A new id gets the place of a page that a lane reads."""
    return spoils.spoilt(spoils.page_of_two_ids)


def one_id_at_two_places() -> Plant:
    """One plan tells two places of one page."""
    return spoils.spoilt(spoils.one_id_at_two_places)


def row_planned_twice() -> Plant:
    """A verify row stands twice in its plan: both fold into one state."""
    return spoils.spoilt(spoils.folded_twice)


def chunk_begins_early() -> Plant:
    """A chunk computes the last token of the one before it again."""
    return spoils.spoilt(spoils.chunk_begins_early)


def tail_copied_back() -> Plant:
    """A page copy goes both ways at once."""
    return spoils.spoilt(spoils.copy_and_back)
