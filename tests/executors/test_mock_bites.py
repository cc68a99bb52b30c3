"""No entry of a right plan can be left out unnoticed: omission shows as a violation, a wrong token or in the audit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from random import Random

import numpy as np
import pytest

from k3mem.executors.mock import MockExecutor, fresh_output
from k3mem.plan import Plan, Sampling
from tests.plans import PHASES, Host, layout_of, mend, omit, run, small_shape, tokens_of

PROMPT = [5, 3, 8, 1, 9, 2, 7]
OTHER = [5, 3, 8, 1, 9, 4, 4, 6, 2]
SCOPE = b"scope"


Prefix = tuple[bytes, list[int], int, int, list[int]]
"""(scope, tokens, depth, state id, page ids), as `MockExecutor.audit` takes it."""


def story() -> list[tuple[Plan, list[Prefix]]]:
    """Plans in which everything happens, each with the prefixes that a tree would hold after it.

    Snapshots, tails, restores, moves, ids and places used again. Lane 1 computes PROMPT (pages 1..3, state 1) and
    leaves checkpoints at 4 and 5. Lane 2 resumes at 5 on page 1 and a copied tail. Lane 1 ends; lane 3 is seated
    with its state id and its second page's id, both at new places.
    """
    host = Host(layout_of(small_shape()))
    line = PROMPT + fresh_output(SCOPE, PROMPT, Sampling(), 8, vocab_size=1000)
    first = host.plan()
    host.seat(first, 1, prompt=7, limit=12, overwritten=1)
    pages = [entry[2] for entry in first.entries["lane_pages"]]
    four, five = host.new_state(first, zero=False), host.new_state(first, zero=False)
    first.prefill(1, 0, PROMPT, True).snapshot(4, four).snapshot(5, five)
    root: list[Prefix] = [(SCOPE, PROMPT, 4, four, pages[:1])]
    more: list[Prefix] = [(SCOPE, PROMPT, 5, five, pages[:2])]

    second = host.plan()
    host.seat(second, 2, prompt=9, limit=16, depth=5, checkpoint=five, shared=pages[:1], tail=(pages[1], 1))
    own = [entry[2] for entry in second.entries["lane_pages"]]
    eight = host.new_state(second, zero=False)
    second.prefill(2, 5, OTHER[5:], True).decode(1, 7).snapshot(8, eight)

    third = host.plan()
    third.add("moves", (0, 0, pages[0], 40), (0, 1, four, 12), (1, 0, own[2], pages[0]))
    third.add("page_table", (pages[0], 40), (own[2], pages[0])).add("state_table", (four, 12))
    third.decode(1, 8).decode(2, 9)

    fourth = host.plan()
    fourth.add("state_table", (1, 13)).add("zero_states", 1).add("page_table", (pages[1], 50))
    (begin,) = host.new_pages(fourth, 1, zero=False)
    host.seat(fourth, 3, prompt=9, limit=12, state=1, shared=[begin, pages[1]])
    fourth.prefill(3, 0, OTHER, True).decode(2, 10)

    fifth = host.plan().decode(3, 9)
    fifth.verify(2, 11, fresh_output(SCOPE, OTHER, Sampling(), 6, vocab_size=1000)[3:])
    deep: list[Prefix] = [(SCOPE, line, 8, eight, pages[:2])]
    return [(first.build(), root + more), (second.build(), root + more + deep), (third.build(), root + more + deep),
            (fourth.build(), root), (fifth.build(), root)]


def bites(number: int = -1, phase: str = "", index: int = 0, *, seed: int = 0) -> list[str]:
    """What shows when one entry of one plan is left out."""
    executor = MockExecutor(seed)
    executor.attach(layout_of(small_shape()))
    results, found = [], []
    pages: dict[int, int] = {}
    states: dict[int, int] = {}
    for i, (plan, prefixes) in enumerate(story()):
        pages |= dict(plan.page_table.tolist())
        states |= dict(plan.state_table.tolist())
        (result,) = run(executor, omit(plan, phase, index) if i == number else plan)
        results.append(mend(result, phase, index) if i == number else result)
        found += executor.audit(prefixes, pages.items(), states.items())
    for lane, prompt in ((1, PROMPT), (2, OTHER), (3, OTHER)):
        tokens = tokens_of(results, lane)
        if tokens != fresh_output(SCOPE, prompt, Sampling(), len(tokens), vocab_size=1000):
            found.append(f"lane {lane}: wrong tokens")
    return found + executor.violations


def omissions() -> Iterator[tuple[int, str, int]]:
    for number, (plan, _) in enumerate(story()):
        for phase in PHASES:
            for index in range(len(getattr(plan, phase))):
                yield number, phase, index


@pytest.mark.parametrize("seed", range(5))
def test_the_whole_story_is_right(seed: int) -> None:
    assert bites(seed=seed) == []


@pytest.mark.parametrize(("number", "phase", "index"), list(omissions()))
def test_an_omission_bites(number: int, phase: str, index: int) -> None:
    assert bites(number, phase, index)


@pytest.mark.parametrize("seed", range(150))
def test_a_garbled_plan_never_crashes_the_mock(seed: int) -> None:
    rng = Random(seed)
    executor = MockExecutor(seed)
    executor.attach(layout_of(small_shape()))
    for plan, _ in story():
        arrays = {f.name: getattr(plan, f.name).copy() for f in fields(plan)
                  if isinstance(getattr(plan, f.name), np.ndarray) and getattr(plan, f.name).size}
        name = rng.choice(sorted(arrays))
        flat = arrays[name].reshape(-1)
        low = -3 if arrays[name].dtype == np.int32 else 0
        flat[rng.randrange(len(flat))] = rng.randrange(low, 120)
        (result,) = run(executor, replace(plan, **{name: arrays[name]}))
        assert len(result.accepted) == plan.rows


def test_every_phase_has_an_omission() -> None:
    assert {phase for _, phase, _ in omissions()} == set(PHASES)
