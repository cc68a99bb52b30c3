"""The block drafter: its equations, its rows in the pages, and that it changes no token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from k3mem.errors import InvalidShape
from k3mem.executors.torch_ref import BlockDrafter, Model
from k3mem.executors.torch_ref.dspark import DraftConfig
from k3mem.executors.torch_ref.init import config_of, draft_config_of, write, write_draft
from k3mem.executors.torch_ref.ops import quiet
from k3mem.executors.torch_ref.stores import Kv
from k3mem.plan import PAGE
from k3mem.spec import Draft
from k3mem.types import Int32
from tests.executors.torch_ref.bench import Bench
from tests.executors.torch_ref.naive import Naive
from tests.executors.torch_ref.world import World, request, tokens

F = torch.nn.functional
VOCAB = 11
"""So small that some drafts of random weights are right."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(target, drafter)"""
    root = tmp_path_factory.mktemp("dspark")
    raw = config_of("tiny-k3", 4)
    raw["text_config"]["vocab_size"] = VOCAB
    write(root / "m", raw, seed=1)
    write_draft(root / "m/draft", draft_config_of(raw), raw, seed=2)
    return root / "m", root / "m/draft"


@pytest.fixture(scope="module")
def drafting(folders: tuple[Path, Path]) -> Model:
    return Model.from_pretrained(folders[0], draft=folders[1])


def text(seed: int, count: int) -> list[int]:
    return [token % VOCAB for token in tokens(seed, count)]


def said_by(model: Model, known: Sequence[int]) -> tuple[list[int], list[float]]:
    """What the drafter says behind a text, from one bare pass."""
    assert model.draft is not None
    held, depth = model.forward(known[:-1])[1], len(known) - 1
    kv = Kv(torch.cat([rows for name, rows in held.items() if name.startswith(("kv.", "draft."))]), depth)
    with quiet(1):
        batch = model.draft.batch([(depth, known[-1], np.arange(depth))])
        said, sure = model.propose(batch, kv)
    return said[0].tolist(), sure[0].double().tolist()


class Watched(BlockDrafter):
    """Keeps every proposal."""

    def __init__(self, executor: Any) -> None:
        super().__init__(executor)
        self.said: list[tuple[list[int], Draft]] = []

    def draft_lane(self, lane: int, generation: int, tokens: Int32, limit: int) -> Draft:
        draft = super().draft_lane(lane, generation, tokens, limit)
        if limit:
            self.said.append((tokens.tolist(), draft))
        return draft


def drafted(world: World) -> int:
    """Checks every proposal of a world against bare passes; how many were of whole blocks."""
    drafter = world.engine.scheduler.core.drafter
    assert isinstance(drafter, Watched)
    whole = 0
    for known, draft in drafter.said:
        if not len(draft.tokens):
            continue
        said, sure = said_by(world.model, known)
        n = len(draft.tokens)
        assert draft.confidence is not None
        assert (draft.tokens.tolist(), draft.confidence.tolist()) == (said[:n], sure[:n])
        whole += n == 7
    return whole


def start(model: Model, **options: Any) -> World:
    return World(model, drafter=Watched, window=8, **options)


def accepted(world: World) -> int:
    count: int = world.engine.stats()["drafts_accepted"]
    return count


# -- equations

def rotate(x: Tensor, position: Tensor, theta: float) -> Tensor:
    """[n, ..., rope] by complex numbers."""
    half = x.shape[-1] // 2
    angle = position.double().view(-1, *[1] * (x.dim() - 1)) * theta ** -(torch.arange(half).double() / half)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.exp(1j * angle)
    return torch.cat((turned.real, turned.imag), -1)


class NaiveDraft:
    """The drafter from its equations: float64, nothing absorbed, one head at a time, no pages."""

    def __init__(self, folder: Path, target: Naive) -> None:
        self.c = json.loads((folder / "config.json").read_text())
        stored = load_file(folder / "model.safetensors")
        self.w = {name.removeprefix("model."): tensor.double() for name, tensor in stored.items()}
        self.target, self.eps = target, target.c.eps

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.w[f"{name}.weight"], self.eps)

    def row(self, x: Tensor, layer: int, position: Tensor) -> tuple[Tensor, Tensor]:
        at = f"layers.{layer}.self_attn"
        latent, key = (x @ self.w[f"{at}.kv_a_proj_with_mqa.weight"].T).split([self.c["kv_lora_rank"],
                                                                               self.c["qk_rope_head_dim"]], -1)
        return self.norm(latent, f"{at}.kv_a_layernorm"), rotate(key, position, self.c["rope_theta"])

    def attend(self, x: Tensor, context: Tensor, layer: int, position: Tensor) -> Tensor:
        c, at = self.c, f"layers.{layer}.self_attn"
        nope, rope, v_dim, heads = (c[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
                                                       "num_attention_heads"))
        far, near = self.row(context, layer, torch.arange(len(context))), self.row(x, layer, position)
        latent, key = (torch.cat(pair) for pair in zip(far, near, strict=True))
        query = (x @ self.w[f"{at}.q_proj.weight"].T).view(len(x), heads, nope + rope)
        up = self.w[f"{at}.kv_b_proj.weight"].view(heads, nope + v_dim, -1)
        out = []
        for h in range(heads):
            q = torch.cat((query[:, h, :nope], rotate(query[:, h, nope:], position, c["rope_theta"])), -1)
            k = torch.cat((latent @ up[h, :nope].T, key), -1)
            share = torch.softmax(q @ k.T * (nope + rope) ** -0.5, -1)
            out.append(share @ (latent @ up[h, nope:].T))
        return torch.cat(out, -1) @ self.w[f"{at}.o_proj.weight"].T

    def propose(self, taps: Tensor, anchor: int, depth: int) -> tuple[list[int], list[float]]:
        c, target = self.c, self.target
        context = self.norm(taps @ self.w["fc.weight"].T, "fc_norm")
        ids = torch.tensor([anchor] + [c["mask_token_id"]] * (c["block_size"] - 1))
        h, position = target["embed_tokens"][ids], depth + torch.arange(c["block_size"])
        for i in range(c["num_hidden_layers"]):
            h = h + self.attend(self.norm(h, f"layers.{i}.input_layernorm"), context, i, position)
            x, at = self.norm(h, f"layers.{i}.post_attention_layernorm"), f"layers.{i}.mlp"
            gate, up = (x @ self.w[f"{at}.{part}_proj.weight"].T for part in ("gate", "up"))
            h = h + (F.silu(gate) * up) @ self.w[f"{at}.down_proj.weight"].T
        before, said, sure = anchor, [], []
        for j in range(c["block_size"]):
            near = self.w["markov_head.markov_w1.weight"][before]
            logits = target["lm_head"] @ F.rms_norm(h[j], h[j].shape, target["norm"], self.eps)
            logits = logits + self.w["markov_head.markov_w2.weight"] @ near
            score = self.w["confidence_head.proj.weight"][0] @ torch.cat((h[j], near))
            sure.append(torch.sigmoid((score + self.w["confidence_head.proj.bias"][0])
                                      / c["confidence_temperature"]).item())
            before = int(logits.argmax())
            said.append(before)
        return said, sure


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 150])
def test_a_block_is_what_the_equations_say(folders: tuple[Path, Path], length: int,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model.from_pretrained(folders[0], torch.float64, draft=folders[1])
    draft, known = model.draft, text(length, length + 1)
    assert draft is not None
    kept = []
    absorb = draft.absorb

    def watched(taps: Tensor, batch: Any, kv: Any) -> None:
        kept.append(taps[: batch.count].clone())
        absorb(taps, batch, kv)

    monkeypatch.setattr(draft, "absorb", watched)
    said, sure = said_by(model, known)
    naive_said, naive_sure = NaiveDraft(folders[1], Naive(folders[0])).propose(kept[0], known[-1], length)
    assert said == naive_said
    assert sure == pytest.approx(naive_sure, rel=1e-10)


def test_a_tap_is_what_the_next_layer_reads(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model.from_pretrained(folders[0], draft=folders[1])
    assert model.draft is not None
    kept, read = [], {}
    monkeypatch.setattr(model.draft, "absorb", lambda taps, batch, kv: kept.append(taps[: batch.count].clone()))
    from k3mem.executors.torch_ref.residual import Mixed

    plain = Mixed.read

    def watched(self: Mixed, place: int) -> Tensor:
        read[place] = plain(self, place)
        return read[place]

    monkeypatch.setattr(Mixed, "read", watched)
    model.forward(text(1, 40))
    places = [2 * (layer + 1) for layer in model.draft.config.taps]
    assert places[-1] == 2 * model.config.layers
    assert torch.equal(kept[0], torch.cat([read[place][:40] for place in places], 1))


# -- under the engine

@pytest.mark.parametrize(("page", "overlap"), [(1, 1), (16, 0), (64, 1)])
def test_it_changes_no_token(drafting: Model, page: int, overlap: int) -> None:
    world = start(drafting, page_tokens=page, steps_in_flight=overlap)
    world.run(*[request(i, text(i, 40 + 31 * i), 30) for i in range(5)]).check()
    assert drafted(world) > 20 and accepted(world) > 10


@pytest.mark.parametrize("page", [1, 16, 64])
def test_hits_say_what_a_cold_run_says(drafting: Model, page: int) -> None:
    world = start(drafting, page_tokens=page, interval=64).run(request(1, text(3, 256), 9))
    tail = [*world.prompts[1], *world.answers[1], *text(5, 20)]
    prompts = [[*text(3, 139), *text(4, 30)], tail]
    assert [world.engine.probe(prompt).hit for prompt in prompts] == [128, 264]
    world.run(*[request(2 + i, prompt, 20) for i, prompt in enumerate(prompts)]).check()
    assert drafted(world) > 4


@pytest.mark.parametrize("page", [16])
def test_retraction_and_moves_say_what_a_cold_run_says(drafting: Model, page: int) -> None:
    shape = drafting.shape(page, 8)
    records = 8 * 8 * shape.record_bytes
    world = start(drafting, page_tokens=page, capacity=records + 4 * shape.state_bytes
                  + (250 + 2 * page) * shape.token_bytes)
    world.run(*[request(i, text(i, 40), 90) for i in range(3)]).check()
    assert world.engine.stats()["retractions"] > 0 and drafted(world) > 20
    world = start(drafting, page_tokens=page, eager=True, capacity=records + 9 * shape.state_bytes
                  + 700 * shape.token_bytes)
    for wave in range(3):
        world.submit(*[request(10 * wave + i, text(10 * wave + i, 30 + 40 * i), 30 - 9 * i) for i in range(4)])
        for _ in range(8):
            world.step()
    world.run().check()
    assert any((plan.moves[:, 1] == PAGE).any() for plan in world.executor.plans) and drafted(world) > 20


def test_a_failed_step_costs_drafts_and_no_token(drafting: Model) -> None:
    world = start(drafting)
    world.executor.breaks = [3, 6]
    world.run(*[request(i, text(i, 60), 30) for i in range(3)]).check()
    assert not world.executor.breaks and drafted(world) > 4


def test_what_was_said_is_of_one_tenant_and_depth(drafting: Model) -> None:
    bench = Bench(drafting, prompt=text(1, 21))
    executor = bench.executor
    known = [*text(1, 21), executor.tables.lane(1).last_token]
    got = executor.proposed(1, 1, len(known))
    assert got is not None and (got[0].tolist(), got[1].tolist()) == said_by(drafting, known)
    for lane, generation, count in ((1, 1, len(known) + 1), (1, 1, len(known) - 1), (1, 2, len(known)), (2, 1, 22)):
        assert executor.proposed(lane, generation, count) is None


def test_a_drafter_left_alone_costs_no_bit(drafting: Model, folders: tuple[Path, Path]) -> None:
    plain = Model.from_pretrained(folders[0])
    assert drafting.shape().token_bytes == 3 * plain.shape().token_bytes
    assert torch.equal(drafting.logits(text(1, 90)), plain.logits(text(1, 90)))
    with pytest.raises(ValueError, match="no drafter"):
        World(plain, drafter=BlockDrafter, window=8)


def test_other_weights_share_nothing(folders: tuple[Path, Path], tmp_path: Path, drafting: Model) -> None:
    raw = config_of("tiny-k3", 4)
    raw["text_config"]["vocab_size"] = VOCAB
    write_draft(tmp_path / "d", draft_config_of(raw), raw, seed=9)
    other = Model.from_pretrained(folders[0], draft=tmp_path / "d")
    again = Model.from_pretrained(folders[0], draft=folders[1])
    versions = [model.draft.version for model in (drafting, again, other) if model.draft]
    assert versions[0] == versions[1] != versions[2]
    assert BlockDrafter(World(other).executor).version == versions[2]


@pytest.mark.parametrize(("change", "what"), [
    ({"hidden_size": 64}, "hidden size 64"), ({"kv_lora_rank": 16}, "KV row 32"), ({"target_layer_ids": [9]}, "0 to 3"),
    ({"target_layer_ids": [2, 0]}, "ascending"), ({"block_size": 0}, "block_size"), ({"mask_token_id": 512}, "512"),
    ({"markov_rank": None}, "markov_rank"), ({"rope_theta": 0}, "rope_theta"),
])
def test_a_config_that_does_not_fit_the_target_is_refused(change: dict[str, Any], what: str) -> None:
    from k3mem.executors.torch_ref.config import Config

    raw = config_of("tiny-k3", 4)
    with pytest.raises(InvalidShape, match=what):
        DraftConfig.read({**draft_config_of(raw), **change}, Config.read(raw))
