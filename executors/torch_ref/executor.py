"""The executor protocol over a model on the CPU.

A plan is carried out whole when it is launched, phase by phase in the plan's order; `collect` hands out what came of
it. So whatever is in flight is exact here, and lanes, positions and last tokens that a plan names symbolically are
plain fields.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from k3mem.executor import Capabilities, Layout
from k3mem.executors.torch_ref.arena import Arena
from k3mem.executors.torch_ref.batch import Batch, Span
from k3mem.executors.torch_ref.model import Model
from k3mem.executors.torch_ref.ops import quiet
from k3mem.executors.torch_ref.stores import Memory, Records, Snapshot, States, fold
from k3mem.executors.torch_ref.tables import Lane, Tables
from k3mem.plan import PAGE, STATE, Done, Plan, Result, Row
from k3mem.types import Bool, Float64, Int32, UInt8

PREFILL, VERIFY = int(Row.PREFILL), int(Row.VERIFY)


class _Row:
    """One row of a plan that runs."""

    __slots__ = ("accepted", "drafts", "kind", "lane", "number", "place", "sample", "seat", "span",
                 "targets")

    def __init__(self, number: int, kind: int, seat: int, lane: Lane, drafts: list[int], sample: bool) -> None:
        self.number, self.kind, self.lane, self.drafts, self.sample = number, kind, lane, drafts, sample
        self.seat = seat
        """Number of the lane."""
        self.accepted: list[int] = []
        self.targets: list[tuple[int, int, int]] = []
        """(its own tokens before it, place, number in the plan) of each snapshot."""
        self.span: Span
        self.place = 0
        """Of the working state."""

    @property
    def length(self) -> int:
        """Tokens that it computes."""
        return len(self.span.tokens)


class TorchExecutor:
    """Runs plans with a `Model`.

    kda_mode: "recurrent" gives the same bits for any split of a prompt, batch, hit, retraction, move or speculation;
        "chunk" is the chunk form of prefill: equal for splits at multiples of 64, and decode differs from prefill.
    max_window: largest VERIFY window that `capabilities` claims.

    A plan that does not fit lanes or tables raises RuntimeError naming the step: the caller has a bug, and this
    executor is of no further use before the next `attach`. A script (`Sampling.script`) is obeyed.
    """

    def __init__(self, model: Model, kda_mode: Literal["recurrent", "chunk"] = "recurrent", *, max_window: int = 16
                 ) -> None:
        if kda_mode not in ("recurrent", "chunk"):
            raise ValueError(f"kda_mode must be recurrent or chunk, got {kda_mode!r}")
        self.model = model
        self._chunked = kda_mode == "chunk"
        self._capabilities = Capabilities(capture="grid" if self._chunked else "any", verify=True,
                                          max_window=max_window, same_bits=not self._chunked)
        self._flight: deque[Result] = deque()
        self._arena: Arena | None = None

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def arena(self) -> Arena:
        """Raises RuntimeError before `attach` and while asleep."""
        if self._arena is None:
            raise RuntimeError("attach the executor before using it")
        return self._arena

    def attach(self, layout: Layout) -> None:
        """Allocate the arena. Raises InvalidShape where the layout's shape is not the model's."""
        self._arena = None
        self._arena = Arena(layout, self.model.config, self.model.dtype, self.model.draft_layers)
        self.tables = Tables(layout)
        self._flight.clear()

    def sleep(self) -> None:
        """Free the arena, until the next `attach`."""
        self._arena = None

    # -- launch and collect

    def launch(self, plan: Plan) -> Result:
        """Run a plan to its end. O(tokens (model + context))."""
        with quiet(self.model.threads):
            result = self._run(plan)
        self._flight.append(result)
        return result

    def collect(self, ticket: Result) -> Result:
        """The result of the oldest step in flight, which `ticket` must be."""
        if not self._flight or self._flight[0] is not ticket:
            raise RuntimeError("collect out of launch order, twice, or after attach")
        return self._flight.popleft()

    def _run(self, plan: Plan) -> Result:
        self._prepare(plan)
        done = np.zeros(plan.rows, np.uint8)
        written = np.zeros(len(plan.snapshots), np.bool_)
        rows = self._rows(plan, done)
        for number, (row, depth, target) in enumerate(plan.snapshots.tolist()):
            self._aim(plan, rows.get(row), depth, target, number)
        self._forward(plan, [row for row in rows.values() if row.length], written)
        accepted = np.zeros(plan.rows, np.int32)
        tokens: list[int] = []
        for row in rows.values():
            done[row.number], accepted[row.number] = row.lane.done, len(row.accepted)
            tokens += row.accepted
        return Result(step=plan.step, lane=plan.lane, generation=plan.generation, accepted=accepted,
                      tokens=np.array(tokens, np.int32), done=done, written=written)

    # -- before the rows

    def _prepare(self, plan: Plan) -> None:
        """Moves, tables, zeroing, page copies, restores."""
        arena, tables = self.arena, self.tables
        if len(plan.moves):
            arena.move(plan.moves)
        tables.update(plan)
        if len(plan.zero_pages) or len(plan.zero_states):
            arena.zero([tables.place(PAGE, page) for page in plan.zero_pages.tolist()],
                       [tables.place(STATE, state) for state in plan.zero_states.tolist()])
        for source, destination, rows in plan.page_copies.tolist():
            arena.copy_page(tables.place(PAGE, source), tables.place(PAGE, destination), rows)
        for source, destination in plan.restores.tolist():
            arena.copy_state(tables.place(STATE, source), tables.place(STATE, destination))

    # -- rows

    def _rows(self, plan: Plan, done: UInt8) -> dict[int, _Row]:
        """Rows whose lanes run, by number; `done` of the others."""
        out = {}
        given, offsets = plan.tokens.tolist(), plan.token_offset.tolist()
        if given and max(given) >= self.model.config.vocab:
            raise RuntimeError(f"step {plan.step}: token {max(given)} is outside the vocabulary; this model takes "
                               "no media")
        columns = zip(plan.kind.tolist(), plan.lane.tolist(), plan.generation.tolist(), plan.start.tolist(),
                      plan.sample.tolist(), strict=True)
        for i, (kind, number, generation, start, sample) in enumerate(columns):
            lane = self.tables.lane(number, generation)
            if lane.done:
                done[i] = lane.done
                continue
            tokens = given[offsets[i] : offsets[i + 1]]
            row = out[i] = _Row(i, kind, number, lane, tokens if kind == VERIFY else [], sample)
            if kind == PREFILL:
                lane.depth = start  # the host's word, also after a step that failed
            elif lane.last_token < 0 or lane.depth > start:
                raise RuntimeError(f"step {plan.step}: lane {number}: a row from {start} on; its depth is "
                                   f"{lane.depth}, its last token {lane.last_token}")
            else:
                tokens = [lane.last_token, *row.drafts][: max(0, lane.limit - lane.depth - 1)]
            end = lane.depth + len(tokens)
            places = self.tables.page_places(number, lane, -(-end // self.arena.page_tokens))
            outputs = len(tokens) if kind == VERIFY else min(len(tokens), int(sample))
            row.span = Span(lane.depth, np.array(tokens, np.int64), self.arena.rows_of(places, end), outputs,
                            chunked=self._chunked and kind == PREFILL)
            row.place = self.tables.place(STATE, lane.state)
        return out

    def _aim(self, plan: Plan, row: _Row | None, depth: int, target: int, number: int) -> None:
        """A snapshot of a row, if the row passes its depth."""
        if row is None:
            return
        tokens = depth - row.span.start
        if 1 <= tokens <= row.length:
            row.targets.append((tokens, self.tables.place(STATE, target), number))
        elif row.kind == PREFILL:
            raise RuntimeError(f"step {plan.step}: a snapshot at {depth} of a PREFILL row from {row.span.start} to "
                               f"{row.span.start + row.length}")

    def _forward(self, plan: Plan, rows: list[_Row], written: Bool) -> None:
        """Forward, sampling, fold."""
        if not rows:
            return
        rows.sort(key=lambda row: -row.length)
        arena = self.arena
        batch = Batch.of([row.span for row in rows], self.model.config.conv)
        slots = torch.tensor([arena.slot(row.place) for row in rows])
        held = arena.slots.index_select(0, slots)
        windows, matrices = arena.parts(held)
        verify = [i for i, row in enumerate(rows) if row.kind == VERIFY]
        snapshots = []
        for i, row in enumerate(rows):
            if row.kind == VERIFY:
                continue
            for tokens, place, number in row.targets:
                snapshots.append(Snapshot(i, tokens, *arena.layer_of(place)))
                written[number] = True
        records, where = self._records(batch, rows, verify)
        states = States(matrices.unbind(1), windows.unbind(1))
        logits = self.model.step(batch, Memory(states, arena.kv, snapshots, records))
        if not verify:
            arena.slots.index_copy_(0, slots, held)
        elif len(verify) < len(rows):
            kept = torch.tensor([i for i, row in enumerate(rows) if row.kind != VERIFY])
            arena.slots.index_copy_(0, slots.index_select(0, kept), held.index_select(0, kept))
        for row in rows:
            if row.kind != VERIFY:
                row.lane.depth += row.length
        self._sample(rows, logits)
        if records is not None:
            self._fold([(rows[i], where[n]) for n, i in enumerate(verify)], records, written)
        if self.model.draft is not None:
            self._draft([row for row in rows if row.accepted and not row.lane.done])

    # -- sampling

    def _sample(self, rows: Sequence[_Row], logits: Tensor) -> None:
        """Tokens, accepted prefixes, done flags; clipped at stop ids and limits."""
        greedy = logits.argmax(-1).tolist() if len(logits) else []
        first = 0
        for row in rows:
            outputs = row.span.outputs
            if outputs:
                self._sample_row(row, greedy[first : first + outputs], logits[first : first + outputs])
            first += outputs

    @staticmethod
    def _sample_row(row: _Row, greedy: list[int], logits: Tensor) -> None:
        lane, drafts = row.lane, row.drafts
        position = lane.depth + (row.kind == VERIFY)
        if position >= lane.limit:
            lane.done = int(Done.LENGTH)
        for j, best in enumerate(greedy):
            if lane.done:
                break
            offset = position + j - lane.prompt
            fixed = lane.sampler.scripted(offset)
            if fixed is not None:
                token = fixed
            elif lane.sampler.greedy:
                token = best
            else:
                token = lane.sampler.draw(logits[j].double().numpy(), offset)
            row.accepted.append(token)
            lane.last_token = token
            lane.done = lane.ends(token, position + j + 1)
            if j >= len(drafts) or drafts[j] != token:
                break

    # -- verify and fold

    def _records(self, batch: Batch, rows: Sequence[_Row], verify: list[int]) -> tuple[Records | None, list[list[int]]]:
        """Scratch for the tokens of VERIFY rows, and for each of them the numbers of its records."""
        if not verify:
            return None, []
        tokens: list[int] = []
        where = []
        for i in verify:
            count = rows[i].length
            where.append(list(range(len(tokens), len(tokens) + count)))
            tokens += (batch.first[:count] + i).tolist()
        return self.arena.records(torch.tensor(tokens)), where

    def _fold(self, rows: list[tuple[_Row, list[int]]], records: Records,
              written: Bool) -> None:
        """Replay each row's accepted prefix into its working state, in place, and take its snapshot on the way."""
        rows = sorted((entry for entry in rows if entry[0].accepted), key=lambda entry: -len(entry[0].accepted))
        if not rows:
            return
        arena = self.arena
        counts = [len(row.accepted) for row, _ in rows]
        slots = torch.tensor([arena.slot(row.place) for row, _ in rows])
        held = arena.slots.index_select(0, slots)
        windows, matrices = arena.parts(held)
        numbers = torch.zeros(len(rows), counts[0], dtype=torch.int64)
        for b, (_, mine) in enumerate(rows):
            numbers[b, : counts[b]] = torch.tensor(mine[: counts[b]])

        def landed(count: int) -> None:
            for b, (row, _) in enumerate(rows):
                for tokens, place, number in row.targets:
                    if tokens == count <= counts[b]:
                        window, matrix = arena.parts(arena.slots[arena.slot(place)].unsqueeze(0))
                        matrix[0].copy_(matrices[b])
                        window[0].copy_(records.window(windows[b], numbers[b, :count]))
                        written[number] = True

        fold(matrices, records, numbers, counts, landed)
        for b, count in enumerate(counts):
            windows[b] = records.window(windows[b], numbers[b, :count])
            rows[b][0].lane.depth += count
        arena.slots.index_copy_(0, slots, held)

    # -- draft

    def _draft(self, rows: Sequence[_Row]) -> None:
        """What the block drafter says behind the newest token of each of these rows."""
        draft, arena = self.model.draft, self.arena
        if draft is None or not rows:
            return
        blocks = []
        for row in rows:
            lane = row.lane
            places = self.tables.page_places(row.seat, lane, -(-lane.depth // arena.page_tokens))
            blocks.append((lane.depth, lane.last_token, arena.rows_of(places, lane.depth)))
        tokens, sure = self.model.propose(draft.batch(blocks), arena.kv)
        for row, line, confidence in zip(rows, tokens.numpy(), sure.double().numpy(), strict=True):
            row.lane.proposal = row.lane.depth, line.astype(np.int32), confidence

    def proposed(self, number: int, generation: int, known: int) -> tuple[Int32, Float64] | None:
        """(tokens, confidence of each) that the block drafter said in the last step of a lane, behind `known` tokens
        of prompt and output; None where it has said nothing there."""
        lane = self.tables.lanes[number]
        if lane is None or lane.generation != generation or lane.proposal is None:
            return None
        depth, tokens, confidence = lane.proposal
        return (tokens, confidence) if depth == lane.depth == known - 1 else None
