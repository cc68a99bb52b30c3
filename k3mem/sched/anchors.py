"""Which depths deserve a checkpoint, and which of them a row can capture."""

from __future__ import annotations

from k3mem.radix import Kind, Match
from k3mem.radix.depths import best_depths
from k3mem.sched.core import Core
from k3mem.sched.job import Job, Seated

PRIORITY = (Kind.PROMPT_END, Kind.BRANCH, Kind.HINT, Kind.TURN, Kind.CHUNK_END, Kind.INTERVAL)
"""Targets are taken in this order when states are short; the earlier kind also names a depth with two reasons."""
PLACE = {kind: place for place, kind in enumerate(PRIORITY)}


def planned(core: Core, job: Job, target: int, found: Match) -> dict[int, Kind]:
    """Depth -> kind of every anchor of a prompt of `target` tokens that resumes at `found.depth`. All on the grid,
    above the resume depth and below the prompt's end (its last token is computed, not cached)."""
    grid, policy, request = core.grid, core.policy, job.request
    depths: dict[int, Kind] = {}

    def add(depth: int, kind: Kind) -> None:
        depth = depth // grid * grid
        if found.depth < depth < target and (depth not in depths or kind < depths[depth]):
            depths[depth] = kind

    if policy.prompt_ends:
        add(target - 1, Kind.PROMPT_END)
    if policy.branches and found.known > found.depth:
        add(found.known, Kind.BRANCH)
    for depth in request.hints:
        add(depth, Kind.HINT)
    for depth in request.turn_starts:
        add(depth, Kind.TURN)
    start = found.depth
    if policy.fork_depths is not None and found.known > found.depth:
        start = found.known
        for depth in _fork_depths(core, job, found, policy.fork_depths):
            add(depth, Kind.BRANCH)
    if policy.interval is not None:
        step = -(-policy.interval // grid) * grid
        for depth in range((start // step + 1) * step, target, step):
            add(depth, Kind.INTERVAL)
    return depths


def _fork_depths(core: Core, job: Job, found: Match, most: int) -> list[int]:
    """Depths between what a prompt resumes from and where it leaves the known path itself, at which earlier prompts
    left that path: those that would leave least to compute if they came again. O(known + most x forks)."""
    grid = core.shape.grid
    end = found.known // grid * grid
    depth, count = core.cache.tree.forks(job.scope, job.tokens[:end])
    return best_depths(depth[depth < end], count[depth < end], most, grid, found.depth)


def inside(core: Core, seat: Seated, start: int, end: int) -> list[tuple[int, Kind]]:
    """Anchors that a row [start, end) can capture, by depth: what was planned, and the chunk's own end."""
    wanted = [(depth, kind) for depth, kind in seat.anchors.items() if start < depth <= end]
    if core.policy.chunk_ends and end < seat.target and end % core.grid == 0 and end not in seat.anchors:
        wanted.append((end, Kind.CHUNK_END))
    capture, chunk = core.capabilities.capture, core.shape.state_chunk
    if capture != "any":
        wanted = [(depth, kind) for depth, kind in wanted
                  if depth == end or (capture == "grid" and (depth - start) % chunk == 0)]
    wanted.sort()
    return wanted


def cut(core: Core, seat: Seated, start: int, end: int) -> int:
    """The row's end, drawn back where the executor could not capture an anchor otherwise."""
    if core.capabilities.capture == "grid" and start % core.shape.state_chunk:
        grid = core.grid
        return min(end, (start // grid + 1) * grid)
    if core.capabilities.capture == "final":
        return min((depth for depth in seat.anchors if start < depth < end), default=end)
    return end


def decode_anchor(core: Core, launched: int) -> int | None:
    """The next depth beyond `launched` at which decoding leaves a snapshot, or None."""
    policy, grid = core.policy, core.grid
    if not policy.caching:
        return None
    if policy.deterministic:
        return (launched // grid + 1) * grid if core.capabilities.same_bits else None
    if policy.interval is None:
        return None
    step = -(-policy.interval // grid) * grid
    return (launched // step + 1) * step
