"""k3mem: memory and scheduling for hybrid linear-attention language models."""
