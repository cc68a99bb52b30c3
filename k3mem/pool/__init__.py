"""Where bytes are: the arena, ids, compaction, ping-pong buffers."""

from k3mem.pool.arena import PAGE, STATE, Arena, Fit, Usage
from k3mem.pool.pingpong import ExtraBuffer

__all__ = ["PAGE", "STATE", "Arena", "ExtraBuffer", "Fit", "Usage"]
