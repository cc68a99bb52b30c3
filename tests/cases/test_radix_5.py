"""RADIX-5: KV without a checkpoint at or below it is no hit; resume depth == depth of the restored state."""

from __future__ import annotations

from tests.cases import plant
from tests.cases.helpers import Scene, cached, diverge, what_is_wrong

R2 = diverge(cached(256), "B", 8)


def with_kv(*, states_at: tuple[int, ...]) -> Scene:
    """KV of A x256 is cached, with checkpoints at these depths only."""
    scene = Scene()
    scene.serve("R1", cached(256), 1, hints=(64, 128, 192))
    gone = [depth for depth in scene.checkpoints(cached(256)) if depth not in states_at]
    scene.tombstone(cached(256), *gone)
    assert scene.checkpoints(cached(256)) == list(states_at)
    assert scene.match(R2).kv == 256
    return scene


def scenario() -> None:
    for states_at, hit in (((), 0), ((128,), 128)):
        scene = with_kv(states_at=states_at)
        assert scene.match(R2).depth == hit
        assert scene.serve("R2", R2, 8) == hit
        seats = [seat for plan in scene.plans for seat in plan.seats]
        assert seats[-1].depth == hit
        scene.settle()


def test_only_checkpoints_can_be_resumed_from() -> None:
    scenario()


def test_cached_kv_is_linked_again_and_not_kept_twice() -> None:
    scene = with_kv(states_at=())
    pages = scene.tree.pages(scene.nodes(cached(256))[256]).tolist()
    scene.serve("R2", R2)
    assert scene.tree.pages(scene.nodes(R2)[256]).tolist() == pages
    scene.settle()


def test_a_kv_hit_without_a_state_fails() -> None:
    with plant.kv_hit_without_state():
        assert what_is_wrong(scenario)


def test_a_kv_hit_without_a_state_gives_wrong_tokens() -> None:
    scene = with_kv(states_at=())
    with plant.kv_hit_without_state():
        assert scene.serve("R2", R2, 8) == 256
    assert scene.got["R2"] != scene.expected["R2"]
