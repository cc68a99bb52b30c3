"""One step as data: what the scheduler decided, and what came back.

A `Plan` holds plain arrays, so it can be serialised, broadcast to ranks, logged beside its `Result` and checked
without running it. An executor carries its phases out in the order of the fields below, on one stream:

    moves -> table updates -> zeroing -> page copies -> restores
          -> forward over rows (PREFILL with interior snapshots, DECODE with its snapshot, VERIFY)
          -> sample / accept -> fold (VERIFY rows, with its conditional snapshot) -> draft

Ids are virtual; only moves name physical places. What a plan cannot know of a step still in flight (last token,
position, done flag) it names by lane, and the executor resolves it on the device.
"""

from __future__ import annotations

from dataclasses import Field, fields, make_dataclass
from enum import IntEnum
from typing import Any, ClassVar

import msgspec
import numpy as np

from k3mem.types import Bool, Float64, Int32, UInt8

PAGE, STATE = 0, 1
"""Kinds of arena entries, as they stand in `Plan.moves`."""


class Row(IntEnum):
    """What a row of a plan computes."""

    PREFILL = 0
    """Absorb `length` given tokens from `start` on, the working state in place."""
    DECODE = 1
    """Absorb the lane's last token, sample the next one."""
    VERIFY = 2
    """Absorb the lane's last token and as many drafts as turn out right (`length` = 1 + drafts)."""


class Done(IntEnum):
    """Why the device ended a lane."""

    NO = 0
    STOP = 1
    """A stop id was sampled (it is the last committed token)."""
    LENGTH = 2
    """The lane's `limit` is reached."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling parameters, passed through to the executor."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    """Offset n of a sequence draws from the generator (seed, n), whatever the batch or the cache did."""
    stop_ids: tuple[int, ...] = ()
    script: bytes | None = None
    """int32 tokens (little endian) to return in place of sampled ones: output token i is script[i]. How replay
    fixes outputs on the `sim` executor."""


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """A lane's new tenant. Everything that the device keeps for the lane is reset to this."""

    lane: int
    generation: int
    """Changes with every tenant of the lane; results are keyed by (lane, generation)."""
    scope: bytes
    """Digest of the key scope (salt, adapter, versions): two scopes never share a hash."""
    state: int
    """StateId of the working state; constant while the tenant stays."""
    depth: int
    """Absorbed depth when the seat is taken: tokens that the working state contains after this plan's restores."""
    prompt: int
    """Prompt length of the request as the *caller* gave it, tokens: sampling offset of the token at position p is
    p - prompt, also after a retraction."""
    limit: int
    """Committed depth at which the device ends the lane (prompt + max_new_tokens)."""
    last_token: int = -1
    """The newest sampled, not yet absorbed token (position `depth`), or -1 while the prompt is not absorbed."""
    done: int = 0
    """Done flag to start with (a resync may re-seat a lane that has ended)."""
    sampling: Sampling = Sampling()


def _none(shape: tuple[int, ...], dtype: type[np.generic]) -> Any:
    """A field that is an empty array unless given: one read-only array for all plans."""
    empty = np.zeros(shape, dtype)
    empty.flags.writeable = False
    return empty


def _i32(*shape: int) -> Any:
    return _none(shape, np.int32)


class Plan(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Everything one step does. Arrays are int32 unless said otherwise; an empty phase is an empty array."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    step: int
    """Number of this step, from 1, without gaps over launched steps; the stamp of all it writes."""
    repeat: int = 1
    """This plan stands for `repeat` identical DECODE steps (fast-forward); steps step .. step + repeat - 1."""
    resync: bool = False
    """The tables and seats below are whole: forget every lane, page list and table entry held before."""

    # -- moves
    moves: Int32 = _i32(0, 4)
    """[n, 4] (batch, kind, source place, destination place). Batches run in order; within a batch all byte ranges
    are pairwise disjoint. Sources are places as they stood before this plan's table updates."""

    # -- table updates
    page_table: Int32 = _i32(0, 2)
    """[n, 2] (page id, place)."""
    state_table: Int32 = _i32(0, 2)
    """[n, 2] (state id, place)."""
    seats: tuple[Seat, ...] = ()
    lane_pages: Int32 = _i32(0, 3)
    """[n, 3] (lane, index, page id): entry `index` of the lane's page list; position p lies in entry p // page_span."""

    # -- zeroing, copies, restores (by id, resolved through the updated tables)
    zero_pages: Int32 = _i32(0)
    zero_states: Int32 = _i32(0)
    page_copies: Int32 = _i32(0, 3)
    """[n, 3] (source page, destination page, rows): copy rows 0 .. rows - 1; the rest of the destination is zero."""
    restores: Int32 = _i32(0, 2)
    """[n, 2] (checkpoint's state id, working state's id)."""

    # -- rows; at most one per lane. Structure of arrays, all of length n
    kind: UInt8 = _none((0,), np.uint8)
    lane: Int32 = _i32(0)
    generation: Int32 = _i32(0)
    start: Int32 = _i32(0)
    """Absorbed depth before the row: exact for PREFILL, worst case (deepest) for DECODE and VERIFY."""
    length: Int32 = _i32(0)
    """PREFILL: tokens to absorb, >= 1. DECODE: 1. VERIFY: window = 1 + drafts."""
    sample: Bool = _none((0,), np.bool_)
    """PREFILL: this row ends the prompt, so its last position is sampled. DECODE and VERIFY: True."""
    token_offset: Int32 = _i32(1)
    """[n + 1] row i's tokens are tokens[token_offset[i] : token_offset[i + 1]]."""
    tokens: Int32 = _i32(0)
    """PREFILL: the tokens to absorb. VERIFY: the window's drafts (length - 1). DECODE: none."""

    # -- snapshots
    snapshots: Int32 = _i32(0, 3)
    """[n, 3] (row, depth, target state id), by row, then depth. PREFILL: start < depth <= start + length, always
    written. DECODE and VERIFY: written iff the row's absorbed depth reaches exactly or passes `depth` from below
    within this row; at most one per such row."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.kind)


class Result(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What came of a plan. Rows stand in the plan's order and are keyed by (lane, generation)."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    step: int
    lane: Int32
    generation: Int32
    accepted: Int32
    """[n] tokens that the row committed. PREFILL: 1 if it samples, else 0. DECODE: 0 (lane was done) or 1, or up
    to `repeat`. VERIFY: 0 (lane was done) or 1 .. window: accepted drafts + 1 sampled. Clipped at stop ids, limit."""
    tokens: Int32
    """[sum(accepted)] the committed tokens, row after row."""
    done: UInt8
    """[n] `Done` of the lane after this row."""
    written: Bool
    """[snapshots] whether each snapshot of the plan was written."""
    times: Float64 = _none((0,), np.float64)
    """[repeat] end of each (sub-)step on the executor's clock, seconds; empty where the executor keeps no clock."""


for _class in (Plan, Result):  # `dataclasses.fields` and `replace` take them too
    _class.__dataclass_fields__ = {f.name: f for f in fields(make_dataclass("_", _class.__struct_fields__))}


def _enc(obj: Any) -> Any:
    if isinstance(obj, np.ndarray):
        return {"d": obj.dtype.str, "s": list(obj.shape), "b": np.ascontiguousarray(obj).tobytes()}
    if isinstance(obj, np.integer):
        return int(obj)
    raise TypeError(f"cannot serialise {type(obj).__name__} in a plan")


def _dec_array(obj: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.frombuffer(obj["b"], np.dtype(obj["d"])).reshape(obj["s"])


def to_bytes(item: Plan | Result) -> bytes:
    """msgpack of a plan or result. O(size)."""
    data = {f.name: getattr(item, f.name) for f in fields(item)}
    data["_"] = type(item).__name__
    return msgspec.msgpack.encode(data, enc_hook=_enc)


def from_bytes(data: bytes) -> Plan | Result:
    """Inverse of `to_bytes`. Raises msgspec.DecodeError or ValueError on anything else."""
    raw = msgspec.msgpack.decode(data)
    kind = raw.pop("_", None)
    if kind not in ("Plan", "Result"):
        raise ValueError("not a serialised plan or result")
    out: dict[str, Any] = {}
    for key, value in raw.items():
        if isinstance(value, dict) and "b" in value:
            out[key] = _dec_array(value)
        elif key == "seats":
            out[key] = tuple(msgspec.convert(seat, Seat) for seat in value)
        else:
            out[key] = value
    return Plan(**out) if kind == "Plan" else Result(**out)
