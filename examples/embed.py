"""Embedding k3mem: an executor of your own, and two turns of a conversation."""

import k3mem
from k3mem.executors.sim import SimExecutor


class Narrator:
    capabilities = k3mem.Capabilities(verify=False)
    model = SimExecutor()  # yours runs a model; this one only takes the time that a model would take

    def attach(self, layout):
        self.model.attach(layout)

    def launch(self, plan):
        print(f"step {plan.step}: {plan.rows} rows, {len(plan.restores)} restored, {len(plan.snapshots)} captured")
        return self.model.launch(plan)

    def collect(self, ticket):
        return self.model.collect(ticket)


engine = k3mem.Engine(k3mem.Shape.kimi_k3(tp=8), Narrator(), capacity_bytes=64 << 30)
prompt = list(range(1000))
engine.submit(k3mem.Request("turn 1", prompt, max_new_tokens=8))
prompt += [token for out in engine.run() for token in out.tokens] + [7, 7, 7]
print(engine.probe(prompt))
engine.submit(k3mem.Request("turn 2", prompt, max_new_tokens=8))
print([token for out in engine.run() for token in out.tokens])
