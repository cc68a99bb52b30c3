#include "moves.h"

#include <string.h>

enum { BATCH, KIND, SOURCE, DESTINATION, WORDS }; /* of a move */

int k3_written_set(k3_written *w, int kind, const int32_t *ids, int64_t count, int64_t stride, uint8_t value) {
  for (int64_t i = 0; i < count; i++)
    if (ids[i * stride] < 0 || ids[i * stride] >= w->n[kind]) return -1;
  if (K3_MUTANT(K3_MUTANT_STILL_NEW) && !value && count > 1) count = 1;
  for (int64_t i = 0; i < count; i++) w->unwritten[kind][ids[i * stride]] = value;
  return 0;
}

/* Whether the entry at a move's destination has content. */
static bool has_content(const k3_arena *a, const k3_written *w, const int32_t *move) {
  int32_t kind = move[KIND], place = move[DESTINATION];
  if (place < 0 || place >= a->kind[kind].frontier) return false;
  int32_t id = a->kind[kind].owner[place];
  return id >= 0 && !(id < w->n[kind] && w->unwritten[kind][id]);
}

int64_t k3_moves_real(const k3_arena *a, const k3_written *w, int32_t *moves, int64_t n, int64_t *pages) {
  int64_t real = 0;
  for (int64_t i = 0; i < n; i++) {
    const int32_t *move = moves + WORDS * i;
    if (!has_content(a, w, move)) continue;
    memmove(moves + WORDS * real++, move, WORDS * sizeof *move);
  }
  *pages = k3_moves_pages(moves, real);
  return real;
}

enum { KNOWN = 1, DEAD = 2 }; /* of a place: some later move names it; nobody needs what it holds before that move */

/* A place's word in an open hash table: its key, shifted by two, and its flags. */
static int64_t *word_of(int64_t *seen, int64_t size, int32_t kind, int32_t place) {
  int64_t key = ((int64_t)place << 1 | kind) + 1;
  uint64_t at = (uint64_t)key * 0x9E3779B97F4A7C15u >> 20;
  for (;; at++) {
    int64_t *word = &seen[at & (uint64_t)(size - 1)];
    if (!*word) *word = key << 2;
    if (*word >> 2 == key) return word;
  }
}

int64_t k3_moves_alive(const k3_arena *a, const k3_written *w, int32_t *moves, int64_t n, int64_t *seen, int64_t size) {
  int64_t alive = n;
  for (int64_t end = n, first; end; end = first) { /* batches, the last one first */
    for (first = end - 1; first && moves[WORDS * (first - 1)] == moves[WORDS * first];) first--;
    for (int64_t i = first; i < end; i++) {
      int32_t *move = moves + WORDS * i;
      int64_t *to = word_of(seen, size, move[KIND], move[DESTINATION]);
      bool dead = *to & KNOWN ? (*to & DEAD) != 0 : !has_content(a, w, move);
      if (K3_MUTANT(K3_MUTANT_ALL_DEAD)) dead |= i > first && moves[WORDS * (i - 1)] < 0;
      *to |= KNOWN | DEAD;
      int64_t *from = word_of(seen, size, move[KIND], move[SOURCE]);
      *from = dead ? *from | KNOWN | DEAD : (*from | KNOWN) & ~(int64_t)DEAD;
      if (dead) {
        move[BATCH] = -1 - move[BATCH]; /* still tells its batch from its neighbours' */
        alive--;
      }
    }
  }
  for (int64_t i = 0, at = 0; alive < n && i < n; i++)
    if (moves[WORDS * i] >= 0) memmove(moves + WORDS * at++, moves + WORDS * i, WORDS * sizeof *moves);
  return alive;
}

int64_t k3_moves_pages(const int32_t *moves, int64_t n) {
  int64_t pages = 0;
  for (int64_t i = 0; i < n; i++) pages += moves[WORDS * i + KIND] == K3_PAGE;
  return pages;
}
