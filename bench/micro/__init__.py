"""Small parts of k3mem, for pytest-benchmark: `pytest bench/ --benchmark-only`."""
