/* k3_arena_check: every table against the tables that say the same in another way, so that one wrong word anywhere is
 * found and its table named. Indices are proven in range before they are followed. */
#include <stdlib.h>

#include "arena.h"
#include "arena_bits.h"

typedef struct {
  k3_arena *a;
  const k3_kind *k;
  int kind;
  int64_t free_ids, holes, pending; /* recounted */
} walk;

#define FAIL(table, index, value, other, other_index, other_value) \
  return k3_fault_set(w->a, w->kind, table, index, (int64_t)(value), other, other_index, (int64_t)(other_value))
#define NEED(ok, ...) \
  do {                \
    if (!(ok)) FAIL(__VA_ARGS__); \
  } while (0)

static const char *const HOLES[] = {"holes0", "holes1", "holes2", "holes3", "holes4", "holes5"};
static const char *const STUCK[] = {"stuck0", "stuck1", "stuck2", "stuck3", "stuck4", "stuck5"};

static int check_sizes(walk *w) {
  const k3_kind *k = w->k;
  int64_t places = k->places_cap < k->max_places ? k->places_cap : k->max_places;
  NEED(k->frontier >= 1 && k->frontier <= places, "frontier", -1, k->frontier, "max_places", -1, places);
  NEED(k->n_ids >= 1 && k->n_ids <= k->ids_cap, "n_ids", -1, k->n_ids, "ids_cap", -1, k->ids_cap);
  NEED(k->n_free >= 0 && k->n_free < k->n_ids, "n_free", -1, k->n_free, "n_ids", -1, k->n_ids);
  NEED(k->n_dirty >= 0 && k->n_dirty <= k->n_ids, "n_dirty", -1, k->n_dirty, "n_ids", -1, k->n_ids);
  NEED(k->n_pending >= 0 && k->n_pending < k->frontier, "n_pending", -1, k->n_pending, "frontier", -1, k->frontier);
  return K3_OK;
}

static int check_sink(walk *w) {
  const k3_kind *k = w->k;
  NEED(k->place[0] == 0, "place", 0, k->place[0], "owner", 0, k->owner[0]);
  NEED(k->owner[0] == 0, "owner", 0, k->owner[0], "place", 0, k->place[0]);
  NEED(k->refs[0] == 1, "refs", 0, k->refs[0], "place", 0, k->place[0]);
  NEED(k->leases[0] == 0, "leases", 0, k->leases[0], "place", 0, k->place[0]);
  return K3_OK;
}

/* place, refs, leases, dirty_at: live ids have all four in order, free ids none. */
static int check_ids(walk *w) {
  const k3_kind *k = w->k;
  uint64_t refs = 0, leases = 0;
  for (int64_t id = 0; id < k->n_ids; id++) {
    int64_t p = k->place[id], at = k->dirty_at[id];
    NEED(p >= -1 && p < k->frontier, "place", id, p, "frontier", -1, k->frontier);
    NEED(p == -1 ? k->refs[id] == 0 : k->refs[id] >= 1, "refs", id, k->refs[id], "place", id, p);
    NEED(p == -1 || k->owner[p] == id, "place", id, p, "owner", p, k->owner[p]);
    NEED(k->leases[id] >= 0 && (p != -1 || !k->leases[id]), "leases", id, k->leases[id], "place", id, p);
    NEED(!k->leases[id] || k3_bits_has(&k->stuck, p), "leases", id, k->leases[id], "stuck0", p >> 6,
         k->stuck.level[0][p >> 6]);
    NEED(at >= -1 && at < k->n_dirty && (at < 0 || p != -1), "dirty_at", id, at, "place", id, p);
    NEED(at < 0 || k->dirty[at] == id, "dirty_at", id, at, "dirty", at, k->dirty[at]);
    refs += (uint64_t)k->refs[id];
    leases += (uint64_t)k->leases[id];
    w->free_ids += p == -1;
  }
  NEED(refs == k->refs_sum, "refs", -1, refs, "refs_sum", -1, k->refs_sum);
  NEED(leases == k->leases_sum, "leases", -1, leases, "leases_sum", -1, k->leases_sum);
  return K3_OK;
}

static int check_owners(walk *w) {
  const k3_kind *k = w->k;
  for (int64_t p = 0; p < k->frontier; p++) {
    int64_t id = k->owner[p];
    NEED(id >= K3_PENDING && id < k->n_ids, "owner", p, id, "n_ids", -1, k->n_ids);
    NEED(id < 0 || k->place[id] == p, "owner", p, id, "place", id, k->place[id]);
    w->holes += id == K3_HOLE;
    w->pending += id == K3_PENDING;
  }
  NEED(k->owner[k->frontier - 1] != K3_HOLE, "owner", k->frontier - 1, K3_HOLE, "frontier", -1, k->frontier);
  return K3_OK;
}

static int in_holes(const k3_kind *k, int64_t p) { return k->owner[p] == K3_HOLE; }
static int in_stuck(const k3_kind *k, int64_t p) {
  return k->owner[p] == K3_PENDING || (k->owner[p] >= 0 && k->leases[k->owner[p]] > 0);
}

static int check_bits(walk *w, const k3_bits *b, const char *const *names, int (*member)(const k3_kind *, int64_t)) {
  const k3_kind *k = w->k;
  int64_t count = 0;
  for (int64_t i = 0; i < 64 * b->words[0]; i++) {
    int want = i < k->frontier && member(k, i);
    uint64_t word = b->level[0][i >> 6];
    count += want;
    if (k3_bits_has(b, i) == want) continue;
    if (i >= k->frontier) FAIL(names[0], i >> 6, word, "frontier", -1, k->frontier);
    if (names == STUCK && k->owner[i] >= 0) FAIL(names[0], i >> 6, word, "leases", k->owner[i], k->leases[k->owner[i]]);
    FAIL(names[0], i >> 6, word, "owner", i, k->owner[i]);
  }
  for (int l = 1; l < K3_LEVELS; l++)
    for (int64_t i = 0; i < 64 * b->words[l]; i++) {
      uint64_t below = i < b->words[l - 1] ? b->level[l - 1][i] : 0;
      NEED((int)(b->level[l][i >> 6] >> (i & 63) & 1) == (below != 0), names[l], i >> 6, b->level[l][i >> 6],
           names[l - 1], i, below);
    }
  NEED(count == b->count, names[0], -1, count, "count", -1, b->count);
  return K3_OK;
}

/* The stacks: each entry is what it should be, none twice, none missing. seen[max(n_ids, frontier)] is zero. */
static int check_stacks(walk *w, int32_t *seen) {
  const k3_kind *k = w->k;
  uint64_t after = 0;
  for (int64_t i = 0; i < k->n_free; i++) {
    int64_t id = k->free_ids[i];
    NEED(id >= 1 && id < k->n_ids, "free_ids", i, id, "n_ids", -1, k->n_ids);
    NEED(k->place[id] == -1, "free_ids", i, id, "place", id, k->place[id]);
    NEED(!seen[id], "free_ids", i, id, "free_ids", seen[id] - 1, id);
    seen[id] = (int32_t)(i + 1);
  }
  NEED(k->n_free == w->free_ids, "n_free", -1, k->n_free, "place", -1, w->free_ids);
  for (int64_t i = 0; i < k->n_free; i++) seen[k->free_ids[i]] = 0;
  for (int64_t i = 0; i < k->n_dirty; i++) {
    int64_t id = k->dirty[i];
    NEED(id >= 0 && id < k->n_ids, "dirty", i, id, "n_ids", -1, k->n_ids);
    NEED(k->dirty_at[id] == i, "dirty", i, id, "dirty_at", id, k->dirty_at[id]);
  }
  for (int64_t i = 0; i < k->n_pending; i++) {
    int64_t p = k->pending_place[i];
    NEED(p >= 1 && p < k->frontier, "pending_place", i, p, "frontier", -1, k->frontier);
    NEED(k->owner[p] == K3_PENDING, "pending_place", i, p, "owner", p, k->owner[p]);
    NEED(!seen[p], "pending_place", i, p, "pending_place", seen[p] - 1, p);
    NEED(k->pending_after[i] > w->a->settled, "pending_after", i, k->pending_after[i], "settled", -1, w->a->settled);
    seen[p] = (int32_t)(i + 1);
    after += (uint64_t)k->pending_after[i];
  }
  NEED(k->n_pending == w->pending, "n_pending", -1, k->n_pending, "owner", -1, w->pending);
  NEED(after == k->after_sum, "pending_after", -1, after, "after_sum", -1, k->after_sum);
  return K3_OK;
}

/* To the byte: what lies below a kind's frontier is live, hole or pending, and the kinds do not overlap. */
static int check_bytes(walk *w) {
  const k3_kind *k = w->k, *peer = &w->a->kind[!w->kind];
  int64_t live = k->n_ids - w->free_ids;
  NEED((live + w->holes + w->pending) * k->bytes == k->frontier * k->bytes, "frontier", -1, k->frontier, "owner", -1,
       live + w->holes + w->pending);
  NEED(k->frontier * k->bytes + peer->frontier * peer->bytes <= w->a->state_top, "frontier", -1, k->frontier,
       "state_top", -1, w->a->state_top);
  return K3_OK;
}

static int check_kind(walk *w) {
  const k3_kind *k = w->k;
  if (check_sizes(w) || check_sink(w) || check_ids(w) || check_owners(w) ||
      check_bits(w, &k->holes, HOLES, in_holes) || check_bits(w, &k->stuck, STUCK, in_stuck))
    return K3_E_CORRUPT;
  int32_t *seen = calloc((size_t)(k->n_ids > k->frontier ? k->n_ids : k->frontier), sizeof *seen);
  if (!seen) return K3_E_MEMORY;
  int status = check_stacks(w, seen);
  free(seen);
  return status ? status : check_bytes(w);
}

int k3_arena_check(k3_arena *a) {
  for (int kind = 0; kind < 2; kind++) {
    walk w = {a, &a->kind[kind], kind, 0, 0, 0};
    int status = check_kind(&w);
    if (status) return status;
  }
  return K3_OK;
}
