/* The mock's hashes (see executors/mock/model.py, which defines them): H is what CPython makes of a tuple of ints.
 *
 * All values lie in 0 .. K3_PRIME; what lies at K3_POISON or above was never written. */
#ifndef K3_MOCK_MODEL_H
#define K3_MOCK_MODEL_H
#include "mock.h"

#define K3_PRIME (((uint64_t)1 << 61) - 1)
#define K3_BASE (UINT64_C(0x1234567789ABCDE5) % K3_PRIME)
#define K3_POISON ((int64_t)1 << 62)
#define K3_MIX_1 UINT64_C(11400714785074694791)
#define K3_MIX_2 UINT64_C(14029467366897019727)
#define K3_MIX_5 UINT64_C(2870177450012600261)

/* A state's content: matrix[g] at [g], window[g][i] at [groups + 3 * g + i]. */
enum { K3_WINDOW = 3, K3_STATE_WIDTH = 1 + K3_WINDOW };

/* hash(int). */
static inline uint64_t k3_hash_int(int64_t value) {
  uint64_t size = value < 0 ? -(uint64_t)value : (uint64_t)value;
  size = (size & K3_PRIME) + (size >> 61);
  if (size >= K3_PRIME) size -= K3_PRIME;
  uint64_t hash = value < 0 ? -size : size;
  return hash == UINT64_MAX ? UINT64_MAX - 1 : hash;
}

/* A tuple's hash: begin with K3_MIX_5, fold in the hash of each item, end with the number of items. */
static inline uint64_t k3_fold(uint64_t acc, uint64_t item) {
  acc += item * K3_MIX_2;
  return (acc << 31 | acc >> 33) * K3_MIX_1;
}

static inline uint64_t k3_end(uint64_t acc, uint64_t items) {
  acc += items ^ (K3_MIX_5 ^ UINT64_C(3527539));
  return acc == UINT64_MAX ? UINT64_C(1546275796) : acc;
}

static inline uint64_t k3_fold_int(uint64_t acc, int64_t value) { return k3_fold(acc, k3_hash_int(value)); }

static inline uint64_t k3_hash_ints(const int64_t *values, int n) {
  uint64_t acc = K3_MIX_5;
  for (int i = 0; i < n; i++) acc = k3_fold_int(acc, values[i]);
  return k3_end(acc, (uint64_t)n);
}

/* hash(window): a tuple of tuples of three. */
static inline uint64_t k3_hash_window(const int64_t *window, int groups) {
  uint64_t acc = K3_MIX_5;
  for (int g = 0; g < groups; g++) acc = k3_fold(acc, k3_hash_ints(window + K3_WINDOW * g, K3_WINDOW));
  return k3_end(acc, (uint64_t)groups);
}

/* Label of a prefix, from that of the prefix one token shorter. */
static inline int64_t k3_chain(int64_t label, int64_t token) {
  return (int64_t)(k3_hash_ints((const int64_t[]){label, token}, 2) & K3_PRIME);
}

/* a * b + c mod K3_PRIME, any a, b < 2^61 and c < 2^63. */
static inline int64_t k3_muladd(uint64_t a, uint64_t b, uint64_t c) {
  unsigned __int128 x = (unsigned __int128)a * b + c;
  uint64_t y = (uint64_t)(x & K3_PRIME) + (uint64_t)(x >> 61);
  y = (y & K3_PRIME) + (y >> 61);
  return (int64_t)(y >= K3_PRIME ? y - K3_PRIME : y);
}

/* Digest of the rows so far and one more. */
static inline int64_t k3_append(int64_t context, int64_t row) {
  return k3_muladd((uint64_t)context, K3_BASE, (uint64_t)row);
}

/* Pre-convolution rows of one token into fed[groups]. */
static inline void k3_inputs(int64_t *fed, int groups, int64_t seed, int64_t token, int64_t position) {
  for (int g = 0; g < groups; g++)
    fed[g] = (int64_t)(k3_hash_ints((const int64_t[]){seed, g, token, position}, 4) & K3_PRIME);
}

/* The state after a token, in place. */
static inline void k3_absorb(int64_t *state, int groups, const int64_t *fed, int64_t token) {
  for (int g = 0; g < groups; g++) {
    int64_t *window = state + groups + K3_WINDOW * g;
    uint64_t acc = k3_fold_int(K3_MIX_5, state[g]);
    acc = k3_fold(acc, k3_hash_ints(window, K3_WINDOW));
    acc = k3_fold_int(k3_fold_int(acc, fed[g]), token);
    state[g] = (int64_t)(k3_end(acc, 4) & K3_PRIME);
    window[0] = window[1], window[1] = window[2], window[2] = fed[g];
  }
}

/* KV rows of one token into rows[kv_groups], never 0; `state` is the one before it. */
static inline void k3_kv_rows(int64_t *rows, int kv_groups, const int64_t *state, int groups, int64_t token,
                              int64_t position, const int64_t *context) {
  uint64_t matrix = k3_hash_ints(state, groups), window = k3_hash_window(state + groups, groups);
  for (int k = 0; k < kv_groups; k++) {
    uint64_t acc = k3_fold(k3_fold(k3_fold_int(K3_MIX_5, k), matrix), window);
    acc = k3_fold_int(k3_fold_int(k3_fold_int(acc, token), position), context[k]);
    rows[k] = (int64_t)(k3_end(acc, 6) & K3_PRIME);
    if (!rows[k]) rows[k] = 1;
  }
}

/* What stands for the logits after a token; `state` is the one after it. */
static inline int64_t k3_output(const int64_t *rows, int kv_groups, const int64_t *state, int groups, int64_t token,
                                int64_t position) {
  uint64_t acc = k3_fold(K3_MIX_5, k3_hash_ints(rows, kv_groups));
  acc = k3_fold(acc, k3_hash_ints(state, groups));
  acc = k3_fold(acc, k3_hash_window(state + groups, groups));
  acc = k3_fold_int(k3_fold_int(acc, token), position);
  return (int64_t)(k3_end(acc, 5) & K3_PRIME);
}

/* The token at `offset` of the output: scripted, or drawn from `output` by the splitmix64 finaliser. */
static inline int64_t k3_sample(int64_t output, int64_t draw, int64_t offset, int64_t vocab_size, const int32_t *script,
                                int64_t n_script) {
  if (offset >= 0 && offset < n_script) return script[offset];
  uint64_t x = k3_hash_ints((const int64_t[]){output, draw, offset}, 3);
  x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
  x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
  return (int64_t)((x ^ x >> 31) % (uint64_t)vocab_size);
}

static inline bool k3_among(int64_t value, const int64_t *values, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (values[i] == value) return true;
  return false;
}

#endif
