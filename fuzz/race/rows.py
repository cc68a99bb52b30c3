"""The rows of one plan: forward, sample, fold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from k3mem.fuzz.race import space as at
from k3mem.fuzz.race.mirror import NOWHERE, POISON, UNKNOWN, ZERO, Origin, Tenant, chain
from k3mem.fuzz.race.order import Command
from k3mem.fuzz.race.space import ranges
from k3mem.plan import PAGE, STATE, Plan, Result, Row
from k3mem.types import Int32, Int64

if TYPE_CHECKING:
    from k3mem.fuzz.race.expand import Expander

FORWARD = "forward"
PHASE = "rows"
NO_PLACES = np.zeros(0, np.int32)


class _Row:
    """One row on its way: where its lane stands, and what its result says of it."""

    __slots__ = ("accepted", "depth", "kind", "length", "missing", "name", "number", "places", "runs", "targets",
                 "tenant", "working")

    def __init__(self, number: int, kind: Row, tenant: Tenant, working: int, length: int, name: str) -> None:
        self.number, self.kind, self.tenant, self.working, self.length = number, kind, tenant, working, length
        self.name = name
        self.depth = 0
        """Absorbed depth before the row."""
        self.runs = not tenant.done
        self.accepted: list[int | None] = []
        """Tokens committed; None: a token that the recording does not show."""
        self.targets: list[tuple[int, int]] = []
        """(depth, place) of its snapshots."""
        self.places: Int32 = NO_PLACES
        """Of its lane's pages up to the end of its worst case; the sink's where the list names none."""
        self.missing: list[int] = []
        """Indices of pages that the lane's list has no right to."""


class RowWork:
    """The three phases of a plan's rows, in the order of the stream."""

    def __init__(self, expander: Expander, plan: Plan, result: Result | None) -> None:
        self.expander, self.plan, self.result = expander, plan, result
        self.space, self.mirror, self.step = expander.space, expander.mirror, plan.step
        self.rows: list[_Row] = []
        self.offsets: list[int] = plan.token_offset.tolist()
        self.starts: list[int] = plan.start.tolist()

    def commands(self) -> Iterator[Command]:
        self._resolve()
        forward = [self._forward(row) for row in self.rows]  # all accesses before any effect: no row feeds another
        yield from forward
        for row in self.rows:
            if row.runs:
                self._absorb(row)
        for row in self.rows:
            yield Command(FORWARD, f"{row.name}: sample", writes=self._registers(row), phase=(self.step, "sample"),
                          step=self.step)
        for row in self.rows:
            if row.kind == Row.VERIFY:
                yield self._fold_command(row)
        for row in self.rows:
            if row.runs and row.kind == Row.VERIFY:
                self._fold(row)
        self._close()

    # -- who, where, and what came of it

    def _resolve(self) -> None:
        plan, find = self.plan, self.expander.find
        results = self._results()
        for i, (lane, generation, kind, length) in enumerate(zip(
                plan.lane.tolist(), plan.generation.tolist(), plan.kind.tolist(), plan.length.tolist(), strict=True)):
            tenant = self.mirror.lanes.get(lane)
            name = f"step {self.step}: rows: row {i} of lane {lane}"
            if tenant is None or tenant.generation != generation:
                self._race("stale_lane", f"the tenant of generation {tenant.generation}" if tenant else "nobody's seat",
                           name, f"registers of lane {lane}", f"a seat of generation {generation}")
                if tenant is None:
                    continue
            working = find(self.step, PHASE, STATE, tenant.state, True, f"row {i} of lane {lane}")
            row = _Row(i, Row(kind), tenant, working, length, name)
            row.accepted = results[i] if results is not None else self._guess(row)
            self._position(row)
            self.rows.append(row)
        by_number = {row.number: row for row in self.rows}
        for number, depth, target in plan.snapshots.tolist():
            owner = by_number.get(number)
            if owner is None:
                self._race("stale_lane", "nobody's row", f"step {self.step}: snapshots: row {number}",
                           f"state id {target}", "a row that it belongs to")
                continue
            place = find(self.step, "snapshots", STATE, target, True, f"row {number} at depth {depth}")
            if place != NOWHERE:
                owner.targets.append((depth, place))
                if place == owner.working:
                    self._race("target_in_use", owner.name, f"step {self.step}: snapshots: row {number}",
                               f"state place {place}", "a target apart from the working state")

    def _results(self) -> list[list[int | None]] | None:
        result = self.result
        if result is None or len(result.accepted) != self.plan.rows:
            return None
        ends = result.accepted.cumsum().tolist()
        tokens: list[int | None] = list(result.tokens.tolist())
        return [tokens[end - count : end] for end, count in zip(ends, result.accepted.tolist(), strict=True)]

    def _guess(self, row: _Row) -> list[int | None]:
        """Without a result: everything is accepted."""
        row.tenant.sees = False
        if row.kind == Row.PREFILL:
            return [None] * int(self.plan.sample[row.number])
        return [None] * (row.length * self.plan.repeat)

    def _position(self, row: _Row) -> None:
        tenant, start = row.tenant, self.starts[row.number]
        row.depth = tenant.depth if row.kind != Row.PREFILL and tenant.sees else start
        if not row.runs:
            row.depth = start
        elif tenant.sees and (tenant.depth > start or (row.kind == Row.PREFILL and tenant.depth != start)):
            self._race("wrong_position", f"lane {tenant.lane} at depth {tenant.depth}", row.name,
                       f"registers of lane {tenant.lane}", f"a start that the lane stands at, not {start}")
        elif tenant.sees and (tenant.last is None) != (row.kind == Row.PREFILL):
            self._race("wrong_position", f"lane {tenant.lane} with{'out' * (tenant.last is None)} a sampled token",
                       row.name, f"registers of lane {tenant.lane}", f"a row of another kind than {row.kind.name}")

    # -- forward: accesses

    def _forward(self, row: _Row) -> Command:
        """The worst case of one row: what it reads, then what it writes."""
        space, tenant, plan = self.space, row.tenant, self.plan
        depth, end = row.depth, row.depth + row.length * plan.repeat
        if row.kind != Row.PREFILL:
            end = max(depth + (row.kind == Row.DECODE), min(end, tenant.limit - 1))
        span = space.span
        places, row.missing = self._places(tenant, -(-end // span))
        row.places = places
        if row.missing:
            self._missing_pages(row, row.missing, depth)
        full, rest = divmod(depth, span)
        reads = [space.whole_pages(places[:full])]
        if rest and full < len(places):
            reads.append(ranges([space.rows(int(places[full]), 0, rest)]))
        written = [space.rows(int(places[index]), max(0, depth - index * span), min(span, end - index * span))
                   for index in range(full, -(-end // span))]
        written.append((at.LANES + tenant.lane, at.LANES + tenant.lane + 1))
        state = space.of(STATE, row.working) if row.working != NOWHERE else None
        if row.kind == Row.VERIFY:
            written.append((at.RECORDS + row.number, at.RECORDS + row.number + 1))
            if state is not None:
                reads.append(ranges([state]))
        else:
            if state is not None:
                written.append(state)
            written += [space.of(STATE, place) for _, place in row.targets if place != row.working]
        tables = [(at.LISTS + tenant.lane * at.LIST, at.LISTS + tenant.lane * at.LIST + max(1, len(places))),
                  (at.PAGE_TABLE, at.PAGE_TABLE + space.page_ids), (at.STATE_TABLE, at.STATE_TABLE + space.state_ids)]
        return Command(FORWARD, row.name, np.concatenate([*reads, ranges(tables)]), ranges(written),
                       phase=(self.step, PHASE), step=self.step, working=state[0] if state is not None else -1)

    def _places(self, tenant: Tenant, count: int) -> tuple[Int32, list[int]]:
        """Places of a lane's first pages (the sink's where there is none), and the indices that own none."""
        mirror = self.mirror
        ids = tenant.pages[:count]
        if len(ids) < count:
            ids = np.concatenate([ids, np.full(count - len(ids), NOWHERE, np.int32)])
        places = mirror.places[PAGE][np.where((ids > 0) & (ids < len(mirror.places[PAGE])), ids, 0)]
        bad = (ids <= 0) | (places == NOWHERE) | (mirror.owner[PAGE][places] != ids)
        return np.where(places == NOWHERE, 0, places), np.flatnonzero(bad).tolist() if bad.any() else []

    def _missing_pages(self, row: _Row, missing: list[int], depth: int) -> None:
        for index in missing:
            entry = int(row.tenant.pages[index]) if index < len(row.tenant.pages) else NOWHERE
            writes = (index + 1) * self.space.span > depth
            self.expander.find(self.step, PHASE, PAGE, entry, writes, f"row {row.number} of lane {row.tenant.lane}, "
                               f"entry {index}")

    def _registers(self, row: _Row) -> Int64:
        return ranges([(at.LANES + row.tenant.lane, at.LANES + row.tenant.lane + 1)])

    # -- forward: effects

    def _absorb(self, row: _Row) -> None:
        """Read state and context, write the rows, and (but for VERIFY) the state with its snapshots."""
        tenant, mirror = row.tenant, self.mirror
        label = int(mirror.state[row.working]) if row.working != NOWHERE else UNKNOWN
        if label == POISON:
            self.expander.missing(self.step, PHASE, row.name, STATE, row.working, True, "all")
            label = UNKNOWN
        elif label == ZERO and row.depth > 0:
            self.expander.missing(self.step, PHASE, row.name, STATE, row.working, False, "all")
            label = UNKNOWN
        elif row.depth == 0 and label != ZERO:
            self._wrong(row, STATE, row.working, "starts at depth 0 from a used state")
            label = ZERO
        label = tenant.seed if label == ZERO else label
        self._read_context(row, label)
        tokens = self._tokens(row)
        labels = chain(label, tokens)
        self._write_pages(row, label, labels)
        if row.kind == Row.VERIFY:
            return
        end = row.depth + len(tokens)
        origin = Origin(self.step, PHASE, f"row {row.number} of lane {tenant.lane}")
        for depth, place in row.targets:
            if row.depth < depth <= end:
                mirror.write_state(place, labels[depth - row.depth - 1], origin)
        if labels and row.working != NOWHERE:
            mirror.write_state(row.working, labels[-1], origin)
        tenant.depth = end

    def _tokens(self, row: _Row) -> Sequence[int | None]:
        """The tokens whose rows are written: given, or the last one and what follows it in the row."""
        plan, i, tenant = self.plan, row.number, row.tenant
        given: list[int] = plan.tokens[self.offsets[i] : self.offsets[i + 1]].tolist()
        if row.kind == Row.PREFILL:
            return given
        if row.kind == Row.VERIFY:
            return [tenant.last, *given][: max(0, tenant.limit - row.depth - 1)]
        return [tenant.last, *row.accepted[:-1]]

    def _read_context(self, row: _Row, label: int) -> None:
        """All KV rows below the depth: written, by one prefix, and that of the state. O(pages)."""
        depth, mirror = row.depth, self.mirror
        if not depth:
            return
        full, rest = divmod(depth, self.space.span)
        places = row.places[: full + (rest > 0)]
        if row.missing and row.missing[0] < len(places):
            return  # told when its accesses were listed
        filled, last = mirror.filled[places], mirror.labels[places, -1]
        whole = bool((filled[:full] == self.space.span).all()) and (not rest or filled[full] >= rest)
        if not whole:
            self._unwritten(row, places, full, rest)
            return
        if rest:
            last[full] = mirror.labels[places[full], rest - 1]
        before = np.concatenate([[row.tenant.seed], last[:-1]])
        head = mirror.head[places]
        broken = (head != before) & (head != UNKNOWN) & (before != UNKNOWN)
        if broken.any():
            index = int(np.flatnonzero(broken)[0])
            self._wrong(row, PAGE, int(places[index]), f"entry {index} of its page list does not go on from the one "
                        "before")
        elif int(last[-1]) != label and UNKNOWN not in (int(last[-1]), label):
            self._wrong(row, STATE, row.working, f"at depth {depth} its state is not that of its pages")

    def _unwritten(self, row: _Row, places: Int32, full: int, rest: int) -> None:
        for index, place in enumerate(places.tolist()):
            need = self.space.span if index < full else rest
            filled = int(self.mirror.filled[place])
            if filled < need:
                poison = bool((self.mirror.labels[place, filled:need] == POISON).any())
                self.expander.missing(self.step, PHASE, row.name, PAGE, place, poison, f"rows {filled}..{need - 1}")

    def _write_pages(self, row: _Row, label: int, labels: list[int]) -> None:
        if not labels:
            return
        mirror, span, tenant = self.mirror, self.space.span, row.tenant
        position, end = row.depth, min(row.depth + len(labels), len(row.places) * span)
        origin = Origin(self.step, PHASE, f"row {row.number} of lane {tenant.lane}")
        head = label
        while position < end:
            index, low = divmod(position, span)
            high = min(span, low + end - position)
            place = int(row.places[index])
            part = labels[position - row.depth : position - row.depth + high - low]
            if place > 0:
                dead = mirror.head[place] == POISON and mirror.high[place] == span and mirror.writer[place] == 0
                if not dead and mirror.writer[place] != tenant.key and low < mirror.high[place] and high - low < span:
                    self._race("two_writers", mirror.origin[PAGE].get(place, "nobody"), row.name,
                               self.space.describe(*self.space.rows(place, low, high)), "a hand-out of the page")
                mirror.write_rows(place, low, head, part, tenant.key, origin)
                beyond = mirror.labels[place, high : int(mirror.high[place])]
                if len(beyond) and int(beyond.min()) == POISON:
                    self.expander.missing(self.step, PHASE, row.name, PAGE, place, True, f"rows {high}.. (read whole)")
            head = part[-1]
            position += high - low

    # -- fold

    def _fold_command(self, row: _Row) -> Command:
        space = self.space
        written = [(at.LANES + row.tenant.lane, at.LANES + row.tenant.lane + 1)]
        if row.working != NOWHERE:
            written.append(space.of(STATE, row.working))
        written += [space.of(STATE, place) for _, place in row.targets if place != row.working]
        return Command(FORWARD, f"{row.name}: fold", ranges([(at.RECORDS + row.number, at.RECORDS + row.number + 1)]),
                       ranges(written), phase=(self.step, "fold"), step=self.step,
                       working=space.of(STATE, row.working)[0] if row.working != NOWHERE else -1)

    def _fold(self, row: _Row) -> None:
        """The accepted prefix goes into the state, and the snapshot whose depth it reaches."""
        tenant, mirror, plan = row.tenant, self.mirror, self.plan
        given: list[int | None] = plan.tokens[self.offsets[row.number] : self.offsets[row.number + 1]].tolist()
        count = len(row.accepted)
        if row.working == NOWHERE or not count:
            return
        label = int(mirror.state[row.working])
        label = tenant.seed if label == ZERO else UNKNOWN if label == POISON else label
        labels = chain(label, [tenant.last, *given][:count])
        origin = Origin(self.step, "fold", f"row {row.number} of lane {tenant.lane}")
        for depth, place in row.targets:
            if row.depth < depth <= row.depth + count:
                mirror.write_state(place, labels[depth - row.depth - 1], origin)
        mirror.write_state(row.working, labels[-1], origin)
        tenant.depth = row.depth + count

    def _close(self) -> None:
        """Last tokens and done flags, as the result has them."""
        done = self.result.done.tolist() if self.result is not None and len(self.result.done) == self.plan.rows else []
        for row in self.rows:
            if row.accepted:
                row.tenant.last = row.accepted[-1]
            if done:
                row.tenant.done = bool(done[row.number])

    def _wrong(self, row: _Row, kind: int, place: int, why: str) -> None:
        origin = self.mirror.origin[kind].get(place, "nobody")
        where = self.space.describe(*self.space.of(kind, place)) if place != NOWHERE else "no place"
        self._race("wrong_prefix", origin, f"{row.name} {why}", where, "the bytes of the row's own prefix")

    def _race(self, kind: str, first: object, second: object, place: str, edge: str) -> None:
        self.expander.race(self.step, kind, first, second, place, edge)


