"""Seats of running requests: the per-lane numbers that every step reads, as arrays. What a step does with all of them
at once is one pass in C (`native/lanes.h`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from k3mem.errors import Corrupted
from k3mem.native import ffi, lib
from k3mem.plan import Row
from k3mem.sched.job import COUNT, Rank, Seated
from k3mem.types import Bool, Int32, Int64, Lane, UInt8

INTS, BYTES = ffi.typeof("int32_t[]"), ffi.typeof("uint8_t[]")
LONGS, FLAG, PLAN = ffi.typeof("int64_t[]"), ffi.typeof("int *"), ffi.typeof("k3_plan_rows *")
KINDS = int(Row.PREFILL), int(Row.DECODE), int(Row.VERIFY)
ROWS, NEEDS, BOOKED = (ffi.typeof(f"k3_lane_{name} *") for name in ("rows", "needs", "booked"))


class Phase:
    """What a lane does. Plain ints: arrays of them are compared at every step."""

    FREE = int(lib.K3_LANE_FREE)
    PREFILL = int(lib.K3_LANE_PREFILL)
    DECODE = int(lib.K3_LANE_DECODE)
    DRAIN = int(lib.K3_LANE_DRAIN)
    """Gets no row any more; leaves when its last launched step commits."""


FREE, DRAIN = Phase.FREE, Phase.DRAIN


class Rows:
    """Decode and verify rows of a plan: `lane` [n]; `window` [n] tokens in each of `steps` steps, None: one each."""

    __slots__ = ("lane", "window", "steps", "raw", "_keep", "_all")

    def __init__(self, lane: Int32, window: Int32 | None = None, steps: int = 1) -> None:
        self.lane, self.window, self.steps = lane, window, steps
        raw = self.raw = ffi.new(ROWS)
        raw.n, raw.steps = len(lane), steps
        raw.lane = self._keep = ffi.from_buffer(INTS, lane)
        if window is not None:
            at = ffi.from_buffer(INTS, window)
            raw.window = at
            self._keep = self._keep, at

    def launched(self, lanes: Int32, sample: Bool) -> None:
        """The plan's rows, of which these are the first: their lanes, and whether they bring tokens."""
        raw = self.raw
        self._all = lanes, sample = ffi.from_buffer(INTS, lanes), ffi.from_buffer(BYTES, sample)
        raw.all, raw.sample, raw.n_all = lanes, sample, len(lanes)

    def __len__(self) -> int:
        return len(self.lane)

    def windows(self) -> Int32:
        """[n] tokens of each row in one step."""
        return np.ones(len(self.lane), np.int32) if self.window is None else self.window


class Ready(NamedTuple):
    """Lanes that may have a decode row."""

    lane: Int32
    start: Int32
    """Where their rows start."""
    covered: bool
    """One token more of each stays within pages that the lane has and writes to already."""


class Needs(NamedTuple):
    """What rows lack before they may run."""

    row: Int32
    """[short] rows whose pages do not reach, best ranks first ..."""
    need: Int32
    """... and how many pages each needs."""
    pages: int
    """All of `need`."""
    fresh: int
    """Pages that rows are the first to write to."""


class Booked(NamedTuple):
    """What a commit did."""

    loud: list[tuple[int, int]]
    """(row, where its tokens end) of rows with tokens that were left to the caller: the lane ends or drains, or its
    text is full."""
    quiet: int
    """Tokens of all other rows: booked."""
    overruns: int
    """Rows that sample and committed nothing."""


class Lanes:
    """Fixed number of seats. O(1) to take and leave; all arrays have one entry a lane."""

    def __init__(self, count: int, span: int) -> None:
        self.phase = np.zeros(count, np.int8)
        self.generation = np.zeros(count, np.int32)
        self.launched = np.zeros(count, np.int32)
        """Absorbed depth after all launched steps (deepest possible while a VERIFY row is in flight)."""
        self.inflight = np.zeros(count, np.int32)
        """Launched, uncommitted rows."""
        self.covered = np.zeros(count, np.int32)
        """Positions below this have a page."""
        self.touched = np.zeros(count, np.int32)
        """Pages below this index hold nothing of earlier tenants: zeroed, copied or written whole."""
        self.last_step = np.zeros(count, np.int64)
        """Last launched step with a row of the lane's tenant."""
        self.watched = np.zeros(count, np.bool_)
        """The tenant may end where the host cannot foresee it: stop ids, or a stop of the caller's."""
        self.limit = np.zeros(count, np.int32)
        self.rank = np.zeros((count, 3), np.int64)
        """The tenant's rank, with what its followers lend it."""
        self.text = np.zeros((count, 3), np.int64)
        """(address, capacity, count) of the tenant's tokens: its job's `text`; all 0 for a free lane."""
        self.held = np.zeros((count, 3), np.int64)
        """The same of its page list."""
        self.ids = np.empty(count, object)
        """Request id of the tenant."""
        self.seats: list[Seated | None] = [None] * count
        self.stoppers: set[int] = set()
        """Lanes whose tenant has a stop function."""
        self._prompts: set[int] = set()
        """Lanes in phase PREFILL, or that were when anybody looked last."""
        self._free = list(range(count - 1, -1, -1))
        self.running = 0
        self._raw, self._keep = self._bind(span)
        self._needs, self._booked = ffi.new(NEEDS), ffi.new(BOOKED)
        words = np.empty((2, count), np.int32)
        self._scratch = words[0], words[1], ffi.from_buffer(INTS, words)
        self._covered = ffi.new(FLAG)
        self._loud, self._plan = ffi.new(INTS, 2 * count), ffi.new(PLAN)

    def _bind(self, span: int) -> tuple[Any, list[Any]]:
        raw = ffi.new("k3_lanes *")
        raw.n, raw.span, keep = len(self.phase), span, []
        for name, kind in (("phase", "int8_t *"), ("watched", "uint8_t *"), ("generation", "int32_t *"),
                           ("launched", "int32_t *"), ("inflight", "int32_t *"), ("covered", "int32_t *"),
                           ("touched", "int32_t *"), ("limit", "int32_t *"), ("last_step", "int64_t *"),
                           ("rank", "k3_rank *"), ("text", "k3_list *"), ("held", "k3_list *")):
            keep.append(ffi.from_buffer(getattr(self, name)))
            setattr(raw, name, ffi.cast(kind, keep[-1]))
        return raw, keep

    def __len__(self) -> int:
        return len(self.seats)

    # -- tenants

    @property
    def has_free(self) -> bool:
        return bool(self._free)

    def take(self) -> Lane:
        """A free lane under a new generation."""
        lane = self._free.pop()
        self.generation[lane] += 1
        self.inflight[lane] = 0
        self.running += 1
        return Lane(lane)

    def sit(self, seat: Seated, launched: int, covered: int, touched: int) -> None:
        """A tenant whose prompt is absorbed up to `launched`. Where its tokens and its page list lie, and how long they
        are, the lane's tables say from now on."""
        lane, job = seat.lane, seat.job
        request = job.request
        self.seats[lane] = seat
        self.ids[lane] = request.id
        self.phase[lane] = Phase.PREFILL
        self._prompts.add(lane)
        self.launched[lane] = launched
        self.covered[lane] = covered
        self.touched[lane] = touched
        self.limit[lane] = job.limit
        self.last_step[lane] = 0
        self.rank[lane] = seat.rank
        self.text[lane] = job.text
        self.held[lane] = seat.held
        job.text, seat.held, seat.first = self.text[lane], self.held[lane], self.touched[lane : lane + 1]
        self.watched[lane] = request.stop is not None or bool(request.sampling.stop_ids)
        if request.stop is not None:
            self.stoppers.add(lane)

    def leave(self, lane: Lane) -> None:
        """Free a lane; its generation dies with the tenant."""
        seat = self.seats[lane]
        if self.phase[lane] == Phase.FREE and seat is None:
            raise Corrupted(f"lane {lane} was freed twice; report this with the engine's recent plans")
        if seat is not None:
            seat.job.text, seat.held, seat.first = seat.job.text.copy(), seat.held.copy(), seat.first.copy()
        self.text[lane] = self.held[lane] = 0
        self.seats[lane] = self.ids[lane] = None
        self.phase[lane] = Phase.FREE
        self.stoppers.discard(lane)
        self._free.append(lane)
        self.running -= 1

    def seat(self, lane: int) -> Seated:
        """The tenant of a lane that has one."""
        seat = self.seats[lane]
        if seat is None:
            raise Corrupted(f"lane {lane} has no tenant; report this with the engine's recent plans")
        return seat

    def prompts(self) -> list[Seated]:
        """Tenants whose prompts are being absorbed. O(those)."""
        if not self._prompts:
            return []
        phase = self.phase
        self._prompts = {lane for lane in self._prompts if phase[lane] == Phase.PREFILL}
        return [self.seat(lane) for lane in sorted(self._prompts)]

    def taken(self) -> list[Seated]:
        return [seat for seat in self.seats if seat is not None]

    def last(self) -> Seated | None:
        """The running tenant of the last rank: those that end do not count. O(lanes)."""
        return max((s for s in self.seats if s is not None and s.end is None), key=lambda s: s.rank, default=None)

    def lowest(self) -> int:
        """First word of that rank, a priority negated; the least integer where nobody runs. O(lanes)."""
        runs = (self.phase == Phase.PREFILL) | (self.phase == Phase.DECODE)
        return int(self.rank[:, 0].max(where=runs, initial=np.iinfo(np.int64).min))

    def lend(self, seat: Seated, rank: Rank | None) -> None:
        """A tenant counts as of this rank where that is better than its own; None: no longer."""
        seat.lent = rank
        self.rank[seat.lane] = seat.rank

    # -- all rows of a plan at once

    def ready(self, idle: bool) -> Ready:
        """Lanes that decode and may go on (`idle`: without a row in flight). O(lanes)."""
        n, (lane, start, at), covered = len(self.seats), self._scratch, self._covered
        n = lib.k3_lanes_ready(self._raw, idle, at, at + n, covered)
        return Ready(lane[:n].copy(), start[:n].copy(), bool(covered[0]))

    def rows(self, rows: Rows, starts: Int32, chunks: list[int]) -> tuple[Int32, UInt8, Bool]:
        """All rows of a plan: `rows` from `starts` on, and behind them prefill rows, four numbers each in `chunks`
        (lane, start, end, whether it samples). Returns [4, n] (lane, start, length, generation), [n] kinds, [n] whether
        they bring tokens. O(rows)."""
        n, raw, given = len(rows) + len(chunks) // 4, self._plan, ffi.new(INTS, chunks)
        words, kind, sample = np.empty((4, n), np.int32), np.empty(n, np.uint8), np.empty(n, np.bool_)
        raw.n, raw.lane, raw.window = len(rows), rows.raw.lane, rows.raw.window
        raw.start, raw.n_chunks, raw.chunks = ffi.from_buffer(INTS, starts), len(chunks) // 4, given
        lib.k3_lanes_rows(self._raw, raw, *KINDS, ffi.from_buffer(INTS, words), ffi.from_buffer(BYTES, kind),
                          ffi.from_buffer(BYTES, sample))
        return words, kind, sample

    def uniform(self, rows: Rows) -> int:
        """How many steps these rows may go on for, up to where the first of them ends, if they are one token each of
        all lanes that decode, nobody else runs, and none of them is watched; else 0. O(lanes)."""
        return int(lib.k3_lanes_uniform(self._raw, rows.raw, self.running))

    def deal(self, rows: Rows, needs: Needs, pages: Int32) -> Int32:
        """The pages that rows of several steps lack, in the order in which `give` takes them, when single steps would
        take them one by one: by the step that needs a page, then by rank. O(pages) for rows of a similar length."""
        dealt, n = np.empty(len(pages), np.int32), len(needs.row)
        lib.k3_lanes_deal(self._raw, rows.raw, ffi.from_buffer(INTS, needs.row), ffi.from_buffer(INTS, needs.need), n,
                          ffi.from_buffer(INTS, pages), ffi.new(LONGS, 2 * n), ffi.from_buffer(INTS, dealt))
        return dealt

    def survey(self, rows: Rows) -> Needs:
        """What rows lack. O(rows)."""
        out, needs = np.empty((2, len(rows)), np.int32), self._needs
        at = ffi.from_buffer(INTS, out)
        lib.k3_lanes_survey(self._raw, rows.raw, at, at + len(rows), needs)
        short = needs.n_short
        return Needs(out[0, :short], out[1, :short], needs.pages, needs.n_fresh)

    def give(self, rows: Rows, row: Int32, need: Int32, pages: Int32) -> None:
        """need[i] of the pages, in order, go to the lane of row[i]. O(pages)."""
        if lib.k3_lanes_give(self._raw, rows.raw, ffi.from_buffer(INTS, row), ffi.from_buffer(INTS, need), len(row),
                             ffi.from_buffer(INTS, pages)):
            raise Corrupted("lanes.held: a page list is longer than its request; report this with engine.stats()")

    def take_back(self, rows: Rows, row: Int32, need: Int32) -> None:
        """Undo `give`; the caller has the pages again."""
        lib.k3_lanes_take(self._raw, rows.raw, ffi.from_buffer(INTS, row), ffi.from_buffer(INTS, need), len(row))

    def touch(self, rows: Rows, fresh: int) -> tuple[Int32, Int32]:
        """Rows write to `fresh` pages for the first time: [fresh, 3] (lane, index, page), and the pages among them that
        must be zeroed. O(rows + fresh)."""
        out, zero = np.empty((fresh, 3), np.int32), np.empty(fresh, np.int32)
        n = lib.k3_lanes_touch(self._raw, rows.raw, ffi.from_buffer(INTS, out), ffi.from_buffer(INTS, zero))
        return out, zero[:n]

    def untouch(self, fresh: Int32) -> None:
        """Undo `touch`."""
        lib.k3_lanes_untouch(self._raw, ffi.from_buffer(INTS, fresh), len(fresh))

    def launch(self, rows: Rows, lanes: Int32, sample: Bool, step: int) -> bool:
        """A plan with rows on `lanes`, first of all these, is on the stream, its last step being `step`. `sample`: rows
        that bring tokens. Whether the commit of one of these may end its request: at its limit, or where only device
        or caller can tell. O(rows)."""
        rows.launched(lanes, sample)
        return bool(lib.k3_lanes_launch(self._raw, rows.raw, step))

    def judge(self, rows: Rows, accepted: Int32, done: UInt8, tokens: int, last_done: int) -> bool:
        """Whether these may be the counts of a launched plan's result with so many tokens. O(rows)."""
        return bool(lib.k3_lanes_judge(rows.raw, ffi.from_buffer(INTS, accepted), ffi.from_buffer(BYTES, done), tokens,
                                       last_done))

    def commit(self, rows: Rows, accepted: Int32, done: UInt8, tokens: Int32, last_done: int) -> Booked | None:
        """Book a launched plan's result: rows come down, tokens join their texts. `done`: 0 for lanes that go on. None,
        with nothing changed, where it fails `judge`. O(rows + tokens)."""
        loud, booked = self._loud, self._booked
        if not lib.k3_lanes_commit(self._raw, rows.raw, ffi.from_buffer(INTS, accepted), ffi.from_buffer(BYTES, done),
                                   ffi.from_buffer(INTS, tokens), len(tokens), last_done, loud, booked):
            return None
        n = booked.n_loud
        return Booked([(loud[i], loud[i + 1]) for i in range(0, 2 * n, 2)] if n else [], booked.quiet, booked.overruns)

    # -- checking

    def standing(self, tree: Any, stands: Int64, deepest: int) -> tuple[int, Int32]:
        """How many of these tenants, [n, 5] (lane, node, depth, owned pages, scope), from the first on, stand in the C
        tree where they say, and the locks on each one's node. O(tokens on their paths)."""
        scratch, locks = np.empty(deepest + 1, np.int32), np.zeros(len(stands), np.int32)
        n = lib.k3_lanes_stand(tree, self._raw, ffi.cast("k3_stand *", ffi.from_buffer(stands)), len(stands),
                               ffi.from_buffer(INTS, scratch), ffi.from_buffer(INTS, locks))
        return int(n), locks

    def check(self) -> None:
        """Every invariant of the table. Raises Corrupted. O(lanes)."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise Corrupted("lanes: a lane is free twice")
        words = zip(self.seats, self.phase.tolist(), self.inflight.tolist(), self.generation.tolist(),
                    self.ids.tolist(), self.text[:, :COUNT].tolist(), self.held[:, :COUNT].tolist(), strict=True)
        for lane, (seat, phase, inflight, generation, id, text, held) in enumerate(words):
            if (seat is None) != (lane in free) or (seat is None) != (phase == FREE):
                raise Corrupted(f"lanes: lane {lane} is both free and taken, or neither")
            if inflight < 0 or (seat is None and inflight):
                raise Corrupted(f"lanes.inflight[{lane}] = {inflight}")
            if seat is None:
                if text != [0, 0] or held != [0, 0]:
                    raise Corrupted(f"lanes.text[{lane}] = {text} and held = {held}, but the lane is free")
                continue
            job = seat.job
            if seat.lane != lane or seat.generation != generation or id is not job.request.id:
                raise Corrupted(f"lanes: the tenant of lane {lane}, {id!r}, believes to be ({seat.lane}, "
                                f"{seat.generation}), {job.request.id!r}")
            if text != [job.at, len(job.tokens)] or held != [seat.at, len(seat.pages)]:
                raise Corrupted(f"lanes.text[{lane}] = {text} and held = {held} are not the tenant's arrays")
        away = np.flatnonzero((self.launched > self.covered) & (self.phase != DRAIN) & (self.phase != FREE))
        if len(away):
            lane = int(away[0])
            raise Corrupted(f"lanes.launched[{lane}] = {self.launched[lane]} lies beyond its pages")
        prompts = set(np.flatnonzero(self.phase == Phase.PREFILL).tolist())
        if not prompts <= self._prompts:
            raise Corrupted(f"lanes: {sorted(prompts - self._prompts)} absorb prompts, and nobody knows")
        if self.running != len(self.seats) - len(free):
            raise Corrupted(f"lanes.running = {self.running}, but {len(self.seats) - len(free)} lanes are taken")


__all__ = ["Booked", "Lanes", "Needs", "Phase", "Ready", "Rows"]
