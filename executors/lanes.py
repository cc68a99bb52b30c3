"""Lanes of the `sim` executor: who sits where, how deep, and which tokens come next. One row of int64 a lane.

Outputs are scripted (`Sampling.script`) or hashed. A hashed token depends on the key scope, the sampling parameters,
its position and the token before it: the same prompt gives the same output, whatever the cache or the batch did.
"""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from k3mem.native import ffi, lib
from k3mem.plan import Done, Plan, Seat
from k3mem.types import Bool, Float64, Int32, Int64, UInt8

UInt64 = npt.NDArray[np.uint64]

GENERATION, DEPTH, LAST, DONE, PROMPT, LIMIT, BASE, END, PLAIN_END = range(9)
"""Columns. BASE + p is the place in the pool of the script's token at position p, valid below END. PLAIN_END is END,
or -1 for a lane with stop ids: it must go token by token."""

INTS, BYTES, DOUBLES = (ffi.typeof(f"{name}[]") for name in ("int32_t", "uint8_t", "double"))
DTYPES = [*8 * [np.dtype(np.int32)], np.dtype(np.uint8), np.dtype(np.bool_)]
"""Of a plan's arrays, as C reads them."""
NOTHING = np.zeros(0, np.bool_)
view = ffi.from_buffer
EMPTY = -1
"""GENERATION of a lane without a tenant."""


class Lanes:
    """All lanes' device-side fields, and one pool that holds the seated tenants' scripts end to end."""

    def __init__(self, lanes: int, vocab: int) -> None:
        self.table: Int64 = np.zeros((lanes, 9), np.int64)
        self.stops: dict[int, frozenset[int]] = {}
        self._keys: UInt64 = np.zeros(lanes, np.uint64)
        self._vocab = np.uint64(vocab)
        self._used = 0
        self._scripts: dict[int, tuple[int, int]] = {}
        self._raw, self._rows, self._out = ffi.new("k3_sim *"), ffi.new("k3_sim_rows *"), ffi.new("k3_sim_out *")
        self._stamp: Int64 = np.zeros(lanes, np.int64)
        self._kept: list[Any] = [ffi.from_buffer(array) for array in (self.table, self._stamp, self._keys)]
        raw, (table, stamp, keys) = self._raw, self._kept
        raw.table, raw.stamp = ffi.cast("int64_t *", table), ffi.cast("int64_t *", stamp)
        raw.keys, raw.lanes, raw.vocab = ffi.cast("uint64_t *", keys), lanes, vocab
        self._hold(np.zeros(1024, np.int32))
        self.clear()

    def clear(self) -> None:
        """Every lane loses its tenant."""
        self.table[:] = 0
        self.table[:, GENERATION] = EMPTY
        self.stops.clear()
        self._scripts.clear()
        self._used = 0

    def seat(self, seat: Seat) -> None:
        """Reset a lane to a new tenant. O(script), amortised. Raises RuntimeError for a seat that cannot be."""
        if not 0 <= seat.lane < len(self.table):
            raise RuntimeError(f"seat: lane {seat.lane} is outside 0..{len(self.table) - 1}")
        if not seat.done and seat.last_token >= 0 and seat.depth < seat.prompt:
            raise RuntimeError(f"seat: lane {seat.lane} has a last token at depth {seat.depth}, inside its prompt of "
                               f"{seat.prompt}")
        script = seat.sampling.script or b""
        if len(script) % 4:
            raise RuntimeError(f"seat: lane {seat.lane}: a script of {len(script)} bytes is not int32")
        at = self._store(seat.lane, np.frombuffer(script, "<i4"))
        end = at + len(script) // 4
        stops = frozenset(seat.sampling.stop_ids)
        self.stops.pop(seat.lane, None)
        if stops:
            self.stops[seat.lane] = stops
        self.table[seat.lane] = (seat.generation, seat.depth, seat.last_token, seat.done, seat.prompt, seat.limit,
                                 at - seat.prompt, end, -1 if stops else end)
        s = seat.sampling
        self._keys[seat.lane] = _key(seat.scope, s.temperature, s.top_p, s.top_k, s.seed)

    def _store(self, lane: int, script: Int32) -> int:
        self._scripts.pop(lane, None)
        if self._used + len(script) > len(self._pool):
            self._repack(len(script))
        at = self._used
        self._pool[at : at + len(script)] = script
        self._used += len(script)
        self._scripts[lane] = (at, len(script))
        return at

    def _repack(self, extra: int) -> None:
        """Drop the scripts of past tenants. The pool is then at most half full, so this is O(1) a token stored."""
        need = extra + sum(length for _, length in self._scripts.values())
        pool = np.zeros(max(1024, 2 * need), np.int32)
        used = 0
        for lane, (at, length) in self._scripts.items():
            pool[used : used + length] = self._pool[at : at + length]
            self._scripts[lane] = (used, length)
            row = self.table[lane]
            row[BASE] += used - at
            row[END] += used - at
            row[PLAIN_END] = row[END] if row[PLAIN_END] >= 0 else -1
            used += length
        self._hold(pool)
        self._used = used

    def _hold(self, pool: Int32) -> None:
        self._pool: Int32 = pool
        self._pool_at = self._raw.pool = view(INTS, pool)

    def tokens(self, lane: Int32, rows: Int64, position: Int64, before: Int64) -> Int64:
        """Tokens sampled at `position` after token `before`, [n]; `rows` are these lanes' rows of the table."""
        place = rows[:, BASE] + position
        scripted = place < rows[:, END]
        if scripted.all():
            known: Int64 = self._pool[place].astype(np.int64)
            return known
        x = self._keys[lane] + position.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x ^= before.astype(np.uint64) * np.uint64(0xD6E8FEB86659FD93)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
        hashed = (x % self._vocab).astype(np.int64)
        return np.where(scripted, self._pool[np.where(scripted, place, 0)], hashed)

    def token(self, lane: int, position: int, before: int) -> int:
        """`tokens` of one lane."""
        at = np.array([lane])
        return int(self.tokens(at, self.table[at], np.array([position]), np.array([before]))[0])

    def ends(self, lane: int, token: int, committed: int) -> int:
        """`Done` of a lane that has just committed this token, `committed` tokens in all. A stop id comes first."""
        if token in self.stops.get(lane, ()):
            return int(Done.STOP)
        return int(Done.LENGTH) if committed >= self.table[lane, LIMIT] else int(Done.NO)

    def decode(self, lane: Int32, rows: Int64, k: int) -> tuple[Int64, Int32, UInt8]:
        """Run k DECODE steps of these lanes, whose rows of the table are `rows`, and store the outcome.

        Returns (accepted [n], tokens [sum(accepted)] row after row, done [n]). Vectorised over rows, and over k too
        where every token is scripted and no lane has stop ids.
        """
        count = budget(rows, k)
        first = rows[:, BASE] + rows[:, DEPTH] + 1
        if ((first + count <= rows[:, PLAIN_END]) | (count == 0)).all():
            if k == 1 and count.all():
                tokens = self._pool[first]
                rows[:, LAST] = tokens
            else:
                behind = np.cumsum(count)
                total = int(behind[-1])
                tokens = self._pool[np.arange(total) + np.repeat(first - behind + count, count)]
                ran = count > 0
                rows[ran, LAST] = tokens[behind[ran] - 1]
            rows[:, DEPTH] += count
            rows[:, DONE] = np.where((rows[:, DONE] == 0) & (rows[:, DEPTH] + 1 >= rows[:, LIMIT]), int(Done.LENGTH),
                                     rows[:, DONE])
        else:
            count, tokens = self._decode_by_column(lane, rows, k)
        self.table[lane] = rows
        return count, tokens, rows[:, DONE].astype(np.uint8)

    def run(self, plan: Plan, model: Any, start: float) -> Ran | None:
        """A whole plan that begins at `start`, in C, where every row is PREFILL or DECODE, fits its lane, and no lane
        has stop ids, and every snapshot can be taken; else None, with nothing changed. `model`: a `k3_sim_model`.
        O(rows x steps + tokens + moves)."""
        if (n := self._bind(plan)) < 0:
            return None
        raw, rows = self._raw, self._rows
        total = lib.k3_sim_judge(raw, model, rows)
        if total < 0:
            return None
        out, repeat = self._out, plan.repeat
        words, done, times = np.empty(n + total, np.int32), np.empty(n, np.uint8), np.empty(repeat)
        at, out.done, out.times = view(INTS, words), view(BYTES, done), view(DOUBLES, times)
        out.accepted, out.tokens, written = at, at + n, NOTHING
        if rows.n_snapshots:
            written = np.empty(rows.n_snapshots, np.bool_)
            out.written = view(BYTES, written)
        lib.k3_sim_run(raw, model, rows, start, out)
        return Ran(words[:n], words[n:], done, written, times)

    def ahead(self, plan: Plan, model: Any, start: float, earlier: list[float], now: float, until: float,
              limit: int) -> int | None:
        """`SimExecutor.fast_forward`'s answer, in C, for rows as in `run` and no snapshots; else None. `earlier`: when
        the first steps are planned. O(rows x answer)."""
        if len(plan.snapshots) or self._bind(plan) < 0 or lib.k3_sim_judge(self._raw, model, self._rows) < 0:
            return None
        planned = ffi.new(DOUBLES, earlier)
        return int(lib.k3_sim_ahead(self._raw, model, self._rows, start, planned, len(earlier), now, until, limit))

    def _bind(self, plan: Plan) -> int:
        """Show a plan, which lives on, to C. How many rows it has; -1 where its arrays are not what they should be.
        O(1)."""
        kind, lane, rows = plan.kind, plan.lane, self._rows
        generation, start, length, sample = plan.generation, plan.start, plan.length, plan.sample
        offset, tokens, moves, snapshots = plan.token_offset, plan.tokens, plan.moves, plan.snapshots
        n = len(kind)
        if [lane.dtype, generation.dtype, start.dtype, length.dtype, offset.dtype, tokens.dtype, moves.dtype,
                snapshots.dtype, kind.dtype, sample.dtype] != DTYPES:
            return -1
        if not len(lane) == len(generation) == len(start) == len(length) == len(offset) - 1 == len(sample) == n:
            return -1
        try:
            rows.lane, rows.generation, rows.start = view(INTS, lane), view(INTS, generation), view(INTS, start)
            rows.length, rows.offset, rows.tokens = view(INTS, length), view(INTS, offset), view(INTS, tokens)
            rows.kind, rows.sample = view(BYTES, kind), view(BYTES, sample)
            if len(moves):
                rows.moves = view(INTS, moves)
            if len(snapshots):
                rows.snapshots = view(INTS, snapshots)
        except ValueError:  # not contiguous
            return -1
        rows.n, rows.n_tokens, rows.repeat, rows.n_moves = n, len(tokens), plan.repeat, len(moves)
        rows.n_copies, rows.n_restores, rows.n_snapshots = len(plan.page_copies), len(plan.restores), len(snapshots)
        return n

    def _decode_by_column(self, lane: Int32, rows: Int64, k: int) -> tuple[Int64, Int32]:
        count = np.zeros(len(rows), np.int64)
        columns: list[Int64] = []
        rows[(rows[:, DONE] == 0) & (rows[:, DEPTH] + 1 >= rows[:, LIMIT]), DONE] = int(Done.LENGTH)
        watched = [(i, stop) for i, at in enumerate(lane.tolist()) if (stop := self.stops.get(at)) is not None]
        for _ in range(k):
            runs = rows[:, DONE] == 0
            if not runs.any():
                break
            token = self.tokens(lane, rows, rows[:, DEPTH] + 1, rows[:, LAST])
            columns.append(token)
            count += runs
            rows[:, DEPTH] += runs
            rows[runs, LAST] = token[runs]
            rows[runs & (rows[:, DEPTH] + 1 >= rows[:, LIMIT]), DONE] = int(Done.LENGTH)
            for i, stop in watched:
                if runs[i] and int(token[i]) in stop:
                    rows[i, DONE] = int(Done.STOP)
        if not columns:
            return count, np.zeros(0, np.int32)
        grid = np.stack(columns, axis=1)
        return count, grid[np.arange(len(columns)) < count[:, None]].astype(np.int32)


class Ran(NamedTuple):
    """What came of a plan, as in `Result`."""

    accepted: Int32
    tokens: Int32
    done: UInt8
    written: Bool
    times: Float64


@lru_cache(1024)
def _key(scope: bytes, temperature: float, top_p: float, top_k: int, seed: int) -> int:
    """What hashed tokens of such a tenant depend on beside their place."""
    salt = struct.pack("<ddqq", temperature, top_p, top_k, seed)
    return int.from_bytes(hashlib.blake2b(scope + salt, digest_size=8).digest(), "little")


def budget(rows: Int64, k: int) -> Int64:
    """Tokens that k DECODE steps commit in each of these rows if no stop id comes: none where the lane is done, else
    up to its limit."""
    count: Int64 = np.minimum(rows[:, LIMIT] - rows[:, DEPTH] - 1, k)
    np.maximum(count, 0, out=count)
    count[rows[:, DONE] != 0] = 0
    return count
