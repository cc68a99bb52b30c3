#include "sim.h"

enum { PREFILL = 0, DECODE = 1, LENGTH = 2 }; /* of k3mem.plan: Row, Done */

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

int64_t k3_sim_judge(k3_sim *s, const k3_sim_rows *r) {
  int64_t total = 0, serial = ++s->serial;
  for (int64_t i = 0; i < r->n; i++) {
    int64_t lane = r->lane[i];
    if (lane < 0 || lane >= s->lanes || s->stamp[lane] == serial) return -1;
    s->stamp[lane] = serial;
    const int64_t *t = row_of(s, lane);
    if (!fits(r, i, t)) return -1;
    total += r->kind[i] == DECODE ? budget(t, r->repeat) : samples(r, i, t);
  }
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

void k3_sim_run(k3_sim *s, const k3_sim_rows *r, int32_t *accepted, uint8_t *done, int64_t *before, int64_t *after,
                int32_t *tokens, k3_sim_work *work) {
  *work = (k3_sim_work){0, 0, 0, 0};
  for (int64_t i = 0; i < r->n; i++) {
    int64_t lane = r->lane[i], *t = row_of(s, lane), depth = t[K3_SIM_DEPTH], n = 0;
    before[i] = depth;
    if (r->kind[i] == DECODE) {
      work->decode_rows++;
      work->context_sum += depth;
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
      work->prefill_tokens += length;
      work->prefill_context += length * r->start[i];
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
    accepted[i] = (int32_t)n;
    after[i] = t[K3_SIM_DEPTH];
    done[i] = (uint8_t)t[K3_SIM_DONE];
  }
}
