"""The mock device: carries out one plan's phases on shadow memory.

A `Run` is one plan on its way through the stream; each phase is a method that takes it. Between two phases nothing
but the run, the tables and the memory is remembered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from k3mem.executor import Capabilities, Layout
from k3mem.executors.mock import model
from k3mem.executors.mock.checks import check_plan
from k3mem.executors.mock.dice import Dice
from k3mem.executors.mock.log import Log
from k3mem.executors.mock.memory import POISON, Memory, Page
from k3mem.executors.mock.tables import NOWHERE, LaneState, Tables
from k3mem.plan import PAGE, STATE, Done, Plan, Result, Row

MAX_PADDING = 3
"""Most junk rows that pad a batch."""
WORKING, TARGET = "working state", "target"


Phase = tuple[str, Callable[["Run"], None]]
"""Name and work of one command."""


class Run:
    """A launched plan: its rows as lists, and what its phases leave for each other."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        n = plan.rows
        self.kind: list[int] = plan.kind.tolist()
        self.start: list[int] = plan.start.tolist()
        self.length: list[int] = plan.length.tolist()
        self.tokens: list[int] = plan.tokens.tolist()
        self.offset: list[int] = plan.token_offset.tolist()
        self.offset += [len(self.tokens)] * (n + 1 - len(self.offset))
        self.lanes: list[LaneState | None] = [None] * n
        """The tenant of each row that runs; None for a row that does nothing."""
        self.outputs: list[list[int]] = [[] for _ in range(n)]
        """[row][position of the row that is sampled] output."""
        self.records: list[list[tuple[model.Rows, int]]] = [[] for _ in range(n)]
        """Scratch: [VERIFY row][position] pre-convolution rows and token."""
        self.accepted: list[list[int]] = [[] for _ in range(n)]
        self.fresh = [0] * n
        """Tokens accepted by the last sampling alone."""
        self.targets: list[list[tuple[int, int, int]]] = [[] for _ in range(n)]
        """[row] (depth, target, number in the plan) of its snapshots."""
        self.written = [False] * len(plan.snapshots)
        for number, (row, depth, target) in enumerate(plan.snapshots.tolist()):
            if 0 <= row < n:
                self.targets[row].append((depth, target, number))
        self.done = [0] * n

    def given(self, row: int) -> list[int]:
        """The row's tokens in the plan."""
        return self.tokens[self.offset[row] : self.offset[row + 1]]

    def result(self) -> Result:
        plan = self.plan
        return Result(
            step=plan.step,
            lane=plan.lane.copy(),
            generation=plan.generation.copy(),
            accepted=np.array([len(tokens) for tokens in self.accepted], np.int32),
            tokens=np.array([token for tokens in self.accepted for token in tokens], np.int32),
            done=np.array(self.done, np.uint8),
            written=np.array(self.written, np.bool_),
        )


class Device:
    """Memory, tables and lanes, and the phases of a plan."""

    def __init__(self, layout: Layout, log: Log, rng: Dice, capabilities: Capabilities, recurrent_groups: int,
                 kv_groups: int, read_all: bool, strict_handout: bool) -> None:
        self.layout, self.log, self.rng, self.capabilities = layout, log, rng, capabilities
        self.groups, self.kv_groups = recurrent_groups, kv_groups
        self.span = layout.shape.page_span
        self.vocab_size = layout.shape.vocab_size
        self.read_all, self.strict_handout = read_all, strict_handout
        self.memory = Memory(layout, recurrent_groups, kv_groups, log, rng)
        self.tables = Tables(layout, self.memory)
        self.powers = [pow(model.BASE, n, model.PRIME) for n in range(self.span + 1)]

    def begin(self, plan: Plan) -> Run:
        """A run of a plan that is being launched."""
        return Run(plan)

    def preparation(self, run: Run) -> list[Phase]:
        """The first commands of a plan, in stream order: they leave the tables as the plan wants them."""
        out: list[Phase] = [("checks", self.check)]
        if len(run.plan.moves):
            out.append(("moves", self.move))
        return [*out, ("tables", self.update)]

    def work(self, run: Run) -> list[Phase]:
        """The commands after those, in stream order; phases that have nothing to do are left out."""
        plan = run.plan
        out: list[Phase] = []
        if len(plan.zero_pages) or len(plan.zero_states):
            out.append(("zeroing", self.zero))
        if len(plan.page_copies):
            out.append(("page copies", self.copy_pages))
        if len(plan.restores):
            out.append(("restores", self.restore))
        if plan.rows:
            out.append(("rows", self.begin_rows))
            for _ in range(max(1, plan.repeat)):
                out += [("forward", self.forward), ("sample", self.sample)]
            if Row.VERIFY in run.kind:
                out.append(("fold", self.fold))
        return [*out, ("end", self.end)]

    # -- before the rows

    def check(self, run: Run) -> None:
        for phase, what in check_plan(run.plan, self.layout, self.memory, self.capabilities):
            self.log.phase = phase
            self.log.report(what)

    def move(self, run: Run) -> None:
        """Batches in order; within a batch in any order, since nothing in it overlaps."""
        moves = run.plan.moves.tolist()
        self.rng.shuffle(moves)
        for _, kind, source, destination in sorted(moves, key=lambda move: move[0]):
            if self.memory.holds(kind, source) and self.memory.holds(kind, destination):
                self.memory.move(kind, source, destination)

    def update(self, run: Run) -> None:
        self.tables.update(run.plan)

    def zero(self, run: Run) -> None:
        for kind, entries, zero in ((PAGE, run.plan.zero_pages, self.memory.zero_page),
                                    (STATE, run.plan.zero_states, self.memory.zero_state)):
            for entry in entries.tolist():
                place = self.tables.find(kind, entry, "zeroing")
                if place != NOWHERE:
                    zero(place)

    def copy_pages(self, run: Run) -> None:
        for source, destination, rows in self._any_order(run.plan.page_copies.tolist()):
            origin, target = self.tables.find(PAGE, source, "copy"), self.tables.find(PAGE, destination, "copy")
            if NOWHERE not in (origin, target):
                self.memory.copy_page(origin, target, max(0, min(rows, self.span)))

    def restore(self, run: Run) -> None:
        for source, destination in self._any_order(run.plan.restores.tolist()):
            origin, target = self.tables.find(STATE, source, "restore"), self.tables.find(STATE, destination, "restore")
            if NOWHERE not in (origin, target):
                self.memory.write_state(target, *self.memory.read_state(origin, "restores"))

    def _any_order(self, entries: list[list[int]]) -> list[list[int]]:
        self.rng.shuffle(entries)
        return entries

    # -- rows

    def begin_rows(self, run: Run) -> None:
        """Resolve lanes; check positions, page lists, and that no two rows of the step share a state."""
        plan = run.plan
        roles: dict[int, str] = {}
        for i, (lane, generation) in enumerate(zip(plan.lane.tolist(), plan.generation.tolist(), strict=True)):
            tenant = self.tables.tenant(lane, generation)
            if tenant is None:
                continue
            run.lanes[i] = tenant
            uses = [(tenant.state, WORKING), *[(target, TARGET) for _, target, _ in run.targets[i]]]
            for entry, role in uses:
                place = self.tables.find(STATE, entry, role)
                if place in roles:
                    self.log.report(f"the {role} of {tenant.name} is also the {roles[place]} (state place {place})")
                elif place != NOWHERE:
                    roles[place] = f"{role} of {tenant.name}"
            if tenant.done:
                run.lanes[i], run.done[i] = None, tenant.done
            else:
                self._check_position(run, i, tenant)
        self.pad()

    def _check_position(self, run: Run, i: int, tenant: LaneState) -> None:
        start, depth = run.start[i], tenant.depth
        if run.kind[i] == Row.PREFILL:
            end = start + run.length[i]
            if start != depth:
                self.log.report(f"{tenant.name} is to absorb tokens from {start} on, but stands at {depth}")
            if tenant.last_token >= 0:
                self.log.report(f"{tenant.name} is to prefill, but its last sampled token is not absorbed")
        else:
            end = min(start + run.length[i] * run.plan.repeat, tenant.limit - 1)
            if start < depth:
                self.log.report(f"{tenant.name} stands at {depth}, deeper than the worst case {start}")
            if tenant.last_token < 0:
                self.log.report(f"{tenant.name} is to decode, but has no sampled token")
        first, last = depth // self.span, max(0, -(-end // self.span))
        if last > len(tenant.pages) or -1 in tenant.pages[first:last]:
            missing = [k for k in range(first, last) if k >= len(tenant.pages) or tenant.pages[k] < 0]
            self.log.report(f"{tenant.name} may reach depth {end}, but its page list lacks entries {missing}")

    def pad(self) -> None:
        """Junk rows pad the batch: they write to the sinks and read them."""
        memory = self.memory
        for _ in range(self.rng.below(MAX_PADDING + 1)):
            memory.matrix[0] = tuple(memory.garbage() for _ in range(self.groups))
            memory.window[0] = ((POISON, POISON, POISON),) * self.groups
            memory.label[0] = -1
            memory.pages[0] = Page(self.kv_groups, self.span, memory.garbage())

    def forward(self, run: Run) -> None:
        """All rows, in any order: no row may depend on another of the same step."""
        order = [i for i, tenant in enumerate(run.lanes) if tenant is not None and not tenant.done]
        self.rng.shuffle(order)
        for i in order:
            tenant = run.lanes[i]
            assert tenant is not None
            place = self.tables.find(STATE, tenant.state, "working state")
            if place == NOWHERE:
                continue
            if run.kind[i] == Row.PREFILL:
                tenant.depth = max(0, run.start[i])  # the host's word, also after a step that failed half-way
            matrix, window, label = self.memory.read_state(place, "reads")
            context = self.read_context(tenant, label)
            if run.kind[i] == Row.VERIFY:
                window_tokens = [tenant.last_token, *run.given(i)][: max(0, tenant.limit - tenant.depth - 1)]
                self._scan(run, i, tenant, window_tokens, (matrix, window, label), context, place)
            elif run.kind[i] == Row.PREFILL:
                self._scan(run, i, tenant, run.given(i), (matrix, window, label), context, place)
            else:
                self._scan(run, i, tenant, [tenant.last_token], (matrix, window, label), context, place)

    def _scan(self, run: Run, i: int, tenant: LaneState, tokens: list[int],
              state: tuple[model.Matrix, model.Window, int], context: list[int], place: int) -> None:
        """One row's tokens. PREFILL and DECODE update the state in place; VERIFY leaves records and outputs."""
        matrix, window, label = state
        label = label or tenant.seed
        verify, seed, span = run.kind[i] == Row.VERIFY, tenant.seed, self.span
        targets = {} if verify else {depth: (target, number) for depth, target, number in run.targets[i]}
        position, end = tenant.depth, tenant.depth + len(tokens)
        page: Page | None = None
        outputs: list[int] = []
        records: list[tuple[model.Rows, int]] = []
        high = 0
        for token in tokens:
            row = position % span
            if page is None or row == 0:
                high = min(span, row + end - position)
                where = self._page_place(tenant, position // span)
                page = self.memory.page_for_write(where, row, high, tenant.key, run.plan.step)
            rows = model.kv_rows(matrix, window, token, position, context)
            if row == 0:
                page.head = label
            label = model.chain(label, token)
            page.labels[row] = label
            for k, value in enumerate(rows):
                page.rows[k][row] = value
                context[k] = (context[k] * model.BASE + page.rows[k][row]) % model.PRIME
            fed = model.inputs(seed, self.groups, token, position)
            matrix, window = model.absorb(matrix, window, fed, token)
            if verify:
                records.append((fed, token))
            if verify or position == end - 1:
                outputs.append(model.output_of(rows, matrix, window, token, position))
            position += 1
            if row == high - 1:
                self.memory.check_rest(where, page, high)
            if position in targets:
                self._snapshot(run, *targets[position], matrix, window, label)
        run.outputs[i] = outputs
        if verify:
            run.records[i] = records
        elif tokens:
            self.memory.write_state(place, matrix, window, label)
            tenant.depth = end

    def _page_place(self, tenant: LaneState, index: int) -> int:
        """Place of a lane's page; the sink's where the list has a gap."""
        entry = tenant.pages[index] if index < len(tenant.pages) else -1
        if entry < 0:
            self.log.report(f"{tenant.name} has no entry {index} in its page list")
            return 0
        return max(0, self.tables.find(PAGE, entry, tenant.name))

    def _snapshot(self, run: Run, target: int, number: int, matrix: model.Matrix, window: model.Window,
                  label: int) -> None:
        place = self.tables.find(STATE, target, "snapshot")
        if place != NOWHERE:
            self.memory.write_state(place, matrix, window, label)
            run.written[number] = True

    def read_context(self, tenant: LaneState, label: int) -> list[int]:
        """[kv groups] digest of all KV rows below the lane's depth, as its pages hold them.

        Checks that the rows and the state that is about to be used are of one prefix. O(pages), O(1) when no page
        that some lane remembers has changed since the lane's last read.
        """
        depth, memory = tenant.depth, self.memory
        full, rest = divmod(depth, self.span)
        epoch = memory.epoch
        if self.read_all or tenant.cache_epoch != epoch or tenant.cache_pages > full:
            tenant.cache_pages, tenant.cache_context, tenant.cache_label = 0, [0] * self.kv_groups, tenant.seed
        context, last = list(tenant.cache_context), tenant.cache_label
        for index in range(tenant.cache_pages, full):
            last = self._read_page(tenant, index, self.span, last, context)
        tenant.cache_pages, tenant.cache_context, tenant.cache_label = full, list(context), last
        tenant.cache_epoch = epoch
        if rest:
            last = self._read_page(tenant, full, rest, last, context)
        if last != (label or tenant.seed) or (label == 0) != (depth == 0):
            self.log.report(f"{tenant.name} at depth {depth}: its working state is not that of the prefix in "
                            f"its pages" if depth else f"{tenant.name} starts at depth 0 from a used state")
        return context

    def _read_page(self, tenant: LaneState, index: int, rows: int, last: int, context: list[int]) -> int:
        """Append a page's first rows to the context; returns the label of their last one."""
        place = self._page_place(tenant, index)
        page = self.memory.pages[place]
        if page is None:
            self.log.report(f"{tenant.name} reads page place {place}, which is poison")
            page = Page(self.kv_groups, self.span, self.memory.garbage())
            self.memory.epoch += 1  # this is not to be remembered
        if self.read_all:
            page.known = 0
        self.memory.digest(place, page, rows)
        if page.head != last:
            self.log.report(f"{tenant.name}: entry {index} of its page list does not continue the one before")
        if page.writer != tenant.key and page.write_step == self.log.step and page.write_low < rows:
            self.log.report(f"{tenant.name} reads page place {place}, which {page.writer} writes in this step")
        if rows == self.span:
            page.covered = self.memory.epoch
        power = self.powers[rows]
        for k, prefix in enumerate(page.prefix):
            context[k] = (context[k] * power + prefix[rows]) % model.PRIME
        return page.labels[rows - 1]

    # -- after the forward

    def sample(self, run: Run) -> None:
        """Sampled tokens, the accepted prefix of each row, done flags. Clips at stop ids and the limit."""
        for i, tenant in enumerate(run.lanes):
            run.fresh[i] = 0
            if tenant is None or tenant.done:
                continue
            if run.kind[i] == Row.PREFILL and not run.plan.sample[i]:
                continue
            drafts = run.given(i) if run.kind[i] == Row.VERIFY else []
            position = tenant.depth + (run.kind[i] == Row.VERIFY)
            if position >= tenant.limit:
                tenant.done = int(Done.LENGTH)
            for j, output in enumerate(run.outputs[i]):
                if tenant.done:
                    break
                token = tenant.token(output, position + j, self.vocab_size)
                run.accepted[i].append(token)
                run.fresh[i] += 1
                tenant.last_token = token
                if token in tenant.sampling.stop_ids:
                    tenant.done = int(Done.STOP)
                elif position + j + 1 >= tenant.limit:
                    tenant.done = int(Done.LENGTH)
                if j >= len(drafts) or drafts[j] != token:
                    break
            run.done[i] = tenant.done

    def fold(self, run: Run) -> None:
        """Replay the records of the accepted rows of each VERIFY row into its working state, in place."""
        for i, tenant in enumerate(run.lanes):
            if tenant is None or run.kind[i] != Row.VERIFY or not run.fresh[i]:
                continue
            place = self.tables.find(STATE, tenant.state, "fold")
            if place == NOWHERE:
                continue
            matrix, window, label = self.memory.read_state(place, "folds into")
            label = label or tenant.seed
            for fed, token in run.records[i][: run.fresh[i]]:
                matrix, window = model.absorb(matrix, window, fed, token)
                label = model.chain(label, token)
                tenant.depth += 1
                for depth, target, number in run.targets[i]:
                    if depth == tenant.depth:
                        self._snapshot(run, target, number, matrix, window, label)
            self.memory.write_state(place, matrix, window, label)

    def end(self, run: Run) -> None:
        """The step is over: scratch is garbage, and what was handed out is clean."""
        for i, records in enumerate(run.records):
            run.records[i] = [(tuple(self.memory.garbage() for _ in fed), -1) for fed, _ in records]
        if not self.strict_handout:
            return
        for entry in self.tables.handed_out:
            place = self.tables.places[PAGE][entry]
            page = self.memory.pages[place] if place != NOWHERE else None
            if page is None or any(value >= POISON for value in page.rows[0][: page.high]):
                self.log.report(f"page id {entry} was handed out at place {place}, neither zeroed nor overwritten")


_PARTS: tuple[Any, ...] = (Device, Run, Memory, Page, Tables, LaneState, model)
_ORIGINAL = [(part, name, value) for part in _PARTS for name, value in vars(part).items() if callable(value)]


def is_original() -> bool:
    """False while a function of this device is replaced by another: a planted bug."""
    return all(vars(part).get(name) is value for part, name, value in _ORIGINAL)
