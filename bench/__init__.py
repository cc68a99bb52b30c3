"""Measurements: plain scripts, not installed. Each has `measure() -> dict` and runs with python -m bench.NAME."""
