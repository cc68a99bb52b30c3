"""A trace format of your own, replayed: say how a file is told and what its lines add, and the rest is there.

The format here: `session input output hash hash ...`, one request a line, 16 tokens a hash, sessions by name.
Run it: python examples/own_format.py TRACE
"""

from __future__ import annotations

import sys
from pathlib import Path

from k3mem.replay.arrival import run_arrival
from k3mem.replay.formats.base import Reject, Source
from k3mem.replay.formats.build import Builder
from k3mem.replay.options import ReplayOptions
from k3mem.replay.report import build
from k3mem.replay.trace import BadTrace, Trace
from k3mem.shape import Shape

BLOCK = 16


def load(path: Path, *, skip_bad: bool = False) -> Trace:
    """Raises BadTrace naming file, line and reason, unless bad lines are to be skipped."""
    source, builder = Source(path, skip_bad=skip_bad), Builder(BLOCK)
    for number, line in source.lines():
        try:
            session, *numbers = line.decode().split()
            input, output, *hashes = map(int, numbers)
            builder.add_list(session, 0, input, output, hashes)
        except (ValueError, Reject) as error:
            source.bad(number, str(error))
    return builder.finish(path.name, "hash lines", has_sessions=True, wall_clock=False, problems=source.problems)


def main(path: Path) -> None:
    shape = Shape.kimi_linear_48b(page_tokens=BLOCK)
    options = ReplayOptions(pool_bytes=8 * 10**9, page_tokens=BLOCK)
    report = build(run_arrival(load(path), shape, options, progress=lambda done, total: None))
    print(f"{report['requests']} requests, hit rate {report['hit_rate']:.1%}, misses {report['causes']}")


if __name__ == "__main__":
    wrong = f"usage: python {sys.argv[0]} TRACE"
    try:
        if len(sys.argv) == 2:
            sys.exit(main(Path(sys.argv[1])))
    except BadTrace as error:
        wrong = str(error)
    print(wrong, file=sys.stderr)
    sys.exit(2)
