"""What is cached: the token tree, checkpoints and tombstones, eviction."""

from k3mem.radix.auto import Auto
from k3mem.radix.custom import Custom
from k3mem.radix.found import Counters, Dropped, Evicted, Info, Match, Published, Walk
from k3mem.radix.kinds import Kind, Note, due
from k3mem.radix.learn import Cost, Learned
from k3mem.radix.policy import EvictionPolicy, Keeper, Lru, Prices
from k3mem.radix.tree import Tree

__all__ = [
    "Auto", "Cost", "Counters", "Custom", "Dropped", "Evicted", "EvictionPolicy", "Info", "Keeper", "Kind", "Learned",
    "Lru", "Match", "Note", "Prices", "Published", "Tree", "Walk", "due",
]
