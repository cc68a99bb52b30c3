#include "mock_internal.h"

enum { MAX_PADDING = 3 }; /* most junk rows that pad a batch */

static int64_t min64(int64_t x, int64_t y) { return x < y ? x : y; }
static int64_t max64(int64_t x, int64_t y) { return x > y ? x : y; }

static int64_t clip(int64_t at, int64_t n) { return at < 0 ? max64(0, at + n) : min64(at, n); }

void k3_given(const k3_mock_plan *p, int64_t row, int64_t *first, int64_t *end) {
  *first = clip(row < p->n_offset ? p->offset[row] : p->n_tokens, p->n_tokens);
  *end = clip(row + 1 < p->n_offset ? p->offset[row + 1] : p->n_tokens, p->n_tokens);
  if (*end < *first) *end = *first;
}

/* Floor and ceiling of a division by a positive number. */
static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
static int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }

/* -- before the forward -------------------------------------------------------------------------------------------- */

static void check_position(k3_mock *m, const k3_mock_run *r, int64_t i, const k3_mock_lane *t) {
  const k3_mock_plan *p = &r->plan;
  const k3_mock_seat *s = &t->seat;
  int64_t start = p->start[i], span = m->config.span, end;
  if (p->kind[i] == K3_ROW_PREFILL) {
    end = start + p->length[i];
    if (start != s->depth) K3_NOTE(m, K3_NOTE_PREFILL_AT, s->lane, start, s->depth);
    if (s->last_token >= 0) K3_NOTE(m, K3_NOTE_PREFILL_TOKEN, s->lane);
  } else {
    end = min64(start + p->length[i] * p->repeat, s->limit - 1);
    if (start < s->depth) K3_NOTE(m, K3_NOTE_DEEPER, s->lane, s->depth, start);
    if (s->last_token < 0) K3_NOTE(m, K3_NOTE_NO_TOKEN, s->lane);
  }
  int64_t first = s->depth / span, last = ceil_div(end, span);
  bool missing = last > t->n_pages;
  for (int64_t k = first; k < last && !missing; k++) missing = t->pages[k] == -1;
  if (missing) K3_NOTE(m, K3_NOTE_PAGES_MISSING, s->lane, end, first, last);
}

/* No two rows of a step may share a state. */
static void use_state(k3_mock *m, int64_t serial, int64_t id, bool target, int64_t lane) {
  int64_t place = k3_find(m, K3_KIND_STATE, id, target ? K3_BY_TARGET : K3_BY_WORKING);
  if (place == K3_NOWHERE) return;
  int64_t *stamp = &m->place_stamp[K3_KIND_STATE][place], *use = &m->place_note[K3_KIND_STATE][place];
  if (*stamp == serial) {
    K3_NOTE(m, K3_NOTE_SHARED_STATE, target, lane, *use & 1, *use >> 1, place);
    return;
  }
  *stamp = serial;
  *use = lane << 1 | target;
}

/* Junk rows pad the batch: they write to the sinks and read them. */
static void pad(k3_mock *m) {
  for (uint64_t n = k3_dice(&m->dice) % (MAX_PADDING + 1); n; n--) {
    int groups = m->config.groups;
    int64_t *content = k3_state_at(m, 0);
    for (int g = 0; g < groups; g++) content[g] = k3_garbage(m);
    for (int g = 0; g < K3_WINDOW * groups; g++) content[groups + g] = K3_POISON;
    m->label[0] = K3_NO_LABEL;
    m->alive[0] = K3_MATRIX_ALIVE | K3_WINDOW_ALIVE;
    k3_page_renew(m, 0, k3_garbage(m));
  }
}

void k3_rows_begin(k3_mock *m, k3_mock_run *r) {
  const k3_mock_plan *p = &r->plan;
  int64_t serial = ++m->serial;
  for (int64_t i = 0; i < p->n_rows; i++) {
    k3_mock_lane *t = k3_tenant(m, p->lane[i], p->generation[i]);
    if (!t) continue;
    use_state(m, serial, t->seat.state, false, t->seat.lane);
    for (int64_t n = r->rows[i].first_target; n >= 0; n = r->next_target[n])
      use_state(m, serial, p->snapshots[3 * n + 2], true, t->seat.lane);
    if (t->seat.done) {
      r->rows[i].done = t->seat.done;
      continue;
    }
    r->rows[i].lane = t->seat.lane;
    check_position(m, r, i, t);
  }
  pad(m);
}

/* -- the forward --------------------------------------------------------------------------------------------------- */

/* Place of a lane's page; the sink's where the list has a gap. */
static int64_t page_place(k3_mock *m, const k3_mock_lane *t, int64_t index) {
  int32_t id = index < t->n_pages ? t->pages[index] : -1;
  if (id < 0) {
    K3_NOTE(m, K3_NOTE_NO_PAGE, t->seat.lane, index);
    return 0;
  }
  return max64(0, k3_find(m, K3_KIND_PAGE, id, t->seat.lane));
}

/* Append a page's first rows to the context; returns the label of their last one. */
static int64_t read_page(k3_mock *m, const k3_mock_lane *t, int64_t index, int64_t rows, int64_t last, int64_t step,
                         int64_t *context) {
  int64_t place = page_place(m, t, index);
  k3_mock_page *page = m->pages[place];
  if (!page) {
    K3_NOTE(m, K3_NOTE_POISON_PAGE, t->seat.lane, place);
    page = m->junk;
    k3_page_fill(m, page, k3_garbage(m));
    m->epoch++; /* this is not to be remembered */
  }
  if (m->config.read_all) page->known = 0;
  k3_page_digest(m, place, page, rows);
  if (page->head != last) K3_NOTE(m, K3_NOTE_BREAK, t->seat.lane, index);
  if (page->write_step == step && page->write_low < rows &&
      !(page->has_writer && page->writer_lane == t->seat.lane && page->writer_generation == t->seat.generation))
    K3_NOTE(m, K3_NOTE_SAME_STEP, t->seat.lane, place, page->has_writer, page->writer_lane, page->writer_generation);
  if (rows == m->config.span) page->covered = m->epoch;
  const int64_t *prefix = page->prefix + rows * m->config.kv_groups;
  for (int k = 0; k < m->config.kv_groups; k++)
    context[k] = k3_muladd((uint64_t)context[k], (uint64_t)m->power[rows], (uint64_t)prefix[k]);
  return page->labels[rows - 1];
}

/* context[kv groups] = digest of all KV rows below the lane's depth, as its pages hold them. Checks that these rows and
 * the state that is about to be used are of one prefix. O(pages), O(1) when no page that some lane remembers has changed
 * since the lane's last read. */
static void read_context(k3_mock *m, k3_mock_lane *t, int64_t label, int64_t step, int64_t *context) {
  int64_t depth = t->seat.depth, full = depth / m->config.span, rest = depth % m->config.span, epoch = m->epoch;
  size_t bytes = (size_t)m->config.kv_groups * sizeof *context;
  if (m->config.read_all || t->cache_epoch != epoch || t->cache_pages > full) {
    t->cache_pages = 0;
    t->cache_label = t->seat.seed;
    memset(t->cache_context, 0, bytes);
  }
  memcpy(context, t->cache_context, bytes);
  int64_t last = t->cache_label;
  for (int64_t index = t->cache_pages; index < full; index++)
    last = read_page(m, t, index, m->config.span, last, step, context);
  memcpy(t->cache_context, context, bytes);
  t->cache_pages = full;
  t->cache_label = last;
  t->cache_epoch = epoch;
  if (rest) last = read_page(m, t, full, rest, last, step, context);
  if (last != (label ? label : t->seat.seed) || (label == 0) != (depth == 0))
    K3_NOTE(m, K3_NOTE_OTHER_STATE, t->seat.lane, depth);
}

static void snapshot(k3_mock *m, k3_mock_run *r, int64_t number, const int64_t *content, int64_t label) {
  int64_t place = k3_find(m, K3_KIND_STATE, r->plan.snapshots[3 * number + 2], K3_BY_SNAPSHOT);
  if (place == K3_NOWHERE) return;
  k3_state_write(m, place, content, label);
  r->written[number] = 1;
}

static void put_output(k3_mock *m, k3_mock_run *r, k3_mock_row *row, int64_t output) {
  if (!k3_mock_grow(m, &r->outputs, r->n_outputs, &r->outputs_cap, sizeof *r->outputs)) return;
  r->outputs[r->n_outputs++] = output;
  row->outputs++;
}

static void put_record(k3_mock *m, k3_mock_run *r, k3_mock_row *row, const int64_t *fed, int64_t token) {
  if (!k3_mock_grow(m, &r->records, r->n_records, &r->records_cap, sizeof *r->records)) return;
  k3_mock_record *record = &r->records[r->n_records++];
  record->token = token;
  memcpy(record->fed, fed, (size_t)m->config.groups * sizeof *fed);
  row->records++;
}

/* The snapshot of a PREFILL or DECODE row at a depth: the last one named, or -1. */
static int64_t target_at(const k3_mock_run *r, const k3_mock_row *row, int64_t depth) {
  int64_t found = -1;
  for (int64_t n = row->first_target; n >= 0; n = r->next_target[n])
    if (r->plan.snapshots[3 * n + 1] == depth) found = n;
  return found;
}

/* One row's tokens: first the lane's last one where `own`, then given[count]. PREFILL and DECODE update the state in
 * place; VERIFY leaves records and outputs. */
static void scan(k3_mock *m, k3_mock_run *r, int64_t i, k3_mock_lane *t, bool own, const int32_t *given, int64_t count,
                 int64_t *state, int64_t label, int64_t *context, int64_t place) {
  int groups = m->config.groups, kv_groups = m->config.kv_groups;
  int64_t span = m->config.span, position = t->seat.depth, end = position + count, high = 0, where = 0;
  int64_t rows[K3_MOCK_MAX_GROUPS], fed[K3_MOCK_MAX_GROUPS];
  bool verify = r->plan.kind[i] == K3_ROW_VERIFY;
  k3_mock_row *out = &r->rows[i];
  k3_mock_page *page = NULL;
  label = label ? label : t->seat.seed;
  out->first_output = r->n_outputs;
  out->outputs = 0;
  if (verify) out->first_record = r->n_records, out->records = 0;
  for (int64_t at = 0; at < count; at++) {
    int64_t token = own && at == 0 ? t->seat.last_token : given[at - own], row = position % span;
    if (!page || row == 0) {
      high = min64(span, row + end - position);
      where = page_place(m, t, position / span);
      page = k3_page_for_write(m, where, row, high, &t->seat, r->plan.step);
    }
    k3_kv_rows(rows, kv_groups, state, groups, token, position, context);
    if (row == 0) page->head = label;
    label = k3_chain(label, token);
    page->labels[row] = label;
    for (int k = 0; k < kv_groups; k++) {
      page->rows[k * span + row] = rows[k];
      context[k] = k3_append(context[k], rows[k]);
    }
    k3_inputs(fed, groups, t->seat.seed, token, position);
    k3_absorb(state, groups, fed, token);
    if (verify) put_record(m, r, out, fed, token);
    if (verify || position == end - 1)
      put_output(m, r, out, k3_output(rows, kv_groups, state, groups, token, position));
    position++;
    if (row == high - 1) k3_page_check_rest(m, where, page, high);
    int64_t number = verify || out->first_target < 0 ? -1 : target_at(r, out, position);
    if (number >= 0) snapshot(m, r, number, state, label);
  }
  if (verify || !count) return;
  k3_state_write(m, place, state, label);
  t->seat.depth = end;
}

static void forward_row(k3_mock *m, k3_mock_run *r, int64_t i, k3_mock_lane *t) {
  const k3_mock_plan *p = &r->plan;
  int64_t state[K3_STATE_WIDTH * K3_MOCK_MAX_GROUPS], context[K3_MOCK_MAX_GROUPS], first, end;
  int64_t place = k3_find(m, K3_KIND_STATE, t->seat.state, K3_BY_WORKING);
  if (place == K3_NOWHERE) return;
  bool prefill = p->kind[i] == K3_ROW_PREFILL;
  if (prefill) t->seat.depth = max64(0, p->start[i]); /* the host's word, also after a step that failed half-way */
  int64_t label = k3_state_read(m, place, K3_TO_READ, state);
  read_context(m, t, label, p->step, context);
  k3_given(p, i, &first, &end);
  int64_t count = prefill ? end - first : 1;
  if (p->kind[i] == K3_ROW_VERIFY) count = min64(1 + end - first, max64(0, t->seat.limit - t->seat.depth - 1));
  scan(m, r, i, t, !prefill, p->tokens + first, count, state, label, context, place);
}

/* All rows, in any order: no row may depend on another of the same step. */
void k3_rows_forward(k3_mock *m, k3_mock_run *r) {
  int64_t n = 0;
  r->n_outputs = r->n_records = 0;
  for (int64_t i = 0; i < r->plan.n_rows; i++) {
    k3_mock_row *row = &r->rows[i];
    row->outputs = row->records = 0;
    if (row->lane >= 0 && !m->lane[row->lane].seat.done) r->order[n++] = i;
  }
  k3_shuffle(m, r->order, n);
  for (int64_t k = 0; k < n; k++) forward_row(m, r, r->order[k], &m->lane[r->rows[r->order[k]].lane]);
}

/* -- after the forward --------------------------------------------------------------------------------------------- */

static void accept(k3_mock *m, k3_mock_run *r, int64_t i, int64_t token) {
  if (!k3_mock_grow(m, &r->accepted, r->n_accepted, &r->accepted_cap, sizeof *r->accepted)) return;
  r->accepted[r->n_accepted++] = (k3_mock_accepted){i, token};
  r->rows[i].accepted++;
  r->rows[i].fresh++;
}

static void sample_row(k3_mock *m, k3_mock_run *r, int64_t i, k3_mock_seat *s) {
  const k3_mock_plan *p = &r->plan;
  k3_mock_row *row = &r->rows[i];
  bool verify = p->kind[i] == K3_ROW_VERIFY;
  int64_t first, end, position = s->depth + verify;
  k3_given(p, i, &first, &end);
  int64_t drafts = verify ? end - first : 0;
  if (position >= s->limit) s->done = K3_DONE_LENGTH;
  for (int64_t j = 0; j < row->outputs && !s->done; j++) {
    int64_t token = k3_sample(r->outputs[row->first_output + j], s->draw, position + j - s->prompt,
                              m->config.vocab_size, s->script, s->n_script);
    accept(m, r, i, token);
    s->last_token = token;
    if (k3_among(token, s->stops, s->n_stops))
      s->done = K3_DONE_STOP;
    else if (position + j + 1 >= s->limit)
      s->done = K3_DONE_LENGTH;
    if (j >= drafts || p->tokens[first + j] != token) break;
  }
  row->done = s->done;
}

/* Sampled tokens, the accepted prefix of each row, done flags. Clips at stop ids and the limit. */
void k3_rows_sample(k3_mock *m, k3_mock_run *r) {
  for (int64_t i = 0; i < r->plan.n_rows; i++) {
    k3_mock_row *row = &r->rows[i];
    row->fresh = 0;
    if (row->lane < 0 || m->lane[row->lane].seat.done) continue;
    if (r->plan.kind[i] == K3_ROW_PREFILL && !r->plan.sample[i]) continue;
    sample_row(m, r, i, &m->lane[row->lane].seat);
  }
}

/* Replay the records of the accepted rows of each VERIFY row into its working state, in place. */
void k3_rows_fold(k3_mock *m, k3_mock_run *r) {
  for (int64_t i = 0; i < r->plan.n_rows; i++) {
    k3_mock_row *row = &r->rows[i];
    int64_t state[K3_STATE_WIDTH * K3_MOCK_MAX_GROUPS];
    if (row->lane < 0 || r->plan.kind[i] != K3_ROW_VERIFY || !row->fresh) continue;
    k3_mock_seat *s = &m->lane[row->lane].seat;
    int64_t place = k3_find(m, K3_KIND_STATE, s->state, K3_BY_FOLD);
    if (place == K3_NOWHERE) continue;
    int64_t label = k3_state_read(m, place, K3_TO_FOLD, state);
    label = label ? label : s->seed;
    for (int64_t j = 0; j < row->fresh && j < row->records; j++) {
      const k3_mock_record *record = &r->records[row->first_record + j];
      k3_absorb(state, m->config.groups, record->fed, record->token);
      label = k3_chain(label, record->token);
      s->depth++;
      for (int64_t n = row->first_target; n >= 0; n = r->next_target[n])
        if (r->plan.snapshots[3 * n + 1] == s->depth) snapshot(m, r, n, state, label);
    }
    k3_state_write(m, place, state, label);
  }
}

/* The step is over: scratch is garbage, and what was handed out is clean. */
void k3_rows_end(k3_mock *m, k3_mock_run *r) {
  for (int64_t i = 0; i < r->plan.n_rows; i++)
    for (int64_t j = 0; j < r->rows[i].records; j++) {
      k3_mock_record *record = &r->records[r->rows[i].first_record + j];
      for (int g = 0; g < m->config.groups; g++) record->fed[g] = k3_garbage(m);
      record->token = -1;
    }
  if (!m->config.strict_handout) return;
  for (int64_t i = 0; i < m->n_handed_out; i++) {
    int32_t id = m->handed_out[i], place = m->place[K3_KIND_PAGE][id];
    const k3_mock_page *page = place == K3_NOWHERE ? NULL : m->pages[place];
    bool dirty = !page;
    for (int64_t row = 0; page && row < page->high && !dirty; row++) dirty = page->rows[row] >= K3_POISON;
    if (dirty) K3_NOTE(m, K3_NOTE_HANDED_OUT, id, place);
  }
}
