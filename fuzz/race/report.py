"""What a judgement says: kinds of races, the races, and the report."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

KINDS = {
    # two commands of one phase, or of two streams, without an order
    "moves_overlap": "moves of one batch share bytes: what arrives depends on which goes first",
    "tables_conflict": "one plan gives an id two places, a place two ids, or an entry of a page list two pages",
    "lane_seated_twice": "one plan gives a lane two tenants",
    "copies_overlap": "a page copy writes what another of the same plan reads or writes",
    "restores_overlap": "a restore writes what another of the same plan reads or writes",
    "two_rows_one_lane": "two rows of one step belong to one lane: both advance its position",
    "rows_share_state": "two rows of one step update one working state",
    "rows_share_page": "a row writes page rows that another row of the same step reads or writes",
    "target_in_use": "a snapshot's target is a state that a row of the same step reads or writes",
    "folded_twice": "two folds of one step update one working state",
    "moved_while_read": "an entry moves while a command of another stream may still use it",
    "unordered": "two commands of different streams use the same bytes, at least one writes, no event joins them",
    "stuck": "a command waits for an event that nothing signals",
    # an order that the plans have wrong
    "restored_before_write": "a restore reads a target that its own plan writes only after all restores",
    "use_before_write": "a read of bytes that nobody wrote or zeroed since their place changed hands",
    "lost_write": "a read of bytes that were zeroed after the write that the read needs, or instead of it",
    "wrong_prefix": "a row's state and pages are not of one prefix: some of them hold another sequence, or another "
                    "depth of the same",
    "stale_entry": "a read through an id that has no place, or whose place belongs to another id by now",
    "foreign_write": "a write through an id that has no place, or whose place belongs to another id by now",
    "two_writers": "a row writes over rows that another tenant left in a page which was not handed out anew",
    "moved_nobody": "a move takes its bytes from a place that no id owns",
    "stale_lane": "a row, a seat or a page list entry of a lane whose tenant is another, or none",
    "wrong_position": "a row starts where its lane does not stand",
    "no_resync": "a plan after a failure relies on tables that the failed step may not have updated",
    # harmless, see BENIGN
    "zeroed_twice": "one plan zeroes the same bytes twice",
    "told_twice": "one plan says the same of a table or list entry twice",
}
"""Every kind, and what it is."""

BENIGN = {
    "zeroed_twice": "both commands write zeros, so every order leaves the same bytes; two owners of the bytes would be "
                    "reported as such",
    "told_twice": "both entries say the same, so every order leaves the same table",
}
"""Kinds that are counted and not reported, and why no order of the two commands changes a byte that is read."""

MOST_RACES = 10_000
"""Races kept whole; beyond, they are counted by kind only."""


@dataclass(frozen=True, slots=True)
class Race:
    """Two commands that use the same bytes without the order that their use needs."""

    kind: str
    """One of `KINDS`."""
    step: int
    """Step of the second command, 0 for one that belongs to no step."""
    first: str
    """The command judged first: where order is wrong rather than missing, the last one that wrote the place."""
    second: str
    place: str
    """The bytes, table entry or register."""
    edge: str
    """What is missing between them."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.first} | {self.second} | {self.place} | missing: {self.edge}"


@dataclass(slots=True)
class Report:
    """A judgement. `races` is empty for a right scheduler."""

    steps: int = 0
    failures: int = 0
    commands: int = 0
    accesses: int = 0
    pairs: int = 0
    """Pairs of commands without an order between them, all of which were compared."""
    races: list[Race] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    """Races by kind, also those that did not find room in `races`."""
    benign: Counter[str] = field(default_factory=Counter)

    def add(self, race: Race) -> None:
        """Book a race, or count it where its kind is benign."""
        if race.kind in BENIGN:
            self.benign[race.kind] += 1
            return
        self.kinds[race.kind] += 1
        if len(self.races) < MOST_RACES:
            self.races.append(race)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self) | {"kinds": dict(self.kinds), "benign": dict(self.benign)}
