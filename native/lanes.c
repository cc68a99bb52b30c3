#include "lanes.h"

#include <string.h>

static int64_t max64(int64_t x, int64_t y) { return x > y ? x : y; }

static int64_t tokens_of(const k3_lane_rows *r, int64_t i) { return (r->window ? r->window[i] : 1) * r->steps; }

int64_t k3_lanes_ready(const k3_lanes *l, int idle, int32_t *out, int32_t *start, int *covered) {
  int64_t n = 0;
  *covered = 1;
  for (int64_t lane = 0; lane < l->n; lane++) {
    int64_t depth = l->launched[lane];
    if (l->phase[lane] != K3_LANE_DECODE || depth + 1 >= l->limit[lane]) continue;
    if (idle && l->inflight[lane]) continue;
    out[n] = (int32_t)lane;
    start[n++] = (int32_t)depth;
    int64_t reach = (int64_t)(K3_MUTANT(K3_MUTANT_COVERED) ? INT32_MAX : l->touched[lane]) * l->span;
    *covered &= depth < l->covered[lane] && depth < reach;
  }
  return n;
}

int64_t k3_lanes_uniform(const k3_lanes *l, const k3_lane_rows *r, int64_t running) {
  int64_t most = INT64_MAX, decoding = 0;
  for (int64_t lane = 0; lane < l->n; lane++) decoding += l->phase[lane] == K3_LANE_DECODE;
  if (!r->n || r->window || decoding != r->n || running != r->n) return 0;
  for (int64_t i = 0; i < r->n; i++) {
    int32_t lane = r->lane[i];
    int64_t left = (int64_t)l->limit[lane] - l->launched[lane] - 1;
    if (l->watched[lane]) return 0;
    if (left < most) most = left;
  }
  return most;
}

void k3_lanes_rows(const k3_lanes *l, const k3_plan_rows *r, int prefill, int decode, int verify, int32_t *words,
                   uint8_t *kind, uint8_t *sample) {
  int64_t all = r->n + r->n_chunks;
  int32_t *lane = words, *start = words + all, *length = words + 2 * all, *generation = words + 3 * all;
  for (int64_t i = 0; i < r->n; i++) {
    lane[i] = r->lane[i];
    start[i] = r->start[i];
    length[i] = r->window ? r->window[i] : 1;
    kind[i] = (uint8_t)(length[i] > 1 ? verify : decode);
    sample[i] = 1;
  }
  for (int64_t i = r->n; i < all; i++) {
    const int32_t *chunk = r->chunks + 4 * (i - r->n);
    lane[i] = chunk[0];
    start[i] = chunk[1];
    length[i] = chunk[2] - chunk[1];
    kind[i] = (uint8_t)prefill;
    sample[i] = (uint8_t)chunk[3];
  }
  for (int64_t i = 0; i < all; i++) generation[i] = l->generation[lane[i]];
}

/* Whether row a goes before row b. */
static bool before(const k3_lanes *l, const k3_lane_rows *r, int32_t a, int32_t b) {
  const k3_rank *x = &l->rank[r->lane[a]], *y = &l->rank[r->lane[b]];
  for (int i = 0; i < 3; i++)
    if (x->word[i] != y->word[i]) return x->word[i] < y->word[i];
  return a < b;
}

/* Shell sort of rows by rank, in place. */
static void by_rank(const k3_lanes *l, const k3_lane_rows *r, int32_t *row, int32_t *need, int64_t n) {
  int64_t gap = 1;
  while (gap < n / 3) gap = 3 * gap + 1;
  for (; gap; gap /= 3) {
    for (int64_t i = gap; i < n; i++) {
      int32_t one = row[i], pages = need[i];
      int64_t at = i;
      for (; at >= gap && before(l, r, one, row[at - gap]); at -= gap) {
        row[at] = row[at - gap];
        need[at] = need[at - gap];
      }
      row[at] = one;
      need[at] = pages;
    }
  }
}

void k3_lanes_survey(const k3_lanes *l, const k3_lane_rows *r, int32_t *row, int32_t *need, k3_lane_needs *out) {
  *out = (k3_lane_needs){0, 0, 0};
  for (int64_t i = 0; i < r->n; i++) {
    int32_t lane = r->lane[i];
    int64_t end = l->launched[lane] + tokens_of(r, i), pages = (end + l->span - 1) / l->span;
    out->n_fresh += max64(0, pages - l->touched[lane]);
    if (end <= l->covered[lane]) continue;
    row[out->n_short] = (int32_t)i;
    need[out->n_short] = (int32_t)(pages - l->covered[lane] / l->span);
    out->pages += need[out->n_short++];
  }
  by_rank(l, r, row, need, out->n_short);
}

int k3_lanes_give(k3_lanes *l, const k3_lane_rows *r, const int32_t *row, const int32_t *need, int64_t n,
                  const int32_t *pages) {
  for (int64_t i = 0; i < n; i++) {
    const k3_list *held = &l->held[r->lane[row[i]]];
    if (held->count + need[i] > held->capacity) return K3_E_CORRUPT;
  }
  for (int64_t i = 0; i < n; i++) {
    int32_t lane = r->lane[row[i]];
    k3_list *held = &l->held[lane];
    memcpy(held->items + held->count, pages, (size_t)need[i] * sizeof *pages);
    pages += need[i];
    held->count += need[i];
    l->covered[lane] = (int32_t)(held->count * l->span);
  }
  return K3_OK;
}

/* Shell sort, ascending. */
static void sort(int64_t *key, int64_t n) {
  int64_t gap = 1;
  while (gap < n / 3) gap = 3 * gap + 1;
  for (; gap; gap /= 3) {
    for (int64_t i = gap; i < n; i++) {
      int64_t one = key[i], at = i;
      for (; at >= gap && key[at - gap] > one; at -= gap) key[at] = key[at - gap];
      key[at] = one;
    }
  }
}

/* Steps before a row needs its next page. */
static int64_t free_steps(const k3_lanes *l, const k3_lane_rows *r, int32_t row) {
  return l->covered[r->lane[row]] - l->launched[r->lane[row]];
}

void k3_lanes_deal(const k3_lanes *l, const k3_lane_rows *r, const int32_t *row, const int32_t *need, int64_t n,
                   const int32_t *pages, int64_t *key, int32_t *dealt) {
  /* In each round of `span` steps a row needs one page, always at the same step of it. */
  int64_t total = 0, given = 0, *first = key + n; /* of each row's pages in `dealt` */
  for (int64_t i = 0; i < n; i++) {
    key[i] = (free_steps(l, r, row[i]) % l->span) << 32 | i;
    first[i] = total;
    total += need[i];
  }
  sort(key, n);
  for (int64_t round = 0; given < total; round++) {
    for (int64_t k = 0; k < n; k++) {
      int64_t i = key[k] & INT32_MAX, nth = round - free_steps(l, r, row[i]) / l->span;
      if (nth < 0 || nth >= need[i]) continue;
      dealt[first[i] + nth] = pages[given++];
    }
  }
}

void k3_lanes_take(k3_lanes *l, const k3_lane_rows *r, const int32_t *row, const int32_t *need, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    int32_t lane = r->lane[row[i]];
    l->held[lane].count -= need[i];
    l->covered[lane] = (int32_t)(l->held[lane].count * l->span);
  }
}

int64_t k3_lanes_touch(k3_lanes *l, const k3_lane_rows *r, int32_t *fresh, int32_t *zero) {
  int64_t zeroed = 0;
  for (int64_t i = 0; i < r->n; i++) {
    int32_t lane = r->lane[i];
    int64_t start = l->launched[lane], end = start + tokens_of(r, i), index = l->touched[lane];
    /* pages [low, high) are overwritten whole */
    int64_t low = (start + l->span - 1) / l->span, high = r->steps == 1 ? end / l->span : 0;
    for (; index * l->span < end; index++) {
      int32_t page = l->held[lane].items[index];
      *fresh++ = lane;
      *fresh++ = (int32_t)index;
      *fresh++ = page;
      if (index < low || index >= high) zero[zeroed++] = page;
    }
    l->touched[lane] = (int32_t)index;
  }
  return zeroed;
}

void k3_lanes_untouch(k3_lanes *l, const int32_t *fresh, int64_t n) {
  for (int64_t i = n - 1; i >= 0; i--) l->touched[fresh[3 * i]] = fresh[3 * i + 1];
}

int k3_lanes_launch(k3_lanes *l, const k3_lane_rows *r, int64_t step) {
  int ends = 0;
  for (int64_t i = 0; i < r->n_all; i++) {
    l->inflight[r->all[i]]++;
    l->last_step[r->all[i]] = step;
  }
  for (int64_t i = 0; i < r->n; i++) {
    int32_t lane = r->lane[i];
    l->launched[lane] += (int32_t)tokens_of(r, i);
    ends |= l->watched[lane] || l->limit[lane] - l->launched[lane] <= 1;
  }
  return ends;
}

int k3_lanes_judge(const k3_lane_rows *r, const int32_t *accepted, const uint8_t *done, int64_t n_tokens,
                   int last_done) {
  int64_t total = 0;
  for (int64_t i = 0; i < r->n_all; i++) {
    if (accepted[i] < 0 || accepted[i] > (i < r->n ? tokens_of(r, i) : r->sample[i]) || done[i] > last_done) return 0;
    total += accepted[i];
  }
  return total == n_tokens;
}

int k3_lanes_commit(k3_lanes *l, const k3_lane_rows *r, const int32_t *accepted, const uint8_t *done,
                    const int32_t *tokens, int64_t n_tokens, int last_done, int32_t *loud, k3_lane_booked *out) {
  const int32_t *first = tokens;
  if (!k3_lanes_judge(r, accepted, done, n_tokens, last_done)) return 0;
  *out = (k3_lane_booked){0, 0, 0};
  for (int64_t i = 0; i < r->n_all; i++) {
    int32_t lane = r->all[i], n = accepted[i];
    k3_list *text = &l->text[lane];
    l->inflight[lane]--;
    if (i < r->n) l->launched[r->lane[i]] -= (int32_t)(tokens_of(r, i) - n);
    if (!n) {
      out->overruns += i < r->n || r->sample[i];
    } else if (done[i] || l->phase[lane] == K3_LANE_DRAIN || text->count + n > text->capacity) {
      loud[2 * out->n_loud] = (int32_t)i;
      loud[2 * out->n_loud++ + 1] = (int32_t)(tokens + n - first);
    } else {
      memcpy(text->items + text->count, tokens, (size_t)n * sizeof *tokens);
      text->count += n;
      out->quiet += n;
    }
    tokens += n;
  }
  return 1;
}
