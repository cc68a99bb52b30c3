"""Runs in vLLM's own environment: its unmodified `run()` on both workloads, by match unit. Prints one JSON object.

Usage: PYTHONPATH=VLLM_SOURCE PYTHON run_vllm.py SCRIPTS_FOLDER
"""

import contextlib
import json
import sys

UNITS = {"block": None, "128": 128, "64": 64}


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    with contextlib.redirect_stdout(sys.stderr):
        import peer_vllm  # type: ignore[import-not-found]
        from workloads import agentic, make_agentic  # type: ignore[import-not-found]

        out: dict[str, dict[str, object]] = {"make_agentic": {}, "agentic": {}}
        same = 400_000 * 27_648 + 200 * 56_171_520
        for unit, tokens in UNITS.items():
            out["make_agentic"][unit] = peer_vllm.run(make_agentic(), same, concurrency=4, hash_block=tokens)
            out["agentic"][unit] = peer_vllm.run(agentic(200, 10), 40 << 30, hash_block=tokens)
        out["decode"] = peer_vllm.run(agentic(256, 1, system=1500, user=800), 400 << 30, concurrency=256)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
