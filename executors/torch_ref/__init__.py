"""Executor `torch_ref`: a complete K3 or Kimi-Linear language model on the CPU, bit-exact whatever the cache did."""

from k3mem.executors.torch_ref.drafter import BlockDrafter
from k3mem.executors.torch_ref.executor import TorchExecutor
from k3mem.executors.torch_ref.model import Model

__all__ = ["BlockDrafter", "Model", "TorchExecutor"]
