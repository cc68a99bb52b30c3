"""Many replays of one trace, side by side: over pool sizes, concurrency, policies and admission.

A cell is one replay by `k3mem.replay.run`, or one clairvoyant bound. `cells` says what they are and runs one, `workers`
runs many, `store` keeps them as they come, `figures` and `page` show them.
"""
