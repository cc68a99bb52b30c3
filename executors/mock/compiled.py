"""The compiled device: the reference device's phases in C, an order of magnitude or two faster.

Same results, findings and free choices as `device.Device`. C says whether a plan by itself, or a prefix, may be wrong;
what is wrong with it the Python of the reference says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from k3mem.executor import Capabilities, Layout
from k3mem.executors.mock import model
from k3mem.executors.mock.checks import check_plan
from k3mem.executors.mock.dice import Dice
from k3mem.executors.mock.log import Log
from k3mem.executors.mock.notes import texts
from k3mem.executors.mock.views import MemoryView, TablesView
from k3mem.native import ffi, lib
from k3mem.plan import Done, Plan, Result, Seat
from k3mem.types import Int32

CAPTURES = {"any": 0, "grid": 1, "final": 2}
TABLES = [(name, f"n_{name}") for name in (
    "moves", "page_table", "state_table", "lane_pages", "zero_pages", "zero_states", "page_copies", "restores",
    "snapshots")]
"""Arrays of a plan other than its rows', and where their lengths stand."""
INT32, UINT8, BOOL = np.dtype(np.int32), np.dtype(np.uint8), np.dtype(np.bool_)
INTS, BYTES = ffi.typeof("int32_t[]"), ffi.typeof("uint8_t[]")
PLAN = ffi.typeof("k3_mock_plan *")

Phase = tuple[str, Callable[["CompiledRun"], None]]


def items(array: npt.NDArray[Any], dtype: np.dtype[Any] = INT32) -> Any:
    """Pointer to an array's items, which lives as long as it is kept; to those of a copy where the array is not
    plain."""
    if array.dtype is not dtype or not array.flags.c_contiguous:
        array = np.ascontiguousarray(array, dtype)
    return ffi.from_buffer(INTS if dtype is INT32 else BYTES, array)


class CompiledRun:
    """A launched plan."""

    __slots__ = ("_keep", "core", "plan")

    def __init__(self, device: Any, plan: Plan) -> None:
        self.plan = plan
        raw = ffi.new(PLAN)
        raw.step, raw.repeat, raw.resync = plan.step, plan.repeat, plan.resync
        keep = self._keep = [raw]
        for name, count in TABLES:
            array = getattr(plan, name)
            if len(array):
                keep.append(items(array))
                setattr(raw, name, keep[-1])
                setattr(raw, count, len(array))
        if plan.seats:
            raw.seats, raw.n_seats = self._seats(plan.seats), len(plan.seats)
        n = raw.n_rows = len(plan.kind)
        raw.n_offset, raw.n_tokens = len(plan.token_offset), len(plan.tokens)
        if not n == len(plan.lane) == len(plan.generation) == len(plan.start) == len(plan.length) == len(plan.sample):
            raise ValueError(f"step {plan.step}: the arrays of its rows differ in length")
        rows = (items(plan.lane), items(plan.generation), items(plan.start), items(plan.length),
                items(plan.token_offset), items(plan.tokens), items(plan.kind, UINT8), items(plan.sample, BOOL))
        raw.lane, raw.generation, raw.start, raw.length, raw.offset, raw.tokens, raw.kind, raw.sample = rows
        keep += rows
        core = lib.k3_mock_run_new(device, raw)
        if not core:
            raise MemoryError
        self.core = ffi.gc(core, lib.k3_mock_run_delete)

    def _kept(self, pointer: Any) -> Any:
        self._keep.append(pointer)
        return pointer

    def _seats(self, seats: Sequence[Seat]) -> Any:
        out = self._kept(ffi.new("k3_mock_seat[]", len(seats)))
        for raw, seat in zip(out, seats, strict=True):
            sampling = seat.sampling
            raw.lane, raw.generation, raw.state = seat.lane, seat.generation, seat.state
            raw.seed, raw.depth, raw.prompt, raw.limit = model.seed_of(seat.scope), seat.depth, seat.prompt, seat.limit
            raw.last_token, raw.done, raw.draw = seat.last_token, int(Done(seat.done)), model.draw_of(sampling)
            if sampling.script:
                raw.script, raw.n_script = self._kept(script_of(sampling.script)), len(sampling.script) // 4
            if sampling.stop_ids:
                raw.stops = self._kept(ffi.new("int64_t[]", sampling.stop_ids))
                raw.n_stops = len(sampling.stop_ids)
        return out

    def result(self) -> Result:
        plan = self.plan
        accepted, done = np.empty(plan.rows, np.int32), np.empty(plan.rows, np.uint8)
        tokens = np.empty(lib.k3_mock_run_tokens(self.core), np.int32)
        written = np.empty(len(plan.snapshots), np.bool_)
        lib.k3_mock_run_result(self.core, items(accepted), items(tokens), items(done, UINT8), items(written, BOOL))
        return Result(step=plan.step, lane=plan.lane.copy(), generation=plan.generation.copy(), accepted=accepted,
                      tokens=tokens, done=done, written=written)


def script_of(script: bytes) -> Any:
    """int32[] of a script's whole tokens, as the machine has them."""
    return ffi.new("int32_t[]", np.frombuffer(script, "<i4", len(script) // 4).tolist() or [0])


class CompiledDevice:
    """Memory, tables and lanes, and the phases of a plan. See `device.Device`."""

    def __init__(self, layout: Layout, log: Log, rng: Dice, capabilities: Capabilities, recurrent_groups: int,
                 kv_groups: int, read_all: bool, strict_handout: bool) -> None:
        shape = layout.shape
        self.layout, self.log, self.capabilities = layout, log, capabilities
        self.groups, self.kv_groups = recurrent_groups, kv_groups
        self.span, self.vocab_size = shape.page_span, shape.vocab_size
        config = ffi.new("k3_mock_config *", {
            "page_bytes": shape.page_bytes, "state_bytes": shape.state_bytes, "state_top": layout.state_top,
            "span": self.span, "vocab_size": shape.vocab_size, "page_ids": layout.page_ids,
            "state_ids": layout.state_ids, "lanes": layout.lanes, "groups": recurrent_groups, "kv_groups": kv_groups,
            "read_all": read_all, "strict_handout": strict_handout, "seed": rng.state,
        })
        core = lib.k3_mock_new(config)
        if not core:
            raise MemoryError
        self.core = ffi.gc(core, lib.k3_mock_delete)
        self._can = ffi.new("k3_mock_can *", {
            "capture": CAPTURES[capabilities.capture], "max_window": capabilities.max_window,
            "state_chunk": shape.state_chunk, "verify": capabilities.verify, "fast_forward": capabilities.fast_forward,
        })
        self.memory = MemoryView(self.core)
        self.tables = TablesView(self)
        self.update = partial(self._phase, lib.K3_PHASE_TABLES)
        self._moves: Phase = ("moves", partial(self._phase, lib.K3_PHASE_MOVES))
        self._zeroing: Phase = ("zeroing", partial(self._phase, lib.K3_PHASE_ZEROING))
        self._copies: Phase = ("page copies", partial(self._phase, lib.K3_PHASE_COPIES))
        self._restores: Phase = ("restores", partial(self._phase, lib.K3_PHASE_RESTORES))
        self._rows: Phase = ("rows", partial(self._phase, lib.K3_PHASE_ROWS))
        self._step: list[Phase] = [("forward", partial(self._phase, lib.K3_PHASE_FORWARD)),
                                   ("sample", partial(self._phase, lib.K3_PHASE_SAMPLE))]
        self._fold: Phase = ("fold", partial(self._phase, lib.K3_PHASE_FOLD))
        self._end: Phase = ("end", partial(self._phase, lib.K3_PHASE_END))

    def begin(self, plan: Plan) -> CompiledRun:
        """A run of a plan that is being launched. Raises ValueError if it has no well-formed rows."""
        return CompiledRun(self.core, plan)

    def preparation(self, run: CompiledRun) -> list[Phase]:
        """The first commands of a plan, in stream order: they leave the tables as the plan wants them."""
        out: list[Phase] = [("checks", self.check)]
        if len(run.plan.moves):
            out.append(self._moves)
        out.append(("tables", self.update))
        return out

    def work(self, run: CompiledRun) -> list[Phase]:
        """The commands after those, in stream order; phases that have nothing to do are left out."""
        plan = run.plan
        out: list[Phase] = []
        if len(plan.zero_pages) or len(plan.zero_states):
            out.append(self._zeroing)
        if len(plan.page_copies):
            out.append(self._copies)
        if len(plan.restores):
            out.append(self._restores)
        if len(plan.kind):
            out.append(self._rows)
            out += self._step * max(1, plan.repeat)
            if lib.k3_mock_run_verifies(run.core):
                out.append(self._fold)
        out.append(self._end)
        return out

    def check(self, run: CompiledRun) -> None:
        if lib.k3_mock_suspect(self.core, run.core, self._can):
            for phase, what in check_plan(run.plan, self.layout, self.memory, self.capabilities):
                self.log.phase = phase
                self.log.report(what)

    def _phase(self, phase: int, run: CompiledRun) -> None:
        found = lib.k3_mock_phase(self.core, run.core, phase)
        if found < 0:
            raise MemoryError
        if found and not self.log.muted:
            for what in texts(self.core, self._pages_of):
                self.log.report(what)

    def _pages_of(self, lane: int) -> Sequence[int]:
        tenant = self.tables.lanes[lane]
        return tenant.pages if tenant else []

    # -- the oracle

    def walk(self, scope: bytes) -> Any:
        """A sequence of this scope to audit with."""
        walk = lib.k3_walk_new(model.seed_of(scope), self.groups, self.kv_groups)
        if not walk:
            raise MemoryError
        return ffi.gc(walk, lib.k3_walk_delete)

    def holds(self, walk: Any, tokens: Int32, state: int, pages: Int32) -> bool:
        """Whether the memory holds a prefix as a fresh computation has it. O(tokens), hashes O(new to the walk)."""
        if lib.k3_walk_become(walk, items(tokens), len(tokens)):
            raise MemoryError
        return bool(lib.k3_walk_audit(walk, self.core, state, items(pages), len(pages)))
