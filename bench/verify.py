"""The verify planner against verifying everything, over drawn confidences: what budgets, chosen late, are worth.

    python -m bench.verify                      the surface and the draws of $K3MEM_SHARED/spec/surface.json
    python -m bench.verify --surface FILE       another one of the kind
    python -m bench.verify --every 1            each batch from 1 to 256, for the least of them

Per request and step a base is drawn from Beta(mean x kappa, (1 - mean) x kappa), per position a confidence around it; a
draft is accepted with that chance if all before it were. Throughput is expected tokens over the surface's time, so no
acceptance is drawn. *exact*: budgets from the confidences themselves. *late*: from those of two steps ago, windows from
the present ones. *+-0.05*: each confidence is off by 0.05, up or down; *+0.05*, *-0.05*: all of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.shared import shared
from k3mem.spec import Best, Stairs, Surface, Treads, VerifyPlanner, best_budget, survivals
from k3mem.spec.surface import parse
from k3mem.types import Float64, Int64

Spoil = Callable[[np.random.Generator, Float64], Float64]
ERRORS: dict[str, Spoil] = {
    "none": lambda rng, c: c,
    "+-0.05": lambda rng, c: np.clip(c + rng.choice((-0.05, 0.05), c.shape), 0.01, 0.995),
    "+0.05": lambda rng, c: np.clip(c + 0.05, 0.01, 0.995),
    "-0.05": lambda rng, c: np.clip(c - 0.05, 0.01, 0.995),
}
CLIP = 0.01, 0.995
BATCHES = 1, 2, 4, 8, 9, 12, 16, 17, 24, 32, 48, 64, 96, 128, 192, 256


def read(path: Path) -> tuple[Stairs | Treads, int, dict[str, dict[str, float]]]:
    """(surface, window, draws by regime) of a file."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return parse(data), int(data["window"]), data["draws"]


def draw(rng: np.random.Generator, regime: Mapping[str, float], steps: int, rows: int, drafts: int) -> Float64:
    """[steps, rows, drafts] confidences of a regime."""
    mean, kappa = regime["mean"], regime["kappa"]
    base = rng.beta(mean * kappa, (1 - mean) * kappa, (steps, rows, 1))
    out: Float64 = np.clip(base + rng.normal(0.0, regime["noise"], (steps, rows, drafts)), *CLIP)
    return out


def brute_force(surface: Surface, survival: Float64, context: int = 0) -> Best:
    """Every budget there is, without any use of edges: the oracle of `best_budget`."""
    flat = np.sort(survival[survival >= 0])[::-1]
    gain, rows = np.append(0.0, np.cumsum(flat)), len(survival)
    tokens: Int64 = rows + np.arange(len(gain), dtype=np.int64)
    worth = (rows + gain) / surface.step_us(rows, tokens, context)
    at = int(np.argmax(worth))
    return Best(at, float(worth[at]))


def gain_of(planner: VerifyPlanner, surface: Surface, true: Float64, seen: Float64, context: int = 0) -> float:
    """Throughput of a planner that is shown `seen`, over that of verifying everything, less 1. [steps, rows, drafts]
    each; the first steps, before any report, are not counted."""
    steps, rows, drafts = true.shape
    offered = np.full(rows, drafts, np.int32)
    whole = rows * (drafts + 1)
    got = spent = all_got = all_spent = 0.0
    for step in range(steps):
        kept = planner.choose(seen[step], offered, context)
        if step < planner.late:
            continue
        survival = survivals(true[step], offered)
        got += rows + float(survival[np.arange(drafts) < kept[:, None]].sum())
        ends = np.array([rows + int(kept.sum()), whole], np.int64)
        some, everything = surface.step_us(rows, ends, context).tolist()
        spent += some
        all_got += rows + float(survival.sum())
        all_spent += everything
    return got / spent / (all_got / all_spent) - 1


def gains(surface: Surface, window: int, regime: Mapping[str, float], rows: int, steps: int, seed: int,
          context: int = 0) -> dict[str, float]:
    """By what is known: `exact`, then `late` budgets under each kind of error."""
    rng = np.random.default_rng([seed, rows])
    true = draw(rng, regime, steps, rows, window - 1)
    out = {"exact": gain_of(VerifyPlanner(surface, window, learn=False), surface, true, true, context)}
    for name, spoil in ERRORS.items():
        planner = VerifyPlanner(surface, window, late=2, learn=False)
        out[f"late {name}"] = gain_of(planner, surface, true, spoil(rng, true), context)
    return out


def main(arguments: list[str] | None = None) -> int:
    """Print the table. Exit code 2 where there is no file to read."""
    parser = argparse.ArgumentParser(prog="python -m bench.verify", description=__doc__.splitlines()[0])
    parser.add_argument("--surface", type=Path, help="JSON of a surface with its window and its draws")
    parser.add_argument("--steps", type=int, default=60, help="steps of each batch (default: 60)")
    parser.add_argument("--every", type=int, help="batches 1, 1 + EVERY, ... 256 in place of the usual ones")
    parser.add_argument("--context", type=int, default=0, help="tokens of context of each row (default: 0)")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    path: Path = chosen.surface or shared() / "spec" / "surface.json"
    if not path.exists():
        print(f"{path} is not there: name a file by --surface, or set K3MEM_SHARED to the folder of shared data",
              file=sys.stderr)
        return 2
    surface, window, draws = read(path)
    batches: Any = range(1, 257, chosen.every) if chosen.every else BATCHES
    names = ["exact", *(f"late {name}" for name in ERRORS)]
    for regime, numbers in draws.items():
        accepted = 1 + survivals(draw(np.random.default_rng(chosen.seed), numbers, 1, 4096, window - 1)[0],
                                 np.full(4096, window - 1, np.int32)).sum(1).mean()
        print(f"\n{regime}: {accepted:.2f} tokens a row when everything is verified; % more throughput than that\n")
        print("batch  " + "".join(f"{name:>13}" for name in names))
        least = dict.fromkeys(names, np.inf)
        for rows in batches:
            found = gains(surface, window, numbers, rows, chosen.steps, chosen.seed, chosen.context * rows)
            least = {name: min(least[name], found[name]) for name in names}
            print(f"{rows:5d}  " + "".join(f"{100 * found[name]:+13.2f}" for name in names))
        print("least  " + "".join(f"{100 * least[name]:+13.2f}" for name in names))
    rng = np.random.default_rng(chosen.seed)
    same = total = 0
    for numbers in draws.values():
        for rows in batches:
            s = survivals(draw(rng, numbers, 1, rows, window - 1)[0], np.full(rows, window - 1, np.int32))
            same += best_budget(surface, s, chosen.context * rows) == brute_force(surface, s, chosen.context * rows)
            total += 1
    print(f"\nbudgets equal to brute force: {same} of {total}")
    return 0 if same == total else 1


if __name__ == "__main__":
    sys.exit(main())
