"""The peers' figures: their unmodified scripts, each in its own environment, and what their output says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.shared import Absent, interpreter, peers, scripts

SGLANG_MUST = {"static": 3_782_272, "unified": 3_822_080}
"""Hit tokens on `make_agentic()` that SGLang must reproduce, or the run is void."""

_EDGE = re.compile(r"L= *(\d+) (\w+) +match one-edge +([\d.]+)us .* insert last chunk +([\d.]+)us, sum over chunks +"
                   r"([\d.]+)ms")
_EVICT = re.compile(r"leaves= *(\d+) (\w+) +evict FULL 1 page +([\d.]+)us")
_LOCK = re.compile(r"depth= *(\d+) (\w+) +lock\+unlock +([\d.]+)us")


class Broken(Exception):
    """A peer's script failed or said something unexpected."""


def measure() -> dict[str, Any]:
    """Everything: {"sglang": by allocator, "micro": by operation in us, "vllm": by workload and match unit}. Some
    minutes. Raises Absent or Broken."""
    folder = scripts()
    sglang, vllm = interpreter("sglang"), interpreter("vllm")
    here = Path(__file__).resolve().parent
    return {
        "sglang": json.loads(_run([sglang, here / "run_sglang.py", folder])),
        "micro": parse_micro(_run([sglang, folder / "peer_sglang_micro.py", "match", "evict", "lock"])),
        "vllm": json.loads(_run([vllm, here / "run_vllm.py", folder],
                                PYTHONPATH=os.pathsep.join((str(peers() / "vllm_src"), str(folder))))),
    }


def parse_micro(text: str) -> dict[str, float]:
    """Microseconds of SGLang's default core from its micro-benchmark's lines. Raises Broken where one is missing."""
    out: dict[str, float] = {}
    for length, core, match, last, every in _EDGE.findall(text):
        if (length, core) == ("524288", "rust"):
            out |= {"match_edge": float(match), "publish_last": float(last), "publish_all": 1e3 * float(every)}
    for count, core, us in _EVICT.findall(text):
        if (count, core) == ("40000", "rust"):
            out["evict"] = float(us)
    for depth, core, us in _LOCK.findall(text):
        if (depth, core) == ("128", "rust"):
            out["lock"] = float(us)
    missing = {"match_edge", "publish_last", "publish_all", "evict", "lock"} - out.keys()
    if missing:
        raise Broken(f"SGLang's micro-benchmark says nothing of {sorted(missing)}")
    return out


def void(sglang: Mapping[str, Any]) -> str | None:
    """Why the run is void: SGLang's hits are not those that it is known to reach. None: it is not."""
    for allocator, must in SGLANG_MUST.items():
        got = sglang[allocator]["hit_tokens"]
        if got != must:
            return f"SGLang ({allocator}) hits {got} tokens on make_agentic(), not {must}: this run is void"
    return None


def _run(command: list[str | Path], **extra: str) -> str:
    """A command's stdout. Raises Broken with the end of its stderr."""
    print("running", " ".join(Path(part).name for part in map(str, command)), file=sys.stderr, flush=True)
    done = subprocess.run(command, env={**os.environ, **extra}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Broken(f"{command[1]} failed with {done.returncode}: {done.stderr[-800:]}")
    return done.stdout


__all__ = ["Absent", "Broken", "measure", "parse_micro", "void"]
