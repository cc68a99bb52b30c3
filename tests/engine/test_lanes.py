"""The lanes' passes in C against what they say they do, lane by lane in Python, on random tables."""

from __future__ import annotations

import random

import numpy as np
import pytest

from k3mem.errors import Corrupted
from k3mem.plan import Row
from k3mem.request import Request, Sampling
from k3mem.sched.job import End, Job, Seated, listed
from k3mem.sched.lanes import Lanes, Phase, Rows
from k3mem.types import NO_NODE, Int32, Lane, ScopeId, StateId

LANES = 12
SEVERAL = range(30)


def table(rng: random.Random, span: int) -> Lanes:
    """Lanes of which most are taken, in any phase, some with too few pages for what comes next."""
    lanes = Lanes(LANES, span)
    for i in range(rng.randint(1, LANES)):
        prompt, new = rng.randint(1, 60), rng.randint(2, 60)
        request = Request(i, [1] * prompt, new, priority=rng.randrange(3),
                          sampling=Sampling(stop_ids=(1,) if rng.random() < 0.2 else ()))
        job = Job(request, ScopeId(0), i, request.prompt.copy(), prompt, prompt, prompt + new)
        job.admission = rng.randrange(1000) * LANES + i
        depth = rng.randint(prompt - 1, prompt + new - 2)
        grow(job, depth + 1 - prompt)
        least = -(-max(depth, 1) // span)
        pages = np.array([100 * (i + 1) + k for k in range(-(-job.limit // span))], np.int32)
        count = rng.randint(least, min(least + 1, len(pages)))
        seat = Seated(job, lanes.take(), int(lanes.generation[i]), prompt, StateId(i + 1), NO_NODE, 0, pages,
                      listed(pages, count), 0, prompt)
        lanes.sit(seat, depth, count * span, rng.randint(-(-depth // span), count))
        lanes.phase[seat.lane] = rng.choice((Phase.PREFILL, Phase.DECODE, Phase.DECODE, Phase.DECODE, Phase.DRAIN))
        seat.end = End.ABORT if lanes.phase[seat.lane] == Phase.DRAIN else None
        lanes.inflight[seat.lane] = rng.randrange(2)
    return lanes


def grow(job: Job, count: int) -> None:
    """Commit so many tokens; the text is exactly as long as it must be."""
    if count > 0:
        job.append(np.full(count, 7, np.int32))


def some_rows(lanes: Lanes, rng: random.Random) -> Rows:
    """Rows on all that may decode: of one token, of windows, or of several steps."""
    chosen = lanes.ready(False).lane
    left = (lanes.limit - lanes.launched - 1)[chosen]
    kind = rng.choice(("one", "windows", "steps"))
    if kind == "windows":
        return Rows(chosen, np.array([rng.randint(1, max(1, min(8, n))) for n in left.tolist()], np.int32))
    return Rows(chosen, steps=rng.randint(1, max(1, int(left.min(initial=40)))) if kind == "steps" else 1)


def words(lanes: Lanes) -> list[list[int]]:
    """Everything that the passes may change."""
    return [getattr(lanes, name).tolist() for name in
            ("phase", "launched", "inflight", "covered", "touched", "last_step", "text", "held")]


@pytest.mark.parametrize("seed", SEVERAL)
def test_ready_lanes_decode_and_have_a_token_left(seed: int) -> None:
    rng = random.Random(seed)
    lanes = table(rng, rng.choice((1, 4, 16)))
    for idle in (False, True):
        chosen, starts, covered = lanes.ready(idle)
        want = [lane for lane in range(LANES) if lanes.phase[lane] == Phase.DECODE
                and lanes.launched[lane] + 1 < lanes.limit[lane] and not (idle and lanes.inflight[lane])]
        assert chosen.tolist() == want and starts.tolist() == lanes.launched[want].tolist()
        needs = lanes.survey(Rows(chosen))
        assert covered == (not needs.pages and not needs.fresh)


@pytest.mark.parametrize("seed", SEVERAL)
def test_rows_get_the_pages_that_they_lack_and_cancel_takes_all_back(seed: int) -> None:
    rng = random.Random(seed)
    span = rng.choice((1, 4, 16))
    lanes = table(rng, span)
    rows = some_rows(lanes, rng)
    before = words(lanes)
    ends = lanes.launched[rows.lane] + rows.windows() * rows.steps
    needs = lanes.survey(rows)
    lack = {i: -(-int(end) // span) - int(lanes.covered[lane]) // span
            for i, (lane, end) in enumerate(zip(rows.lane.tolist(), ends, strict=True)) if end > lanes.covered[lane]}
    order = sorted(lack, key=lambda i: lanes.seat(int(rows.lane[i])).rank)
    assert needs.row.tolist() == order and needs.need.tolist() == [lack[i] for i in order]
    assert needs.pages == sum(lack.values())
    pages = np.arange(5000, 5000 + needs.pages, dtype=np.int32)
    lanes.give(rows, needs.row, needs.need, pages)
    at = 0
    for i in order:
        seat = lanes.seat(int(rows.lane[i]))
        assert seat.pages[seat.page_count - lack[i] : seat.page_count].tolist() == pages[at : at + lack[i]].tolist()
        at += lack[i]
    assert (lanes.covered == lanes.held[:, 2] * span).all() and (lanes.covered[rows.lane] >= ends).all()
    given = words(lanes)
    fresh, zero = lanes.touch(rows, needs.fresh)
    assert (fresh.tolist(), zero.tolist()) == by_hand(lanes, rows, given[4], span)
    assert lanes.touched[rows.lane].tolist() == [
        max(given[4][lane], -(-int(end) // span)) for lane, end in zip(rows.lane.tolist(), ends, strict=True)]
    lanes.untouch(fresh)
    assert words(lanes) == given
    lanes.take_back(rows, needs.row, needs.need)
    assert words(lanes) == before


@pytest.mark.parametrize("seed", SEVERAL)
def test_rows_of_a_plan_stand_one_kind_behind_the_other(seed: int) -> None:
    rng = random.Random(seed)
    lanes = table(rng, 4)
    chosen, starts, _ = lanes.ready(False)
    window = np.array([rng.randint(1, 3) for _ in chosen], np.int32) if rng.random() < 0.5 else None
    chunks = [[lane, 5 * lane, 5 * lane + rng.randint(1, 9), rng.randrange(2)]
              for lane in np.flatnonzero(lanes.phase == Phase.PREFILL).tolist()]
    words, kind, sample = lanes.rows(Rows(chosen, window), starts, [x for chunk in chunks for x in chunk])
    lengths = [1] * len(chosen) if window is None else window.tolist()
    rows = zip(chosen.tolist(), starts.tolist(), lengths, strict=True)
    want = [[lane, start, length] for lane, start, length in rows]
    want += [[lane, start, end - start] for lane, start, end, _ in chunks]
    assert words[:3].T.tolist() == want and words[3].tolist() == lanes.generation[words[0]].tolist()
    assert kind.tolist() == [Row.VERIFY if n > 1 else Row.DECODE for n in lengths] + [Row.PREFILL] * len(chunks)
    assert sample.tolist() == [True] * len(chosen) + [bool(chunk[3]) for chunk in chunks]


@pytest.mark.parametrize("seed", SEVERAL)
def test_pages_for_many_steps_are_dealt_as_single_steps_would_take_them(seed: int) -> None:
    rng = random.Random(seed)
    span = rng.choice((1, 4, 16))
    lanes = table(rng, span)
    rows = Rows(lanes.ready(False).lane, steps=rng.randint(1, 60))
    lanes.launched[:] = np.minimum(lanes.launched, lanes.covered)
    needs = lanes.survey(rows)
    pages = np.arange(5000, 5000 + needs.pages, dtype=np.int32)
    got: list[list[int]] = [[] for _ in needs.row]
    covered, launched = lanes.covered[rows.lane].tolist(), lanes.launched[rows.lane].tolist()
    left = pages.tolist()
    for step in range(rows.steps):
        for k, i in enumerate(needs.row.tolist()):
            if launched[i] + step >= covered[i]:
                covered[i] += span
                got[k].append(left.pop(0))
    assert not left and lanes.deal(rows, needs, pages).tolist() == [page for pages in got for page in pages]


@pytest.mark.parametrize("seed", SEVERAL)
def test_rows_are_uniform_up_to_the_first_end(seed: int) -> None:
    rng = random.Random(seed)
    lanes = table(rng, 4)
    for lane in range(LANES):
        if lanes.phase[lane] in (Phase.PREFILL, Phase.DRAIN) and rng.random() < 0.8:
            lanes.leave(Lane(lane)) if lanes.seats[lane] is not None else None
    if rng.random() < 0.8:
        lanes.watched[:] = False
    rows = Rows(lanes.ready(False).lane)
    decodes = np.flatnonzero(lanes.phase == Phase.DECODE).tolist()
    left = (lanes.limit - lanes.launched - 1)[rows.lane].tolist()
    alone = decodes == rows.lane.tolist() and lanes.running == len(decodes) > 0
    want = min(left) if alone and not lanes.watched[rows.lane].any() else 0
    assert lanes.uniform(rows) == want
    assert lanes.uniform(Rows(rows.lane, np.ones(len(rows), np.int32))) == 0


def by_hand(lanes: Lanes, rows: Rows, touched: list[int], span: int) -> tuple[list[list[int]], list[int]]:
    """Pages that rows are the first to write, and those of them that no row overwrites whole."""
    fresh, zero = [], []
    for lane, window in zip(rows.lane.tolist(), rows.windows().tolist(), strict=True):
        start = int(lanes.launched[lane])
        end = start + window * rows.steps
        for index in range(touched[lane], -(-end // span)):
            page = int(lanes.seat(lane).pages[index])
            fresh.append([lane, index, page])
            if rows.steps > 1 or not start <= index * span <= (index + 1) * span <= end:
                zero.append(page)
    return fresh, zero


@pytest.mark.parametrize("seed", SEVERAL)
def test_a_launch_and_its_commit(seed: int) -> None:
    rng = random.Random(seed)
    lanes = table(rng, 4)
    rows = some_rows(lanes, rng)
    others = [lane for lane in np.flatnonzero(lanes.phase == Phase.PREFILL).tolist() if rng.random() < 0.7]
    every = np.array([*rows.lane.tolist(), *others], np.int32)
    sample = np.array([True] * len(rows) + [rng.random() < 0.5 for _ in others], np.bool_)
    before, most = words(lanes), rows.windows() * rows.steps
    ends = lanes.launch(rows, every, sample, 99)
    after = lanes.launched[rows.lane]
    assert after.tolist() == [before[1][lane] + int(n) for lane, n in zip(rows.lane.tolist(), most, strict=True)]
    assert ends == bool(((lanes.limit[rows.lane] - after <= 1) | lanes.watched[rows.lane]).any())
    assert (lanes.last_step[every] == 99).all() and lanes.inflight.sum() == sum(before[2]) + len(every)
    for lane in rng.sample(rows.lane.tolist(), len(rows) // 3):
        lanes.phase[lane] = Phase.DRAIN
    room = [*most.tolist(), *sample[len(rows) :].tolist()]
    accepted = np.array([rng.randint(0, int(n)) for n in room], np.int32)
    done = np.array([rng.choice((0, 0, 0, 2)) for _ in room], np.uint8)
    tokens = np.arange(accepted.sum(), dtype=np.int32)
    texts = {lane: lanes.seat(lane).job.tokens[: lanes.seat(lane).job.count].tolist() for lane in every.tolist()}
    space = {lane: len(lanes.seat(lane).job.tokens) - lanes.seat(lane).job.count for lane in every.tolist()}
    assert lanes.judge(rows, accepted, done, len(tokens), 2)
    booked = lanes.commit(rows, accepted, done, tokens, 2)
    loud = [i for i, (lane, n) in enumerate(zip(every.tolist(), accepted.tolist(), strict=True))
            if n and (done[i] or lanes.phase[lane] == Phase.DRAIN or n > space[lane])]
    quiet = [i for i in range(len(every)) if accepted[i] and i not in loud]
    behind = np.cumsum(accepted)
    assert booked is not None
    assert booked.loud == [(i, behind[i]) for i in loud]
    assert booked.quiet == sum(int(accepted[i]) for i in quiet)
    assert booked.overruns == sum(not accepted[i] and bool(sample[i]) for i in range(len(every)))
    for i, lane in enumerate(every.tolist()):
        job = lanes.seat(lane).job
        new = tokens[behind[i] - accepted[i] : behind[i]].tolist() if i in quiet else []
        assert job.tokens[: job.count].tolist() == texts[lane] + new
    assert lanes.launched[rows.lane].tolist() == [
        before[1][lane] + int(n) for lane, n in zip(rows.lane.tolist(), accepted, strict=False)]
    assert lanes.inflight.tolist() == before[2]


@pytest.mark.parametrize("spoil", ["negative", "too many", "a chunk's", "the sum", "an end"])
def test_a_result_that_cannot_be_is_judged_so(spoil: str) -> None:
    lanes = table(random.Random(3), 4)
    rows = Rows(lanes.ready(False)[0])
    n = len(rows)
    accepted, done = np.ones(n + 1, np.int32), np.zeros(n + 1, np.uint8)
    sample, tokens = np.ones(n + 1, np.bool_), n + 1
    rows.launched(np.append(rows.lane, np.int32(LANES - 1)), sample)
    assert n > 2 and lanes.judge(rows, accepted, done, tokens, 2)
    if spoil == "negative":
        accepted[:2] = -1, 3
    elif spoil == "too many":
        accepted[:2] = 0, 2
    elif spoil == "a chunk's":
        sample[n] = False
    elif spoil == "the sum":
        tokens += 1
    else:
        done[1] = 3
    before = words(lanes)
    assert not lanes.judge(rows, accepted, done, tokens, 2)
    assert lanes.commit(rows, accepted, done, np.zeros(tokens, np.int32), 2) is None and words(lanes) == before


def test_a_list_takes_no_more_pages_than_its_request_has() -> None:
    lanes = table(random.Random(1), 4)
    lane = lanes.taken()[0].lane
    rows, before = Rows(np.array([lane], np.int32)), words(lanes)
    pages: Int32 = np.zeros(1000, np.int32)
    with pytest.raises(Corrupted, match="held"):
        lanes.give(rows, np.zeros(1, np.int32), np.array([1000], np.int32), pages)
    assert words(lanes) == before


def test_nothing_is_written_where_a_tenant_has_left() -> None:
    lanes = table(random.Random(2), 4)
    seat = lanes.taken()[0]
    tokens = seat.job.tokens.copy()
    rows = Rows(np.array([seat.lane], np.int32))
    lanes.leave(seat.lane)
    rows.launched(rows.lane, np.ones(1, np.bool_))
    booked = lanes.commit(rows, np.ones(1, np.int32), np.zeros(1, np.uint8), np.ones(1, np.int32), 2)
    assert booked is not None and booked.loud == [(0, 1)] and (seat.job.tokens == tokens).all()
