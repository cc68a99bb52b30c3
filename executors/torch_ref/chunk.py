"""The recurrence by chunks of 64 tokens: triangular solves in place of a loop over tokens.

With G the running sum of g from the chunk's first token on, P and A the lower triangles of
sum_d q_id k_jd e^(G_id - G_jd) and beta_i sum_d k_id k_jd e^(G_id - G_jd):

    u = (I + A)^-1 beta (V - (K * e^G) S_0^T)
    O = (Q * e^G) S_0^T + P u
    S_C = S_0 * e^G_C + u^T (K * e^(G_C - G))

Chunks end at multiples of 64 from token 0 of the sequence, so that a prompt that is cut there has the same chunks.
Every exponent is a difference that is not positive, and what lies above the diagonal is never computed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from k3mem.executors.torch_ref.batch import KEYS, Batch
from k3mem.executors.torch_ref.stores import Memory

CHUNK = KEYS


def chunk_scan(memory: Memory, layer: int, batch: Batch, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor,
               u: Tensor, o: Tensor) -> None:
    """What `kda.scan` does, rounded otherwise, for the rows that are `chunked`; g is the decay's logarithm. A
    snapshot off the multiples of 64 cuts its chunk. O(tokens heads (64 K + V K))."""
    first = torch.from_numpy(batch.first)
    for row, span in enumerate(batch.spans):
        if not span.chunked:
            continue
        state = memory.states.matrix[layer][row]
        begin, length = 0, len(span.tokens)
        stops = [snapshot.tokens for snapshot in memory.snapshots if snapshot.row == row]
        while begin < length:
            end = min(length, begin + CHUNK - (span.start + begin) % CHUNK)
            end = min([end, *(stop for stop in stops if stop > begin)])
            at = first[begin:end] + row
            parts = [x.index_select(0, at).transpose(0, 1) for x in (q, k, v, g, beta.unsqueeze(2))]
            added, out = _one_chunk(state, *parts)
            u.index_copy_(0, at, added.transpose(0, 1))
            o.index_copy_(0, at, out.transpose(0, 1))
            for snapshot in memory.at.get(end, ()):
                if snapshot.row == row:
                    snapshot.matrix(layer).copy_(state)
            begin = end


def _one_chunk(s: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """(u, o) [heads, C, V] of one chunk; s [heads, V, K] in place. Others are [heads, C, dim], beta [heads, C, 1]."""
    total = g.cumsum(1)
    tokens = k.shape[1]
    upto = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    gap = torch.where(upto.view(1, tokens, tokens, 1), total.unsqueeze(2) - total.unsqueeze(1), -torch.inf).exp_()
    scores = torch.einsum("hid,hijd,hjd->hij", q, gap, k)
    near = torch.einsum("hid,hijd,hjd->hij", k, gap, k).mul_(beta).tril_(-1)
    fade = total.exp()
    entry = s.transpose(1, 2)
    rest = beta * (v - (k * fade) @ entry)
    added = torch.linalg.solve_triangular(near, rest, upper=False, unitriangular=True)
    out = (q * fade) @ entry + scores @ added
    last = total[:, -1:]
    s.mul_(last.exp()).add_(added.transpose(1, 2) @ (k * (last - total).exp_()))
    return added, out
