"""What is cached: the token tree, checkpoints and tombstones, eviction."""
