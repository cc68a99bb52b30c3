"""What is cached: the token tree, checkpoints and tombstones, eviction."""

from k3mem.radix.kinds import Kind
from k3mem.radix.policy import EvictionPolicy, Lru
from k3mem.radix.tree import Counters, Dropped, Evicted, Info, Match, Published, Tree, Walk

__all__ = [
    "Counters", "Dropped", "Evicted", "EvictionPolicy", "Info", "Kind", "Lru", "Match", "Published", "Tree", "Walk",
]
