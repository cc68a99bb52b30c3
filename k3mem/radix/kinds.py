"""Why a checkpoint was kept."""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """The anchor a checkpoint stands at; the tree's C core knows PROMPT_END and CHUNK_END by number."""

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
