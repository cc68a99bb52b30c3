"""Prices of memory, and what no schedule can beat at any prices.

Give a byte of memory a price in each slot (the time between two requests). Then a request can weigh each of its options
on its own, tokens saved against the price of what must be held for it since its last visitors; no interval belongs to
two requests. So for any prices >= 0

    sum over requests of max(0, best of saved - cost)  +  capacity x sum of prices

bounds the tokens that any schedule saves. It is the Lagrangian of the linear program

    maximise saved . x   over x >= 0,  at most one option a request,  held bytes <= capacity in every slot

so the least bound over all prices is the program's optimum, and prices short of the best still bound. The program is
solved by a primal-dual interior point method (Mehrotra's predictor and corrector). In cumulated prices its Newton
system is a graph's Laplacian with few edges a request, which conjugate gradients solve in some dozen steps
(`native/prices.c`). x near the optimum says how far the bound still is from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from k3mem.native import ffi, lib
from k3mem.replay.bound.visits import Visits
from k3mem.types import Float64, Int64


@dataclass(frozen=True, slots=True)
class Costs:
    """What a schedule may hold at once, and what things cost. Bytes."""

    capacity: int
    state: int
    unit: int
    """KV of one unit of depth."""

    @property
    def deepest(self) -> int:
        """The deepest unit at which anything can be resumed: KV and state of one request must fit by themselves."""
        return max(0, (self.capacity - self.state) // self.unit)


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound, and how it was found."""

    tokens: float
    """No schedule's requests hit more tokens than this in all."""
    prices: Float64
    """[requests - 1] tokens a byte, from each request to the next."""
    shares: Float64
    """[options] about the program's solution x, 0..1: what prices alone leave open where options tie."""
    gap: float
    """Tokens by which the program's optimum may still lie below `tokens`. An estimate: `shares` may exceed the
    capacity by a rounding."""
    steps: int


Steps = Callable[[int, float], None]
"""Called after each step with (steps done, tokens of the best bound so far)."""


class Program:
    """The linear program of one trace and one pool. Bytes in units of the capacity, x = share of an option."""

    def __init__(self, visits: Visits, costs: Costs) -> None:
        self.nodes = visits.requests
        self.first = np.ascontiguousarray(visits.first)
        self.last = np.ascontiguousarray(visits.last)
        self.kv = np.asarray(visits.length * (costs.unit / costs.capacity), np.float64)
        self.saved = visits.depth * float(visits.grid)
        self.asking = np.flatnonzero(np.diff(visits.first))
        """Requests with an option; `start` is the first of each, `seat` an option's place among them."""
        self.start = self.first[self.asking]
        self.seat = np.repeat(np.arange(len(self.asking)), np.diff(self.first)[self.asking])
        self._p = ffi.new("k3_sections *", {
            "nodes": self.nodes, "state": costs.state / costs.capacity, "first": _ints(self.first),
            "last": _ints(self.last), "kv": _floats(self.kv)})
        self._work = np.empty(6 * self.nodes + len(self.last))

    def cost(self, cumulated: Float64) -> Float64:
        """[options] price of each, given [nodes] prices summed up to each request. O(options)."""
        out = np.empty(len(self.last))
        lib.k3_prices_cost(self._p, _floats(cumulated), _floats(out))
        return out

    def load(self, x: Float64) -> Float64:
        """[nodes] bytes that end at a request minus those that begin there; minus their running sum is what is
        held. O(options)."""
        out = np.empty(self.nodes)
        lib.k3_prices_load(self._p, _floats(x), _floats(out))
        return out

    def each(self, values: Float64) -> Float64:
        """[asking] sums over each request's options."""
        return np.add.reduceat(values, self.start)

    def bound(self, prices: Float64) -> float:
        """Tokens that no schedule exceeds, for any prices >= 0 (tokens a capacity). O(options)."""
        worth = self.saved - self.cost(_cumulate(prices))
        return float(prices.sum() + np.maximum(np.maximum.reduceat(worth, self.start), 0).sum())

    def solve(self, theta: Float64, delta: Float64, chain: Float64, rhs: Float64, guess: Float64,
              accuracy: float) -> Float64:
        """A Newton step in cumulated prices; see prices.h."""
        wide = np.ones(self.nodes)
        wide[self.asking] = delta
        out = guess.copy()
        lib.k3_prices_solve(self._p, _floats(theta), _floats(wide), _floats(chain), _floats(rhs), _floats(out),
                            _floats(self._work), accuracy, CG_LIMIT)
        return out


CG_LIMIT = 1000
"""Steps of one solve. A solve that stops early costs further steps of the outer method, never the bound's validity."""


STEADY = 6
"""Steps without gain after which the method ends."""


def clip(visits: Visits, deepest: int) -> Visits:
    """The same without what lies deeper than `deepest` units. O(options)."""
    keep = visits.depth - visits.length < deepest
    owner = visits.owner[keep]
    first = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=visits.requests))))
    return Visits(visits.grid, visits.input, visits.end, first, visits.last[keep],
                  np.minimum(visits.depth[keep], deepest))


def upper_bound(visits: Visits, costs: Costs, prices: Float64) -> float:
    """Tokens that no schedule exceeds, for any prices >= 0 (tokens a byte, [requests - 1]). O(options)."""
    visits = clip(visits, costs.deepest)
    if not len(visits.last):
        return 0.0
    return Program(visits, costs).bound(prices * costs.capacity)


def minimise(visits: Visits, costs: Costs, *, tolerance: float = 2e-4, limit: int = 80,
             steps: Steps = lambda done, tokens: None) -> Bound:
    """The least bound, to about `tolerance` times the input tokens. `visits` must be clipped to `costs.deepest`.

    O(limit x conjugate gradient steps x (requests + options)): seconds for 25,000 requests.
    """
    nodes = visits.requests
    if not len(visits.last):
        return Bound(0.0, np.zeros(max(0, nodes - 1)), np.zeros(0), 0.0, 0)
    program = Program(visits, costs)
    goal = tolerance * float(visits.input.sum())
    free = np.zeros(nodes - 1)
    best, prices = program.bound(free), free
    whole = _last_options(program)
    if -np.cumsum(program.load(whole)).min(initial=0.0) <= 1:  # everything fits
        return Bound(best, free, whole, 0.0, 0)
    point = _Point(program)
    done, gap = 0, best
    history: list[float] = []
    while done < limit:
        tokens = program.bound(point.prices * point.unit)
        if tokens < best:
            best, prices = tokens, point.prices * point.unit
        gap = best - min(best, point.value() * point.unit)
        history.append(tokens)
        if gap <= goal or done > STEADY and max(history[-STEADY:]) - best < goal / 4:
            break
        point.advance()
        done += 1
        steps(done, best)
    return Bound(best, prices / costs.capacity, point.x, gap, done)


class _Point:
    """An iterate, and its Newton step. Primal x (options), `idle` (slots: bytes not held), `none` (requests: share that
    resumes nowhere); dual `loss` (options), prices (slots), `gain` (requests); each pair's product goes to zero."""

    def __init__(self, program: Program) -> None:
        self.program = program
        options, slots, asking = len(program.last), program.nodes - 1, len(program.asking)
        self.unit = float(program.saved.mean())
        """Tokens that count as 1."""
        self.saved = program.saved / self.unit
        self.x = 0.5 / np.bincount(program.seat)[program.seat]
        self.none = np.full(asking, 0.5)
        self.idle = np.ones(slots)
        self.prices = np.full(slots, max(0.3 * float(self.saved.sum()) / slots, 1e-6))
        self.gain = np.ones(asking)
        self.loss = np.maximum(program.cost(_cumulate(self.prices)) + self.gain[program.seat] - self.saved, 1.0)
        self._pairs = options + slots + asking

    def value(self) -> float:
        """What x saves, scaled down to the capacity where it exceeds it."""
        held = -np.cumsum(self.program.load(self.x))[:-1]
        return float(self.saved @ self.x) / max(1.0, float(held.max()))

    def advance(self) -> None:
        """One predictor-corrector step."""
        program = self.program
        theta, chain = self.x / self.loss, self.idle / self.prices
        delta = program.each(theta) + self.none / self.gain
        short = _differences(1 - self.idle) - program.load(self.x)
        share = 1 - program.each(self.x) - self.none
        off = self.saved + self.loss - program.cost(_cumulate(self.prices)) - self.gain[program.seat]

        def newton(px: Float64, pi: Float64, pn: Float64, guess: Float64, accuracy: float) -> tuple[Float64, ...]:
            """Directions that bring the products x loss, idle prices, none gain nearer by px, pi, pn."""
            pull = px / self.loss + theta * off
            right = program.each(pull) + pn / self.gain - share
            rhs = program.load(pull - theta * (right / delta)[program.seat]) + _differences(pi / self.prices) - short
            way = program.solve(theta, delta, chain, rhs, guess, accuracy)
            prices, cost = np.diff(way), program.cost(way)
            gain = (right - program.each(theta * cost)) / delta
            loss = cost + gain[program.seat] - off
            x = (px - self.x * loss) / self.loss
            idle = (pi - self.idle * prices) / self.prices
            none = (pn - self.none * gain) / self.gain
            return x, idle, none, loss, prices, gain, way

        products = self.x * self.loss, self.idle * self.prices, self.none * self.gain
        mean = sum(float(p.sum()) for p in products) / self._pairs
        px, pi, pn = products
        x, idle, none, loss, prices, gain, way = newton(-px, -pi, -pn, np.zeros(program.nodes), 1e-2)
        primal, dual = self._lengths((x, idle, none, loss, prices, gain))
        ahead = float((self.x + primal * x) @ (self.loss + dual * loss)
                      + (self.idle + primal * idle) @ (self.prices + dual * prices)
                      + (self.none + primal * none) @ (self.gain + dual * gain)) / self._pairs
        aim = mean * (ahead / mean) ** 3
        *moves, _ = newton(aim - px - x * loss, aim - pi - idle * prices, aim - pn - none * gain, way, 1e-3)
        primal, dual = self._lengths(tuple(moves))
        for vector, move in zip((self.x, self.idle, self.none), moves[:3], strict=True):
            vector += 0.99 * primal * move
        for vector, move in zip((self.loss, self.prices, self.gain), moves[3:], strict=True):
            vector += 0.99 * dual * move

    def _lengths(self, moves: tuple[Float64, ...]) -> tuple[float, float]:
        """How far all of the primal and all of the dual vectors stay positive; 1 at most."""
        vectors = self.x, self.idle, self.none, self.loss, self.prices, self.gain
        far = [_reach(vector, move) for vector, move in zip(vectors, moves, strict=True)]
        return min(far[:3]), min(far[3:])


def _reach(vector: Float64, move: Float64) -> float:
    down = move < 0
    return min(1.0, float((vector[down] / -move[down]).min())) if down.any() else 1.0


def _last_options(program: Program) -> Float64:
    """x that takes every request's deepest option."""
    x = np.zeros(len(program.last))
    x[program.first[program.asking + 1] - 1] = 1
    return x


def _cumulate(prices: Float64) -> Float64:
    return np.concatenate(([0.0], np.cumsum(prices)))


def _differences(slots: Float64) -> Float64:
    """The transpose of `np.diff`, but for entry 0, which is 0: prices are counted from the first request."""
    out = np.zeros(len(slots) + 1)
    out[1:] = slots
    out[1:-1] -= slots[1:]
    return out


def _floats(array: Float64) -> object:
    return ffi.from_buffer("double[]", array)


def _ints(array: Int64) -> object:
    return ffi.from_buffer("int64_t[]", array)
