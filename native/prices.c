#include "prices.h"

#include <math.h>
#include <string.h>

void k3_prices_cost(const k3_sections *p, const double *d, double *cost) {
    for (int32_t t = 0; t < p->nodes; t++) {
        double held = 0;
        for (int64_t i = p->first[t]; i < p->first[t + 1]; i++) {
            double span = d[t] - d[p->last[i]];
            held += p->kv[i] * span;
            cost[i] = held + p->state * span;
        }
    }
}

/* Add one request's options, each weighted, to the load. */
static void spread(const k3_sections *p, int32_t t, const double *weight, double *at) {
    double deeper = 0, sum = 0;
    for (int64_t i = p->first[t + 1] - 1; i >= p->first[t]; i--) {
        deeper += weight[i];
        double bytes = p->state * weight[i] + p->kv[i] * deeper;
        at[p->last[i]] -= bytes;
        sum += bytes;
    }
    at[t] += sum;
}

void k3_prices_load(const k3_sections *p, const double *x, double *at) {
    memset(at, 0, (size_t)p->nodes * sizeof *at);
    for (int32_t t = 0; t < p->nodes; t++) spread(p, t, x, at);
}

typedef struct {
    const k3_sections *p;
    const double *theta, *delta, *chain;
    double *weight;       /* [options] */
    double *pivot, *link; /* [nodes] LDL^T of the preconditioner; row 0 is left out */
} newton;

/* out = M d, row 0 left out. */
static void multiply(const newton *m, const double *d, double *out) {
    const k3_sections *p = m->p;
    memset(out, 0, (size_t)p->nodes * sizeof *out);
    for (int32_t t = 0; t < p->nodes; t++) {
        int64_t from = p->first[t], to = p->first[t + 1];
        double held = 0, sum = 0;
        for (int64_t i = from; i < to; i++) {
            double span = d[t] - d[p->last[i]];
            held += p->kv[i] * span;
            m->weight[i] = m->theta[i] * (held + p->state * span);
            sum += m->weight[i];
        }
        if (from == to) continue;
        double share = sum / m->delta[t];
        for (int64_t i = from; i < to; i++) m->weight[i] -= m->theta[i] * share;
        spread(p, t, m->weight, out);
    }
    for (int32_t t = 1; t < p->nodes; t++) {
        double flow = m->chain[t - 1] * (d[t] - d[t - 1]);
        out[t] += flow;
        out[t - 1] -= flow;
    }
    out[0] = 0;
}

/* The diagonal of A (theta - theta theta^T / delta) A^T, added to `diagonal`. Of option i the column has kv[j] at
 * last[j] for j <= i, `state` more at last[i], and minus their sum at the request. */
static void diagonal_of(const newton *m, double *diagonal) {
    const k3_sections *p = m->p;
    for (int32_t t = 0; t < p->nodes; t++) {
        int64_t from = p->first[t], to = p->first[t + 1];
        double whole = p->state, sum = 0, square = 0, deeper = 0;
        for (int64_t i = from; i < to; i++) {
            whole += p->kv[i];
            sum += m->theta[i] * whole;
            square += m->theta[i] * whole * whole;
        }
        if (from < to) diagonal[t] += fmax(0, square - sum * sum / m->delta[t]);
        for (int64_t i = to - 1; i >= from; i--) {
            double own = p->kv[i] + p->state, mean = m->theta[i] * own + deeper * p->kv[i];
            double part = m->theta[i] * own * own + deeper * p->kv[i] * p->kv[i] - mean * mean / m->delta[t];
            diagonal[p->last[i]] += fmax(0, part);
            deeper += m->theta[i];
        }
    }
}

static void factor(newton *m) {
    int32_t n = m->p->nodes;
    double *diagonal = m->pivot;
    memset(diagonal, 0, (size_t)n * sizeof *diagonal);
    diagonal_of(m, diagonal);
    for (int32_t t = 1; t < n; t++) {
        /* An own rounding error of the sums keeps a pivot above zero. */
        diagonal[t] += (m->chain[t - 1] + (t + 1 < n ? m->chain[t] : 0)) * (1 + 1e-12) + 1e-300;
        m->link[t] = 0;
        if (t > 1) {
            m->link[t] = -m->chain[t - 1] / diagonal[t - 1];
            diagonal[t] -= m->link[t] * m->link[t] * diagonal[t - 1];
        }
    }
}

static void precondition(const newton *m, const double *r, double *z) {
    int32_t n = m->p->nodes;
    z[0] = 0;
    for (int32_t t = 1; t < n; t++) z[t] = r[t] - m->link[t] * z[t - 1];
    for (int32_t t = n - 1; t > 0; t--) z[t] = z[t] / m->pivot[t] - (t + 1 < n ? m->link[t + 1] * z[t + 1] : 0);
}

static double dot(const double *a, const double *b, int32_t n) {
    double sum = 0;
    for (int32_t t = 0; t < n; t++) sum += a[t] * b[t];
    return sum;
}

int k3_prices_solve(const k3_sections *p, const double *theta, const double *delta, const double *chain,
                    const double *rhs, double *d, double *work, double accuracy, int limit) {
    int32_t n = p->nodes;
    double *r = work, *z = r + n, *way = z + n, *image = way + n;
    newton m = {p, theta, delta, chain, image + 3 * (size_t)n, image + n, image + 2 * (size_t)n};
    if (n < 2) return 0;
    factor(&m);
    memcpy(r, rhs, (size_t)n * sizeof *r);
    r[0] = d[0] = 0;
    precondition(&m, r, z);
    double goal = accuracy * accuracy * dot(r, z, n);
    multiply(&m, d, image);
    for (int32_t t = 0; t < n; t++) r[t] -= image[t];
    precondition(&m, r, z);
    memcpy(way, z, (size_t)n * sizeof *z);
    double size = dot(r, z, n);
    int step = 0;
    for (; step < limit && size > goal; step++) {
        multiply(&m, way, image);
        double curve = dot(way, image, n);
        if (!(curve > 0)) break; /* rounding: no way on */
        double far = size / curve;
        for (int32_t t = 1; t < n; t++) {
            d[t] += far * way[t];
            r[t] -= far * image[t];
        }
        precondition(&m, r, z);
        double next = dot(r, z, n), turn = next / size;
        for (int32_t t = 1; t < n; t++) way[t] = z[t] + turn * way[t];
        size = next;
    }
    return step;
}
