"""Surfaces: stairs from numbers, treads from measurements, corrections from steps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3mem.spec import Corrected, InvalidSurface, Stairs, Treads
from k3mem.spec.surface import dump, load, parse

STAIRS = Stairs(bias=300.0, per_row=0.5, per_token=1.0, tile=64, per_context=0.25)
TREADS = Treads(ends=np.array([8, 16, 32]), levels=np.array([10.0, 12.0, 15.0]), per_row=1.0)


@pytest.mark.parametrize(("tokens", "us"), [(1, 366.0), (64, 366.0), (65, 430.0), (128, 430.0)])
def test_a_step_pays_for_whole_tiles(tokens: int, us: float) -> None:
    assert STAIRS.step_us(4, np.array([tokens]), 0)[0] == us
    assert STAIRS.step_us(4, np.array([tokens]), 2000)[0] == us + 0.5


@given(first=st.integers(1, 200), more=st.integers(0, 300), surface=st.sampled_from((STAIRS, TREADS)))
def test_edges_end_the_treads_between_two_counts(first: int, more: int, surface: Stairs | Treads) -> None:
    last = first + more
    edges = surface.edges(first, last).tolist()

    counts = np.arange(first, last + 1)
    us = surface.step_us(1, counts, 0)
    rises = [int(c) for c, a, b in zip(counts, us, us[1:], strict=False) if a != b]
    assert edges == [*rises, last]


def test_treads_go_on_as_they_did() -> None:
    # two treads of 12 tokens and 2.5 us each, on average
    assert TREADS.step_us(0, np.array([32, 33, 44, 45]), 0).tolist() == [15.0, 17.5, 17.5, 20.0]


@pytest.mark.parametrize("surface", [STAIRS, TREADS])
def test_a_file_is_read_as_it_was_written(tmp_path: Path, surface: Stairs | Treads) -> None:
    file = tmp_path / "surface.json"
    file.write_text(dump(surface, executor="sim", window=8))

    again = load(file)

    counts = np.arange(1, 100)
    assert type(again) is type(surface)
    assert again.step_us(3, counts, 77).tolist() == surface.step_us(3, counts, 77).tolist()
    assert again.edges(3, 99).tolist() == surface.edges(3, 99).tolist()


@pytest.mark.parametrize(("data", "match"), [
    ({"bias": -1.0, "per_token": 1.0}, "bias must be"), ({"per_token": 1.0}, "bias"),
    ({"bias": 1.0, "per_token": 1.0, "tile": 0}, "tile must be"), ({"bias": 0.0, "per_token": 0.0}, "take time"),
    ({"bias": 1.0, "per_token": 1.0, "stride": 3}, "unknown key 'stride'"),
    ({"bias": 1.0, "per_token": 1.0, "unit": "ms"}, "unit"),
    ({"ends": [4, 4], "levels": [1.0, 2.0]}, "ascend"), ({"ends": [4], "levels": [0.0]}, "positive"),
    ({"ends": [4], "levels": [1.0, 2.0]}, "one level a tread"), ({"ends": ["x"], "levels": [1.0]}, "not a surface"),
])
def test_a_wrong_surface_says_what_is_wrong(tmp_path: Path, data: dict[str, object], match: str) -> None:
    with pytest.raises(InvalidSurface, match=match):
        parse(data)
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(data))
    with pytest.raises(InvalidSurface, match=r"bad\.json"):
        load(file)


@pytest.mark.parametrize("text", ["[]", "{", "3"])
def test_a_file_that_is_no_surface_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)
    with pytest.raises(InvalidSurface):
        load(file)
    with pytest.raises(InvalidSurface, match="No such file"):
        load(tmp_path / "absent.json")


def test_a_correction_follows_what_steps_took_near_there() -> None:
    surface, counts = Corrected(STAIRS), np.array([60, 64, 1000])
    plain = STAIRS.step_us(4, counts, 0)

    for _ in range(40):
        surface.took(4, 64, 0, 2 * float(plain[1]))

    ratio = surface.step_us(4, counts, 0) / plain
    assert ratio[1] == pytest.approx(2.0, rel=0.05) and ratio[0] == pytest.approx(2.0, rel=0.05)
    assert surface.edges(1, 200).tolist() == STAIRS.edges(1, 200).tolist()


def test_a_correction_forgets_and_ignores_what_is_wild() -> None:
    surface, counts = Corrected(STAIRS), np.array([64])
    plain = float(STAIRS.step_us(4, counts, 0)[0])
    for _ in range(100):
        surface.took(4, 64, 0, 3 * plain)
    for _ in range(200):
        surface.took(4, 64, 0, plain)
    surface.took(4, 64, 0, 1000 * plain)
    surface.took(4, 64, 0, 0.0)

    assert surface.step_us(4, counts, 0)[0] == pytest.approx(plain, rel=0.02)
