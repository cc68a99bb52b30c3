/* Operations of k3_bits (see arena.h). Members are < 64 * words[0]. */
#ifndef K3_ARENA_BITS_H
#define K3_ARENA_BITS_H
#include <stdlib.h>
#include <string.h>

#include "arena.h"

enum { K3_LEVELS = 6 };

/* Make room for members < n. K3_E_MEMORY leaves the set as it was. O(n / 64). */
static inline int k3_bits_reserve(k3_bits *b, int64_t n) {
  for (int l = 0; l < K3_LEVELS; l++) {
    n = (n + 63) / 64;
    if (n <= b->words[l]) continue;
    uint64_t *grown = realloc(b->level[l], (size_t)n * sizeof *grown);
    if (!grown) return K3_E_MEMORY;
    memset(grown + b->words[l], 0, (size_t)(n - b->words[l]) * sizeof *grown);
    b->level[l] = grown;
    b->words[l] = n;
  }
  return K3_OK;
}

static inline void k3_bits_drop(k3_bits *b) {
  for (int l = 0; l < K3_LEVELS; l++) free(b->level[l]);
}

static inline int k3_bits_has(const k3_bits *b, int64_t i) { return (int)(b->level[0][i >> 6] >> (i & 63) & 1); }

static inline void k3_bits_add(k3_bits *b, int64_t i) {
  if (k3_bits_has(b, i)) return;
  b->count++;
  for (int l = 0; l < K3_LEVELS; l++, i >>= 6) {
    uint64_t *word = &b->level[l][i >> 6], old = *word;
    *word = old | (uint64_t)1 << (i & 63);
    if (old) return;
  }
}

static inline void k3_bits_remove(k3_bits *b, int64_t i) {
  if (!k3_bits_has(b, i)) return;
  b->count--;
  for (int l = 0; l < K3_LEVELS; l++, i >>= 6) {
    uint64_t *word = &b->level[l][i >> 6];
    *word &= ~((uint64_t)1 << (i & 63));
    if (*word) return;
  }
}

/* The smallest member, or -1. */
static inline int64_t k3_bits_first(const k3_bits *b) {
  int64_t i = 0;
  if (!b->count) return -1;
  for (int l = K3_LEVELS - 1; l >= 0; l--) i = i << 6 | __builtin_ctzll(b->level[l][i]);
  return i;
}

/* The largest member, or -1. */
static inline int64_t k3_bits_last(const k3_bits *b) {
  int64_t i = 0;
  if (!b->count) return -1;
  for (int l = K3_LEVELS - 1; l >= 0; l--) i = i << 6 | (63 - __builtin_clzll(b->level[l][i]));
  return i;
}

#endif
