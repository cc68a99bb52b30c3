/* The arena: one byte range that KV pages fill from the bottom and recurrent states from the top.
 *
 *   0                                                                        state_top          capacity
 *   |  page 0  |  page 1  | .. | page Fp-1 |  gap  | state Fs-1 | .. | state 1 | state 0 | pad | scratch |
 *      (sink)                              ^       ^                            (sink)
 *                              Fp * page_bytes   state_top - Fs * state_bytes
 *
 *   page place p  = bytes [p * page_bytes, (p + 1) * page_bytes)
 *   state place s = bytes [state_top - (s + 1) * state_bytes, state_top - s * state_bytes)
 *
 * Fp and Fs are the frontiers. A place below its frontier is live (the sink included), a hole, or pending: freed, but
 * a step in flight may still use it. At or above the frontier all is gap. The frontier is canonical: the place below
 * it is never a hole. Hence, with n occupied (live or pending) places of a kind, holes = frontier - n.
 *
 * An entry is stuck when it is leased or pending: it does not move, so no move brings the frontier below the highest
 * stuck place + 1.
 *
 * Ids are virtual: constant while owned, reused afterwards (last freed first). Tables grow with the peak number of
 * entries, never with the capacity. Nothing here reads or writes the arena's bytes.
 */
#ifndef K3_ARENA_H
#define K3_ARENA_H
#include "k3.h"

/* Planted bugs of the arena (see k3.h). */
enum {
  K3_MUTANT_LOST_HOLE = 101,     /* freeing in the middle records no hole */
  K3_MUTANT_MOVES_LEASED = 102,  /* a lease does not keep an entry in its place */
  K3_MUTANT_FREE_SHARED = 103,   /* the first of several owners frees the page */
  K3_MUTANT_PENDING = 104,       /* a freed place is reused while a step in flight may use it */
  K3_MUTANT_SETTLE_EARLY = 105,  /* settling a step also frees what waits for the next one */
  K3_MUTANT_SETTLE_BACK = 106,   /* settling an earlier step again moves time back: places wait longer (silent) */
  K3_MUTANT_FRONTIER = 107,      /* the frontier does not fall below holes that end there (silent) */
  K3_MUTANT_HOLE_HIGHEST = 108,  /* the highest hole is reused first: entries stay far out (silent) */
  K3_MUTANT_DIRTY = 109,         /* a moved entry is missing in the table update */
  K3_MUTANT_UNDO_PLACE = 110,    /* a cancelled move goes back to the frontier, not to where it came from */
  K3_MUTANT_OPTIMISTIC = 111,    /* what fits after moves is said to fit now */
  K3_MUTANT_PESSIMISTIC = 112,   /* own holes do not count as room (silent) */
  K3_MUTANT_PER_KIND = 113,      /* each kind is asked alone whether it fits */
  K3_MUTANT_ROOM = 114,          /* room is promised where a leased entry stands */
  K3_MUTANT_ID_REUSED = 115,     /* an id is given out and stays on the stack of free ids */
  K3_MUTANT_SPLIT_LIMIT = 116,   /* with a fixed split a kind may pass its bound by one */
  K3_MUTANT_LEASE_FLAG = 117,    /* a lease is a flag: the first of two users ends it for both */
  K3_MUTANT_FREES_LEASED = 118,  /* a leased entry can be freed */
  K3_MUTANT_CHAIN = 119,         /* one batch moves an entry to a place that the batch also reads */
  K3_MUTANT_BUDGET = 120,        /* moves know no bound in bytes */
  K3_MUTANT_FREE_PARTIAL = 121,  /* a free that is refused has dropped references already */
};

/* cffi: begin */
enum { K3_PAGE = 0, K3_STATE = 1 };
enum { K3_FIT_NO = 0, K3_FIT_MOVES = 1, K3_FIT_NOW = 2 };
enum { K3_HOLE = -1, K3_PENDING = -2 }; /* owner of a place without an id */

/* A set of small integers as a 64-ary tree of bitmaps: bit i of level l + 1 says that word i of level l is not 0.
 * Insert, remove, first and last are O(6). */
typedef struct {
  uint64_t *level[6];
  int64_t words[6]; /* allocated words of each level */
  int64_t count;    /* members */
} k3_bits;

/* One kind of entry, pages or states. */
typedef struct {
  int64_t bytes;      /* of one entry */
  int64_t max_places; /* the frontier's upper bound: floor(bytes the kind may use / bytes), at most 2^31 - 1 */
  int64_t frontier;

  /* by id, [0, n_ids); id 0 is the sink */
  int32_t *place;    /* -1: the id is free */
  int32_t *refs;     /* owners; 0: free */
  int32_t *leases;   /* asynchronous users; an entry with one neither moves nor is freed */
  int32_t *dirty_at; /* index in dirty, or -1 */
  int64_t n_ids, ids_cap;
  int32_t *free_ids; /* stack, [0, n_free) */
  int64_t n_free;
  int32_t *dirty; /* live ids whose mapping changed since the last drain, each once, [0, n_dirty) */
  int64_t n_dirty;

  /* by place, [0, frontier) */
  int32_t *owner; /* id, K3_HOLE or K3_PENDING */
  int64_t places_cap;
  k3_bits holes, stuck;
  int32_t *pending_place; /* [0, n_pending), in the order of freeing */
  int64_t *pending_after; /* the step that must settle first */
  int64_t n_pending;

  /* redundant sums, for check: of refs, leases and pending_after (mod 2^64) */
  uint64_t refs_sum, leases_sum, after_sum;
} k3_kind;

/* Why a call returned K3_E_CORRUPT: table[index] = value does not agree with other[other_index] = other_value. Index -1
 * stands for a sum or a count. */
typedef struct {
  const char *table;
  const char *other;
  int32_t kind;
  int64_t index, value, other_index, other_value;
} k3_fault;

typedef struct {
  k3_kind kind[2];
  int64_t state_top; /* bytes that pages and states share */
  int64_t settled;   /* last settled step */
  int64_t moves_count, moved_bytes;
  k3_fault fault;
} k3_arena;

/* An arena with its two sinks. bytes are > 0, max_* >= 2, state_top <= 2^61. NULL when out of memory. O(1). */
k3_arena *k3_arena_new(int64_t page_bytes, int64_t state_bytes, int64_t state_top, int64_t max_pages,
                       int64_t max_states);
void k3_arena_delete(k3_arena *a);

/* K3_FIT_* of n more entries of each kind together, 0 <= n <= 2^40. O(1). */
int k3_arena_fits(const k3_arena *a, int64_t n_pages, int64_t n_states);
/* How many entries of one kind alone fit now, or (moves) after closing the other kind's holes. O(1). */
int64_t k3_arena_room(const k3_arena *a, int kind, int moves);
/* All or nothing: ids into pages[n_pages], states[n_states]. 1 done, 0 does not fit now, K3_E_MEMORY. O(n). */
int k3_arena_alloc(k3_arena *a, int64_t n_pages, int64_t n_states, int32_t *pages, int32_t *states);
/* Drop one reference for each of ids[n]; the ids really freed go to out[*n_out], n_out <= n. K3_E_CORRUPT (fault.index:
 * position in ids, and nothing changed) on an id that is not live, a sink, or leased at its last reference. Places
 * freed with after > settled are pending. O(n) and amortised O(1) for each hole that the frontier passes. */
int k3_arena_free(k3_arena *a, int kind, const int32_t *ids, int64_t n, int64_t after, int32_t *out, int64_t *n_out);
/* One more reference to a page. K3_E_CORRUPT: not live. O(1). */
int k3_arena_ref(k3_arena *a, int kind, int32_t id);
/* One more (delta 1) or less (-1) lease. K3_E_CORRUPT: not live, a sink, or no lease to end. O(1). */
int k3_arena_lease(k3_arena *a, int kind, int32_t id, int delta);
/* Steps up to and including step have finished: their pending places are free. O(pending). */
void k3_arena_settle(k3_arena *a, int64_t step);
/* Upper bound of the rows that make_room and compact write. O(1). */
int64_t k3_arena_moves_bound(const k3_arena *a, int64_t budget_bytes);
/* Moves (batch, kind, source, destination) towards a demand that fits after moves; writes moves[result][4]. At most
 * budget_bytes, but one entry at least. 0 when it fits now or no move helps, else the rows, or K3_E_CORRUPT.
 * O(moves + holes passed). */
int64_t k3_arena_make_room(k3_arena *a, int64_t n_pages, int64_t n_states, int64_t budget_bytes, int32_t *moves);
/* The same for all holes of both kinds. */
int64_t k3_arena_compact(k3_arena *a, int64_t budget_bytes, int32_t *moves);
/* Reverse moves[n][4], last first. K3_E_CORRUPT (fault.index: the row; mappings as before) when an entry is not at its
 * destination or cannot go back. O(n + places the frontier passes). */
int k3_arena_undo(k3_arena *a, const int32_t *moves, int64_t n);
/* out[n] = places of live ids. K3_E_CORRUPT (fault.index: position): an id is not live. O(n). */
int k3_arena_places(k3_arena *a, int kind, const int32_t *ids, int64_t n, int32_t *out);
/* (id, place) of the dirty ids into out[n_dirty][2], and none is dirty any more. O(dirty). */
void k3_arena_drain(k3_arena *a, int kind, int32_t *out);
/* (id, place) of all live ids, the sink included, into out[n_ids - n_free][2]. O(ids). */
void k3_arena_table(const k3_arena *a, int kind, int32_t *out);
/* Make those of ids[n] that are live dirty again. K3_E_CORRUPT (nothing changed): never an id. O(n). */
int k3_arena_redirty(k3_arena *a, int kind, const int32_t *ids, int64_t n);
/* Every invariant of every table; K3_E_CORRUPT fills fault. O(ids + places). */
int k3_arena_check(k3_arena *a);
/* cffi: end */

int k3_fault_set(k3_arena *a, int kind, const char *table, int64_t index, int64_t value, const char *other,
                 int64_t other_index, int64_t other_value);

#endif
