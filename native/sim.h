/* Plans of the sim executor: what PREFILL and DECODE rows of one plan bring, for lanes without stop ids, and when. The
 * rules are those of executors/sim.py, executors/lanes.py (whose tables these are: columns as there) and
 * executors/cost.py: the same floating-point operations in the same order. */
#ifndef K3_SIM_H
#define K3_SIM_H
#include "k3.h"

/* cffi: begin */
enum {
  K3_SIM_GENERATION, K3_SIM_DEPTH, K3_SIM_LAST, K3_SIM_DONE, K3_SIM_PROMPT, K3_SIM_LIMIT, K3_SIM_BASE, K3_SIM_END,
  K3_SIM_PLAIN_END, K3_SIM_COLUMNS
};

typedef struct {
  int64_t *table;       /* [lanes][K3_SIM_COLUMNS] */
  int64_t *stamp;       /* [lanes] scratch */
  const uint64_t *keys; /* [lanes] */
  const int32_t *pool;  /* scripts */
  int64_t lanes, serial;
  uint64_t vocab;
} k3_sim;

/* The cost model, as far as it concerns these rows: microseconds. */
typedef struct {
  double base, prefill_token, prefill_context, row, context, idle, copy_bytes_per_us;
} k3_sim_cost;

/* What a snapshot may capture of a PREFILL row: any depth, those on its chunks, its end. */
enum { K3_SIM_ANY, K3_SIM_GRID, K3_SIM_FINAL };

/* A model, and what the executor can. */
typedef struct {
  k3_sim_cost cost;
  int64_t page_bytes, state_bytes, chunk, capture;
} k3_sim_model;

/* A plan as in k3mem.plan.Plan, its rows each of `repeat` steps. moves: [n_moves][4], snapshots: [n_snapshots][3]. */
typedef struct {
  int64_t n, n_tokens, repeat, n_moves, n_copies, n_restores, n_snapshots;
  const uint8_t *kind, *sample;
  const int32_t *lane, *generation, *start, *length, *offset, *tokens, *moves, *snapshots;
} k3_sim_rows;

/* What came of a plan: accepted[n], done[n], tokens[as judged], written[n_snapshots], times[repeat]. */
typedef struct {
  int32_t *accepted, *tokens;
  uint8_t *done, *written;
  double *times;
} k3_sim_out;

/* How many tokens the rows bring; -1: one of them is of another kind, has stop ids, or does not fit its lane, or a
 * snapshot cannot be taken. Nothing changes. O(rows + snapshots). */
int64_t k3_sim_judge(k3_sim *s, const k3_sim_model *m, const k3_sim_rows *r);
/* Run a plan that was judged and that begins at `start`, seconds. O(rows x steps + tokens + moves). */
void k3_sim_run(k3_sim *s, const k3_sim_model *m, const k3_sim_rows *r, double start, k3_sim_out *out);
/* How many repetitions, 1 .. limit, of judged DECODE rows without snapshots are planned before `until`, if the first
 * begins at `start`. The first n of them are planned at earlier[n], 1 .. K3_SIM_AHEAD, and each other one when the
 * n-th before it ends; none before `now`. Nothing changes but earlier[]. O(rows x answer). */
enum { K3_SIM_AHEAD = 64 };
int64_t k3_sim_ahead(const k3_sim *s, const k3_sim_model *m, const k3_sim_rows *r, double start, double *earlier,
                     int64_t n, double now, double until, int64_t limit);
/* cffi: end */

#endif
