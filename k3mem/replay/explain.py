"""Which requests lost most, why, and what would have saved them. Pure functions over what the cache gave each request.

A request *loses* the tokens that it computes although they were known: all that it computes but `never_seen`, and what
it computes again after a retraction. Of its known tokens, h the hit, with a checkpoint once at e, and f the deepest
grid depth that it could have resumed at:

    0 ......... h ................ e ................ f ........... known
      hit          state gone, or      no checkpoint     off grid
                   KV gone             was there
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from k3mem.replay.options import BadOption
from k3mem.replay.trace import Trace, Turn
from k3mem.request import Hit
from k3mem.shape import Shape
from k3mem.units import format_size

if TYPE_CHECKING:
    from rich.table import Table

REASONS = ("kv_evicted", "state_evicted", "no_checkpoint", "off_grid", "other_scope", "last_token", "again")
"""Why a known token was computed, each by one of these. The first two: its checkpoint was evicted, with its KV or
without; `no_checkpoint`: none was ever there; `again`: computed before, by this request, and retracted. The others are
those of the report, where `no_state` is `state_evicted` and `no_checkpoint` together."""

Which = int | str
"""So many requests, those that lost most; or the one of this key."""


@dataclass(frozen=True, slots=True)
class Record:
    """What the cache gave one request. Tokens; seconds."""

    turn: Turn
    hit: Hit
    time: float | None
    """When it was sent: virtual time, or the trace's in arrival order, where it has one."""
    again: int = 0
    retractions: int = 0

    @property
    def recomputed(self) -> int:
        """Prompt tokens that it computed, once each."""
        return self.hit.input - self.hit.hit

    @property
    def lost(self) -> int:
        """What it need not have computed."""
        return self.recomputed - self.hit.causes.get("never_seen", 0) + self.again


def asked(which: Which | None, trace: Trace) -> Which | None:
    """The same, once it is known that the trace has it. Raises BadOption."""
    if isinstance(which, str) and all(turn.key != which for turn in trace.turns):
        some = f"; its first is {trace.turns[0].key!r}" if trace.turns else ""
        raise BadOption(f"no request {which!r} in {trace.name}{some}")
    return which


def reasons(record: Record) -> dict[str, int]:
    """Lost tokens by reason, most first; they add up to `record.lost`."""
    causes, hit = record.hit.causes, record.hit
    gone, none = causes.get("kv_evicted", 0), causes.get("no_state", 0)
    state = min(none, max(0, hit.evicted - hit.hit - gone))
    found = {**causes, "state_evicted": state, "no_checkpoint": none - state, "again": record.again}
    return dict(sorted(((reason, found[reason]) for reason in REASONS if found.get(reason)), key=lambda f: -f[1]))


def saved_by(record: Record, shape: Shape, grid: int) -> dict[str, Any] | None:
    """What would have saved the largest part of a loss: its reason, the depth of a checkpoint and the bytes to keep
    where that is the cure, and a sentence. None for a request that lost nothing."""
    why, hit = reasons(record), record.hit
    if not why:
        return None
    reason = next(iter(why))
    depth: int | None = min(hit.known, hit.input - 1) // grid * grid
    size: int | None = None
    if reason in ("kv_evicted", "state_evicted"):
        depth = min(hit.evicted, depth or 0)
        pages = -(-max(0, depth - hit.kv_match) // shape.page_span)
        size = shape.state_bytes + pages * shape.page_bytes
        text = f"{format_size(size)} more room: the checkpoint at {depth:,} was evicted"
    elif reason == "no_checkpoint":
        text = f"a checkpoint at {depth:,}: a hint or a turn start there, or intervals"
    elif reason == "last_token":
        text = "a checkpoint further up: the one at the prompt's very end serves longer prompts only"
    elif reason == "off_grid":
        text = f"a finer grid: checkpoints stand at multiples of {grid}, and at ends of answers"
    elif reason == "other_scope":
        depth, text = None, "the same salt and adapter as those who computed it"
    else:
        times = "once" if record.retractions == 1 else f"{record.retractions} times"
        depth, text = None, f"more room for those that run: it was retracted {times}"
    return {"reason": reason, "depth": depth, "bytes": size, "text": text}


def account(records: Sequence[Record], which: Which, shape: Shape, grid: int) -> dict[str, Any]:
    """The part `explain` of a report, JSON-ready: the requests asked for, worst first, and of all requests the lost
    tokens by reason. O(n log N)."""
    if isinstance(which, str):
        chosen = [record for record in records if record.turn.key == which]
    else:
        chosen = heapq.nsmallest(which, (r for r in records if r.lost), key=lambda r: (-r.lost, r.turn.index))
    return {"requests": [_line(record, shape, grid) for record in chosen], "lost_tokens": sum(r.lost for r in records),
            "summary": summary(records)}


def summary(records: Iterable[Record]) -> dict[str, dict[str, int]]:
    """Reason -> tokens lost for it, and requests that lost some; in the order of REASONS."""
    tokens, requests = Counter[str](), Counter[str]()
    for record in records:
        why = reasons(record)
        tokens.update(why)
        requests.update(why.keys())
    return {reason: {"tokens": tokens[reason], "requests": requests[reason]} for reason in REASONS}


def _line(record: Record, shape: Shape, grid: int) -> dict[str, Any]:
    hit, turn = record.hit, record.turn
    return {
        "request": turn.key, "index": turn.index, "time": record.time, "input": hit.input, "hit": hit.hit,
        "resumed_at": hit.kind_name, "kv_match": hit.kv_match, "known": hit.known, "recomputed": record.recomputed,
        "lost": record.lost, "again": record.again, "causes": dict(hit.causes), "reasons": reasons(record),
        "saved_by": saved_by(record, shape, grid),
    }


def table(part: Mapping[str, Any]) -> Table:
    """Of the part `explain` of a report the lost tokens by reason, as a rich table."""
    from rich.table import Table

    out = Table(title="Lost: known, and computed all the same", title_justify="left")
    for head in ("why", "tokens", "share", "requests"):
        out.add_column(head, justify="left" if head == "why" else "right")
    for reason, found in part["summary"].items():
        if found["tokens"]:
            share = found["tokens"] / part["lost_tokens"]
            out.add_row(reason.replace("_", " "), f"{found['tokens']:,}", f"{share:.1%}", f"{found['requests']:,}")
    return out


def lines(part: Mapping[str, Any]) -> list[str]:
    """Of the part `explain` of a report a line a request."""
    return [_sentence(one) for one in part["requests"]] or ["no request lost anything"]


def _sentence(one: Mapping[str, Any]) -> str:
    when = "" if one["time"] is None else f" at {one['time']:,.1f} s"
    said = f"{one['request']}{when}: hit {one['hit']:,} of {one['input']:,} tokens, lost {one['lost']:,}"
    if not one["reasons"]:
        return said
    why = ", ".join(f"{reason.replace('_', ' ')} {count:,}" for reason, count in one["reasons"].items())
    return f"{said} ({why}); would have helped: {one['saved_by']['text']}"
