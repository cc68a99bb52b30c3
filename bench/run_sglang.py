"""Runs in SGLang's own environment: its unmodified `run()`, default core, both allocators. Prints one JSON object.

Usage: PYTHON run_sglang.py SCRIPTS_FOLDER
"""

import json
import sys
import time


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    import peer_sglang  # type: ignore[import-not-found]
    from workloads import make_agentic  # type: ignore[import-not-found]

    small = make_agentic(sessions=3, turns=3, system_prompts=1, system_len=700, seed=1)
    requests = make_agentic()
    out: dict[str, dict[str, object]] = {}
    for allocator in ("static", "unified"):
        peer_sglang.run(small, 200_000, 64, 64, core="rust", allocator=allocator, concurrency=2, check=False,
                        warmup=False)
        began = time.process_time()
        done = peer_sglang.run(requests, 400_000, 200, 64, core="rust", allocator=allocator, warmup=False)
        done["cpu_us_per_request"] = 1e6 * (time.process_time() - began) / len(requests)
        out[allocator] = done
    print(json.dumps(out))


if __name__ == "__main__":
    main()
