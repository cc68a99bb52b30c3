/* What the files of the mock device share: notes, free choices, shadow memory, tables. */
#ifndef K3_MOCK_INTERNAL_H
#define K3_MOCK_INTERNAL_H
#include <stdlib.h>
#include <string.h>

#include "mock.h"
#include "mock_model.h"

enum { K3_KIND_PAGE = 0, K3_KIND_STATE = 1 };
enum { K3_ROW_PREFILL = 0, K3_ROW_DECODE = 1, K3_ROW_VERIFY = 2 };
enum { K3_DONE_NO = 0, K3_DONE_STOP = 1, K3_DONE_LENGTH = 2 };

/* Write down a finding; args are int64_t. Out of memory drops it and is remembered. O(1) amortised. */
void k3_note(k3_mock *m, int code, int n, const int64_t *args);
#define K3_NOTE(m, code, ...)                                                                           \
  k3_note(m, code, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]){__VA_ARGS__})

/* Make room for one more item; false when out of memory, which is remembered. */
bool k3_mock_grow(k3_mock *m, void *table, int64_t n, int64_t *cap, size_t item);

/* The next 64 bits of the free choices: splitmix64. */
static inline uint64_t k3_dice(uint64_t *dice) {
  uint64_t x = *dice += UINT64_C(0x9E3779B97F4A7C15);
  x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
  x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
  return x ^ x >> 31;
}

/* A poison value, unlike any other. */
static inline int64_t k3_garbage(k3_mock *m) { return K3_POISON | (int64_t)(k3_dice(&m->dice) >> 3); }

/* order[n] = 0 .. n - 1, shuffled. O(n). */
static inline void k3_shuffle(k3_mock *m, int64_t *order, int64_t n) {
  for (int64_t i = n - 1; i > 0; i--) {
    int64_t j = (int64_t)(k3_dice(&m->dice) % (uint64_t)(i + 1)), swap = order[i];
    order[i] = order[j], order[j] = swap;
  }
}

static inline bool k3_mock_holds(const k3_mock *m, int kind, int64_t place) {
  return place >= 0 && place < m->places[kind];
}

static inline int64_t *k3_state_at(const k3_mock *m, int64_t place) {
  return m->state + place * K3_STATE_WIDTH * m->config.groups;
}

/* -- mock_memory.c: see executors/mock/memory.py -- */

k3_mock_page *k3_page_new(const k3_mock *m); /* uninitialised, NULL when out of memory */
void k3_page_fill(const k3_mock *m, k3_mock_page *page, int64_t value);
void k3_page_renew(k3_mock *m, int64_t place, int64_t value); /* without a claim */
void k3_page_change(k3_mock *m, int64_t place); /* before its content changes, or whose it is */
void k3_page_zero(k3_mock *m, int64_t place);
k3_mock_page *k3_page_for_write(k3_mock *m, int64_t place, int64_t low, int64_t high, const k3_mock_seat *writer,
                                int64_t step);
void k3_page_check_rest(k3_mock *m, int64_t place, const k3_mock_page *page, int64_t high);
void k3_page_digest(k3_mock *m, int64_t place, k3_mock_page *page, int64_t rows);
void k3_page_copy(k3_mock *m, int64_t source, int64_t destination, int64_t rows);
int64_t k3_state_read(k3_mock *m, int64_t place, int purpose, int64_t *out); /* its label */
void k3_state_write(k3_mock *m, int64_t place, const int64_t *content, int64_t label);
void k3_state_zero(k3_mock *m, int64_t place);
void k3_move(k3_mock *m, int kind, int64_t source, int64_t destination);

/* -- mock_tables.c: see executors/mock/tables.py -- */

int64_t k3_find(k3_mock *m, int kind, int64_t id, int64_t by);
k3_mock_lane *k3_tenant(k3_mock *m, int64_t lane, int64_t generation);
void k3_tables_update(k3_mock *m, const k3_mock_plan *plan);

/* -- mock_rows.c: see executors/mock/device.py -- */

typedef struct {
  int64_t lane; /* -1: the row does nothing */
  int64_t done, fresh, accepted;
  int64_t first_output, outputs, first_record, records;
  int64_t first_target, last_target; /* number of a snapshot, -1 for none */
} k3_mock_row;

typedef struct {
  int64_t token;
  int64_t fed[K3_MOCK_MAX_GROUPS];
} k3_mock_record;

typedef struct {
  int64_t row, token;
} k3_mock_accepted;

struct k3_mock_run {
  k3_mock_plan plan;
  k3_mock_row *rows;
  int64_t *next_target; /* [n_snapshots] next one of the same row, in the plan's order, or -1 */
  uint8_t *written;
  int64_t *order;
  int64_t *outputs;
  int64_t n_outputs, outputs_cap;
  k3_mock_record *records;
  int64_t n_records, records_cap;
  k3_mock_accepted *accepted;
  int64_t n_accepted, accepted_cap;
};

/* tokens[*first .. *end) of a row: a Python slice, wherever the offsets point. */
void k3_given(const k3_mock_plan *p, int64_t row, int64_t *first, int64_t *end);
void k3_rows_begin(k3_mock *m, k3_mock_run *r);
void k3_rows_forward(k3_mock *m, k3_mock_run *r);
void k3_rows_sample(k3_mock *m, k3_mock_run *r);
void k3_rows_fold(k3_mock *m, k3_mock_run *r);
void k3_rows_end(k3_mock *m, k3_mock_run *r);

#endif
