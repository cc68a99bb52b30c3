"""NUM-1: rows are split at absolute grid depths only, so a floating-point recurrence in chunks sums in the same order,
cold, resumed or chunked. The one exception, a resume inside a chunk, is off by default under `deterministic`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from k3mem.plan import Plan, Row
from k3mem.policy import Policy
from tests.cases import plant
from tests.cases.helpers import VOCAB, Scene, cached, what_is_wrong

Matrix = npt.NDArray[np.float32]
RNG = np.random.default_rng(7)
KEYS, VALUES = RNG.normal(size=(2, VOCAB, 12)).astype(np.float32)
DECAY = np.float32(0.97)


def advance(state: Matrix, tokens: list[int], chunk: int) -> Matrix:
    """A gated outer-product recurrence in fp32, summed chunk by chunk from the row's first token on."""
    for at in range(0, len(tokens), chunk):
        part = tokens[at : at + chunk]
        weights = DECAY ** np.arange(len(part) - 1, -1, -1, dtype=np.float32)
        state = state * DECAY ** np.float32(len(part)) + (KEYS[part] * weights[:, None]).T @ VALUES[part]
    return state


def replayed(plans: list[Plan], chunk: int) -> tuple[Matrix, list[int]]:
    """The state of the last prompt of these plans when it has been absorbed, and the depths where its rows ended."""
    states: dict[int, Matrix] = {}
    lanes: dict[int, int] = {}
    ends: list[int] = []
    last = np.zeros((12, 12), np.float32)
    for plan in plans:
        lanes |= {seat.lane: seat.state for seat in plan.seats}
        ends = [] if plan.seats else ends
        states |= {state: np.zeros((12, 12), np.float32) for state in plan.zero_states.tolist()}
        states |= {to: states[source] for source, to in plan.restores.tolist()}
        for i in np.flatnonzero(plan.kind == Row.PREFILL).tolist():
            tokens = plan.tokens[plan.token_offset[i] : plan.token_offset[i + 1]].tolist()
            start, state = int(plan.start[i]), lanes[int(plan.lane[i])]
            for row, depth, target in plan.snapshots.tolist():
                if row == i:
                    states[target] = advance(states[state], tokens[: depth - start], chunk)
            last = states[state] = advance(states[state], tokens, chunk)
            ends.append(start + len(tokens))
    return last, ends


def run(chunk: int, first: int = 0, budget: int = 8192, deterministic: bool = False) -> tuple[Matrix, list[int]]:
    """A prompt of 200 tokens after one of `first` tokens that it begins with."""
    policy = Policy(token_budget=budget, deterministic=deterministic)
    scene = Scene(state_chunk=chunk, capture="grid", policy=policy, states=30)
    if first:
        scene.serve("before", cached(first), 1)
    scene.serve("R", cached(200), 1)
    scene.settle()
    return replayed(scene.plans, chunk)


def scenario() -> None:
    for chunk in (64, 32):
        cold, ends = run(chunk)
        assert ends == [200]
        for options in ({"first": 128}, {"budget": 96}, {"first": 150, "deterministic": True}):
            split, ends = run(chunk, **options)  # type: ignore[arg-type]
            assert all(end % chunk == 0 for end in ends[:-1])
            assert np.array_equal(split, cold), f"chunk {chunk}, {options}: other bits than cold"


def test_splits_on_the_grid_change_no_bit() -> None:
    scenario()


@pytest.mark.parametrize("chunk", [64, 32])
def test_a_resume_inside_a_chunk_returns_to_the_grid_and_is_counted(chunk: int) -> None:
    cold, _ = run(chunk)
    split, ends = run(chunk, first=150)
    assert ends == [-(-150 // chunk) * chunk, 200]
    assert np.allclose(split, cold, rtol=1e-4, atol=1e-4)
    scene = Scene(state_chunk=chunk, capture="grid")
    scene.serve("before", cached(150), 1)
    scene.serve("R", cached(200), 1)
    assert scene.engine.stats()["hits_by_kind"] == {6: 1}, "resumes from an answer's end are counted apart"


def test_a_chunk_that_ends_off_the_grid_fails() -> None:
    with plant.chunks_end_anywhere():
        assert what_is_wrong(scenario)


def test_off_grid_chunks_change_bits() -> None:
    cold, _ = run(64)
    with plant.chunks_end_anywhere():
        split, ends = run(64, budget=96)
    assert ends == [96, 192, 200] and not np.array_equal(split, cold)
