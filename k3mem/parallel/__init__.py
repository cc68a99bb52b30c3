"""What ranks compute together, as functions of arrays: oracles of kernels, and plans that every rank makes alike."""

from k3mem.parallel.balance import Balance, Routes, balance, balance_capped, route
from k3mem.parallel.decode import local_length, merge
from k3mem.parallel.fragments import Fragment, compose, fragment, identity, scan_serial, scan_tree

__all__ = [
    "Balance", "Fragment", "Routes", "balance", "balance_capped", "compose", "fragment", "identity", "local_length",
    "merge", "route", "scan_serial", "scan_tree",
]
