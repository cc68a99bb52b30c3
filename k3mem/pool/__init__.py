"""Where bytes are: the arena, ids, compaction, ping-pong buffers."""
