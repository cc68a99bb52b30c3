#include "sim.h"

enum { PREFILL = 0, DECODE = 1, LENGTH = 2, PAGE = 0 }; /* of k3mem.plan: Row, Done, kinds of moves */

static int64_t *row_of(const k3_sim *s, int64_t lane) { return s->table + lane * K3_SIM_COLUMNS; }

/* Tokens of a DECODE row. */
static int64_t budget(const int64_t *t, int64_t k) {
  int64_t left = t[K3_SIM_LIMIT] - t[K3_SIM_DEPTH] - 1;
  return t[K3_SIM_DONE] || left < 0 ? 0 : left < k ? left : k;
}

/* Whether a PREFILL row that fits brings a token. */
static bool samples(const k3_sim_rows *r, int64_t i, const int64_t *t) {
  return r->sample[i] && !t[K3_SIM_DONE] && (int64_t)r->start[i] + r->length[i] < t[K3_SIM_LIMIT];
}

static bool fits(const k3_sim_rows *r, int64_t i, const int64_t *t) {
  if (t[K3_SIM_GENERATION] != r->generation[i] || t[K3_SIM_PLAIN_END] < 0) return false;
  if (r->kind[i] == DECODE) return t[K3_SIM_DEPTH] <= r->start[i] && t[K3_SIM_LAST] >= 0;
  int64_t length = r->length[i], given = (int64_t)r->offset[i + 1] - r->offset[i];
  if (r->kind[i] != PREFILL || r->repeat != 1 || r->start[i] != t[K3_SIM_DEPTH] || length < 1 || given != length ||
      r->offset[i] < 0 || r->offset[i + 1] > r->n_tokens)
    return false;
  return t[K3_SIM_DONE] || !r->sample[i] || r->start[i] + length >= t[K3_SIM_PROMPT];
}

/* Whether a snapshot names a row, and a depth that a PREFILL row can capture. */
static bool captures(const k3_sim_model *m, const k3_sim_rows *r, const int32_t *snapshot) {
  int64_t row = snapshot[0], depth = snapshot[1];
  if (row < 0 || row >= r->n) return false;
  if (r->kind[row] != PREFILL) return true;
  int64_t start = r->start[row], end = start + r->length[row];
  if (depth <= start || depth > end) return false;
  return depth == end || m->capture == K3_SIM_ANY || (m->capture == K3_SIM_GRID && (depth - start) % m->chunk == 0);
}

int64_t k3_sim_judge(k3_sim *s, const k3_sim_model *m, const k3_sim_rows *r) {
  int64_t total = 0, serial = ++s->serial;
  for (int64_t i = 0; i < r->n; i++) {
    int64_t lane = r->lane[i];
    if (lane < 0 || lane >= s->lanes || s->stamp[lane] == serial) return -1;
    s->stamp[lane] = serial;
    const int64_t *t = row_of(s, lane);
    if (!fits(r, i, t)) return -1;
    total += r->kind[i] == DECODE ? budget(t, r->repeat) : samples(r, i, t);
  }
  for (int64_t i = 0; i < r->n_snapshots; i++)
    if (!captures(m, r, r->snapshots + 3 * i)) return -1;
  return total;
}

/* The token at a position after the token before it: the script's, or a hash. */
static int32_t token_at(const k3_sim *s, int64_t lane, const int64_t *t, int64_t position, int64_t last) {
  int64_t place = t[K3_SIM_BASE] + position;
  if (place < t[K3_SIM_END]) return s->pool[place];
  uint64_t x = s->keys[lane] + (uint64_t)position * 0x9E3779B97F4A7C15u;
  x ^= (uint64_t)last * 0xD6E8FEB86659FD93u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  x ^= x >> 31;
  return (int32_t)(x % s->vocab);
}

/* One token more: what the lane keeps of it. */
static void commit(int64_t *t, int32_t token, int64_t committed) {
  t[K3_SIM_LAST] = token;
  t[K3_SIM_DONE] = committed >= t[K3_SIM_LIMIT] ? LENGTH : 0;
}

/* What rows cost, in the words of the cost model. */
typedef struct {
  int64_t prefill_tokens, prefill_context, decode_rows, context_sum;
} work;

/* Microseconds of a step. */
static double step_us(const k3_sim_cost *c, const work *w, int64_t copied) {
  if (!w->prefill_tokens && !w->decode_rows) return c->idle;
  double us = c->base + c->prefill_token * (double)w->prefill_tokens;
  us += c->prefill_context * (double)w->prefill_context / 1000;
  us += c->row * (double)w->decode_rows;
  us += c->context * (double)w->context_sum / 1000;
  return us + (double)copied / c->copy_bytes_per_us;
}

/* Bytes read plus bytes written by moves, page copies and restores. */
static int64_t copied_of(const k3_sim_model *m, const k3_sim_rows *r) {
  int64_t pages = r->n_copies, states = r->n_restores;
  for (int64_t i = 0; i < r->n_moves; i++) {
    pages += r->moves[4 * i + 1] == PAGE;
    states += r->moves[4 * i + 1] != PAGE;
  }
  return 2 * (pages * m->page_bytes + states * m->state_bytes);
}

/* Rows of accepted[n] that add a token in step j, from 0. */
static int64_t live(const int32_t *accepted, int64_t n, int64_t j) {
  int64_t rows = 0;
  for (int64_t i = 0; i < n; i++) rows += accepted[i] > j;
  return rows;
}

/* Which snapshots are written; before[i] and after[i] of row i are `after - accepted` (DECODE) and the table's. The
 * step that writes one copies 2 states: into extra[repeat], in states. */
static void take_snapshots(const k3_sim *s, const k3_sim_rows *r, const int32_t *accepted, uint8_t *written,
                           double *extra) {
  for (int64_t i = 0; i < r->n_snapshots; i++) {
    int64_t row = r->snapshots[3 * i], depth = r->snapshots[3 * i + 1], after = row_of(s, r->lane[row])[K3_SIM_DEPTH];
    bool decode = r->kind[row] == DECODE;
    int64_t before = decode ? after - accepted[row] : r->start[row];
    written[i] = before < depth && depth <= after;
    if (written[i]) extra[decode && r->repeat > 1 ? depth - before - 1 : 0] += 1;
  }
}

void k3_sim_run(k3_sim *s, const k3_sim_model *m, const k3_sim_rows *r, double start, k3_sim_out *out) {
  work w = {0, 0, 0, 0};
  int32_t *tokens = out->tokens;
  for (int64_t i = 0; i < r->n; i++) {
    int64_t lane = r->lane[i], *t = row_of(s, lane), depth = t[K3_SIM_DEPTH], n = 0;
    if (r->kind[i] == DECODE) {
      w.decode_rows++;
      w.context_sum += depth;
      n = budget(t, r->repeat);
      if (!n && !t[K3_SIM_DONE] && depth + 1 >= t[K3_SIM_LIMIT]) t[K3_SIM_DONE] = LENGTH;
      for (int64_t j = 1; j <= n; j++) {
        int32_t token = token_at(s, lane, t, depth + j, t[K3_SIM_LAST]);
        commit(t, token, depth + j + 1);
        *tokens++ = token;
      }
      t[K3_SIM_DEPTH] = depth + n;
    } else {
      int64_t length = r->length[i], end = r->start[i] + length;
      w.prefill_tokens += length;
      w.prefill_context += length * r->start[i];
      if (!t[K3_SIM_DONE]) {
        n = samples(r, i, t);
        t[K3_SIM_DEPTH] = end;
        if (n) {
          int32_t token = token_at(s, lane, t, end, r->tokens[r->offset[i + 1] - 1]);
          commit(t, token, end + 1);
          *tokens++ = token;
        } else if (r->sample[i]) {
          t[K3_SIM_DONE] = LENGTH;
        }
      }
    }
    out->accepted[i] = (int32_t)n;
    out->done[i] = (uint8_t)t[K3_SIM_DONE];
  }
  for (int64_t j = 0; j < r->repeat; j++) out->times[j] = 0;
  take_snapshots(s, r, out->accepted, out->written, out->times);
  int64_t copied = copied_of(m, r), least = r->repeat;
  for (int64_t i = 0; i < r->n; i++) least = out->accepted[i] < least ? out->accepted[i] : least;
  for (int64_t j = 0; j < r->repeat; j++) {
    copied += 2 * (int64_t)out->times[j] * m->state_bytes;
    start += step_us(&m->cost, &w, copied) * 1e-6;
    out->times[j] = start;
    if (r->repeat > 1) w.context_sum += j < least ? r->n : live(out->accepted, r->n, j);
    copied = 0;
  }
}

int64_t k3_sim_ahead(const k3_sim *s, const k3_sim_model *m, const k3_sim_rows *r, double start, double *earlier,
                     int64_t n, double now, double until, int64_t limit) {
  work w = {0, 0, r->n, 0};
  int64_t copied = copied_of(m, r), least = limit, j = 0;
  for (int64_t i = 0; i < r->n; i++) {
    const int64_t *t = row_of(s, r->lane[i]);
    w.context_sum += t[K3_SIM_DEPTH];
    least = budget(t, least);
  }
  for (; j < limit; j++) {
    double *planned = &earlier[j % n];
    if ((*planned > now ? *planned : now) >= until) break;
    *planned = start += step_us(&m->cost, &w, copied) * 1e-6;
    copied = 0;
    if (j < least) {
      w.context_sum += r->n;
      continue;
    }
    for (int64_t i = 0; i < r->n; i++) w.context_sum += budget(row_of(s, r->lane[i]), j + 1) > j;
  }
  return j ? j : 1;
}
