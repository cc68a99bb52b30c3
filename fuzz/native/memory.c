/* The arena, and the bytes that it stands for. */
#include <string.h>

#include "world.h"

cell *row_at(world *w, int32_t page, int row) {
  NEED(page > 0 && page < PLACES && w->mem.mirror[K3_PAGE][page] > 0, "page %d is read but has no place", page);
  return &w->mem.pages[w->mem.mirror[K3_PAGE][page]][row];
}

cell *state_at(world *w, int32_t state) {
  NEED(state > 0 && state < PLACES && w->mem.mirror[K3_STATE][state] > 0, "state %d is read but has no place", state);
  return &w->mem.states[w->mem.mirror[K3_STATE][state]];
}

/* The table update of a plan. */
void drain(world *w) {
  for (int kind = 0; kind < 2; kind++) {
    int32_t table[PLACES][2];
    int64_t n = w->arena->kind[kind].n_dirty;
    NEED(n <= PLACES, "%d", (int)n);
    k3_arena_drain(w->arena, kind, table[0]);
    for (int64_t i = 0; i < n; i++) w->mem.mirror[kind][table[i][0]] = table[i][1];
  }
}

/* -- what fits, by the shadow */

static int64_t frontier_after(const world *w, int kind, int64_t n, int moves) {
  int64_t used = 0, frontier = 0, stuck = 0;
  for (int64_t p = 0; p < PLACES; p++) {
    if (w->mem.use[kind][p] == FREE) continue;
    used++;
    frontier = p + 1;
    if (w->mem.use[kind][p] == PENDING) stuck = p + 1;
  }
  for (int i = 0; i < LEASES; i++)
    if (w->leases[i].count && w->leases[i].kind == kind && w->leases[i].place >= stuck) stuck = w->leases[i].place + 1;
  if (moves) frontier = stuck;
  return frontier > used + n ? frontier : used + n;
}

static int fit(const world *w, int64_t n_pages, int64_t n_states) {
  const int64_t n[2] = {n_pages, n_states};
  for (int moves = 0; moves < 2; moves++) {
    int64_t sum = 0, ok = 1;
    for (int kind = 0; kind < 2; kind++) {
      int64_t frontier = frontier_after(w, kind, n[kind], moves);
      ok = ok && frontier <= w->most[kind];
      sum += frontier * w->bytes[kind];
    }
    if (ok && sum <= w->top) return moves ? K3_FIT_MOVES : K3_FIT_NOW;
  }
  return K3_FIT_NO;
}

/* -- places change hands */

void hand_out(world *w, int n_pages, int n_states, int32_t *pages, int32_t *states) {
  const int n[2] = {n_pages, n_states};
  int32_t *out[2] = {pages, states};
  NEED(k3_arena_alloc(w->arena, n_pages, n_states, pages, states) == 1, "an allocation that fits fails");
  drain(w);
  for (int kind = 0; kind < 2; kind++)
    for (int i = 0; i < n[kind]; i++) {
      int32_t id = out[kind][i], place = id > 0 && id < PLACES ? w->mem.mirror[kind][id] : -1;
      NEED(place > 0 && place < w->most[kind], "id %d got place %d", id, place);
      NEED(w->mem.use[kind][place] == FREE, "place %d of id %d has use %d", place, id, w->mem.use[kind][place]);
      for (int32_t low = 1; low < place; low++)
        NEED(w->mem.use[kind][low] != FREE, "id %d got place %d, not %d", id, place, low);
      w->mem.use[kind][place] = LIVE;
      if (kind == K3_STATE) w->mem.states[place] = (cell){0, w->step};
      for (int row = 0; kind == K3_PAGE && row < ROWS; row++) w->mem.pages[place][row] = (cell){0, w->step};
    }
}

static void end_lease(world *w, lease *l) {
  NEED(w->mem.mirror[l->kind][l->id] == l->place, "leased id %d left place %d", l->id, l->place);
  for (; l->count; l->count--)
    NEED(k3_arena_lease(w->arena, l->kind, l->id, -1) == K3_OK, "lease %d of id %d is gone", l->count, l->id);
}

void give_back(world *w, int kind, const int32_t *ids, int n) {
  int32_t out[PLACES], place[PLACES];
  int64_t n_out = 0, after = w->step - w->lag;
  NEED(n <= PLACES, "%d", n);
  for (int i = 0; i < n; i++) {
    NEED(ids[i] > 0 && ids[i] < PLACES, "id %d is given back", ids[i]);
    for (int j = 0; j < LEASES; j++)
      if (w->leases[j].count && w->leases[j].kind == kind && w->leases[j].id == ids[i]) end_lease(w, &w->leases[j]);
    place[i] = w->mem.mirror[kind][ids[i]];
    NEED(place[i] > 0, "id %d is given back but not live", ids[i]);
  }
  NEED(k3_arena_free(w->arena, kind, ids, n, after, out, &n_out) == K3_OK, "%d ids cannot be freed", n);
  for (int64_t j = 0; j < n_out; j++) {
    int32_t at = w->mem.mirror[kind][out[j]];
    NEED(at > 0 && w->mem.use[kind][at] == LIVE, "id %d is freed at place %d", out[j], at);
    w->mem.mirror[kind][out[j]] = -1;
    w->mem.use[kind][at] = after > w->settled ? PENDING : FREE;
    w->mem.busy[kind][at] = after;
  }
}

void settle_to(world *w, int64_t step) {
  k3_arena_settle(w->arena, step);
  if (step > w->settled) w->settled = step;
  for (int kind = 0; kind < 2; kind++)
    for (int p = 0; p < PLACES; p++)
      if (w->mem.use[kind][p] == PENDING && w->mem.busy[kind][p] <= w->settled) w->mem.use[kind][p] = FREE;
}

/* -- moves */

/* Carries a batch out in reverse: pairwise disjoint places make the order meaningless. */
static void follow(world *w, const int32_t *moves, int64_t n, int64_t budget) {
  uint8_t seen[2][PLACES] = {{0}};
  int64_t bytes = 0;
  for (int64_t i = 0; i < n; i++)
    for (int side = 2; side < 4; side++) {
      int kind = moves[4 * i + 1], place = moves[4 * i + side];
      NEED(!seen[kind][place], "place %d stands twice in a batch", place);
      seen[kind][place] = 1;
    }
  for (int64_t i = n - 1; i >= 0; i--) {
    int kind = moves[4 * i + 1], from = moves[4 * i + 2], to = moves[4 * i + 3];
    NEED(w->mem.use[kind][from] == LIVE && w->mem.use[kind][to] == FREE, "move %d -> %d", from, to);
    w->mem.use[kind][from] = FREE;
    w->mem.use[kind][to] = LIVE;
    if (kind == K3_STATE) w->mem.states[to] = w->mem.states[from];
    else memcpy(w->mem.pages[to], w->mem.pages[from], sizeof w->mem.pages[to]);
    bytes += w->bytes[kind];
  }
  NEED(bytes <= budget || n == 1, "%d bytes moved, %d allowed", (int)bytes, (int)budget);
}

/* Moves towards a demand (or all there are), sometimes taken back before anybody saw them. */
static int64_t move(world *w, int n_pages, int n_states, int all, int64_t budget, int cancel) {
  int32_t *moves = malloc((size_t)k3_arena_moves_bound(w->arena, budget) * 4 * sizeof *moves);
  NEED(moves, "memory");
  int64_t n = all ? k3_arena_compact(w->arena, budget, moves)
                  : k3_arena_make_room(w->arena, n_pages, n_states, budget, moves);
  NEED(n >= 0, "moves fail with %d", (int)n);
  if (cancel) NEED(k3_arena_undo(w->arena, moves, n) == K3_OK, "undo of %d moves", (int)n);
  else follow(w, moves, n, budget);
  drain(w);
  free(moves);
  return n;
}

int ensure(world *w, int n_pages, int n_states, int32_t protect) {
  for (int tries = 0; tries < 3 * PLACES; tries++) {
    int fits = k3_arena_fits(w->arena, n_pages, n_states);
    NEED(fits == fit(w, n_pages, n_states), "fits says %d of %d pages and %d states", fits, n_pages, n_states);
    if (fits == K3_FIT_NOW) return 1;
    if (fits == K3_FIT_MOVES) NEED(move(w, n_pages, n_states, 0, pick(w, 64), 0) > 0, "no moves though moves help");
    else if (!evict_one(w, protect)) {
      if (w->settled == w->step) return 0;
      settle_to(w, w->step);
    }
  }
  NEED(0, "no room after %d moves and evictions", 3 * PLACES);
  return 0;
}

void op_moves(world *w) { move(w, pick(w, 4), pick(w, 2), pick(w, 2), pick(w, 64), pick(w, 2)); }

/* -- leases, and what no caller may do */

void op_lease(world *w) {
  lease *l = &w->leases[pick(w, LEASES)];
  if (l->count) {
    if (pick(w, 2)) {
      end_lease(w, l);
    } else {
      NEED(k3_arena_lease(w->arena, l->kind, l->id, 1) == K3_OK, "second lease of id %d", l->id);
      l->count++;
      /* One of two ends: the entry stays where it is. */
      if (pick(w, 2) && k3_arena_lease(w->arena, l->kind, l->id, -1) == K3_OK) l->count--;
    }
    return;
  }
  int kind = pick(w, 2), id = 1 + pick(w, 64);
  if (w->mem.mirror[kind][id] <= 0) return;
  for (int i = 0; i < LEASES; i++)
    if (w->leases[i].count && w->leases[i].kind == kind && w->leases[i].id == id) return;
  NEED(k3_arena_lease(w->arena, kind, id, 1) == K3_OK, "lease of id %d", id);
  *l = (lease){kind, id, w->mem.mirror[kind][id], 1};
}

/* A refused call changes nothing; inspection sees to that. */
void op_breach(world *w) {
  const lease *l = &w->leases[pick(w, LEASES)];
  int kind = pick(w, 2), good = 1 + pick(w, 64), bad = 1 + pick(w, 64);
  if (l->count && w->arena->kind[l->kind].refs[l->id] == 1) {
    kind = l->kind;
    bad = l->id;
  } else if (w->mem.mirror[kind][bad] > 0) {
    return;
  }
  int32_t out[2], ids[2] = {good, bad};
  int64_t n_out = 0;
  int first = w->mem.mirror[kind][good] <= 0 || good == bad; /* then `bad` goes alone */
  NEED(k3_arena_free(w->arena, kind, ids + first, 2 - first, 0, out, &n_out) < 0, "id %d is freed wrongly", bad);
}

void inspect_memory(world *w) {
  const k3_fault *f = &w->arena->fault;
  NEED(k3_arena_check(w->arena) == K3_OK, "arena check: %s[%d] = %d against %s[%d] = %d", f->table, (int)f->index,
       (int)f->value, f->other, (int)f->other_index, (int)f->other_value);
  for (int kind = 0; kind < 2; kind++) {
    int32_t table[PLACES][2];
    int64_t n = w->arena->kind[kind].n_ids - w->arena->kind[kind].n_free, live = 0;
    NEED(n <= PLACES, "%d ids", (int)n);
    k3_arena_table(w->arena, kind, table[0]);
    for (int64_t i = 0; i < n; i++)
      NEED(w->mem.mirror[kind][table[i][0]] == table[i][1], "the executor sees id %d at place %d, not %d", table[i][0],
           w->mem.mirror[kind][table[i][0]], table[i][1]);
    for (int p = 0; p < PLACES; p++) live += w->mem.use[kind][p] == LIVE;
    NEED(live == n, "%d places live, %d ids", (int)live, (int)n);
    for (int moves = 0; moves < 2; moves++) {
      int64_t room = k3_arena_room(w->arena, kind, moves);
      int64_t peer = (w->top - frontier_after(w, !kind, 0, moves) * w->bytes[!kind]) / w->bytes[kind];
      int64_t total = (peer < w->most[kind] ? peer : w->most[kind]);
      for (int p = 0; p < PLACES; p++) total -= w->mem.use[kind][p] != FREE;
      NEED(room == total, "room %d of kind %d, not %d", (int)room, kind, (int)total);
    }
  }
  for (int i = 0; i < LEASES; i++) {
    const lease *l = &w->leases[i];
    if (l->count) NEED(w->mem.mirror[l->kind][l->id] == l->place, "leased id %d left place %d", l->id, l->place);
  }
}
