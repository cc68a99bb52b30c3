"""Drafters: n-grams of the request's own text, scripts for tests; confidences and what they turn out to be worth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3mem.spec import Calibration, Draft, NGram, Scripted


def draft(drafter: NGram, tokens: list[int], limit: int = 4, name: str = "a") -> list[int]:
    return drafter.draft(name, np.array(tokens, np.int32), limit).tokens.tolist()


def test_what_followed_the_newest_occurrence_is_proposed() -> None:
    assert draft(NGram(most=3, least=2), [1, 2, 3, 9, 1, 2, 4, 8, 7, 1, 2]) == [4, 8, 7, 1]


def test_the_longest_match_wins() -> None:
    # 5 1 2 was followed by 3; 1 2, later, by 4
    assert draft(NGram(most=3, least=2), [5, 1, 2, 3, 0, 1, 2, 4, 0, 5, 1, 2], 1) == [3]


def test_what_repeats_goes_on_repeating() -> None:
    assert draft(NGram(most=2, least=2), [7, 1, 2, 1, 2], 5) == [1, 2, 1, 2, 1]


def test_nothing_known_proposes_nothing() -> None:
    drafter = NGram()
    assert draft(drafter, [1, 2, 3]) == [] and draft(drafter, [1], name="b") == []


def test_longer_matches_are_surer() -> None:
    drafter = NGram(most=4, least=1)
    long = drafter.draft("a", np.array([1, 2, 3, 4, 5, 1, 2, 3, 4], np.int32), 2)
    short = drafter.draft("b", np.array([1, 2, 9, 2], np.int32), 2)
    assert long.confidence is not None and short.confidence is not None
    assert long.confidence.tolist() == [0.8, 0.8] and short.confidence.tolist() == [0.5, 0.5]


def test_a_request_that_ended_is_forgotten_and_its_id_starts_anew() -> None:
    drafter = NGram(most=2, least=2)
    draft(drafter, [1, 2, 3, 1, 2])
    assert len(drafter) == 1
    drafter.ended("a")
    drafter.ended("never seen")
    assert len(drafter) == 0 and draft(drafter, [4, 5, 6]) == []
    assert draft(drafter, [4, 5]) == []  # fewer tokens than last time: another request


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 3), st.integers(0, 2),
       st.lists(st.integers(1, 7), max_size=20), st.integers(1, 6))
def test_token_by_token_or_at_once_it_says_what_a_search_says(
        text: list[int], least: int, more: int, steps: list[int], limit: int) -> None:
    drafter, most = NGram(least + more, least), least + more
    at = 0
    for step in [*steps, len(text)]:
        at = min(len(text), at + step)
        said = draft(drafter, text[:at], limit)
        want: list[int] = []
        for n in range(most, least - 1, -1):
            ends = [e for e in range(n, at) if text[e - n : e] == text[at - n : at]] if at >= n else []
            if ends:
                piece = text[ends[-1] : at][:limit]
                want = [piece[i % len(piece)] for i in range(limit)]
                break
        assert said == want


def test_each_token_is_looked_at_once() -> None:
    """A call after k new tokens enters k runs, however long the text is."""
    drafter = NGram(most=2, least=2)
    text = list(range(500))
    draft(drafter, text)
    table = drafter._of["a"].after[0]
    before = len(table)
    draft(drafter, [*text, 900, 901, 902])
    assert before == 498 and len(table) == before + 3


@pytest.mark.parametrize(("most", "least"), [(2, 3), (2, 0)])
def test_lengths_that_make_no_sense_are_refused(most: int, least: int) -> None:
    with pytest.raises(ValueError, match="1 <= least <= most"):
        NGram(most, least)


def test_a_script_says_the_line_and_errs_where_told() -> None:
    script = Scripted({"a": [1, 2, 3, 4, 5]}, 97, wrong=frozenset({3}), confidence=lambda name, depth: depth / 10)
    got = script.draft("a", np.array([1, 2], np.int32), 2)
    assert isinstance(got, Draft) and got.confidence is not None
    assert got.tokens.tolist() == [3, 5] and got.confidence.tolist() == [0.2, 0.3]
    assert len(np.asarray(Scripted({}, 97).draft("b", np.array([1], np.int32), 2))) == 0
    assert script.asked == [("a", 2, 2)]


def test_calibration_learns_by_bucket_and_position() -> None:
    rng = np.random.default_rng(0)
    calibration = Calibration(3)
    said = rng.random((4000, 3))
    true = np.clip(said - np.array([0.0, 0.2, 0.0]) - np.where(said > 0.6, 0.15, 0.0), 0.0, 1.0)
    right = np.cumprod(rng.random(said.shape) < true, axis=1).sum(1).astype(np.int32)
    kept = np.full(4000, 3, np.int32)

    before = np.abs(calibration.apply(said) - true).mean(0)
    calibration.observe(said, kept, right)
    after = np.abs(calibration.apply(said) - true).mean(0)

    assert (after < 0.06).all() and after[1] < before[1] / 3


def test_what_was_not_verified_teaches_nothing() -> None:
    calibration = Calibration(2)
    said = np.full((500, 2), 0.5)
    calibration.observe(said, np.zeros(500, np.int32), np.zeros(500, np.int32))
    assert calibration.apply(said).tolist() == said.tolist()
    calibration.observe(said, np.full(500, 2, np.int32), np.zeros(500, np.int32))  # the first was wrong, each time
    learned = calibration.apply(said)
    assert learned[0, 0] < 0.1
    trials = calibration._trials.sum(1).tolist()
    assert trials == [500.0, 0.0]  # the second was never tried


def test_a_calibrated_confidence_is_a_chance() -> None:
    calibration = Calibration(1)
    calibration.observe(np.full((999, 1), 0.95), np.ones(999, np.int32), np.ones(999, np.int32))
    out = calibration.apply(np.array([[0.0], [1.0], [0.97]]))
    assert (out > 0).all() and (out < 1).all()
