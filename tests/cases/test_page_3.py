"""PAGE-3: checkpoint depths lie on the absolute grid, and only where the executor's kernel has a state."""

from __future__ import annotations

from tests.cases import plant
from tests.cases.helpers import Scene, cached, diverge, named, what_is_wrong


def resumed_at(prefix: int, capture: str = "grid") -> tuple[Scene, list[tuple[int, int, int]]]:
    """A prompt of 605 tokens that resumes at `prefix`, with a grid of 512 and a kernel chunk of 64; all snapshots that
    its plans name."""
    scene = Scene(page_tokens=512, states=8, pages=8, capture=capture)
    assert scene.shape.grid == 512 and scene.shape.state_chunk == 64
    scene.serve("R1", cached(prefix), 1)
    first = len(scene.plans)
    assert scene.serve("R2", diverge(cached(prefix), "B", 605 - prefix)) == prefix
    return scene, [entry for plan in scene.plans[first:] for entry in named(plan)]


def scenario() -> None:
    scene, found = resumed_at(64)
    assert found == [(64, 512, 605)]
    scene.settle()
    scene, found = resumed_at(70)
    assert found == [(70, 512, 512)], "the row ends there: no interior snapshot off the kernel's chunks"
    scene.settle()


def test_the_grid_is_counted_from_token_0() -> None:
    scenario()


def test_no_interior_snapshot_where_the_kernel_has_no_state() -> None:
    for prefix in (1, 63, 64, 65, 127, 128, 200):
        scene, found = resumed_at(prefix)
        assert [depth for _, depth, _ in found] == [512], prefix
        assert all((depth - start) % 64 == 0 or depth == end for start, depth, end in found), prefix
        scene.settle()


def test_a_grid_from_the_matched_prefix_fails() -> None:
    with plant.anchors_from_the_resume_depth():
        assert what_is_wrong(scenario)


def test_ignoring_the_kernels_chunks_fails() -> None:
    with plant.capture_ignored():
        assert what_is_wrong(lambda: resumed_at(70)[0].settle())
