"""Bugs planted one at a time in what VERIFY rows keep and in the fold: each breaks its equality with decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from k3mem.executors.torch_ref import Model, TorchExecutor
from k3mem.executors.torch_ref import executor as module
from k3mem.executors.torch_ref.stores import Records
from tests.executors.torch_ref.bench import PROMPT, Bench, ahead
from tests.executors.torch_ref.world import tokens
from tests.plans import run

OTHER = tokens(2, 33)
STEPS = ((3, 3), (5, 1), (2, 4))
"""Right drafts of both lanes, by step."""
WINDOW = 6
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def _known(model: Model) -> None:
    """What is right is decoded before anything is planted."""
    for prompt in (PROMPT, OTHER):
        ahead(model, tuple(prompt))


def folds_as_decoding(model: Model) -> None:
    """Two lanes verify some steps: answers, states and convolution rows are those of decoding, and what verification
    itself leaves of the states is what it found."""
    bench, plain = Bench(model), Bench(model)
    states = [(b.state, b.seat(2, OTHER)) for b in (bench, plain)]
    fold, found = bench.executor._fold, []
    texts = {1: ahead(model, tuple(PROMPT)), 2: ahead(model, tuple(OTHER))}
    at = {1: 0, 2: 0}
    depth = {1: len(PROMPT), 2: len(OTHER)}
    for right in STEPS:
        plan = bench.host.plan()
        for lane, count in zip((1, 2), right, strict=True):
            true = texts[lane][at[lane] : at[lane] + WINDOW]
            drafts = [t if i < count else (t + 1) % model.config.vocab for i, t in enumerate(true)]
            plan.verify(lane, depth[lane] + at[lane], drafts)
        before = [bench.slot(state) for state in states[0]]
        found.clear()

        def watched(*args: Any) -> None:
            found.extend(bench.slot(state) for state in states[0])
            fold(*args)

        bench.executor._fold = watched  # type: ignore[method-assign]
        (result,) = run(bench.executor, plan)
        assert all(map(torch.equal, found, before)) and found, "verification wrote a state"
        for lane, count in zip((1, 2), right, strict=True):
            plain.decode(count + 1, lane)
            at[lane] += count + 1
        for mine, his in zip(states[0], states[1], strict=True):
            assert torch.equal(bench.slot(mine), plain.slot(his)), "the fold is not decoding"
        assert result.accepted.tolist() == [count + 1 for count in right]


def test_nothing_planted_nothing_seen(model: Model) -> None:
    folds_as_decoding(model)


# -- bugs

def _counted(more: int) -> Plant:
    """The fold takes so many records more than were accepted."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        fold = module.fold

        def wrong(matrix: Tensor, records: Records, numbers: Tensor, counts: Sequence[int],
                  landed: Callable[[int], None]) -> None:
            longer = torch.cat((numbers, numbers[:, -1:] + 1), 1)
            for b, count in enumerate(counts):
                longer[b, count] = numbers[b, count - 1] + 1
            fold(matrix, records, longer, [count + more for count in counts], landed)

        patch.setattr(module, "fold", wrong)

    return plant


def _swapped(patch: pytest.MonkeyPatch) -> None:
    fold = module.fold

    def wrong(matrix: Tensor, records: Records, numbers: Tensor, counts: Sequence[int],
              landed: Callable[[int], None]) -> None:
        fold(matrix, records, numbers.flip(0), counts, landed)

    patch.setattr(module, "fold", wrong)


def _misordered(patch: pytest.MonkeyPatch) -> None:
    """The newest first."""
    fold = module.fold

    def wrong(matrix: Tensor, records: Records, numbers: Tensor, counts: Sequence[int],
              landed: Callable[[int], None]) -> None:
        for b, count in enumerate(counts):
            numbers[b, :count] = numbers[b, :count].flip(0)
        fold(matrix, records, numbers, counts, landed)

    patch.setattr(module, "fold", wrong)


def _one_state(patch: pytest.MonkeyPatch) -> None:
    """Accepted prefixes land in each other's states."""
    fold = TorchExecutor._fold

    def wrong(self: TorchExecutor, rows: list[Any], records: Records, written: Any) -> None:
        rows[0][0].place, rows[1][0].place = rows[1][0].place, rows[0][0].place
        fold(self, rows, records, written)

    patch.setattr(TorchExecutor, "_fold", wrong)


def _stale(patch: pytest.MonkeyPatch) -> None:
    """From the second step on, each row's first record is what the scratch held before."""
    put, kept = Records.put, {}

    def wrong(self: Records, layer: int, u: Tensor, key: Tensor, decay: Tensor, row: Tensor) -> None:
        put(self, layer, u, key, decay, row)
        old = kept.get(layer)
        kept[layer] = self.u[0, layer].clone(), self.key[0, layer].clone(), self.decay[0, layer].clone()
        if old is not None:
            self.u[0, layer], self.key[0, layer], self.decay[0, layer] = old

    patch.setattr(Records, "put", wrong)


def _put(change: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]) -> Plant:
    """Records keep (u, key, decay, row) changed."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        put = Records.put

        def wrong(self: Records, layer: int, *given: Tensor) -> None:
            put(self, layer, *change(*given))  # type: ignore[arg-type]

        patch.setattr(Records, "put", wrong)

    return plant


def _window(change: Callable[[Records, Tensor, Tensor], Tensor]) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Records, "window", change)

    return plant


def _without_last(self: Records, before: Tensor, numbers: Tensor) -> Tensor:
    fresh = self.row.index_select(0, numbers[:-1]).transpose(0, 1)
    return torch.cat((before, fresh), 1)[:, len(numbers) - 1 :]


def _not_moved(self: Records, before: Tensor, numbers: Tensor) -> Tensor:
    fresh = self.row.index_select(0, numbers).transpose(0, 1)
    return torch.cat((fresh, before), 1)[:, : before.shape[1]]


def _written_early(patch: pytest.MonkeyPatch) -> None:
    """Verification puts the state back that it worked on."""
    aim = TorchExecutor._records

    def wrong(self: TorchExecutor, batch: Any, rows: Sequence[Any], verify: list[int]) -> Any:
        arena = self.arena
        for i in verify:
            arena.slots[arena.slot(rows[i].place)] += 1e-3
        return aim(self, batch, rows, verify)

    patch.setattr(TorchExecutor, "_records", wrong)


def _refused(patch: pytest.MonkeyPatch) -> None:
    """A drafted token beyond the accepted prefix is taken for accepted."""
    sample = TorchExecutor._sample_row

    def wrong(row: Any, greedy: list[int], logits: Tensor) -> None:
        sample(row, greedy, logits)
        if row.drafts and len(row.accepted) <= len(row.drafts):
            row.accepted.append(row.drafts[len(row.accepted) - 1])

    patch.setattr(TorchExecutor, "_sample_row", staticmethod(wrong))


BUGS: dict[str, Plant] = {
    "n is one less": _counted(-1),
    "n is one more": _counted(1),
    "n counts a draft that was refused": _refused,
    "a stale record": _stale,
    "swapped rows": _swapped,
    "records in the wrong order": _misordered,
    "states of each other": _one_state,
    "a lost convolution row": _window(_without_last),
    "convolution rows that do not move on": _window(_not_moved),
    "the convolution row of the token before": _put(lambda u, key, decay, row: (u, key, decay, row.roll(1, 0))),
    "the gate recomputed by its logarithm": _put(lambda u, key, decay, row: (u, key, decay.log().exp(), row)),
    "the gate by powers of two": _put(lambda u, key, decay, row: (u, key, decay.log2().exp2(), row)),
    "the key normed without its epsilon": _put(
        lambda u, key, decay, row: (u, key / (key * key).sum(-1, keepdim=True).sqrt(), decay, row)),
    "the key's norm times its scale": _put(
        lambda u, key, decay, row: (u, key * (key.shape[-1] ** 0.5) * (key.shape[-1] ** -0.5), decay, row)),
    "u rounded on its way": _put(lambda u, key, decay, row: (u.bfloat16().to(u.dtype), key, decay, row)),
    "verification writes the state": _written_early,
}


@pytest.mark.parametrize("bug", BUGS)
def test_each_planted_bug_is_seen(model: Model, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    BUGS[bug](monkeypatch)
    with pytest.raises(AssertionError, match="the fold is not decoding|verification wrote a state"):
        folds_as_decoding(model)


