"""Measurements of k3mem beside its peers. Run from the repository's root; not installed.

    python -m bench.setup_peers                   installs SGLang and vLLM (3 GB, CPU) under $PEERS
    python -m bench.peers --json out.json         every target, k3mem and peers in one run
    python -m bench.serve agentic                 one whole workload through the engine
    pytest bench/ --benchmark-only                small parts of k3mem alone
    python -m bench.decode_step                   plan, launch and commit of 256 running decodes
"""
