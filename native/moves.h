/* Moves of a plan: which of them carry anything. An entry that was handed out and that no launched plan has written to
 * yet has no content: it only changes its place. */
#ifndef K3_MOVES_H
#define K3_MOVES_H
#include "arena.h"
#include "lanes.h"

/* cffi: begin */
/* By kind: unwritten[kind][id], for n[kind] ids; those beyond are written. */
typedef struct {
  uint8_t *unwritten[2];
  int64_t n[2];
} k3_written;

/* Set the flags of ids[0], ids[stride], ..., `count` of them. -1, nothing changed: an id is beyond the table.
 * O(count). */
int k3_written_set(k3_written *w, int kind, const int32_t *ids, int64_t count, int64_t stride, uint8_t value);
/* Of moves[n][4] that the arena has just made, put those of entries with content first, in order; how many. pages: how
 * many of these move pages. O(n). */
int64_t k3_moves_real(const k3_arena *a, const k3_written *w, int32_t *moves, int64_t n, int64_t *pages);
/* Take out of moves[n][4], batch after batch, those of entries that have gone since they were planned, whoever has their
 * places now: what nobody reads is not carried. Those that stay come first, in order; how many. seen: scratch[size],
 * zeroed, size a power of 2 and at least 4 n. O(n). */
int64_t k3_moves_alive(const k3_arena *a, const k3_written *w, int32_t *moves, int64_t n, int64_t *seen, int64_t size);
/* How many of moves[n][4] move pages. O(n). */
int64_t k3_moves_pages(const int32_t *moves, int64_t n);
/* cffi: end */

#endif
