"""Scripts: a world's configuration and what its clients and faults did, as data that replays exactly.

Actions name requests by number and prompts by reference to earlier requests, so that any part of a script is a script:
an action that makes no sense where it stands does nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from k3mem.errors import Effect
from k3mem.fuzz.evictions import Name
from k3mem.policy import SessionAdmission

Capture = Literal["any", "grid", "final"]


class Config(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The header: shape, arena, policy and executor of a world. Sizes in pages and states beside the sinks."""

    seed: int = 0
    """Of the executor's free choices and of the drafter."""
    page_tokens: int = 16
    state_chunk: int = 16
    state_bytes: int = 640
    token_bytes: int = 8
    states: int = 12
    pages: int = 60
    budget: int = 48
    """Tokens a step."""
    running: int = 6
    """Lanes."""
    in_flight: int = 1
    split: bool = False
    """Two fixed pools of exactly `states` states and `pages` pages."""
    eager: bool = False
    move_pages: int = 0
    """Bytes a step may move, in pages; 0: no bound."""
    interval: int | None = None
    fork_depths: int | None = None
    path_cap: int | None = None
    deterministic: bool = False
    chunk_ends: bool = True
    follow: bool = True
    caching: bool = True
    ghost_tokens: int | None = None
    window: int = 1
    draft_chance: float = 0.7
    """Chance of each drafted token to be right."""
    verify: int = 0
    """What the planner of windows is drawn from; 0: there is none, and whatever is drafted is verified."""
    capture: Capture = "any"
    shuffle: bool = True
    """Streams run as late as chance says; else at launch."""
    fast_forward: bool = False
    """One plan may stand for many decode steps, as many as chance says."""
    admission: SessionAdmission | None = None
    """How sessions are held back; None: not at all."""
    eviction: Name = "lru"
    """Whom the cache lets go."""
    told: bool = False
    """Clients say what they know of their sessions' next uses."""
    check_every: int = 1
    """Steps between two walks of all invariants; 0: only at the end."""
    audit_every: int = 16
    """Steps between two comparisons of the executor's memory with the tree; 0: only at the end."""
    race: bool = False
    """All plans are judged by the happens-before checker as they are launched."""
    alone: int = 0
    """Operations of the arena and of the tree, each alone against a slow model, after the world."""


class Submit(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A request. Its prompt: the first `take` tokens of request `base`'s line (prompt and the whole answer it must
    get), then `count` tokens of the text numbered `text`."""

    id: int
    base: int = -1
    take: int = 0
    text: int = 0
    count: int = 1
    new: int = 1
    salt: str = ""
    adapter: str = ""
    priority: int = 0
    temperature: float = 0.0
    seed: int = 0
    stop_ids: tuple[int, ...] = ()
    stop_at: int = 0
    """The host stops it after so many output tokens; 0: never."""
    hints: tuple[int, ...] = ()
    turns: tuple[int, ...] = ()
    """Offsets; those beyond the prompt are left out."""
    patience: float = 0.0
    """Seconds to its deadline; 0: none."""
    session: int = 0
    """0: none."""
    parent: int = 0
    """Session that its own is under; 0: none."""
    media: tuple[int, ...] = ()
    """(first, tokens, picture) of each placeholder, one after another; () for none."""


class Again(msgspec.Struct, frozen=True, tag=True):
    """An id that is in flight is submitted once more, which must be refused."""

    id: int


class TooLarge(msgspec.Struct, frozen=True, tag=True):
    """A request that no empty arena could hold, which must be refused."""

    tokens: int


class Abort(msgspec.Struct, frozen=True, tag=True):
    """A client gives up."""

    id: int


class Step(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """`Engine.step`, so many times; an open plan is launched first, a collected result committed."""

    count: int = 1


class Plan(msgspec.Struct, frozen=True, tag=True):
    """First half: the next plan, left open."""


class Launch(msgspec.Struct, frozen=True, tag=True):
    """The open plan goes to the executor."""


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """The open plan is dropped."""


class Collect(msgspec.Struct, frozen=True, tag=True):
    """The oldest step's result is fetched."""


class Commit(msgspec.Struct, frozen=True, tag=True):
    """The fetched result is booked (fetched first, if need be)."""


class Fail(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The next launched step will fail."""

    at: Literal["launch", "collect"] = "collect"
    effect: Effect = Effect.UNKNOWN
    rowless: bool = False
    """Instead the next one that seats somebody without a row."""
    moving: bool = False
    """Instead the next one that moves entries."""


class Clock(msgspec.Struct, frozen=True, tag=True):
    """Time passes."""

    seconds: float


class Pin(msgspec.Struct, frozen=True, tag=True):
    """A session is pinned."""

    session: int
    ttl: float


class Unpin(msgspec.Struct, frozen=True, tag=True):
    """A session is let go."""

    session: int


class EndSession(msgspec.Struct, frozen=True, tag=True):
    """A caller says that a session has ended, rightly or not."""

    session: int


class Hint(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A caller says what it knows of a session's next use, rightly or not."""

    session: int
    stop: Literal["", "tool", "end"] = ""
    returns_in: float = -1.0
    """Seconds; below 0: not said."""
    over: bool = False


class Flush(msgspec.Struct, frozen=True, tag=True):
    """All that is cached and unused goes. Not while a plan is open."""


class Resize(msgspec.Struct, frozen=True, tag=True):
    """Another capacity, after all flights; refused where a request in flight would not fit."""

    states: int
    pages: int


class Sleep(msgspec.Struct, frozen=True, tag=True):
    """Sleep, after all flights, and wake."""


class TooEarly(msgspec.Struct, frozen=True, tag=True):
    """What must be refused now: another plan or a flush while one is open, sleep or a resize while steps are in
    flight."""


class Lease(msgspec.Struct, frozen=True, tag=True):
    """A transfer starts to read the `nth` checkpoint with all its pages (modulo their number)."""

    nth: int


class Unlease(msgspec.Struct, frozen=True, tag=True):
    """The oldest transfer ends."""


class Probe(msgspec.Struct, frozen=True, tag=True):
    """What request `id`'s line would hit: must change nothing."""

    id: int


Action = (Submit | Again | TooLarge | Abort | Step | Plan | Launch | Cancel | Collect | Commit | Fail | Clock | Pin
          | Unpin | EndSession | Hint | Flush | Resize | Sleep | TooEarly | Lease | Unlease | Probe)


class Script(msgspec.Struct, frozen=True, omit_defaults=True):
    """A whole run. After the last action the world drains."""

    config: Config
    actions: list[Action] = []
    note: str = ""
    """What broke, and which test holds it."""
    mutant: str = ""
    """Planted bug under which the script fails; "" for a fault of the code as it was."""


def dump(script: Script) -> str:
    """JSON, one action a line."""
    head = {key: msgspec.to_builtins(getattr(script, key)) for key in ("note", "mutant", "config")}
    lines = ",\n  ".join(msgspec.json.encode(action).decode() for action in script.actions)
    fields = ",\n ".join(f"{msgspec.json.encode(k).decode()}: {msgspec.json.encode(v).decode()}"
                         for k, v in head.items() if v != "")
    return f"{{{fields},\n \"actions\": [\n  {lines}\n ]}}\n"


def load(path: Path) -> Script:
    """Read a script. Raises OSError, or ValueError naming the file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Script)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: not a script: {error}") from None
