/* Rows of the sim executor: what PREFILL and DECODE rows of one plan bring, for lanes without stop ids. The rules are
 * those of executors/sim.py and executors/lanes.py, whose tables these are: columns as there. */
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

/* Rows as in k3mem.plan.Plan, each of `repeat` steps. */
typedef struct {
  int64_t n, n_tokens, repeat;
  const uint8_t *kind, *sample;
  const int32_t *lane, *generation, *start, *length, *offset, *tokens;
} k3_sim_rows;

/* What the rows cost, in the words of the cost model. */
typedef struct {
  int64_t prefill_tokens, prefill_context, decode_rows, context_sum;
} k3_sim_work;

/* How many tokens the rows bring; -1: one of them is of another kind, has stop ids, or does not fit its lane. Nothing
 * changes. O(rows). */
int64_t k3_sim_judge(k3_sim *s, const k3_sim_rows *r);
/* Run rows that were judged: accepted[n], done[n], depths before[n] and after[n], tokens[as judged]. O(rows + tokens). */
void k3_sim_run(k3_sim *s, const k3_sim_rows *r, int32_t *accepted, uint8_t *done, int64_t *before, int64_t *after,
                int32_t *tokens, k3_sim_work *work);
/* cffi: end */

#endif
