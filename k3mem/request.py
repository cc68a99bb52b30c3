"""What a caller asks for and what it gets back."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, overload

import msgspec
import numpy as np

from k3mem.errors import InvalidRequest
from k3mem.plan import Sampling
from k3mem.radix.kinds import Kind
from k3mem.types import Int32

RequestId = Hashable
HostStop = Callable[[Int32], "int | None"]
"""Called with a request's output tokens (a read-only view) at each commit; returns how many of them to keep, 0 to all,
when the request is to end (a stop string was found), else None. Only the host can see such a stop, so a row launched
meanwhile overruns. One that raises, or returns anything else, ends its request with reason `failed`; the request's
`end` event says why."""

MOST_PRIORITY = 1 << 62
"""Priorities stand in 64 bits."""

PLAIN = Sampling()


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """One request. `prompt` may be any integer sequence; it is converted to int32 once, here.

    Raises InvalidRequest for negative sizes, an empty prompt, offsets outside the prompt, or a field of a wrong type.
    The engine keeps a copy: what is assigned after `submit` changes nothing.
    """

    id: RequestId
    prompt: Int32
    max_new_tokens: int
    sampling: Sampling = PLAIN
    stop: HostStop | None = None
    priority: int = 0
    """Higher goes first and is retracted last."""
    deadline: float | None = None
    """Absolute time on the engine's clock, seconds; past it the request ends with reason `deadline`."""
    session: Hashable = None
    parent_session: Hashable = None
    salt: str | bytes = ""
    """Tenants with different salts share nothing."""
    adapter: str = ""
    adapter_version: str = ""
    turn_starts: Sequence[int] = ()
    """Prompt offsets where turns start: anchors for checkpoints."""
    hints: Sequence[int] = ()
    """Further offsets that the caller expects to fork at."""
    media: Sequence[tuple[int, int, bytes]] = ()
    """(first position, tokens, digest) of media placeholders: the digest stands there in the cache's key."""

    def __init__(self, id: RequestId, prompt: Sequence[int] | Int32, max_new_tokens: int, *,
                 sampling: Sampling = PLAIN, stop: HostStop | None = None, priority: int = 0,
                 deadline: float | None = None, session: Hashable = None, parent_session: Hashable = None,
                 salt: str | bytes = "", adapter: str = "", adapter_version: str = "", turn_starts: Sequence[int] = (),
                 hints: Sequence[int] = (), media: Sequence[tuple[int, int, bytes]] = (), **unknown: Any) -> None:
        who = f"request {id!r}"
        if unknown:
            raise InvalidRequest(f"{who}: unknown option {sorted(unknown)[0]!r}; known: {sorted(_OPTIONS)}")
        self.id, self.prompt = id, as_tokens(prompt, who)
        self.sampling, self.stop, self.session, self.parent_session = sampling, stop, session, parent_session
        self.salt, self.adapter, self.adapter_version = salt, adapter, adapter_version
        self.max_new_tokens = _whole(max_new_tokens, f"{who}: max_new_tokens")
        if self.max_new_tokens < 1:
            raise InvalidRequest(f"{who}: max_new_tokens must be an integer >= 1, got {max_new_tokens!r}")
        self.priority = _whole(priority, f"{who}: priority")
        if abs(self.priority) >= MOST_PRIORITY:
            raise InvalidRequest(f"{who}: priority must lie within +-{MOST_PRIORITY - 1}, got {self.priority}")
        self.deadline = None if deadline is None else _moment(deadline, who)
        _hashable(self, who)
        if not (type(salt) is type(adapter) is type(adapter_version) is str) or salt or adapter or adapter_version:
            _scope_parts(self, who)
        if not isinstance(sampling, Sampling):
            raise InvalidRequest(f"{who}: sampling must be a k3mem.Sampling, got {type(sampling).__name__}")
        if stop is not None and not callable(stop):
            raise InvalidRequest(f"{who}: stop must be a function of the output tokens; stop ids go into Sampling")
        most = len(self.prompt)
        self.turn_starts = _offsets(turn_starts, most, f"{who}: turn_starts")
        self.hints = _offsets(hints, most, f"{who}: hints")
        self.media = _media(media, most, who)

    def copy(self) -> Request:
        """Another one like it, checked again: fields may have been assigned since. The prompt's array is shared.
        Raises InvalidRequest."""
        return Request(
            self.id, self.prompt, self.max_new_tokens, sampling=self.sampling, stop=self.stop, priority=self.priority,
            deadline=self.deadline, session=self.session, parent_session=self.parent_session, salt=self.salt,
            adapter=self.adapter, adapter_version=self.adapter_version, turn_starts=self.turn_starts, hints=self.hints,
            media=self.media)

    @property
    def scope(self) -> tuple[str | bytes, str, str]:
        """The key scope: requests of different scopes never share a page or a state."""
        return (self.salt, self.adapter, self.adapter_version)


_OPTIONS = ("sampling", "stop", "priority", "deadline", "session", "parent_session", "salt", "adapter",
            "adapter_version", "turn_starts", "hints", "media")


def _whole(value: Any, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidRequest(f"{what} must be an integer, got {value!r}") from None


def _moment(value: Any, who: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, (int, float, np.integer, np.floating)) and not math.isnan(value):
        return float(value)
    raise InvalidRequest(f"{who}: deadline must be a time on the engine's clock in seconds, or None, got {value!r}")


def _hashable(request: Request, who: str) -> None:
    try:
        hash((request.id, request.session, request.parent_session))
    except TypeError:
        for name in ("id", "session", "parent_session"):
            try:
                hash(getattr(request, name))
            except TypeError:
                raise InvalidRequest(f"{who}: {name} must be hashable (a string, a number, a tuple of them)") from None


def _scope_parts(request: Request, who: str) -> None:
    salt, names = request.salt, (request.adapter, request.adapter_version)
    if not isinstance(salt, (str, bytes)) or not all(isinstance(name, str) for name in names):
        raise InvalidRequest(f"{who}: salt must be str or bytes, adapter and adapter_version str")
    for part in (salt, *names):
        try:
            _ = part.encode() if isinstance(part, str) else part
        except UnicodeEncodeError:
            raise InvalidRequest(f"{who}: {part!r} has no UTF-8 form; give a salt like that as bytes") from None


def _offsets(values: Any, most: int, what: str) -> tuple[int, ...]:
    if type(values) is tuple and not values:
        return ()
    try:
        out = tuple(operator.index(x) for x in values)
    except TypeError:
        raise InvalidRequest(f"{what} must be a sequence of integers, got {values!r}") from None
    if any(not 0 <= x <= most for x in out):
        raise InvalidRequest(f"{what} must lie in 0..{most}, got {out}")
    return out


def _media(values: Any, most: int, who: str) -> tuple[tuple[int, int, bytes], ...]:
    if type(values) is tuple and not values:
        return ()
    out = []
    try:
        for first, count, digest in values:
            out.append((operator.index(first), operator.index(count), digest))
    except (TypeError, ValueError):
        raise InvalidRequest(f"{who}: media are (first position, tokens, digest) each, got {values!r}") from None
    for first, count, digest in out:
        if not isinstance(digest, bytes):
            raise InvalidRequest(f"{who}: a media digest must be bytes, got {type(digest).__name__}")
        if first < 0 or count < 1 or first + count > most:
            raise InvalidRequest(f"{who}: media at {first}+{count} lies outside the prompt")
    return tuple(out)


def as_tokens(tokens: Sequence[int] | Int32, who: str) -> Int32:
    """A private-safe contiguous int32 view or copy of `tokens`. O(n). Raises InvalidRequest naming `who`."""
    if isinstance(tokens, np.ndarray) and tokens.dtype == np.int32 and tokens.ndim == 1 and tokens.size:
        return np.ascontiguousarray(tokens)
    try:
        array = np.asarray(tokens)
        if array.size and array.dtype.kind not in "iu":
            raise TypeError(f"dtype {array.dtype}")
        if array.ndim != 1:
            raise TypeError(f"{array.ndim} dimensions")
        if not array.size:
            raise InvalidRequest(f"{who}: the prompt is empty; give at least one token")
        if array.dtype != np.int32:
            if int(array.min()) < -(2**31) or int(array.max()) >= 2**31:
                raise InvalidRequest(f"{who}: token ids must fit int32")
            array = array.astype(np.int32)
    except (TypeError, ValueError, OverflowError) as e:
        if isinstance(e, InvalidRequest):
            raise
        raise InvalidRequest(f"{who}: a prompt is a flat sequence of integers ({e})") from None
    return np.ascontiguousarray(array)


class Output(msgspec.Struct, frozen=True, gc=False):
    """New tokens of one request, or its end."""

    id: Any
    tokens: list[int]
    """Tokens committed by one step, stop id included."""
    finished: bool = False
    reason: str | None = None
    """`stop`, `length`, `host_stop`, `abort`, `deadline` or `failed` (the executor, or the request's own stop function)
    when finished."""
    keep: int | None = None
    """With `host_stop`: how many of *all* output tokens the caller's stop function kept."""
    first_time: float | None = None
    """When the first and ..."""
    last_time: float | None = None
    """... the last of `tokens` were there, on the executor's clock; None where it keeps none."""


class Outputs(Sequence[Output]):
    """Outputs of one commit, in order of its rows: a sequence like a list, whose items are made when somebody looks at
    them. Whoever wants arrays takes `rows()`.

    len() is O(rows) once; iteration makes all items once, O(rows + tokens).
    """

    __slots__ = ("_accepted", "_ends", "_ids", "_items", "_own", "_times", "_tokens")

    def __init__(self, ends: list[Output], ids: Any, accepted: Int32, tokens: Int32, times: list[float]) -> None:
        """Of rows with these ids [n], of which row i got accepted[i] of the tokens; after outputs that no row brought.
        `times`: end of each token's step, or none."""
        self._ends, self._ids, self._accepted, self._tokens, self._times = ends, ids, accepted, tokens, times
        self._own: dict[int, Output | None] = {}
        self._items: list[Output] | None = None

    def put(self, row: int, out: Output | None) -> None:
        """What came of a row is this, or nothing. For whoever makes the outputs."""
        self._own[row] = out

    def rows(self) -> OutputRows:
        """The same as arrays. O(1)."""
        return OutputRows(self._ends, self._ids, self._accepted, self._tokens, self._own, self._times)

    def _made(self) -> list[Output]:
        if self._items is None:
            self._items = self._make()
        return self._items

    def _make(self) -> list[Output]:
        out, own, times, tokens = list(self._ends), self._own, self._times, self._tokens.tolist()
        first = times[0] if times else None
        end = 0
        for row, (id, count) in enumerate(zip(self._ids.tolist(), self._accepted.tolist(), strict=True)):
            if not count:
                continue
            start, end = end, end + count
            if row in own:
                one = own[row]
                if one is not None:
                    out.append(one)
            else:
                last = times[min(count, len(times)) - 1] if times else None
                out.append(Output(id, tokens[start:end], False, None, None, first, last))
        return out

    def __len__(self) -> int:
        if self._items is not None:
            return len(self._items)
        return len(self._ends) + int(np.count_nonzero(self._accepted)) - sum(o is None for o in self._own.values())

    def __iter__(self) -> Iterator[Output]:
        return iter(self._made())

    @overload
    def __getitem__(self, index: int) -> Output: ...

    @overload
    def __getitem__(self, index: slice) -> list[Output]: ...

    def __getitem__(self, index: int | slice) -> Output | list[Output]:
        return self._made()[index]

    def __eq__(self, other: object) -> bool:
        return self._made() == (other._made() if isinstance(other, Outputs) else other)

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Iterable[Output]) -> list[Output]:
        return [*self._made(), *other]

    def __radd__(self, other: Iterable[Output]) -> list[Output]:
        return [*other, *self._made()]

    def __repr__(self) -> str:
        return repr(self._made())


class OutputRows(NamedTuple):
    """Outputs of one commit as arrays; what is in `ends` and `own` stands in no other field twice."""

    ends: list[Output]
    """Before all rows: ends that no row brought."""
    ids: Any
    """[n] request of each row (an object array)."""
    accepted: Int32
    """[n] tokens of each row; 0: no output."""
    tokens: Int32
    """[sum(accepted)] row after row."""
    own: dict[int, Output | None]
    """Row -> its output, where its request ended or had to be asked; None: its tokens are nobody's any more. All other
    rows with tokens go on."""
    times: list[float]
    """Token i of a row was there at times[min(i, len(times) - 1)]; empty where the executor keeps no clock."""


class Hit(msgspec.Struct, frozen=True):
    """What the cache gave a request at its first admission. All in tokens; hit + sum(causes) == input."""

    input: int
    hit: int
    """Resume depth: the depth of the checkpoint that it starts from."""
    kv_match: int
    """Leading tokens whose KV was there."""
    known: int
    """Leading tokens on any path ever seen and still remembered."""
    kind: int = -1
    """`k3mem.radix.Kind` of the checkpoint consumed, -1 for none."""
    causes: dict[str, int] = field(default_factory=dict)
    evicted: int = 0
    """Deepest depth on its path at which a checkpoint stood once, and was evicted; 0: none."""

    @property
    def kind_name(self) -> str:
        """`answer_end`, `branch` and so on, as in `stats()["created"]`; `none` without a hit."""
        return Kind(self.kind).name.lower() if self.kind >= 0 else "none"

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={getattr(self, name)!r}" for name in ("input", "hit", "kv_match", "known"))
        return f"Hit({facts}, kind={self.kind} ({self.kind_name}), causes={self.causes!r})"
