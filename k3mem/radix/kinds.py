"""Why a checkpoint was kept, and what its owner says of its next use."""

from __future__ import annotations

import math
from enum import IntEnum


class Kind(IntEnum):
    """The anchor a checkpoint stands at; the tree's C core knows five of them by number."""

    PROMPT_END = 0
    """Largest grid depth strictly below a prompt's end."""
    BRANCH = 1
    """Where a prompt left a known path."""
    HINT = 2
    """A depth that the caller named."""
    TURN = 3
    """Start of a turn of a conversation."""
    CHUNK_END = 4
    """End of a prefill chunk that does not end its prompt."""
    INTERVAL = 5
    """Every N tokens of decode."""
    ANSWER_END = 6
    """The working state donated at the end of an answer; may lie inside a page."""
    RETRACT = 7
    """The working state of a retracted request."""


PASSED = (Kind.PROMPT_END, Kind.CHUNK_END, Kind.ANSWER_END, Kind.RETRACT)
"""Kinds that a deeper checkpoint of the same lineage supersedes."""


class Note(IntEnum):
    """What is known of a checkpoint's next use. The tree's C core knows RUNNING and OVER by number."""

    RUNNING = 0
    """Its request has not ended."""
    OVER = 1
    """Its session has ended: nobody is expected to come back."""
    TOOL = 2
    """The answer called a tool: the next turn follows when the tool has run."""
    END = 3
    """The answer ended its turn: a human speaks next, or nobody."""
    UNKNOWN = 4
    """The answer ended; nobody said why."""
    DUE = 8
    """A caller expects the next turn soon; DUE + k: in about 2**k seconds. k is 0 to `DUE_MOST`."""


DUE_MOST = 15


def due(seconds: float) -> int:
    """The note for a return expected in so many seconds, to a factor of two."""
    return int(Note.DUE) + min(DUE_MOST, max(0, round(math.log2(max(1.0, seconds)))))
