/* Newton steps of the price bound (k3mem.replay.bound): a symmetric positive system, solved by conjugate gradients.
 *
 * Unknowns are cumulated prices d[0 .. nodes-1], one a request, d[0] = 0. Request t has the options first[t] ..
 * first[t+1]-1, by depth; option i ends a section of kv[i] bytes that request last[i] < t visited last. It costs
 *
 *     c_i(d) = state * (d[t] - d[last[i]]) + sum over the request's options j <= i of kv[j] * (d[t] - d[last[j]])
 *
 * so c is a sparse matrix A^T. The system is  A (theta - theta theta^T / delta) A^T + D^T chain D + guard  with theta an
 * option's weight, theta theta^T / delta a rank-one block a request, and D the difference of neighbours.
 */
#ifndef K3_PRICES_H
#define K3_PRICES_H

#include "k3.h"

/* cffi: begin */
typedef struct {
    int32_t nodes;
    double state;
    const int64_t *first; /* [nodes + 1] */
    const int64_t *last;  /* [options] */
    const double *kv;     /* [options] */
} k3_sections;

/* cost[i] = c_i(d). O(nodes + options). */
void k3_prices_cost(const k3_sections *p, const double *d, double *cost);

/* at[0 .. nodes-1] = A x: bytes that end at a request minus bytes that begin there, x[i] of each option taken.
 * O(nodes + options). */
void k3_prices_load(const k3_sections *p, const double *x, double *at);

/* Solve for d (in: a guess; out: the solution), d[0] = 0, until the preconditioned residual has fallen to `accuracy`
 * times that of d = 0, or `limit` steps are done. chain[s] couples d[s] and d[s + 1]. work: 6 * nodes + options
 * doubles. The preconditioner is the system's diagonal beside its chain: tridiagonal. Returns the steps taken; each is
 * O(nodes + options). */
int k3_prices_solve(const k3_sections *p, const double *theta, const double *delta, const double *chain,
                    const double *rhs, double *d, double *work, double accuracy, int limit);
/* cffi: end */

#endif
