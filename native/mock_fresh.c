#include "mock_internal.h"

/* Absorb one token at `position`: rows[kv_groups] it writes; state and context are advanced. O(groups). */
static void absorb(int64_t *state, int groups, int64_t *context, int kv_groups, int64_t seed, int64_t token,
                   int64_t position, int64_t *rows) {
  int64_t fed[K3_MOCK_MAX_GROUPS];
  k3_kv_rows(rows, kv_groups, state, groups, token, position, context);
  for (int k = 0; k < kv_groups; k++) context[k] = k3_append(context[k], rows[k]);
  k3_inputs(fed, groups, seed, token, position);
  k3_absorb(state, groups, fed, token);
}

int64_t k3_fresh_output(int64_t seed, int groups, int kv_groups, int64_t vocab_size, const int32_t *prompt, int64_t n,
                        int64_t draw, const int32_t *script, int64_t n_script, const int64_t *stops, int64_t n_stops,
                        int64_t max_new, int32_t *out) {
  int64_t state[K3_STATE_WIDTH * K3_MOCK_MAX_GROUPS] = {0}, context[K3_MOCK_MAX_GROUPS] = {0};
  int64_t rows[K3_MOCK_MAX_GROUPS] = {0}, token = 0, position = 0, count = 0;
  if (n < 1) return K3_E_ARG;
  for (; position < n; position++)
    absorb(state, groups, context, kv_groups, seed, token = prompt[position], position, rows);
  while (count < max_new) {
    int64_t output = k3_output(rows, kv_groups, state, groups, token, position - 1);
    token = k3_sample(output, draw, count, vocab_size, script, n_script);
    out[count++] = (int32_t)token;
    if (k3_among(token, stops, n_stops)) break;
    absorb(state, groups, context, kv_groups, seed, token, position++, rows);
  }
  return count;
}

/* -- a walk -------------------------------------------------------------------------------------------------------- */

static bool reserve(k3_walk *w, int64_t n) {
  if (n <= w->cap) return true;
  n = n > 2 * w->cap ? n : 2 * w->cap;
  size_t size = sizeof(int64_t), width = (size_t)(K3_STATE_WIDTH * w->groups), kv = (size_t)w->kv_groups;
  void *grown;
  if (!(grown = realloc(w->tokens, (size_t)n * sizeof *w->tokens))) return false;
  w->tokens = grown;
  if (!(grown = realloc(w->state, (size_t)(n + 1) * width * size))) return false;
  w->state = grown;
  if (!(grown = realloc(w->context, (size_t)(n + 1) * kv * size))) return false;
  w->context = grown;
  if (!(grown = realloc(w->rows, (size_t)n * kv * size))) return false;
  w->rows = grown;
  w->cap = n;
  return true;
}

k3_walk *k3_walk_new(int64_t seed, int groups, int kv_groups) {
  k3_walk *w = calloc(1, sizeof *w);
  if (!w) return NULL;
  w->seed = seed;
  w->groups = groups;
  w->kv_groups = kv_groups;
  if (!reserve(w, 64)) {
    k3_walk_delete(w);
    return NULL;
  }
  memset(w->state, 0, (size_t)(K3_STATE_WIDTH * groups) * sizeof *w->state);
  memset(w->context, 0, (size_t)kv_groups * sizeof *w->context);
  return w;
}

void k3_walk_delete(k3_walk *w) {
  if (!w) return;
  free(w->tokens);
  free(w->state);
  free(w->context);
  free(w->rows);
  free(w);
}

int k3_walk_become(k3_walk *w, const int32_t *tokens, int64_t n) {
  int64_t width = K3_STATE_WIDTH * w->groups, kv = w->kv_groups, same = 0;
  if (!reserve(w, n)) return K3_E_MEMORY;
  while (same < n && same < w->count && w->tokens[same] == tokens[same]) same++;
  for (int64_t at = same; at < n; at++) {
    int64_t *state = w->state + (at + 1) * width, *context = w->context + (at + 1) * kv;
    memcpy(state, state - width, (size_t)width * sizeof *state);
    memcpy(context, context - kv, (size_t)kv * sizeof *context);
    w->tokens[at] = tokens[at];
    absorb(state, w->groups, context, w->kv_groups, w->seed, tokens[at], at, w->rows + at * kv);
  }
  w->count = n;
  return K3_OK;
}

/* The place of an id that owns it, or K3_NOWHERE. */
static int64_t owned(const k3_mock *m, int kind, int64_t id) {
  int64_t ids = kind == K3_KIND_PAGE ? m->config.page_ids : m->config.state_ids;
  int32_t place = id > 0 && id < ids ? m->place[kind][id] : K3_NOWHERE;
  return place != K3_NOWHERE && m->owner[kind][place] == id ? place : K3_NOWHERE;
}

static bool page_holds(const k3_walk *w, const k3_mock *m, int64_t id, int64_t first, int64_t rows) {
  int64_t place = owned(m, K3_KIND_PAGE, id), span = m->config.span;
  const k3_mock_page *page = place == K3_NOWHERE ? NULL : m->pages[place];
  if (!page) return false;
  for (int k = 0; k < w->kv_groups; k++)
    for (int64_t row = 0; row < rows; row++)
      if (page->rows[k * span + row] != w->rows[(first + row) * w->kv_groups + k]) return false;
  return true;
}

int k3_walk_audit(const k3_walk *w, const k3_mock *m, int64_t state, const int32_t *pages, int64_t n_pages) {
  int64_t span = m->config.span, width = K3_STATE_WIDTH * w->groups;
  if (state >= 0) {
    int64_t place = owned(m, K3_KIND_STATE, state);
    if (place == K3_NOWHERE || m->alive[place] != (K3_MATRIX_ALIVE | K3_WINDOW_ALIVE) ||
        memcmp(k3_state_at(m, place), w->state + w->count * width, (size_t)width * sizeof *w->state))
      return 0;
  }
  if (n_pages * span < w->count) return 0;
  for (int64_t index = 0; index * span < w->count; index++) {
    int64_t rows = w->count - index * span;
    if (!page_holds(w, m, pages[index], index * span, rows < span ? rows : span)) return 0;
  }
  return 1;
}
