#include "mock_internal.h"

enum { FEW = 64, FIRST_CAP = 16 };

static int64_t max64(int64_t x, int64_t y) { return x > y ? x : y; }

bool k3_mock_grow(k3_mock *m, void *table, int64_t n, int64_t *cap, size_t item) {
  if (n < *cap) return true;
  int64_t wanted = max64(n + 1, max64(FIRST_CAP, 2 * *cap));
  void *old, *grown;
  memcpy(&old, table, sizeof old);
  if (!(grown = realloc(old, (size_t)wanted * item))) {
    m->out_of_memory = true;
    return false;
  }
  memcpy(table, &grown, sizeof grown);
  *cap = wanted;
  return true;
}

void k3_note(k3_mock *m, int code, int n, const int64_t *args) {
  if (!k3_mock_grow(m, &m->notes, m->n_notes, &m->notes_cap, sizeof *m->notes)) return;
  k3_mock_note *note = &m->notes[m->n_notes++];
  *note = (k3_mock_note){.code = code};
  memcpy(note->args, args, (size_t)n * sizeof *args);
}

/* -- the device ---------------------------------------------------------------------------------------------------- */

static bool fill_tables(k3_mock *m) {
  const k3_mock_config *c = &m->config;
  int64_t ids[2] = {c->page_ids, c->state_ids};
  m->places[K3_KIND_PAGE] = c->state_top / c->page_bytes;
  m->places[K3_KIND_STATE] = c->state_top / c->state_bytes;
  for (int kind = 0; kind < 2; kind++) {
    size_t places = (size_t)m->places[kind], bytes = (size_t)ids[kind] * sizeof(int32_t);
    if (!(m->owner[kind] = malloc(places * sizeof(int32_t))) || !(m->place[kind] = malloc(bytes)) ||
        !(m->place_stamp[kind] = calloc(places, sizeof(int64_t))) ||
        !(m->place_note[kind] = calloc(places, sizeof(int64_t))))
      return false;
    memset(m->owner[kind], 0xFF, places * sizeof(int32_t));
    memset(m->place[kind], 0xFF, bytes);
    m->owner[kind][0] = m->place[kind][0] = 0;
  }
  size_t states = (size_t)m->places[K3_KIND_STATE], span = (size_t)c->span;
  if (!(m->pages = calloc((size_t)m->places[K3_KIND_PAGE], sizeof *m->pages)) ||
      !(m->state = calloc(states * K3_STATE_WIDTH * (size_t)c->groups, sizeof *m->state)) ||
      !(m->label = malloc(states * sizeof *m->label)) || !(m->alive = calloc(states, 1)) ||
      !(m->lane = calloc((size_t)c->lanes, sizeof *m->lane)) ||
      !(m->lane_stamp = calloc((size_t)c->lanes, sizeof *m->lane_stamp)) ||
      !(m->power = malloc((span + 1) * sizeof *m->power)))
    return false;
  memset(m->label, 0xFF, states * sizeof *m->label);
  m->power[0] = 1;
  for (size_t n = 0; n < span; n++) m->power[n + 1] = k3_muladd((uint64_t)m->power[n], K3_BASE, 0);
  return (m->junk = k3_page_new(m)) != NULL;
}

k3_mock *k3_mock_new(const k3_mock_config *config) {
  k3_mock *m = calloc(1, sizeof *m);
  if (!m) return NULL;
  m->config = *config;
  m->dice = config->seed;
  if (fill_tables(m)) return m;
  k3_mock_delete(m);
  return NULL;
}

void k3_mock_delete(k3_mock *m) {
  if (!m) return;
  for (int64_t i = 0; m->pages && i < m->places[K3_KIND_PAGE]; i++)
    if (m->pages[i] != m->junk) free(m->pages[i]);
  for (int64_t i = 0; i < m->n_spare; i++) free(m->spare[i]);
  for (int64_t i = 0; m->lane && i < m->config.lanes; i++) {
    free((void *)m->lane[i].seat.script);
    free((void *)m->lane[i].seat.stops);
    free(m->lane[i].pages);
  }
  for (int kind = 0; kind < 2; kind++) {
    free(m->owner[kind]);
    free(m->place[kind]);
    free(m->place_stamp[kind]);
    free(m->place_note[kind]);
  }
  void *tables[] = {m->pages, m->state, m->label, m->alive, m->lane,       m->lane_stamp,
                    m->power, m->junk,  m->notes, m->spare, m->handed_out, m};
  for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) free(tables[i]);
}

/* -- runs ---------------------------------------------------------------------------------------------------------- */

k3_mock_run *k3_mock_run_new(const k3_mock *m, const k3_mock_plan *plan) {
  size_t n = (size_t)plan->n_rows, snapshots = (size_t)plan->n_snapshots;
  k3_mock_run *r = malloc(sizeof *r + n * (sizeof *r->rows + sizeof *r->order) +
                          snapshots * (sizeof *r->next_target + sizeof *r->written));
  if (!r) return NULL;
  memset(r, 0, sizeof *r);
  r->plan = *plan;
  r->rows = (k3_mock_row *)(r + 1);
  r->order = (int64_t *)(r->rows + n);
  r->next_target = r->order + n;
  r->written = (uint8_t *)(r->next_target + snapshots);
  memset(r->written, 0, snapshots);
  for (size_t i = 0; i < n; i++) {
    r->order[i] = 0;
    r->rows[i] = (k3_mock_row){.lane = -1, .first_target = -1, .last_target = -1};
  }
  for (int64_t number = 0; number < plan->n_snapshots; number++) {
    int64_t row = plan->snapshots[3 * number];
    r->next_target[number] = -1;
    if (row < 0 || row >= plan->n_rows) continue;
    if (r->rows[row].first_target < 0)
      r->rows[row].first_target = number;
    else
      r->next_target[r->rows[row].last_target] = number;
    r->rows[row].last_target = number;
  }
  return r;
}

void k3_mock_run_delete(k3_mock_run *r) {
  if (!r) return;
  free(r->outputs);
  free(r->records);
  free(r->accepted);
  free(r);
}

int64_t k3_mock_run_tokens(const k3_mock_run *r) { return r->n_accepted; }

int k3_mock_run_verifies(const k3_mock_run *r) {
  for (int64_t i = 0; i < r->plan.n_rows; i++)
    if (r->plan.kind[i] == K3_ROW_VERIFY) return 1;
  return 0;
}

void k3_mock_run_result(const k3_mock_run *r, int32_t *accepted, int32_t *tokens, uint8_t *done, uint8_t *written) {
  int64_t n = r->plan.n_rows, at = 0;
  int64_t *next = r->order; /* of no use any more: where each row's next token goes */
  for (int64_t i = 0; i < n; i++) {
    accepted[i] = (int32_t)r->rows[i].accepted;
    done[i] = (uint8_t)r->rows[i].done;
    next[i] = at;
    at += r->rows[i].accepted;
  }
  for (int64_t k = 0; k < r->n_accepted; k++) tokens[next[r->accepted[k].row]++] = (int32_t)r->accepted[k].token;
  if (r->plan.n_snapshots) memcpy(written, r->written, (size_t)r->plan.n_snapshots);
}

/* -- phases -------------------------------------------------------------------------------------------------------- */

/* Batches in order; within a batch in any order, since nothing in it overlaps. */
static void move_all(k3_mock *m, const k3_mock_plan *p) {
  int64_t n = p->n_moves, *order = malloc((size_t)(2 * n) * sizeof *order), *spare = order + n;
  if (!order) {
    m->out_of_memory = true;
    return;
  }
  for (int64_t i = 0; i < n; i++) order[i] = i;
  k3_shuffle(m, order, n);
  for (int64_t width = 1; width < n; width *= 2) { /* a stable merge sort by batch */
    for (int64_t low = 0; low < n; low += 2 * width) {
      int64_t a = low, b = low + width, end = low + 2 * width, middle = b;
      if (middle > n) middle = n;
      if (end > n) end = n;
      b = middle;
      for (int64_t k = low; k < end; k++) {
        bool left = a < middle && (b >= end || p->moves[4 * order[a]] <= p->moves[4 * order[b]]);
        spare[k] = order[left ? a++ : b++];
      }
    }
    memcpy(order, spare, (size_t)n * sizeof *order);
  }
  for (int64_t i = 0; i < n; i++) {
    const int32_t *move = p->moves + 4 * order[i];
    int kind = move[1] == K3_KIND_PAGE ? K3_KIND_PAGE : K3_KIND_STATE;
    if (k3_mock_holds(m, kind, move[2]) && k3_mock_holds(m, kind, move[3])) k3_move(m, kind, move[2], move[3]);
  }
  free(order);
}

static void zero_all(k3_mock *m, const k3_mock_plan *p) {
  for (int64_t i = 0; i < p->n_zero_pages; i++) {
    int64_t place = k3_find(m, K3_KIND_PAGE, p->zero_pages[i], K3_BY_ZEROING);
    if (place != K3_NOWHERE) k3_page_zero(m, place);
  }
  for (int64_t i = 0; i < p->n_zero_states; i++) {
    int64_t place = k3_find(m, K3_KIND_STATE, p->zero_states[i], K3_BY_ZEROING);
    if (place != K3_NOWHERE) k3_state_zero(m, place);
  }
}

/* Copies of pages (entries of 3) or restores (entries of 2), in any order. */
static void copy_all(k3_mock *m, int kind, const int32_t *entries, int64_t n) {
  int64_t *order = malloc((size_t)n * sizeof *order), content[K3_STATE_WIDTH * K3_MOCK_MAX_GROUPS];
  int64_t width = kind == K3_KIND_PAGE ? 3 : 2, by = kind == K3_KIND_PAGE ? K3_BY_COPY : K3_BY_RESTORE;
  if (!order) {
    m->out_of_memory = true;
    return;
  }
  for (int64_t i = 0; i < n; i++) order[i] = i;
  k3_shuffle(m, order, n);
  for (int64_t i = 0; i < n; i++) {
    const int32_t *entry = entries + width * order[i];
    int64_t source = k3_find(m, kind, entry[0], by), target = k3_find(m, kind, entry[1], by);
    if (source == K3_NOWHERE || target == K3_NOWHERE) continue;
    if (kind == K3_KIND_PAGE) {
      int64_t rows = entry[2] < 0 ? 0 : entry[2];
      k3_page_copy(m, source, target, rows < m->config.span ? rows : m->config.span);
    } else {
      int64_t label = k3_state_read(m, source, K3_TO_RESTORE, content);
      k3_state_write(m, target, content, label);
    }
  }
  free(order);
}

int64_t k3_mock_phase(k3_mock *m, k3_mock_run *r, int phase) {
  m->n_notes = 0;
  m->out_of_memory = false;
  switch (phase) {
    case K3_PHASE_MOVES: move_all(m, &r->plan); break;
    case K3_PHASE_TABLES: k3_tables_update(m, &r->plan); break;
    case K3_PHASE_ZEROING: zero_all(m, &r->plan); break;
    case K3_PHASE_COPIES: copy_all(m, K3_KIND_PAGE, r->plan.page_copies, r->plan.n_page_copies); break;
    case K3_PHASE_RESTORES: copy_all(m, K3_KIND_STATE, r->plan.restores, r->plan.n_restores); break;
    case K3_PHASE_ROWS: k3_rows_begin(m, r); break;
    case K3_PHASE_FORWARD: k3_rows_forward(m, r); break;
    case K3_PHASE_SAMPLE: k3_rows_sample(m, r); break;
    case K3_PHASE_FOLD: k3_rows_fold(m, r); break;
    default: k3_rows_end(m, r);
  }
  return m->out_of_memory ? K3_E_MEMORY : m->n_notes;
}

/* -- a plan by itself ---------------------------------------------------------------------------------------------- */

/* The bytes of a move's source (side 0) or destination (1). */
static int64_t low_of(const k3_mock *m, const int32_t *move, int side) {
  return move[1] == K3_KIND_PAGE ? move[2 + side] * m->config.page_bytes
                                 : m->config.state_top - (move[2 + side] + (int64_t)1) * m->config.state_bytes;
}

static int64_t bytes_of(const k3_mock *m, const int32_t *move) {
  return move[1] == K3_KIND_PAGE ? m->config.page_bytes : m->config.state_bytes;
}

static bool suspect_moves(const k3_mock *m, const int32_t *moves, int64_t n) {
  if (n > FEW) return true;
  for (int64_t i = 0; i < 2 * n; i++) {
    const int32_t *one = moves + 4 * (i / 2);
    if ((one[1] != K3_KIND_PAGE && one[1] != K3_KIND_STATE) || one[2 + i % 2] == 0 ||
        !k3_mock_holds(m, one[1], one[2 + i % 2]))
      return true;
    for (int64_t j = 0; j < i; j++) {
      const int32_t *other = moves + 4 * (j / 2);
      int64_t low = low_of(m, one, i % 2), theirs = low_of(m, other, j % 2);
      if (one[0] == other[0] && low < theirs + bytes_of(m, other) && theirs < low + bytes_of(m, one)) return true;
    }
  }
  return false;
}

/* Whether an entry is written twice, or is both source and destination. */
static bool suspect_copies(const int32_t *entries, int64_t n, int width) {
  if (n > FEW) return true;
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < n; j++)
      if (entries[width * i] == entries[width * j + 1] || (i != j && entries[width * i + 1] == entries[width * j + 1]))
        return true;
  return false;
}

static bool suspect_rows(k3_mock *m, const k3_mock_plan *p, const k3_mock_can *can) {
  int64_t serial = ++m->serial;
  if (p->repeat < 1 || (p->repeat > 1 && !can->fast_forward) || p->n_offset != p->n_rows + 1 || p->offset[0] != 0 ||
      p->offset[p->n_rows] != p->n_tokens)
    return true;
  for (int64_t i = 0; i < p->n_rows; i++) {
    int64_t lane = p->lane[i], length = p->length[i], given = (int64_t)p->offset[i + 1] - p->offset[i];
    if (lane < 0 || lane >= m->config.lanes || m->lane_stamp[lane] == serial || length < 1) return true;
    m->lane_stamp[lane] = serial;
    switch (p->kind[i]) {
      case K3_ROW_PREFILL:
        if (given != length || p->repeat > 1) return true;
        break;
      case K3_ROW_DECODE:
        if (given || length != 1 || !p->sample[i]) return true;
        break;
      case K3_ROW_VERIFY:
        if (given != length - 1 || !p->sample[i] || !can->verify || length > can->max_window || p->repeat > 1)
          return true;
        break;
      default: return true;
    }
  }
  return false;
}

static bool suspect_snapshots(const k3_mock *m, const k3_mock_plan *p, const k3_mock_can *can) {
  for (int64_t i = 0; i < p->n_snapshots; i++) {
    const int32_t *one = p->snapshots + 3 * i;
    int64_t row = one[0], depth = one[1];
    if (row < 0 || row >= p->n_rows) return true;
    int64_t start = p->start[row], end = start + p->length[row] * p->repeat;
    bool prefill = p->kind[row] == K3_ROW_PREFILL;
    if (depth > end || depth < 1 || (prefill && depth <= start)) return true;
    if (prefill && depth != end && (can->capture == 2 || (can->capture == 1 && (depth - start) % can->state_chunk)))
      return true;
    if (i && (one[-3] > row || (one[-3] == row && (!prefill || one[-2] > depth)))) return true;
  }
  if (p->n_snapshots > FEW) return true;
  for (int64_t i = 0; i < p->n_snapshots; i++)
    for (int64_t j = 0; j < i; j++)
      if (p->snapshots[3 * i + 2] == p->snapshots[3 * j + 2]) return true;
  return false;
}

int k3_mock_suspect(k3_mock *m, const k3_mock_run *r, const k3_mock_can *can) {
  const k3_mock_plan *p = &r->plan;
  for (int64_t i = 0; i < p->n_page_copies; i++)
    if (p->page_copies[3 * i + 2] <= 0 || p->page_copies[3 * i + 2] > m->config.span) return 1;
  return suspect_moves(m, p->moves, p->n_moves) || suspect_copies(p->page_copies, p->n_page_copies, 3) ||
         suspect_copies(p->restores, p->n_restores, 2) || suspect_rows(m, p, can) || suspect_snapshots(m, p, can);
}
