"""Clients and misfortune, drawn from a seed: which configuration, which habits, and what happens next (swarm testing).

Every seed draws its own subset of habits and their weights, so that rare things are common somewhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from k3mem.errors import Effect
from k3mem.fuzz import evictions, sessions, speculation
from k3mem.fuzz import script as do
from k3mem.fuzz.script import Action, Config
from k3mem.fuzz.world import VOCAB, World

GRIDS = ((16, 16), (16, 16), (8, 16), (4, 8), (1, 4), (64, 64), (16, 64))
"""(page tokens, state chunk)."""
CAPS: tuple[tuple[int | None, ...], ...] = ((None, None, None, 0, 1, 2), (None,) * 12 + (0, 1, 2))
"""Caps of a path: rarely none, and mostly none."""
HABITS: dict[str, tuple[float, float]] = {
    "step": (4.0, 12.0), "halves": (0.0, 2.0), "submit": (1.0, 3.0), "abort": (0.0, 0.5), "clock": (0.1, 1.0),
    "again": (0.0, 0.1), "toolarge": (0.0, 0.05), "fail": (0.0, 0.4), "pin": (0.0, 0.3), "flush": (0.0, 0.08),
    "resize": (0.0, 0.04), "sleep": (0.0, 0.03), "tooearly": (0.0, 0.1), "lease": (0.0, 0.8), "probe": (0.0, 0.3),
    "storm": (0.0, 0.1), "echo": (0.0, 0.6), "choir": (0.0, 0.3),
}
"""Weights (least, most) of what happens; a habit is off with chance 0.4 where its least is 0."""
WIDE = 0.05
"""Chance of a world with the lanes of a server."""
LENGTHS = (80, 150, 150, 300, 300, 1500)
WIDE_LENGTH = 1500
"""Actions a world."""


def draw_config(rng: random.Random, seed: int) -> Config:
    """A world's configuration: tight, lone (one or two at once, nobody else to retract), crowded (many at once in
    little: several rounds of moves in a plan), middling or roomy, each policy on or off; rarely wide, as large as a
    server."""
    if rng.random() < WIDE:
        return _wide(rng, seed)
    eviction, told = evictions.draw(random.Random(f"eviction {seed}"))
    size = rng.choice(("tight", "tight", "tight", "lone", "lone", "crowded", "crowded", "middling", "roomy", "roomy"))
    crowded = size == "crowded"
    page, chunk = (16, 16) if crowded else rng.choice(((8, 16), (8, 8), (4, 8)) if size == "lone" else GRIDS)
    grid = max(page, chunk)
    state_bytes = 640 if crowded else rng.choice((640, 640, 1600, 6400))
    tokens = {"tight": rng.randint(140, 320), "lone": rng.randint(110, 190), "crowded": rng.randint(140, 240),
              "middling": rng.randint(600, 1200), "roomy": 60_000}[size]
    states = {"tight": rng.randint(1, 4), "lone": rng.randint(1, 2), "crowded": rng.randint(3, 8),
              "middling": rng.randint(6, 16), "roomy": 8_000}[size]
    running = 8 if crowded else rng.randint(1, 2) if size == "lone" else rng.choice((1, 2, 3, 4, 6, 8))
    return Config(
        seed=seed, page_tokens=page, state_chunk=chunk, state_bytes=state_bytes, states=states,
        pages=-(-tokens // page) + 1, running=running,
        budget=rng.choice((100, 400) if crowded else (7, 24, 48, 48, 100, 400)),
        in_flight=rng.choice((0, 1, 1, 1, 2, 3)),
        split=rng.random() < 0.15, eager=rng.random() < 0.3, move_pages=rng.choice((0, 0, 0, 1, 1, 8)),
        interval=rng.choice((None, 16, 32)), path_cap=rng.choice(CAPS[size in ("lone", "roomy")]),
        deterministic=rng.random() < 0.15, chunk_ends=rng.random() < 0.8, follow=rng.random() < 0.8,
        caching=rng.random() < 0.96, ghost_tokens=rng.choice((None, None, 0, 200)),
        window=min(grid, rng.choice((1, 1, 2, 4, 8))), draft_chance=rng.choice((0.0, 0.5, 0.8, 1.0)),
        capture=rng.choice(("any", "any", "grid", "final")), shuffle=rng.random() < 0.8,
        check_every=rng.choice((1, 2, 5)) if size in ("tight", "lone", "crowded") else 8,
        audit_every=rng.choice((16, 64)),
        race=rng.random() < 0.15, alone=100, fast_forward=rng.random() < 0.2,
        admission=sessions.draw(random.Random(f"door {seed}"), 0.22), eviction=eviction, told=told,
        fork_depths=random.Random(f"forks {seed}").choice((None, None, None, 1, 3)),
        verify=speculation.draw(random.Random(f"verify {seed}")),
    )


def _wide(rng: random.Random, seed: int) -> Config:
    """Many lanes in memory for about half of what they want: most events of a long run come from here."""
    running = rng.choice((32, 64, 128))
    return Config(
        seed=seed, states=running * rng.choice((1, 2)), pages=running * rng.choice((8, 16)), running=running,
        budget=rng.choice((512, 2048)), in_flight=rng.choice((0, 1, 1, 2)), eager=rng.random() < 0.3,
        move_pages=rng.choice((0, 0, 64)), path_cap=rng.choice((None, None, 2)), chunk_ends=rng.random() < 0.8,
        follow=rng.random() < 0.8, ghost_tokens=rng.choice((None, 2000)), window=rng.choice((1, 1, 1, 4)),
        shuffle=rng.random() < 0.5, check_every=64, audit_every=256, fast_forward=rng.random() < 0.2,
        verify=speculation.draw(random.Random(f"verify {seed}")),
    )


class Actors:
    """What happens next in one world. Deterministic: the same seed and the same world give the same actions."""

    def __init__(self, seed: int, config: Config, rng: random.Random | None = None) -> None:
        self.rng = rng or random.Random(seed)
        self.config = config
        self.grid = max(config.page_tokens, config.state_chunk)
        draw = self.rng
        self.weights = {
            name: 0.0 if least == 0 and draw.random() < 0.4 else draw.uniform(least, most)
            for name, (least, most) in HABITS.items()
        }
        if config.running <= 2:  # where nobody can be retracted, what transfers hold is in the way
            self.weights["lease"] = max(0.5, self.weights["lease"])
        self.longest = draw.choice((60, 120, 120, 240))
        self.most_new = draw.choice((1, 4, 20, 40))
        self.most_waiting = draw.choice((2, 8, 8, 24))
        self.wide = config.running > 16
        if self.wide:
            self.longest, self.most_new, self.most_waiting = 400, 200, config.running + 16
        self.salts = draw.choice((("",), ("", "", "b"), ("", "b", "c")))
        self.adapters = draw.choice((("",), ("",), ("", "lora")))
        self.effects = draw.choice((list(Effect), [Effect.UNKNOWN], [Effect.NO_EFFECT, Effect.UNKNOWN]))
        self.spread = draw.choice((2, 6, 30))
        """Texts that prompts begin with."""
        self.recent = draw.choice((3, 12, 40))
        """A prompt goes on from one of so many latest requests."""
        self.priorities = draw.choice(((0,), (0, 0, 0, 1), (0, 1, 2)))
        self.chances = {name: draw.choice((0.0, 0.1, 0.4)) for name in (
            "stop_ids", "host_stop", "hints", "turns", "deadline", "session", "media", "on_grid", "single", "reuse")}
        self.made = 0
        self.queued: list[Action] = []
        self.names = [name for name, weight in self.weights.items() if weight > 0]
        self.odds = [self.weights[name] for name in self.names]
        self.makers: dict[str, Callable[[World], list[Action]]] = {
            name: getattr(self, "_" + name) for name in HABITS}

    def next(self, world: World) -> Action:
        """The next action."""
        while not self.queued:
            if self.config.admission is not None and (what := self.rng.random()) < 0.12:
                if what < 0.03:
                    return do.EndSession(self.rng.randint(1, sessions.SESSIONS))
                return do.Clock(self.config.admission.bound * self.rng.choice((0.1, 0.3)))
            if self.config.told and self.rng.random() < 0.05:
                return self._hint()
            habit = self.rng.choices(self.names, self.odds)[0]
            self.queued = self.makers[habit](world)
        return self.queued.pop(0)

    # -- habits: each gives what follows

    def _step(self, world: World) -> list[Action]:
        return [do.Step(self.rng.choice((4, 8) if self.wide else (1, 1, 1, 2, 4)))]

    def _halves(self, world: World) -> list[Action]:
        """One or two steps in halves, with something else in a window of them."""
        rng = self.rng
        half: list[Action] = [do.Plan(), do.Cancel()] if rng.random() < 0.3 else [do.Plan(), do.Launch()]
        if rng.random() < 0.4:
            half += [do.Plan(), do.Launch()]
        if rng.random() < 0.7:
            half += [do.Collect(), do.Commit()]
        if rng.random() < 0.15:
            half.insert(rng.randrange(len(half)), do.Collect())
        for _ in range(rng.choice((0, 1, 1, 2))):
            other = rng.choice((self._abort, self._abort, self._submit, self._clock, self._pin, self._probe,
                                self._tooearly))
            half[(at := rng.randrange(len(half) + 1)) : at] = other(world)
        return half

    def _submit(self, world: World) -> list[Action]:
        if len(world.core.jobs) >= self.most_waiting:
            return [do.Step()]
        most = self.most_waiting - len(world.core.jobs)
        return [self.request(world) for _ in range(self.rng.choice((8, most) if self.wide else (1, 1, 1, 2, 3)))]

    def _storm(self, world: World) -> list[Action]:
        """Many at once, of rising priority."""
        return [msg_replace(self.request(world), priority=i) for i in range(self.rng.randint(2, 6))]

    def _choir(self, world: World) -> list[Action]:
        """Many at once that share a long beginning, which nobody has computed yet or only in part."""
        rng, first = self.rng, self.request(world)
        count = rng.randrange(self.longest // 2, self.longest)
        first = msg_replace(first, base=-1, take=0, text=rng.randrange(10_000), count=count, media=())
        more = [msg_replace(first, id=self._number(), count=max(1, count - rng.randrange(0, 20)),
                            priority=rng.choice(self.priorities)) for _ in range(rng.randint(1, 4))]
        return [first, *([do.Step()] if rng.random() < 0.5 else []), *more]

    def _echo(self, world: World) -> list[Action]:
        """A prompt, or a whole conversation, once more right after its end."""
        ended = [n for n, line in list(world.oracle.lines.items())[-self.recent :] if line.reason in ("stop", "length")]
        if not ended:
            return [do.Step()]
        line = world.oracle.lines[self.rng.choice(ended)]
        take = self.rng.choice((line.prompt, len(line.tokens), len(line.tokens) - 1))
        r = line.request
        return [do.Submit(self._number(), line.number, take, 0, self.rng.choice((0, 1, 5)),
                          self.rng.randint(1, self.most_new), str(r.salt), r.adapter), do.Step()]

    def _abort(self, world: World) -> list[Action]:
        alive = [n for n, line in world.oracle.lines.items() if line.reason is None]
        return [do.Abort(self.rng.choice(alive))] if alive else [do.Step()]

    def _again(self, world: World) -> list[Action]:
        return [do.Again(self._some(world))]

    def _toolarge(self, world: World) -> list[Action]:
        return [do.TooLarge(self.rng.choice((1, 100_000)))]

    def _fail(self, world: World) -> list[Action]:
        rng = self.rng
        what = rng.random()
        if what < 0.2:
            return [do.Fail("collect", rng.choice(self.effects), rowless=True)]
        if what < 0.6:
            return [do.Fail(rng.choice(("launch", "collect")), rng.choice(self.effects), moving=True)]
        return [do.Fail(rng.choice(("launch", "collect")), rng.choice(self.effects))
                for _ in range(rng.choice((1, 1, 1, 1, 2, 3)))]

    def _clock(self, world: World) -> list[Action]:
        return [do.Clock(self.rng.choice((0.1, 0.1, 1.0, 40.0)))]

    def _pin(self, world: World) -> list[Action]:
        session = self.rng.randint(1, 4)
        return [do.Unpin(session) if self.rng.random() < 0.3 else do.Pin(session, self.rng.choice((0.5, 30.0)))]

    def _hint(self) -> Action:
        rng = self.rng
        return do.Hint(rng.randint(1, sessions.SESSIONS if self.config.admission is not None else 4),
                       rng.choice(("", "tool", "end")), rng.choice((-1.0, -1.0, 0.0, 0.5, 30.0, 1e9)),
                       rng.random() < 0.3)

    def _flush(self, world: World) -> list[Action]:
        return [do.Flush()]

    def _resize(self, world: World) -> list[Action]:
        c, factor = self.config, self.rng.choice((0.5, 0.8, 1.0, 1.5))
        return [do.Resize(max(1, int(c.states * factor)), max(1, int(c.pages * factor)))]

    def _sleep(self, world: World) -> list[Action]:
        return [do.Sleep()]

    def _tooearly(self, world: World) -> list[Action]:
        return [do.TooEarly()]

    def _lease(self, world: World) -> list[Action]:
        return [do.Unlease() if self.rng.random() < 0.45 else do.Lease(self.rng.randrange(64))]

    def _probe(self, world: World) -> list[Action]:
        return [do.Probe(self._some(world))]

    # -- requests

    def _some(self, world: World) -> int:
        known = list(world.oracle.lines)[-self.recent :]
        return self.rng.choice(known) if known else 0

    def _number(self) -> int:
        self.made += 1
        return self.made

    def request(self, world: World) -> do.Submit:
        """A prompt that goes on from a recent line, forks inside one, or begins a text; with options as habits say."""
        rng, chance = self.rng, self.chances
        lines = list(world.oracle.lines.values())[-self.recent :]
        base, take, count = -1, 0, rng.randrange(1, 50)
        salt, adapter = rng.choice(self.salts), rng.choice(self.adapters)
        if lines and rng.random() < 0.75:
            line = rng.choice(lines)
            base, take = line.number, len(line.tokens)
            if rng.random() < 0.5:
                take = rng.randrange(take + 1)
            if rng.random() < 0.6:
                salt, adapter = str(line.request.salt), line.request.adapter
        if rng.random() < chance["on_grid"]:
            total = max(self.grid, (take + count) // self.grid * self.grid) + rng.choice((0, 0, 1))
            take, count = min(take, total), max(0, total - take)
        if rng.random() < chance["single"]:
            base, take, count = -1, 0, 1
        if take + count > self.longest:
            take = min(take, rng.randrange(1, self.longest))
            count = max(1 if not take else 0, min(count, self.longest - take))
        text = rng.randrange(self.spread) if base < 0 else rng.randrange(10_000)
        new = rng.randint(1, self.most_new)
        n = take + count
        number = self._number()
        if rng.random() < chance["reuse"] * 0.2:
            ended = [line.number for line in lines if line.reason is not None and line.number > 0]
            number = rng.choice(ended) if ended else number
        return do.Submit(
            number, base, take, text, count, new, salt=salt, adapter=adapter, priority=rng.choice(self.priorities),
            temperature=rng.choice((0.0, 0.0, 0.7)), seed=rng.randrange(3),
            stop_ids=tuple(rng.sample(range(VOCAB), 4)) if rng.random() < chance["stop_ids"] else (),
            stop_at=rng.randint(1, new) if rng.random() < chance["host_stop"] else 0,
            hints=tuple(rng.randrange(n + 1) for _ in range(2)) if rng.random() < chance["hints"] else (),
            turns=(rng.randrange(n + 1),) if rng.random() < chance["turns"] else (),
            patience=rng.choice((0.05, 0.5, 3.0, 50.0)) if rng.random() < chance["deadline"] else 0.0,
            session=(family := self._family())[0], parent=family[1],
            media=self._media(n) if rng.random() < chance["media"] else (),
        )

    def _family(self) -> tuple[int, int]:
        """(session, parent) of a request."""
        rng = self.rng
        if self.config.admission is not None:
            return sessions.family(rng)
        chance = max(self.chances["session"], self.weights["pin"], 0.5 * self.config.told)
        return rng.randint(1, 4) if rng.random() < chance else 0, 0

    def _media(self, n: int) -> tuple[int, ...]:
        """One picture, or two side by side."""
        rng = self.rng
        first, count = rng.randrange(n), 1 + rng.randrange(3)
        one = (first, count, rng.randrange(3))
        return one if rng.random() < 0.5 else (*one, first + count, 1 + rng.randrange(3), rng.randrange(3))


def msg_replace(request: do.Submit, **changes: object) -> do.Submit:
    """A copy with other values."""
    import msgspec

    return msgspec.structs.replace(request, **changes)
