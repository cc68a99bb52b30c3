"""Where the mock writes down what a plan did wrong."""

from __future__ import annotations


class Log:
    """Violations, each a line naming step, phase and what; in the order found.

    `muted` while commands of a step that is going to fail run: their effects are undefined anyway.
    """

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.step = 0
        self.phase = "attach"
        self.muted = False

    def report(self, what: str) -> None:
        if not self.muted:
            self.violations.append(f"step {self.step}: {self.phase}: {what}")
