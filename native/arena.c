#include "arena.h"

#include <stdlib.h>
#include <string.h>

#include "arena_bits.h"

enum { FIRST_CAP = 64 };

static int64_t max64(int64_t x, int64_t y) { return x > y ? x : y; }
static int64_t min64(int64_t x, int64_t y) { return x < y ? x : y; }

/* Live and pending places, the sink included. */
static int64_t occupied(const k3_kind *k) { return k->frontier - k->holes.count; }

int k3_fault_set(k3_arena *a, int kind, const char *table, int64_t index, int64_t value, const char *other,
                 int64_t other_index, int64_t other_value) {
  a->fault = (k3_fault){table, other, kind, index, value, other_index, other_value};
  return K3_E_CORRUPT;
}

/* -- growth: everything an operation needs is reserved before it changes anything ---------------------------------- */

static int grow(void *table, int64_t n, size_t item) {
  void *old, *grown;
  memcpy(&old, table, sizeof old);
  if (!(grown = realloc(old, (size_t)n * item))) return K3_E_MEMORY;
  memcpy(table, &grown, sizeof grown);
  return K3_OK;
}

static int reserve_ids(k3_kind *k, int64_t n) {
  if (n <= k->ids_cap) return K3_OK;
  n = max64(n, max64(FIRST_CAP, 2 * k->ids_cap));
  int32_t **tables[] = {&k->place, &k->refs, &k->leases, &k->dirty_at, &k->free_ids, &k->dirty};
  for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
    if (grow(tables[i], n, sizeof(int32_t))) return K3_E_MEMORY;
  k->ids_cap = n;
  return K3_OK;
}

static int reserve_places(k3_kind *k, int64_t n) {
  if (n <= k->places_cap) return K3_OK;
  n = max64(n, max64(FIRST_CAP, 2 * k->places_cap));
  if (grow(&k->owner, n, sizeof(int32_t)) || grow(&k->pending_place, n, sizeof(int32_t)) ||
      grow(&k->pending_after, n, sizeof(int64_t)) || k3_bits_reserve(&k->holes, n) || k3_bits_reserve(&k->stuck, n))
    return K3_E_MEMORY;
  k->places_cap = n;
  return K3_OK;
}

/* -- one entry ----------------------------------------------------------------------------------------------------- */

static int is_live(const k3_kind *k, int64_t id) { return id >= 0 && id < k->n_ids && k->refs[id] > 0; }

static int not_live(k3_arena *a, int kind, int64_t i, int32_t id) {
  const k3_kind *k = &a->kind[kind];
  return k3_fault_set(a, kind, "ids", i, id, "refs", id, id >= 0 && id < k->n_ids ? k->refs[id] : 0);
}

static void touch(k3_kind *k, int32_t id) {
  if (k->dirty_at[id] >= 0) return;
  k->dirty_at[id] = (int32_t)k->n_dirty;
  k->dirty[k->n_dirty++] = id;
}

static void untouch(k3_kind *k, int32_t id) {
  int32_t at = k->dirty_at[id];
  if (at < 0) return;
  int32_t last = k->dirty[--k->n_dirty];
  k->dirty[at] = last;
  k->dirty_at[last] = at;
  k->dirty_at[id] = -1;
}

/* Seat id at a hole, or at or above the frontier; places the frontier skips become holes. */
static void occupy(k3_kind *k, int64_t place, int32_t id) {
  if (place < k->frontier) {
    k3_bits_remove(&k->holes, place);
  } else {
    for (; k->frontier < place; k->frontier++) {
      k->owner[k->frontier] = K3_HOLE;
      k3_bits_add(&k->holes, k->frontier);
    }
    k->frontier = place + 1;
  }
  k->owner[place] = id;
  k->place[id] = (int32_t)place;
  touch(k, id);
}

/* The place becomes a hole; or the frontier falls below it and below the holes that end there. */
static void vacate(k3_kind *k, int64_t place) {
  k->owner[place] = K3_HOLE;
  if (place != k->frontier - 1) {
    if (!K3_MUTANT(K3_MUTANT_LOST_HOLE)) k3_bits_add(&k->holes, place);
    return;
  }
  k->frontier--;
  while (k->owner[k->frontier - 1] == K3_HOLE && !K3_MUTANT(K3_MUTANT_FRONTIER))
    k3_bits_remove(&k->holes, --k->frontier);
}

static void relocate(k3_kind *k, int64_t from, int64_t to) {
  if (K3_MUTANT(K3_MUTANT_MOVES_LEASED) && k3_bits_has(&k->stuck, from)) {
    k3_bits_remove(&k->stuck, from);
    k3_bits_add(&k->stuck, to);
  }
  int32_t id = k->owner[from], dirty = k->dirty_at[id] >= 0;
  occupy(k, to, id);
  vacate(k, from);
  if (K3_MUTANT(K3_MUTANT_DIRTY) && !dirty) untouch(k, id);
}

static int32_t take(k3_kind *k) {
  int32_t id = k->n_free ? k->free_ids[--k->n_free] : (int32_t)k->n_ids++;
  if (K3_MUTANT(K3_MUTANT_ID_REUSED) && k->n_free) id = k->free_ids[0];
  int64_t hole = K3_MUTANT(K3_MUTANT_HOLE_HIGHEST) ? k3_bits_last(&k->holes) : k3_bits_first(&k->holes);
  k->refs[id] = 1;
  k->refs_sum++;
  k->leases[id] = 0;
  k->dirty_at[id] = -1;
  occupy(k, hole >= 0 ? hole : k->frontier, id);
  return id;
}

/* The last reference is gone. */
static void release(k3_kind *k, int32_t id, int64_t after, int pending) {
  int32_t place = k->place[id];
  untouch(k, id);
  k->place[id] = -1;
  k->free_ids[k->n_free++] = id;
  if (!pending) {
    vacate(k, place);
    return;
  }
  k->owner[place] = K3_PENDING;
  k3_bits_add(&k->stuck, place);
  k->pending_place[k->n_pending] = place;
  k->pending_after[k->n_pending++] = after;
  k->after_sum += (uint64_t)after;
}

/* -- life ---------------------------------------------------------------------------------------------------------- */

static int kind_init(k3_kind *k, int64_t bytes, int64_t max_places) {
  k->bytes = bytes;
  k->max_places = max_places;
  if (reserve_ids(k, 1) || reserve_places(k, 1)) return K3_E_MEMORY;
  take(k);
  untouch(k, 0);
  return K3_OK;
}

k3_arena *k3_arena_new(int64_t page_bytes, int64_t state_bytes, int64_t state_top, int64_t max_pages,
                       int64_t max_states) {
  k3_arena *a = calloc(1, sizeof *a);
  if (!a) return NULL;
  a->state_top = state_top;
  if (kind_init(&a->kind[K3_PAGE], page_bytes, max_pages) || kind_init(&a->kind[K3_STATE], state_bytes, max_states)) {
    k3_arena_delete(a);
    return NULL;
  }
  return a;
}

void k3_arena_delete(k3_arena *a) {
  if (!a) return;
  for (int i = 0; i < 2; i++) {
    k3_kind *k = &a->kind[i];
    void *tables[] = {k->place, k->refs, k->leases, k->dirty_at, k->free_ids,
                      k->dirty, k->owner, k->pending_place, k->pending_after};
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) free(tables[t]);
    k3_bits_drop(&k->holes);
    k3_bits_drop(&k->stuck);
  }
  free(a);
}

/* -- what fits ----------------------------------------------------------------------------------------------------- */

/* The frontier after n more entries, as things lie. */
static int64_t frontier_now(const k3_kind *k, int64_t n) {
  if (K3_MUTANT(K3_MUTANT_PESSIMISTIC)) return k->frontier + n;
  return max64(k->frontier, occupied(k) + n);
}

/* The lowest frontier that moves can leave with n more entries. */
static int64_t frontier_low(const k3_kind *k, int64_t n) {
  int64_t above_stuck = K3_MUTANT(K3_MUTANT_MOVES_LEASED) ? 0 : k3_bits_last(&k->stuck) + 1;
  return max64(occupied(k) + n, above_stuck);
}

/* Bytes by which these frontiers overlap: <= 0 fits; a frontier above its own bound never does. */
static int64_t excess(const k3_arena *a, int64_t pages, int64_t states) {
  const k3_kind *p = &a->kind[K3_PAGE], *s = &a->kind[K3_STATE];
  const int64_t over = K3_MUTANT(K3_MUTANT_SPLIT_LIMIT);
  if (pages > p->max_places + over || states > s->max_places + over) return INT64_MAX;
  if (K3_MUTANT(K3_MUTANT_PER_KIND))
    return max64(pages * p->bytes + s->frontier * s->bytes, p->frontier * p->bytes + states * s->bytes) - a->state_top;
  return pages * p->bytes + states * s->bytes - a->state_top;
}

int k3_arena_fits(const k3_arena *a, int64_t n_pages, int64_t n_states) {
  const k3_kind *p = &a->kind[K3_PAGE], *s = &a->kind[K3_STATE];
  if (excess(a, frontier_now(p, n_pages), frontier_now(s, n_states)) <= 0) return K3_FIT_NOW;
  if (excess(a, frontier_low(p, n_pages), frontier_low(s, n_states)) > 0) return K3_FIT_NO;
  return K3_MUTANT(K3_MUTANT_OPTIMISTIC) ? K3_FIT_NOW : K3_FIT_MOVES;
}

int64_t k3_arena_room(const k3_arena *a, int kind, int moves) {
  const k3_kind *k = &a->kind[kind], *peer = &a->kind[!kind];
  int64_t peer_frontier = moves ? frontier_low(peer, 0) : peer->frontier;
  if (K3_MUTANT(K3_MUTANT_ROOM) && moves) peer_frontier = occupied(peer);
  return min64((a->state_top - peer_frontier * peer->bytes) / k->bytes, k->max_places) - occupied(k);
}

/* -- allocate, free ------------------------------------------------------------------------------------------------ */

int k3_arena_alloc(k3_arena *a, int64_t n_pages, int64_t n_states, int32_t *pages, int32_t *states) {
  const int64_t n[2] = {n_pages, n_states};
  int32_t *out[2] = {pages, states};
  if (k3_arena_fits(a, n_pages, n_states) != K3_FIT_NOW) return 0;
  for (int i = 0; i < 2; i++) {
    k3_kind *k = &a->kind[i];
    if (reserve_ids(k, k->n_ids + max64(0, n[i] - k->n_free)) || reserve_places(k, frontier_now(k, n[i])))
      return K3_E_MEMORY;
  }
  for (int i = 0; i < 2; i++)
    for (int64_t j = 0; j < n[i]; j++) out[i][j] = take(&a->kind[i]);
  return 1;
}

int k3_arena_free(k3_arena *a, int kind, const int32_t *ids, int64_t n, int64_t after, int32_t *out, int64_t *n_out) {
  k3_kind *k = &a->kind[kind];
  for (int64_t i = 0; i < n; i++) {
    int32_t id = ids[i];
    int live = id > 0 && is_live(k, id);
    if (live && K3_MUTANT(K3_MUTANT_FREE_SHARED)) {
      k->refs_sum -= (uint64_t)k->refs[id] - 1;
      k->refs[id] = 1;
    }
    if (live && (k->refs[id] > 1 || !k->leases[id] || K3_MUTANT(K3_MUTANT_FREES_LEASED))) {
      k->refs[id]--;
      continue;
    }
    for (int64_t j = 0; j < i && !K3_MUTANT(K3_MUTANT_FREE_PARTIAL); j++) k->refs[ids[j]]++;
    return live ? k3_fault_set(a, kind, "ids", i, id, "leases", id, k->leases[id]) : not_live(a, kind, i, id);
  }
  k->refs_sum -= (uint64_t)n;
  *n_out = 0;
  for (int64_t i = 0; i < n; i++) {
    if (k->refs[ids[i]] || k->place[ids[i]] < 0) continue;
    release(k, ids[i], after, after > a->settled && !K3_MUTANT(K3_MUTANT_PENDING));
    out[(*n_out)++] = ids[i];
  }
  return K3_OK;
}

int k3_arena_ref(k3_arena *a, int kind, int32_t id) {
  k3_kind *k = &a->kind[kind];
  if (id <= 0 || !is_live(k, id) || k->refs[id] == INT32_MAX) return not_live(a, kind, 0, id);
  k->refs[id]++;
  k->refs_sum++;
  return K3_OK;
}

int k3_arena_lease(k3_arena *a, int kind, int32_t id, int delta) {
  k3_kind *k = &a->kind[kind];
  if (id <= 0 || !is_live(k, id)) return not_live(a, kind, 0, id);
  if (k->leases[id] == (delta > 0 ? INT32_MAX : 0))
    return k3_fault_set(a, kind, "ids", 0, id, "leases", id, k->leases[id]);
  if (K3_MUTANT(K3_MUTANT_LEASE_FLAG) && delta < 0) {
    k->leases_sum -= (uint64_t)k->leases[id] - 1;
    k->leases[id] = 1;
  }
  k->leases[id] += delta;
  k->leases_sum += (uint64_t)(int64_t)delta;
  if (k->leases[id] == 0) k3_bits_remove(&k->stuck, k->place[id]);
  if (k->leases[id] == 1) k3_bits_add(&k->stuck, k->place[id]);
  return K3_OK;
}

void k3_arena_settle(k3_arena *a, int64_t step) {
  if (step <= a->settled && !K3_MUTANT(K3_MUTANT_SETTLE_BACK)) return;
  a->settled = step;
  for (int i = 0; i < 2; i++) {
    k3_kind *k = &a->kind[i];
    int64_t kept = 0, n = k->n_pending;
    for (int64_t j = 0; j < n; j++) {
      int32_t place = k->pending_place[j];
      int64_t after = k->pending_after[j];
      if (after <= step + K3_MUTANT(K3_MUTANT_SETTLE_EARLY)) {
        k->after_sum -= (uint64_t)after;
        k3_bits_remove(&k->stuck, place);
        vacate(k, place);
      } else {
        k->pending_place[kept] = place;
        k->pending_after[kept++] = after;
      }
    }
    k->n_pending = kept;
  }
}

/* -- moves --------------------------------------------------------------------------------------------------------- */

/* The bytes that moves of one call may take. */
static int64_t within(int64_t budget_bytes) { return K3_MUTANT(K3_MUTANT_BUDGET) ? INT64_MAX : budget_bytes; }

int64_t k3_arena_moves_bound(const k3_arena *a, int64_t budget_bytes) {
  budget_bytes = within(budget_bytes);
  const k3_kind *p = &a->kind[K3_PAGE], *s = &a->kind[K3_STATE];
  return max64(1, min64(budget_bytes / p->bytes, p->holes.count) + min64(budget_bytes / s->bytes, s->holes.count));
}

/* Lower the frontier to target, which is >= frontier_low(k, 0): every source lies in [target, frontier) and every
 * destination below target, so the whole batch is pairwise disjoint. */
static int64_t lower(k3_arena *a, int kind, int64_t target, int64_t most, int32_t *moves) {
  k3_kind *k = &a->kind[kind];
  int64_t n = 0;
  if (K3_MUTANT(K3_MUTANT_CHAIN)) most = min64(most, k->holes.count);
  for (; k->frontier > target && n < most; n++) {
    int64_t from = k->frontier - 1, to = k3_bits_first(&k->holes);
    if (K3_MUTANT(K3_MUTANT_CHAIN)) to = k3_bits_last(&k->holes);
    if (K3_MUTANT(K3_MUTANT_MOVES_LEASED) && k->owner[from] < 0) break;
    if (to < 0 || (to >= target && !K3_MUTANT(K3_MUTANT_CHAIN)))
      return k3_fault_set(a, kind, "holes0", to, to, "frontier", -1, target);
    if (k->owner[from] <= 0) return k3_fault_set(a, kind, "owner", from, k->owner[from], "frontier", -1, k->frontier);
    relocate(k, from, to);
    int32_t *move = moves + 4 * n;
    move[0] = 0, move[1] = kind, move[2] = (int32_t)from, move[3] = (int32_t)to;
  }
  a->moves_count += n;
  a->moved_bytes += n * k->bytes;
  return n;
}

int64_t k3_arena_make_room(k3_arena *a, int64_t n_pages, int64_t n_states, int64_t budget_bytes, int32_t *moves) {
  const int64_t n[2] = {n_pages, n_states};
  if (k3_arena_fits(a, n_pages, n_states) != K3_FIT_MOVES) return 0;
  int64_t over = excess(a, frontier_now(&a->kind[0], n[0]), frontier_now(&a->kind[1], n[1]));
  /* What lacks is a byte count, never a kind's own bound (own holes are used first, so moves do not change that). One
   * kind exactly can give way: a kind with n >= holes cannot, and were both to have n < holes it would fit now. */
  for (int i = 0; i < 2; i++) {
    k3_kind *k = &a->kind[i];
    if (n[i] >= k->holes.count) continue;
    int64_t target = k->frontier - (over + k->bytes - 1) / k->bytes;
    return lower(a, i, target, max64(1, within(budget_bytes) / k->bytes), moves);
  }
  return 0;
}

int64_t k3_arena_compact(k3_arena *a, int64_t budget_bytes, int32_t *moves) {
  int64_t total = 0;
  budget_bytes = within(budget_bytes);
  for (int i = 0; i < 2; i++) {
    k3_kind *k = &a->kind[i];
    int64_t most = budget_bytes / k->bytes;
    if (!most && !total) most = 1;
    int64_t n = lower(a, i, frontier_low(k, 0), most, moves + 4 * total);
    if (n < 0) return n;
    total += n;
    budget_bytes -= min64(budget_bytes, n * k->bytes);
  }
  return total;
}

/* Whether the entry at move's destination is there and free to go back to its source. */
static int can_undo(k3_arena *a, int64_t row, const int32_t *move) {
  int32_t kind = move[1], from = move[2], to = move[3];
  if (kind != K3_PAGE && kind != K3_STATE) return k3_fault_set(a, K3_PAGE, "moves", row, kind, "kind", -1, 2);
  const k3_kind *k = &a->kind[kind], *peer = &a->kind[!kind];
  if (to <= 0 || to >= k->frontier || from <= 0 || from >= min64(k->places_cap, k->max_places))
    return k3_fault_set(a, kind, "moves", row, to, "frontier", -1, k->frontier);
  int32_t id = k->owner[to];
  if (id < 0) return k3_fault_set(a, kind, "moves", row, to, "owner", to, id);
  if (k->leases[id]) return k3_fault_set(a, kind, "moves", row, to, "leases", id, k->leases[id]);
  if (from < k->frontier && k->owner[from] != K3_HOLE)
    return k3_fault_set(a, kind, "moves", row, from, "owner", from, k->owner[from]);
  if (max64(k->frontier, (int64_t)from + 1) * k->bytes + peer->frontier * peer->bytes > a->state_top)
    return k3_fault_set(a, kind, "moves", row, from, "frontier", -1, k->frontier);
  return K3_OK;
}

int k3_arena_undo(k3_arena *a, const int32_t *moves, int64_t n) {
  int64_t bytes = 0;
  for (int64_t i = n - 1; i >= 0; i--) {
    const int32_t *move = moves + 4 * i;
    if (can_undo(a, i, move)) {
      for (int64_t j = i + 1; j < n; j++) relocate(&a->kind[moves[4 * j + 1]], moves[4 * j + 2], moves[4 * j + 3]);
      return K3_E_CORRUPT;
    }
    k3_kind *k = &a->kind[move[1]];
    relocate(k, move[3], K3_MUTANT(K3_MUTANT_UNDO_PLACE) ? min64(move[2], k->frontier) : move[2]);
    bytes += a->kind[move[1]].bytes;
  }
  a->moves_count -= n;
  a->moved_bytes -= bytes;
  return K3_OK;
}

/* -- tables -------------------------------------------------------------------------------------------------------- */

int k3_arena_places(k3_arena *a, int kind, const int32_t *ids, int64_t n, int32_t *out) {
  const k3_kind *k = &a->kind[kind];
  for (int64_t i = 0; i < n; i++) {
    if (!is_live(k, ids[i])) return not_live(a, kind, i, ids[i]);
    out[i] = k->place[ids[i]];
  }
  return K3_OK;
}

void k3_arena_drain(k3_arena *a, int kind, int32_t *out) {
  k3_kind *k = &a->kind[kind];
  for (int64_t i = 0; i < k->n_dirty; i++) {
    out[2 * i] = k->dirty[i];
    out[2 * i + 1] = k->place[k->dirty[i]];
    k->dirty_at[k->dirty[i]] = -1;
  }
  k->n_dirty = 0;
}

void k3_arena_table(const k3_arena *a, int kind, int32_t *out) {
  const k3_kind *k = &a->kind[kind];
  for (int64_t id = 0; id < k->n_ids; id++) {
    if (!k->refs[id]) continue;
    *out++ = (int32_t)id;
    *out++ = k->place[id];
  }
}

int k3_arena_redirty(k3_arena *a, int kind, const int32_t *ids, int64_t n) {
  k3_kind *k = &a->kind[kind];
  for (int64_t i = 0; i < n; i++)
    if (ids[i] < 0 || ids[i] >= k->n_ids) return not_live(a, kind, i, ids[i]);
  for (int64_t i = 0; i < n; i++)
    if (k->refs[ids[i]]) touch(k, ids[i]);
  return K3_OK;
}
