#include "mock_internal.h"

enum { MAX_LIST = 1 << 24 }; /* longest page list that is believed */

/* The place of an id in use, K3_NOWHERE if it has none. Reports sinks, unknown and stale ids. O(1). */
int64_t k3_find(k3_mock *m, int kind, int64_t id, int64_t by) {
  int64_t ids = kind == K3_KIND_PAGE ? m->config.page_ids : m->config.state_ids;
  if (id <= 0 || id >= ids) {
    K3_NOTE(m, id ? K3_NOTE_RANGE : K3_NOTE_SINK, by, kind, id);
    return id ? K3_NOWHERE : 0;
  }
  int32_t place = m->place[kind][id];
  if (place == K3_NOWHERE)
    K3_NOTE(m, K3_NOTE_NO_ENTRY, by, kind, id);
  else if (m->owner[kind][place] != id)
    K3_NOTE(m, K3_NOTE_STALE, by, kind, id, place, m->owner[kind][place]);
  return place;
}

static void map_sinks(k3_mock *m) {
  for (int kind = 0; kind < 2; kind++) m->place[kind][0] = m->owner[kind][0] = 0;
}

/* Before a resync: no lane, no table entry. Owners stay, to tell who keeps his place. */
static void forget(k3_mock *m) {
  for (int64_t lane = 0; lane < m->config.lanes; lane++) m->lane[lane].seated = false;
  for (int64_t id = 0; id < m->config.page_ids; id++) m->place[K3_KIND_PAGE][id] = K3_NOWHERE;
  for (int64_t id = 0; id < m->config.state_ids; id++) m->place[K3_KIND_STATE][id] = K3_NOWHERE;
  map_sinks(m);
}

static bool is_sink(const k3_mock *m, int kind, int64_t place) {
  const k3_mock_config *c = &m->config;
  int64_t bytes = kind == K3_KIND_PAGE ? c->page_bytes : c->state_bytes;
  int64_t low = kind == K3_KIND_PAGE ? place * bytes : c->state_top - (place + 1) * bytes;
  return low < c->page_bytes || low + bytes > c->state_top - c->state_bytes;
}

/* A place changes hands: nobody may read what its last tenant left. */
static void hand_over(k3_mock *m, int kind, int32_t place, int32_t id) {
  m->owner[kind][place] = id;
  if (kind == K3_KIND_STATE) {
    k3_mock_poison_state(m, place);
    return;
  }
  k3_mock_poison_page(m, place);
  if (k3_mock_grow(m, &m->handed_out, m->n_handed_out, &m->handed_out_cap, sizeof *m->handed_out))
    m->handed_out[m->n_handed_out++] = id;
}

static void map(k3_mock *m, int kind, const int32_t *entries, int64_t n, bool resync) {
  int64_t ids = kind == K3_KIND_PAGE ? m->config.page_ids : m->config.state_ids;
  int64_t *stamp = m->place_stamp[kind], *seen = m->place_note[kind], serial = ++m->serial;
  int32_t *owner = m->owner[kind];
  for (int64_t i = 0; i < n; i++) {
    int32_t id = entries[2 * i], place = entries[2 * i + 1];
    if (id == 0 && place == 0) continue;
    if (id <= 0 || id >= ids || !k3_mock_holds(m, kind, place)) {
      K3_NOTE(m, K3_NOTE_MAP_RANGE, kind, id, place);
      continue;
    }
    if (is_sink(m, kind, place)) K3_NOTE(m, K3_NOTE_MAP_SINK, kind, id, place);
    if (stamp[place] != serial)
      stamp[place] = serial, seen[place] = id;
    else if (seen[place] != id)
      K3_NOTE(m, K3_NOTE_MAP_TWICE, kind, seen[place], id, place);
    int32_t old = m->place[kind][id];
    if (old != K3_NOWHERE && old != place) {
      if (kind == K3_KIND_PAGE) k3_page_change(m, old);
      if (owner[old] == id) owner[old] = K3_NOBODY;
    }
    m->place[kind][id] = place;
    if (owner[place] != id) hand_over(m, kind, place, id);
  }
  if (!resync) return;
  for (int64_t place = 0; place < m->places[kind]; place++)
    if (owner[place] > 0 && (stamp[place] != serial || seen[place] != owner[place])) owner[place] = K3_NOBODY;
}

/* A copy of n items, NULL for none. */
static void *copy_of(k3_mock *m, const void *items, int64_t n, size_t item) {
  if (n <= 0) return NULL;
  void *copy = malloc((size_t)n * item);
  m->out_of_memory |= !copy;
  return copy ? memcpy(copy, items, (size_t)n * item) : NULL;
}

static void seat(k3_mock *m, const k3_mock_seat *s) {
  if (s->lane < 0 || s->lane >= m->config.lanes) {
    K3_NOTE(m, K3_NOTE_SEAT_RANGE, s->lane);
    return;
  }
  k3_mock_lane *lane = &m->lane[s->lane];
  if (lane->seated && lane->seat.generation == s->generation) K3_NOTE(m, K3_NOTE_SEAT_AGAIN, s->lane, s->generation);
  if (s->depth < 0 || s->limit < s->depth) K3_NOTE(m, K3_NOTE_SEAT_DEEP, s->lane, s->depth, s->limit);
  free((void *)lane->seat.script);
  free((void *)lane->seat.stops);
  lane->seat = *s;
  lane->seat.script = copy_of(m, s->script, s->n_script, sizeof *s->script);
  lane->seat.stops = copy_of(m, s->stops, s->n_stops, sizeof *s->stops);
  if (!lane->seat.script) lane->seat.n_script = 0;
  if (!lane->seat.stops) lane->seat.n_stops = 0;
  if (s->depth < 0) lane->seat.depth = 0;
  lane->seated = true;
  lane->n_pages = 0;
  lane->cache_epoch = -1;
  lane->cache_pages = lane->cache_label = 0;
}

/* Entry `index` of a lane's page list. */
static void extend(k3_mock *m, int64_t number, int64_t index, int32_t page) {
  k3_mock_lane *lane = number >= 0 && number < m->config.lanes ? &m->lane[number] : NULL;
  if (!lane || !lane->seated) {
    K3_NOTE(m, K3_NOTE_LIST_UNSEATED, number);
    return;
  }
  if (index < 0 || index >= MAX_LIST) {
    K3_NOTE(m, K3_NOTE_LIST_INDEX, number, index);
    return;
  }
  if (index >= lane->n_pages) {
    if (!k3_mock_grow(m, &lane->pages, index, &lane->pages_cap, sizeof *lane->pages)) return;
    for (int64_t i = lane->n_pages; i < index; i++) lane->pages[i] = -1;
    lane->n_pages = index + 1;
  }
  lane->pages[index] = page;
  lane->cache_epoch = -1;
}

/* The tenant that a row names, or NULL, which is reported. */
k3_mock_lane *k3_tenant(k3_mock *m, int64_t number, int64_t generation) {
  k3_mock_lane *lane = number >= 0 && number < m->config.lanes ? &m->lane[number] : NULL;
  if (!lane || !lane->seated) {
    K3_NOTE(m, K3_NOTE_ROW_UNSEATED, number);
    return NULL;
  }
  if (lane->seat.generation == generation) return lane;
  K3_NOTE(m, K3_NOTE_ROW_STALE, number, generation, lane->seat.generation);
  return NULL;
}

/* The table phase of a plan: tables, then seats, then page lists. */
void k3_tables_update(k3_mock *m, const k3_mock_plan *p) {
  m->n_handed_out = 0;
  if (p->resync) forget(m);
  map(m, K3_KIND_PAGE, p->page_table, p->n_page_table, p->resync);
  map(m, K3_KIND_STATE, p->state_table, p->n_state_table, p->resync);
  for (int64_t i = 0; i < p->n_seats; i++) seat(m, &p->seats[i]);
  for (int64_t i = 0; i < p->n_lane_pages; i++)
    extend(m, p->lane_pages[3 * i], p->lane_pages[3 * i + 1], p->lane_pages[3 * i + 2]);
}
