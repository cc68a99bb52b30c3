"""A server with a loop of its own: the four halves of a step, an abort, and outputs as they come.

`Engine.step()` does the same; take it apart like this when plans go over a wire, or when other work fits between
launch and collect. Run it: python examples/own_loop.py
"""

from __future__ import annotations

import k3mem
from k3mem.executors.sim import SimExecutor


def serve(engine: k3mem.Engine, requests: list[k3mem.Request], abort: dict[int, str]) -> dict[str, list[int]]:
    """Run requests to their ends; output tokens by id. `abort`: step -> request to end then."""
    out: dict[str, list[int]] = {str(request.id): [] for request in requests}
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        plan = engine.plan()
        if plan is not None:
            engine.launch(plan)  # returns at once: the device works while the host plans the next step
            if plan.step in abort:
                engine.abort(abort[plan.step])
        outputs = []
        flights = engine.flights  # asked anew: a failed launch retires what was launched before
        if flights and (plan is None or len(flights) > engine.policy.steps_in_flight):
            oldest = flights[0]
            try:
                outputs = engine.commit(oldest, engine.collect(oldest))
            except k3mem.StepFailed as error:
                engine.failed(oldest, error.effect)  # takes all later flights with it
        for update in outputs + engine.take_outputs():
            out[update.id] += update.tokens
            if update.finished:
                print(f"{update.id}: {len(out[update.id])} tokens, {update.reason}")
    engine.check()
    return out


def main() -> None:
    policy = k3mem.Policy(steps_in_flight=1)
    engine = k3mem.Engine(k3mem.Shape.kimi_linear_48b(), SimExecutor(), 8 << 30, policy, fast_forward=False)
    document = [(7 * i) % 1000 for i in range(20_000)]
    requests = [k3mem.Request(f"q{i}", [*document, i, i, i], max_new_tokens=50) for i in range(4)]
    serve(engine, requests, abort={6: "q3"})
    stats = engine.stats()
    print(f"{stats['hit_tokens']:,} of {stats['input_tokens']:,} tokens were hits; {stats['followers']} waited for "
          "another's prefill")


if __name__ == "__main__":
    main()
