#include "mock_internal.h"

static int64_t min64(int64_t x, int64_t y) { return x < y ? x : y; }
static int64_t max64(int64_t x, int64_t y) { return x > y ? x : y; }

/* -- life and poison ----------------------------------------------------------------------------------------------- */

k3_mock_page *k3_page_new(const k3_mock *m) {
  int64_t span = m->config.span, groups = m->config.kv_groups;
  int64_t words = groups * span + groups * (span + 1) + span;
  k3_mock_page *page = malloc(sizeof *page + (size_t)words * sizeof(int64_t));
  if (!page) return NULL;
  page->rows = (int64_t *)(page + 1);
  page->prefix = page->rows + groups * span;
  page->labels = page->prefix + groups * (span + 1);
  return page;
}

/* All rows as `value` has them: zero, or poison. */
void k3_page_fill(const k3_mock *m, k3_mock_page *page, int64_t value) {
  int64_t span = m->config.span;
  for (int64_t i = 0; i < m->config.kv_groups * span; i++) page->rows[i] = value;
  for (int64_t i = 0; i < span; i++) page->labels[i] = value ? K3_NO_LABEL : 0;
  memset(page->prefix, 0, (size_t)m->config.kv_groups * sizeof *page->prefix);
  page->head = page->write_step = page->write_low = page->known = 0;
  page->writer_lane = page->writer_generation = 0;
  page->has_writer = false;
  page->covered = -1;
  page->high = value ? span : 0;
}

static void keep_spare(k3_mock *m, k3_mock_page *page) {
  if (page == m->junk) return;
  if (k3_mock_grow(m, &m->spare, m->n_spare, &m->spare_cap, sizeof *m->spare))
    m->spare[m->n_spare++] = page;
  else
    free(page);
}

static void drop_page(k3_mock *m, int64_t place) {
  if (m->pages[place]) keep_spare(m, m->pages[place]);
  m->pages[place] = NULL;
}

/* A page like new at a place, with nobody claimed. Out of memory: the junk page stands there until it is poisoned. */
void k3_page_renew(k3_mock *m, int64_t place, int64_t value) {
  if (!m->pages[place] || m->pages[place] == m->junk) {
    k3_mock_page *page = m->n_spare ? m->spare[--m->n_spare] : k3_page_new(m);
    m->out_of_memory |= !page;
    m->pages[place] = page ? page : m->junk;
  }
  k3_page_fill(m, m->pages[place], value);
}

/* No lane may rely on what it remembers of a page that changes. */
void k3_page_change(k3_mock *m, int64_t place) {
  if (m->pages[place] && m->pages[place]->covered == m->epoch) m->epoch++;
}

void k3_mock_poison_page(k3_mock *m, int64_t place) {
  k3_page_change(m, place);
  drop_page(m, place);
}

void k3_mock_poison_state(k3_mock *m, int64_t place) {
  m->alive[place] = 0;
  m->label[place] = K3_NO_LABEL;
}

void k3_mock_poison_rows(k3_mock *m, int64_t place, int64_t low, int64_t high) {
  k3_mock_page *page = m->pages[place];
  if (!page || low >= high) return;
  k3_page_change(m, place);
  for (int k = 0; k < m->config.kv_groups; k++) {
    int64_t value = k3_garbage(m);
    for (int64_t row = low; row < high; row++) page->rows[k * m->config.span + row] = value;
  }
  for (int64_t row = low; row < high; row++) page->labels[row] = K3_NO_LABEL;
  page->high = max64(page->high, high);
  page->known = min64(page->known, low);
}

void k3_mock_poison_all(k3_mock *m) {
  for (int64_t place = 0; place < m->places[K3_KIND_PAGE]; place++) k3_mock_poison_page(m, place);
  for (int64_t place = 0; place < m->places[K3_KIND_STATE]; place++) k3_mock_poison_state(m, place);
}

/* Before a dead page place comes to life: the states that share its bytes are gone. */
static void claim_page(k3_mock *m, int64_t place) {
  int64_t bytes = m->config.state_bytes, top = m->config.state_top, low = place * m->config.page_bytes;
  int64_t first = max64(0, (top - low - m->config.page_bytes) / bytes);
  int64_t end = min64(m->places[K3_KIND_STATE], (top - low + bytes - 1) / bytes);
  for (int64_t state = first; state < end; state++)
    if (m->alive[state]) k3_mock_poison_state(m, state);
}

/* Before a dead state place comes to life: the pages that share its bytes are gone. */
static void claim_state(k3_mock *m, int64_t place) {
  int64_t bytes = m->config.page_bytes, high = m->config.state_top - place * m->config.state_bytes;
  int64_t first = max64(0, (high - m->config.state_bytes) / bytes);
  int64_t end = min64(m->places[K3_KIND_PAGE], (high + bytes - 1) / bytes);
  for (int64_t page = first; page < end; page++)
    if (m->pages[page]) k3_mock_poison_page(m, page);
}

/* -- pages --------------------------------------------------------------------------------------------------------- */

void k3_page_zero(k3_mock *m, int64_t place) {
  if (!m->pages[place]) claim_page(m, place);
  k3_page_change(m, place);
  k3_page_renew(m, place, 0);
}

/* The page in which `writer` is about to write rows low .. high - 1. */
k3_mock_page *k3_page_for_write(k3_mock *m, int64_t place, int64_t low, int64_t high, const k3_mock_seat *writer,
                                int64_t step) {
  k3_mock_page *page = m->pages[place];
  bool mine = false;
  if (!page) {
    claim_page(m, place);
    k3_page_renew(m, place, k3_garbage(m));
    page = m->pages[place];
  } else {
    mine = page->has_writer && page->writer_lane == writer->lane && page->writer_generation == writer->generation;
    if (!mine && low < page->high && high - low < m->config.span) {
      K3_NOTE(m, K3_NOTE_OVER, writer->lane, low, high, place, page->has_writer, page->writer_lane);
      K3_NOTE(m, K3_NOTE_MORE, page->writer_generation);
    }
  }
  if (page->write_step != step || !mine) page->write_step = step, page->write_low = low;
  page->write_low = min64(page->write_low, low);
  page->has_writer = true;
  page->writer_lane = writer->lane;
  page->writer_generation = writer->generation;
  page->high = max64(page->high, high);
  if (page->known > low) {
    page->known = low;
    k3_page_change(m, place);
  }
  return page;
}

/* Whole pages are read: rows from `high` on must not be poison either. */
void k3_page_check_rest(k3_mock *m, int64_t place, const k3_mock_page *page, int64_t high) {
  for (int64_t row = high; row < page->high; row++)
    if (page->rows[row] >= K3_POISON) {
      K3_NOTE(m, K3_NOTE_REST, place, high - 1);
      return;
    }
}

/* Make the digests of rows 0 .. rows - 1 valid, reading what was not read since it changed. */
void k3_page_digest(k3_mock *m, int64_t place, k3_mock_page *page, int64_t rows) {
  int64_t span = m->config.span, groups = m->config.kv_groups;
  for (int64_t row = page->known; row < rows; row++)
    for (int k = 0; k < groups; k++) {
      int64_t value = page->rows[k * span + row], *prefix = page->prefix + row * groups + k;
      if (value >= K3_POISON)
        K3_NOTE(m, K3_NOTE_POISON_ROW, row, place);
      else if (!value)
        K3_NOTE(m, K3_NOTE_UNWRITTEN, row, place);
      prefix[groups] = k3_append(prefix[0], value);
    }
  page->known = max64(page->known, rows);
}

/* Copy rows 0 .. rows - 1; the rest of the destination becomes zero. */
void k3_page_copy(k3_mock *m, int64_t source, int64_t destination, int64_t rows) {
  k3_mock_page *origin = m->pages[source], *page;
  int64_t span = m->config.span;
  if (!m->pages[destination]) claim_page(m, destination);
  k3_page_change(m, destination);
  if (source == destination) m->pages[source] = NULL; /* a new page takes its place */
  if (!origin) {
    K3_NOTE(m, K3_NOTE_COPY_POISON, source);
    k3_page_renew(m, destination, k3_garbage(m));
  } else {
    bool written = true;
    for (int k = 0; k < m->config.kv_groups; k++)
      for (int64_t row = 0; row < rows; row++) {
        int64_t value = origin->rows[k * span + row];
        written &= value > 0 && value < K3_POISON;
      }
    if (!written) K3_NOTE(m, K3_NOTE_COPY_PART, rows, source);
    k3_page_renew(m, destination, 0);
    page = m->pages[destination];
    for (int k = 0; k < m->config.kv_groups; k++)
      memmove(page->rows + k * span, origin->rows + k * span, (size_t)rows * sizeof *page->rows);
    memmove(page->labels, origin->labels, (size_t)rows * sizeof *page->labels);
    page->head = origin->head;
    page->high = rows;
    if (source == destination) keep_spare(m, origin);
  }
}

/* -- states -------------------------------------------------------------------------------------------------------- */

/* The content into out, garbage where it is poison, which is reported; returns the label. */
int64_t k3_state_read(k3_mock *m, int64_t place, int purpose, int64_t *out) {
  int groups = m->config.groups, alive = m->alive[place];
  memcpy(out, k3_state_at(m, place), (size_t)(K3_STATE_WIDTH * groups) * sizeof *out);
  if (alive == (K3_MATRIX_ALIVE | K3_WINDOW_ALIVE)) return m->label[place];
  K3_NOTE(m, K3_NOTE_POISON_STATE, purpose, place);
  if (!(alive & K3_MATRIX_ALIVE))
    for (int g = 0; g < groups; g++) out[g] = k3_garbage(m);
  if (!(alive & K3_WINDOW_ALIVE))
    for (int i = 0; i < K3_WINDOW * groups; i++) out[groups + i] = k3_garbage(m);
  return m->label[place];
}

void k3_state_write(k3_mock *m, int64_t place, const int64_t *content, int64_t label) {
  if (!m->alive[place]) claim_state(m, place);
  memcpy(k3_state_at(m, place), content, (size_t)(K3_STATE_WIDTH * m->config.groups) * sizeof *content);
  m->alive[place] = K3_MATRIX_ALIVE | K3_WINDOW_ALIVE;
  m->label[place] = label;
}

void k3_state_zero(k3_mock *m, int64_t place) {
  const int64_t zero[K3_STATE_WIDTH * K3_MOCK_MAX_GROUPS] = {0};
  k3_state_write(m, place, zero, 0);
}

/* -- moves --------------------------------------------------------------------------------------------------------- */

/* Copy a whole entry and hand its place over; the source becomes poison. Poison moves as poison. */
void k3_move(k3_mock *m, int kind, int64_t source, int64_t destination) {
  int32_t *owner = m->owner[kind], holder = owner[source];
  if (holder == K3_NOBODY) K3_NOTE(m, K3_NOTE_MOVE_UNOWNED, kind, source);
  if (kind == K3_KIND_PAGE) {
    k3_mock_page *page = m->pages[source];
    k3_page_change(m, source);
    m->pages[source] = NULL;
    k3_mock_poison_page(m, destination);
    claim_page(m, destination);
    m->pages[destination] = page;
    if (page) page->known = 0;
  } else {
    int64_t content[K3_STATE_WIDTH * K3_MOCK_MAX_GROUPS], label = m->label[source];
    size_t bytes = (size_t)(K3_STATE_WIDTH * m->config.groups) * sizeof *content;
    uint8_t alive = m->alive[source];
    memcpy(content, k3_state_at(m, source), bytes);
    k3_mock_poison_state(m, source);
    claim_state(m, destination);
    memcpy(k3_state_at(m, destination), content, bytes);
    m->alive[destination] = alive;
    m->label[destination] = label;
  }
  owner[source] = K3_NOBODY;
  owner[destination] = holder;
}
