"""The executor protocol over the mock device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import Any, Literal

from k3mem.errors import Effect, StepFailed
from k3mem.executor import Capabilities, Layout
from k3mem.executors.mock.audit import Auditor, Entry
from k3mem.executors.mock.compiled import CompiledDevice, CompiledRun
from k3mem.executors.mock.device import Device, Run, is_original
from k3mem.executors.mock.dice import Dice
from k3mem.executors.mock.faults import Damage, Fault, Faults
from k3mem.executors.mock.fresh import fresh_output
from k3mem.executors.mock.log import Log
from k3mem.executors.mock.streams import Command, Streams
from k3mem.plan import PAGE, STATE, Plan, Result, Sampling
from k3mem.types import Int32

FORWARD = "forward"
LAST_PHASE = "end"
MAX_GROUPS = 16
"""Of each kind; the compiled device's limit."""


def _nothing() -> None:
    """A command that only signals."""


class MockTicket:
    """A launched plan."""

    __slots__ = ("event", "fault", "run")

    def __init__(self, run: Run | CompiledRun, event: int, fault: Fault | None) -> None:
        self.run, self.event, self.fault = run, event, fault


class MockExecutor:
    """Runs plans on shadow memory and writes down whatever is wrong with them.

    seed: drives every free choice (order within phases, how far the streams run, padding, faults' extent).
    capture: capability profile, see `Capabilities`.
    recurrent_groups, kv_groups: groups of the model, at least 2 each.
    context_reads: "digest" reads KV rows again only where something wrote; "all" reads every row at every step,
        O(context) a row. Both give the same tokens.
    shuffle_streams: False runs every plan at its launch.
    strict_handout: report a page handed out that is neither zeroed nor overwritten whole by the same plan, read or not.
    faults: steps that fail.
    device: "python" is the reference, "c" the same compiled; "auto" is "c", except where a function of the reference is
        replaced when the executor is attached (a planted bug lives there).

    `violations` lists what plans did wrong, each naming step and phase; a right scheduler leaves it empty.
    """

    def __init__(
        self,
        seed: int = 0,
        capture: Literal["any", "grid", "final"] = "any",
        *,
        recurrent_groups: int = 2,
        kv_groups: int = 2,
        context_reads: Literal["digest", "all"] = "digest",
        max_window: int = 16,
        fast_forward: bool = False,
        shuffle_streams: bool = True,
        strict_handout: bool = True,
        faults: Faults | None = None,
        device: Literal["auto", "c", "python"] = "auto",
    ) -> None:
        if not (2 <= recurrent_groups <= MAX_GROUPS and 2 <= kv_groups <= MAX_GROUPS):
            raise ValueError(f"need 2..{MAX_GROUPS} groups of each kind, got {recurrent_groups} and {kv_groups}")
        self._rng = Random(seed)
        self._capabilities = Capabilities(capture=capture, max_window=max_window, fast_forward=fast_forward)
        self._groups = (recurrent_groups, kv_groups)
        self._read_all, self._strict_handout = context_reads == "all", strict_handout
        self._shuffle = shuffle_streams
        self._faults = faults or Faults()
        self.log = Log()
        self._kind = device
        self._device: Device | CompiledDevice | None = None

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def violations(self) -> list[str]:
        """What plans launched so far did wrong; of plans in flight, what has run."""
        return self.log.violations

    @property
    def device(self) -> Device | CompiledDevice:
        """The device below, for tests. Raises RuntimeError before `attach`."""
        if self._device is None:
            raise RuntimeError("attach the executor before using it")
        return self._device

    def attach(self, layout: Layout) -> None:
        """Forget everything; all of the arena is poison. Step numbers go on."""
        compiled = self._kind == "c" or (self._kind == "auto" and is_original())
        make = CompiledDevice if compiled else Device
        self._device = make(layout, self.log, Dice(self._rng.getrandbits(64)), self._capabilities, *self._groups,
                            self._read_all, self._strict_handout)
        self._streams = Streams(self._rng, self._shuffle)
        self._tickets: deque[MockTicket] = deque()
        self._next_step = 0
        """The number that the next plan must have, 0 for any."""
        self._last_step = 0
        self._doomed: Fault | None = None
        """The fault of the oldest launched step that is going to fail."""
        self._need_resync = False
        self._events = 0

    # -- launch and collect

    def launch(self, plan: Plan) -> MockTicket:
        """Queue a plan; part of the queue may run at once. Raises StepFailed as the faults say."""
        self._check_order(plan)
        device: Any = self.device
        run = device.begin(plan)
        fault = self._faults.strike(plan.step) if self._doomed is None else self._doomed
        self._events += 1
        ticket = MockTicket(run, self._events, fault)
        if fault is None:
            for name, phase in (*device.preparation(run), *device.work(run)):
                self._put(plan.step, name, partial(phase, run), signals=ticket.event if name == LAST_PHASE else -1)
        else:
            self._put_failing(run, fault.effect)
            self._streams.put(FORWARD, Command(_nothing, signals=ticket.event))
        if fault is not None and self._doomed is None and fault.at == "launch":
            self._need_resync = True
            raise StepFailed(f"step {plan.step} failed at launch", fault.effect)
        self._doomed = self._doomed or fault
        self._tickets.append(ticket)
        self._streams.some()
        return ticket

    def collect(self, ticket: MockTicket) -> Result:
        """Run the queue up to the ticket's end and give its result. Raises StepFailed as the faults say."""
        self.log.step, self.log.phase = ticket.run.plan.step, "collect"
        if not self._tickets or self._tickets[0] is not ticket:
            self.log.report("collected out of launch order, twice, or after an earlier step failed")
            raise StepFailed(f"step {ticket.run.plan.step} is not the next to be collected")
        self._streams.until(ticket.event)
        self._tickets.popleft()
        if ticket.fault is not None:
            self._streams.drain()
            self._tickets.clear()
            self._doomed, self._need_resync = None, True
            raise StepFailed(f"step {ticket.run.plan.step} failed", ticket.fault.effect)
        self._streams.some()
        return ticket.run.result()

    def _check_order(self, plan: Plan) -> None:
        self.log.step, self.log.phase = plan.step, "launch"
        after_failure = self._need_resync
        if after_failure and not plan.resync:
            self.log.report("the plan after a failure is no resync")
        if plan.step < 1 or (self._next_step and plan.step != self._next_step and not after_failure):
            self.log.report(f"step number {plan.step} does not follow {self._last_step}")
        self._need_resync = False
        self._last_step = plan.step + plan.repeat - 1
        self._next_step = plan.step + plan.repeat

    def _put(self, step: int, name: str, work: Callable[[], None], muted: bool = False, signals: int = -1) -> None:
        log = self.log

        def run() -> None:
            log.step, log.phase, log.muted = step, name, muted
            work()
            log.muted = False

        self._streams.put(FORWARD, Command(run, (), signals))

    def _put_failing(self, run: Run | CompiledRun, effect: Effect) -> None:
        """The commands of a plan that is going to fail. UNKNOWN: a part of its phases, then poison on its damage."""
        device: Any = self.device
        step = run.plan.step
        if effect is Effect.CONTENTS_LOST:
            self._put(step, "contents lost", device.memory.poison_all, muted=True)
        elif effect is Effect.UNKNOWN:
            found: list[Damage] = []
            self._put(step, "damage", lambda: found.append(Damage.of(run.plan, device)), muted=True)
            work = device.work(run)
            for name, phase in device.preparation(run) + work[: self._rng.randint(0, len(work))]:
                self._put(step, name, partial(phase, run), muted=True)
            self._put(step, "damage", lambda: found[0].scribble(device), muted=True)

    # -- oracle

    def audit(
        self,
        entries: Iterable[tuple[bytes, Int32 | Sequence[int], int, int, Int32 | Sequence[int]]],
        page_places: Iterable[tuple[int, int]] = (),
        state_places: Iterable[tuple[int, int]] = (),
    ) -> list[str]:
        """Differences between what the host believes and what the memory holds, after all launched plans.

        entries: (scope, tokens, depth, state id or -1, page ids) per prefix that the tree holds, see `Entry`.
        page_places, state_places: (id, place) as the host's tables have them; omitted, tables are not compared.
        O(total depth of the entries), hashes O(distinct tokens) when neighbours share prefixes.
        """
        self._streams.drain()
        auditor = Auditor(self.device)
        out = [difference for entry in entries for difference in auditor.differences(Entry(*entry))]
        out += auditor.table_differences(PAGE, page_places)
        out += auditor.table_differences(STATE, state_places)
        return out

    def fresh_output(self, scope: bytes, prompt: Iterable[int], sampling: Sampling, max_new: int) -> list[int]:
        """`fresh_output` with this executor's groups and the attached shape's vocabulary."""
        return fresh_output(scope, prompt, sampling, max_new, vocab_size=self.device.vocab_size,
                            recurrent_groups=self._groups[0], kv_groups=self._groups[1])
