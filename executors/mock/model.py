"""The mock's model: hashes in place of tensors, pure and without memory.

One token at position p of a sequence, with `matrix`, `window` the state before it:

    inputs[g] = H(seed, g, token, p)                               pre-convolution row of recurrent group g
    row[k]    = H(k, matrix, window, token, p, context[k])         KV row of KV group k: what its forward read
    matrix'[g] = H(matrix[g], window[g], inputs[g], token)
    window'[g] = (window[g][1], window[g][2], inputs[g])
    output    = H(row, matrix', window', token, p)
    context'[k] = context[k] * BASE + row[k]  (mod PRIME)          polynomial digest of all KV rows so far

H is Python's hash of a tuple of ints: order-sensitive, the same in every process (only strings are salted), and the
cheapest mix that the interpreter has. The context digest is a polynomial so that digests of pages compose, whatever
the page size: digest(a + b) = digest(a) * BASE ** len(b) + digest(b).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from k3mem.plan import Sampling

PRIME = (1 << 61) - 1
"""All hashes lie in 0 .. PRIME; what lies above is poison."""
BASE = 0x1234_5677_89AB_CDE5 % PRIME

Matrix = tuple[int, ...]
"""[recurrent groups] one hash each."""
Window = tuple[tuple[int, int, int], ...]
"""[recurrent groups][3] pre-convolution rows, oldest first."""
Rows = tuple[int, ...]
"""One value per group."""


def seed_of(scope: bytes) -> int:
    """Nonzero seed of a key scope; also the chain label of its empty prefix."""
    return int.from_bytes(blake2b(scope, digest_size=8).digest(), "little") % (PRIME - 1) + 1


def zero_matrix(groups: int) -> Matrix:
    return (0,) * groups


def zero_window(groups: int) -> Window:
    return ((0, 0, 0),) * groups


def chain(label: int, token: int) -> int:
    """Label of a prefix, from that of the prefix one token shorter."""
    return hash((label, token)) & PRIME


def inputs(seed: int, groups: int, token: int, position: int) -> Rows:
    """Pre-convolution rows of one token, one per recurrent group."""
    return tuple([hash((seed, group, token, position)) & PRIME for group in range(groups)])


def absorb(matrix: Matrix, window: Window, rows: Rows, token: int) -> tuple[Matrix, Window]:
    """The state after a token, from the state before it and the token's pre-convolution rows."""
    return (
        tuple([hash((m, w, r, token)) & PRIME for m, w, r in zip(matrix, window, rows, strict=True)]),
        tuple([(w[1], w[2], r) for w, r in zip(window, rows, strict=True)]),
    )


def kv_rows(matrix: Matrix, window: Window, token: int, position: int, context: Sequence[int]) -> Rows:
    """KV rows of one token, one per KV group, never 0 (0 is a row that nobody wrote)."""
    return tuple([hash((k, matrix, window, token, position, c)) & PRIME or 1 for k, c in enumerate(context)])


def output_of(rows: Rows, matrix: Matrix, window: Window, token: int, position: int) -> int:
    """What stands for the logits after a token; `matrix` and `window` are the state after it."""
    return hash((rows, matrix, window, token, position)) & PRIME


def draw_of(sampling: Sampling) -> int:
    """Hash of the sampling parameters."""
    return hash((sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed)) & PRIME


def next_token(output: int, draw: int, offset: int, vocab_size: int) -> int:
    """The sampled token: the splitmix64 finaliser over output, parameters and offset, modulo the vocabulary."""
    x = hash((output, draw, offset)) & 0xFFFF_FFFF_FFFF_FFFF
    x = (x ^ (x >> 30)) * 0xBF58_476D_1CE4_E5B9 & 0xFFFF_FFFF_FFFF_FFFF
    x = (x ^ (x >> 27)) * 0x94D0_49BB_1331_11EB & 0xFFFF_FFFF_FFFF_FFFF
    return (x ^ (x >> 31)) % vocab_size


def script_of(sampling: Sampling) -> list[int]:
    """The scripted output tokens, [] without a script."""
    raw = sampling.script or b""
    return [int.from_bytes(raw[i : i + 4], "little", signed=True) for i in range(0, len(raw) - 3, 4)]
