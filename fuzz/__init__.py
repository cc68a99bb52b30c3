"""The fuzzer."""
