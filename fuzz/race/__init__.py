"""The happens-before checker: which commands of a recorded run use the same bytes without the order they need.

`judge(file)` judges a recording of any executor; a `Judge` listens while a world runs (it is a `record.Sink`).
"""

from k3mem.fuzz.race.judge import Judge, judge
from k3mem.fuzz.race.order import Command
from k3mem.fuzz.race.report import BENIGN, KINDS, Race, Report
from k3mem.fuzz.race.space import Space

__all__ = ["BENIGN", "KINDS", "Command", "Judge", "Race", "Report", "Space", "judge"]
