"""Lanes of the `sim` executor: who sits where, how deep, and which tokens come next. One row of int64 a lane.

Outputs are scripted (`Sampling.script`) or hashed. A hashed token depends on the key scope, the sampling parameters,
its position and the token before it: the same prompt gives the same output, whatever the cache or the batch did.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from k3mem.native import ffi, lib
from k3mem.plan import Done, Plan, Seat
from k3mem.types import Int32, Int64, UInt8

UInt64 = npt.NDArray[np.uint64]

GENERATION, DEPTH, LAST, DONE, PROMPT, LIMIT, BASE, END, PLAIN_END = range(9)
"""Columns. BASE + p is the place in the pool of the script's token at position p, valid below END. PLAIN_END is END,
or -1 for a lane with stop ids: it must go token by token."""

INTS, LONGS, BYTES = (ffi.typeof(f"{name}[]") for name in ("int32_t", "int64_t", "uint8_t"))
EMPTY = -1
"""GENERATION of a lane without a tenant."""


class Lanes:
    """All lanes' device-side fields, and one pool that holds the seated tenants' scripts end to end."""

    def __init__(self, lanes: int, vocab: int) -> None:
        self.table: Int64 = np.zeros((lanes, 9), np.int64)
        self.stops: dict[int, frozenset[int]] = {}
        self._keys: UInt64 = np.zeros(lanes, np.uint64)
        self._vocab = np.uint64(vocab)
        self._pool: Int32 = np.zeros(1024, np.int32)
        self._used = 0
        self._scripts: dict[int, tuple[int, int]] = {}
        self._raw, self._rows, self._work = ffi.new("k3_sim *"), ffi.new("k3_sim_rows *"), ffi.new("k3_sim_work *")
        self._stamp: Int64 = np.zeros(lanes, np.int64)
        self._kept: list[Any] = [ffi.from_buffer(array) for array in (self.table, self._stamp, self._keys)]
        raw, (table, stamp, keys) = self._raw, self._kept
        raw.table, raw.stamp = ffi.cast("int64_t *", table), ffi.cast("int64_t *", stamp)
        raw.keys, raw.lanes, raw.vocab = ffi.cast("uint64_t *", keys), lanes, vocab
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
        salt = struct.pack("<ddqq", s.temperature, s.top_p, s.top_k, s.seed)
        self._keys[seat.lane] = int.from_bytes(hashlib.blake2b(seat.scope + salt, digest_size=8).digest(), "little")

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
        self._pool, self._used = pool, used

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

    def run(self, plan: Plan) -> Ran | None:
        """All rows of a plan at once, in C, where every row is PREFILL or DECODE, fits its lane, and no lane has stop
        ids; else None, with nothing changed. O(rows + tokens)."""
        n = len(plan.kind)
        arrays = (plan.lane, plan.generation, plan.start, plan.length, plan.token_offset, plan.tokens)
        plain = [a.dtype == np.int32 and a.flags.c_contiguous for a in arrays]
        plain += [a.itemsize == 1 and a.flags.c_contiguous for a in (plan.kind, plan.sample)]
        if not all(plain) or [len(a) for a in (*arrays[:5], plan.sample)] != [n, n, n, n, n + 1, n]:
            return None
        raw, rows, work = self._raw, self._rows, self._work
        keep = [ffi.from_buffer(INTS, a) for a in arrays]
        rows.lane, rows.generation, rows.start, rows.length, rows.offset, rows.tokens = keep
        kind, sample = ffi.from_buffer(BYTES, plan.kind), ffi.from_buffer(BYTES, plan.sample)
        pool = ffi.from_buffer(INTS, self._pool)
        rows.kind, rows.sample, rows.n, rows.repeat, raw.pool = kind, sample, n, plan.repeat, pool
        rows.n_tokens = len(plan.tokens)
        total = lib.k3_sim_judge(raw, rows)
        if total < 0:
            return None
        accepted, tokens, done = np.empty(n, np.int32), np.empty(total, np.int32), np.empty(n, np.uint8)
        depths = np.empty((2, n), np.int64)
        at = ffi.from_buffer(LONGS, depths)
        lib.k3_sim_run(raw, rows, ffi.from_buffer(INTS, accepted), ffi.from_buffer(BYTES, done), at, at + n,
                       ffi.from_buffer(INTS, tokens), work)
        return Ran(accepted, tokens, done, depths[0], depths[1], work.prefill_tokens, work.prefill_context,
                   work.decode_rows, work.context_sum)

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
    """What rows brought and cost; see `SimExecutor`."""

    accepted: Int32
    tokens: Int32
    done: UInt8
    before: Int64
    after: Int64
    prefill_tokens: int
    prefill_context: int
    decode_rows: int
    context_sum: int


def budget(rows: Int64, k: int) -> Int64:
    """Tokens that k DECODE steps commit in each of these rows if no stop id comes: none where the lane is done, else
    up to its limit."""
    count: Int64 = np.minimum(rows[:, LIMIT] - rows[:, DEPTH] - 1, k)
    np.maximum(count, 0, out=count)
    count[rows[:, DONE] != 0] = 0
    return count
