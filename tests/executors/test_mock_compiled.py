"""The compiled device does what the reference does: same tokens, findings and memory, on right and on wrong plans."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from random import Random
from typing import Any

import numpy as np
import pytest

import tests.world
from k3mem.errors import K3MemError, StepFailed
from k3mem.executor import Capabilities, Layout
from k3mem.executors.mock import Faults, MockExecutor, fresh_output
from k3mem.executors.mock.compiled import CompiledDevice
from k3mem.executors.mock.device import Device, is_original
from k3mem.executors.mock.fresh import walk, walked_output
from k3mem.plan import Plan, Result, Row, Sampling
from tests.cases import plant
from tests.engine.test_matrix import AXES, MORE_AXES, PLAIN, world
from tests.plans import PHASES, Host, PlanBuilder, layout_of, omit, run, small_shape, tokens_of

RESULT = ("lane", "generation", "accepted", "tokens", "done", "written")


def content_of(device: Any) -> dict[str, Any]:
    """All that a device remembers, as plain data."""
    memory, tables = device.memory, device.tables
    pages = [page and ([list(rows) for rows in page.rows], list(page.labels)) for page in memory.pages]
    return {
        "pages": pages, "matrix": list(memory.matrix), "window": list(memory.window), "label": list(memory.label),
        "places": [list(places) for places in tables.places], "owners": [list(owners) for owners in tables.owners],
        "lanes": [lane and (lane.generation, lane.state, lane.depth, lane.last_token, lane.done, list(lane.pages))
                  for lane in tables.lanes],
        "epoch": memory.epoch,
    }


class Both:
    """An executor that runs every plan on both devices and compares all that can be seen of them."""

    def __init__(self, **options: Any) -> None:
        self.one = MockExecutor(device="c", **copy.deepcopy(options))
        self.other = MockExecutor(device="python", **copy.deepcopy(options))
        self.found: list[str] = []
        """Violations so far, which both found."""

    @property
    def capabilities(self) -> Capabilities:
        return self.one.capabilities

    @property
    def violations(self) -> list[str]:
        self.compare()
        return self.found

    def attach(self, layout: Layout) -> None:
        self.one.attach(layout)
        self.other.attach(layout)
        assert isinstance(self.one.device, CompiledDevice) and isinstance(self.other.device, Device)

    def compare(self) -> None:
        assert self.one.violations == self.other.violations
        self.found += self.one.violations
        self.one.violations.clear()
        self.other.violations.clear()

    def same(self) -> None:
        """Memory, tables and lanes are equal, value by value."""
        self.compare()
        one, other = content_of(self.one.device), content_of(self.other.device)
        for name in one:
            assert one[name] == other[name], name

    def both(self, name: str, *pair: Any) -> tuple[Any, Any]:
        """The method's results on both, or the failure that both raise."""
        out: list[Any] = []
        for executor, argument in zip((self.one, self.other), pair, strict=True):
            try:
                out.append(getattr(executor, name)(argument))
            except StepFailed as failure:
                out.append(failure)
        failed = [isinstance(result, StepFailed) for result in out]
        assert failed[0] == failed[1]
        self.compare()
        if failed[0]:
            assert out[0].effect is out[1].effect
            raise out[0]
        return out[0], out[1]

    def launch(self, plan: Plan) -> Any:
        return self.both("launch", plan, plan)

    def collect(self, ticket: Any) -> Result:
        one, other = self.both("collect", *ticket)
        for name in RESULT:
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
            assert getattr(one, name).dtype == getattr(other, name).dtype
        return one  # type: ignore[no-any-return]

    def audit(self, entries: Any, *tables: Any) -> list[str]:
        entries = list(entries)
        one, other = self.one.audit(entries, *tables), self.other.audit(entries, *tables)
        assert one == other
        self.same()
        return one


def wrong_entry(plan: Plan, rng: Random) -> Plan:
    """The plan with one number of one array changed, or one entry left out."""
    phases = [phase for phase in PHASES if len(getattr(plan, phase))]
    if phases and rng.random() < 0.4:
        phase = rng.choice(phases)
        return omit(plan, phase, rng.randrange(len(getattr(plan, phase))))
    arrays = {f.name: getattr(plan, f.name).copy() for f in fields(plan)
              if isinstance(getattr(plan, f.name), np.ndarray) and getattr(plan, f.name).size}
    name = rng.choice(sorted(arrays))
    flat = arrays[name].reshape(-1)
    low = -3 if arrays[name].dtype == np.int32 else 0
    flat[rng.randrange(len(flat))] = rng.randrange(low, rng.choice([8, 200]))
    return replace(plan, **{name: arrays[name]})


def pair_world(monkeypatch: pytest.MonkeyPatch, seed: int, requests: int, **more: Any) -> Any:
    """A world of a random cell on both devices."""
    monkeypatch.setattr(tests.world, "MockExecutor", Both)
    rng = Random(seed)
    cell = PLAIN | {axis: rng.choice(values) for axis, values in (AXES | MORE_AXES).items()}
    return world(cell, seed, requests, audit_every=5, check_every=1 << 30, **more)


@pytest.mark.parametrize("seed", range(12))
def test_right_worlds_are_the_same(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    done = pair_world(monkeypatch, seed, 20).run()
    assert not done.failures
    done.executor.same()


@pytest.mark.parametrize("seed", range(8))
def test_failing_worlds_are_the_same(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    done = pair_world(monkeypatch, seed, 20, faults=Faults(rate=0.1, seed=seed)).run()
    assert not done.failures
    done.executor.same()


@pytest.mark.parametrize("seed", range(60))
def test_wrong_plans_are_found_in_the_same_words(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = Random(seed)

    def mangle(plan: Plan) -> Plan:
        return wrong_entry(plan, rng) if plan.step > 2 and rng.random() < 0.2 else plan

    w = pair_world(monkeypatch, seed, 12, mangle=mangle)
    try:
        while (w.made < w.requests or w.engine.has_work) and w.steps < 40:
            w.act()
            w.one_step()
    except K3MemError:
        pass  # an engine that is told nonsense stops
    w.executor.one.audit([])
    w.executor.other.audit([])
    w.executor.same()


@pytest.mark.parametrize("reads", ["digest", "all"])
@pytest.mark.parametrize("repeat", [1, 3])
def test_strict_handout_reads_and_repeat_are_the_same(reads: str, repeat: int) -> None:
    executor = Both(seed=repeat, context_reads=reads, fast_forward=True, recurrent_groups=3, kv_groups=4)
    layout = layout_of(small_shape())
    executor.attach(layout)
    host = Host(layout)
    first = host.plan()
    stops = (999, 998)
    host.seat(first, 1, prompt=5, limit=16, sampling=Sampling(stop_ids=stops, script=b"\1\0\0\0\2\0\0\0\3\0"))
    host.new_pages(first, 1, zero=False)  # reported: neither zeroed nor overwritten
    results = run(executor, first.prefill(1, 0, [1, 2, 3, 4, 5], True), host.plan(repeat=repeat).decode(1, 5),
                  host.plan().verify(1, 5 + repeat, [7, 7]))
    executor.same()
    assert tokens_of(results, 1)[:2] == [1, 2]
    assert any("handed out" in text for text in executor.violations)


def test_every_kind_of_finding_has_been_compared() -> None:
    """Findings that random worlds hardly reach; the rest is told apart by test_mock_detects."""
    executor = Both(seed=3)
    layout = layout_of(small_shape())
    executor.attach(layout)
    host = Host(layout)
    first = host.plan()
    host.seat(first, 1, prompt=5, limit=12, depth=-2)
    host.seat(first, 2, prompt=5, limit=1, depth=3)
    first.add("lane_pages", (1, -1, 1), (1, 1 << 25, 1), (7, 0, 1)).prefill(1, 0, [1, 2, 3, 4, 5], True)
    second = host.plan().add("page_copies", (1, 1, 2), (9, 2, 2)).add("restores", (9, 1)).decode(1, 5)
    third = PlanBuilder(9).row(Row.VERIFY, 1, 1, 6, 1, False).row(Row(2), 5, 1, 0, 1, True)
    run(executor, first, second, third, host.plan(resync=True).decode(1, 6))
    executor.same()
    assert len(executor.violations) > 12


def test_rows_of_different_lengths_are_refused() -> None:
    executor = MockExecutor(device="c")
    layout = layout_of(small_shape())
    executor.attach(layout)
    plan = Host(layout).plan().decode(1, 4).decode(2, 4).build()
    for name in ("lane", "generation", "start", "length", "sample"):
        with pytest.raises(ValueError, match="differ in length"):
            executor.launch(replace(plan, **{name: getattr(plan, name)[:1]}))


@pytest.mark.parametrize("seed", range(40))
def test_the_compiled_oracle_is_the_walk(seed: int) -> None:
    rng = Random(seed)
    prompt = [rng.randrange(-1 if rng.random() < 0.1 else 0, 97) for _ in range(rng.randrange(1, 60))]
    script = bytes(rng.randrange(256) for _ in range(rng.randrange(12))) if rng.random() < 0.3 else None
    sampling = Sampling(temperature=rng.choice([0.0, 0.7]), seed=rng.randrange(9), top_k=rng.randrange(3),
                        stop_ids=tuple(rng.sample(range(97), rng.choice([0, 3, 20]))), script=script)
    groups, kv_groups = rng.randint(2, 16), rng.randint(2, 16)
    expected = walked_output(walk(b"s%d" % seed, prompt, groups, kv_groups), sampling, 40, vocab_size=97)
    for given in (prompt, np.array(prompt, np.int32), np.array(prompt, np.int64), tuple(prompt)):
        assert fresh_output(b"s%d" % seed, given, sampling, 40, vocab_size=97, recurrent_groups=groups,
                            kv_groups=kv_groups) == expected


def test_the_oracle_wants_a_prompt() -> None:
    with pytest.raises(ValueError, match="empty prompt"):
        fresh_output(b"s", [], Sampling(), 3)


def test_a_planted_bug_of_the_reference_takes_the_reference() -> None:
    layout = layout_of(small_shape())
    executor = MockExecutor()
    with plant.no_fold():
        assert not is_original()
        executor.attach(layout)
        assert isinstance(executor.device, Device)
    executor.attach(layout)
    assert is_original() and isinstance(executor.device, CompiledDevice)


def test_groups_have_a_limit() -> None:
    with pytest.raises(ValueError, match="2..16 groups"):
        MockExecutor(kv_groups=17)
