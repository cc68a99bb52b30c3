"""What can be said of a plan without running it. Each check yields (phase, what is wrong)."""

from __future__ import annotations

from collections.abc import Iterator

from k3mem.executor import Capabilities, Layout
from k3mem.executors.mock.memory import Memory
from k3mem.executors.mock.views import MemoryView
from k3mem.plan import Plan, Row

Finding = tuple[str, str]


def check_plan(plan: Plan, layout: Layout, memory: Memory | MemoryView, can: Capabilities) -> Iterator[Finding]:
    """Everything wrong with a plan by itself. O(plan)."""
    if len(plan.moves):
        yield from check_moves(plan, memory)
    if len(plan.page_copies) or len(plan.restores):
        yield from check_copies(plan, layout.shape.page_span)
    yield from check_rows(plan, can)
    if len(plan.snapshots):
        yield from check_snapshots(plan, can, layout.shape.state_chunk)


def check_moves(plan: Plan, memory: Memory | MemoryView) -> Iterator[Finding]:
    """Places exist, are no sinks, and within one batch all byte ranges are disjoint."""
    batches: dict[int, list[tuple[int, int, str]]] = {}
    for batch, kind, source, destination in plan.moves.tolist():
        for place in (source, destination):
            what = f"kind {kind} place {place}"
            if kind not in (0, 1) or not memory.holds(kind, place):
                yield "moves", f"{what} is out of range"
            elif place == 0:
                yield "moves", f"{what} is a sink"
            else:
                batches.setdefault(batch, []).append((*memory.bytes_of(kind, place), what))
    for batch, ranges in batches.items():
        ranges.sort()
        for (_, end, one), (begin, _, other) in zip(ranges, ranges[1:], strict=False):
            if begin < end:
                yield "moves", f"batch {batch}: {one} and {other} overlap"


def check_copies(plan: Plan, span: int) -> Iterator[Finding]:
    """No copy or restore reads what another of the same phase writes."""
    for phase, rows in (("page copies", plan.page_copies.tolist()), ("restores", plan.restores.tolist())):
        targets = [row[1] for row in rows]
        if len(set(targets)) < len(targets):
            yield phase, "one entry is written twice"
        for entry in {row[0] for row in rows} & set(targets):
            yield phase, f"id {entry} is both source and destination"
    for _, page, rows in plan.page_copies.tolist():
        if not 0 < rows <= span:
            yield "page copies", f"copies {rows} rows into page {page} of {span}"


def check_rows(plan: Plan, can: Capabilities) -> Iterator[Finding]:
    """Arrays fit together, one row per lane, lengths and token counts as the row's kind says."""
    lanes = plan.lane.tolist()
    if len(set(lanes)) < len(lanes):
        yield "rows", f"two rows for one lane: {sorted(lane for lane in set(lanes) if lanes.count(lane) > 1)}"
    if plan.repeat < 1 or (plan.repeat > 1 and not can.fast_forward):
        yield "rows", f"repeat {plan.repeat} on an executor {'with' if can.fast_forward else 'without'} fast-forward"
    offsets = plan.token_offset.tolist()
    if len(offsets) != len(lanes) + 1 or offsets[0] != 0 or offsets[-1] != len(plan.tokens):
        yield "rows", "token_offset does not fit tokens and rows"
        return
    for i, (kind, length) in enumerate(zip(plan.kind.tolist(), plan.length.tolist(), strict=True)):
        given = offsets[i + 1] - offsets[i]
        expected = {Row.PREFILL: length, Row.DECODE: 0, Row.VERIFY: length - 1}.get(kind, -1)
        if given != expected or length < 1 or (kind == Row.DECODE and length != 1):
            yield "rows", f"row {i} of kind {kind} has length {length} and {given} tokens"
        if kind == Row.VERIFY and (not can.verify or length > can.max_window):
            yield "rows", f"row {i} verifies a window of {length}: the executor takes {can.max_window * can.verify}"
        if kind != Row.DECODE and plan.repeat > 1:
            yield "rows", f"row {i} of kind {kind} in a plan with repeat {plan.repeat}"
        if kind != Row.PREFILL and not plan.sample[i]:
            yield "rows", f"row {i} of kind {kind} does not sample"


def check_snapshots(plan: Plan, can: Capabilities, chunk: int) -> Iterator[Finding]:
    """Rows exist, in order; depths lie inside their rows and where the executor can capture; targets differ."""
    entries = plan.snapshots.tolist()
    if entries != sorted(entries, key=lambda entry: (entry[0], entry[1])):
        yield "snapshots", "not ordered by row, then depth"
    targets = [target for _, _, target in entries]
    if len(set(targets)) < len(targets):
        yield "snapshots", "one target is named twice"
    seen: set[int] = set()
    for row, depth, _ in entries:
        if not 0 <= row < plan.rows:
            yield "snapshots", f"row {row} does not exist"
            continue
        start, length = int(plan.start[row]), int(plan.length[row])
        prefill = plan.kind[row] == Row.PREFILL
        end = start + length * plan.repeat
        if depth > end or depth < 1 or (prefill and depth <= start):
            yield "snapshots", f"depth {depth} lies outside row {row}: {start}..{end}"
        elif prefill and depth != end and (can.capture == "final" or (
            can.capture == "grid" and (depth - start) % chunk
        )):
            yield "snapshots", f"depth {depth} of row {row} from {start}: the executor captures {can.capture!r} only"
        if not prefill and row in seen:
            yield "snapshots", f"row {row} has more than one"
        seen.add(row)
