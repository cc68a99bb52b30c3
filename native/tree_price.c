/* What a checkpoint is worth: its class, its age, the recompute that it saves for its bytes; and what is learned. */
#include <stdlib.h>

#include "tree_internal.h"

/* -- prices */

int reserve_prices(k3_tree *t, int32_t more) {
    if (t->cap_prices - t->top_prices >= more) return K3_OK;
    if (t->cap_prices > INT32_MAX / 2) return K3_E_MEMORY;
    int32_t cap = t->cap_prices + t->cap_prices / 16 + 64;
    void *p;
    if (!(p = realloc(t->prices, (size_t)cap * sizeof *t->prices))) return K3_E_MEMORY;
    t->prices = p;
    if (!(p = realloc(t->timers.at, (size_t)cap * sizeof(int32_t)))) return K3_E_MEMORY;
    t->timers.at = p;
    t->cap_prices = cap;
    return K3_OK;
}

price *give_price(k3_tree *t, int32_t x) {
    node *n = &t->nodes[x];
    if (price_of(t, n)) return price_of(t, n);
    int32_t i = t->free_price;
    if (i == NONE) i = t->top_prices++;
    else t->free_price = t->prices[i].timer;
    t->prices[i] = (price)BLANK_PRICE;
    t->prices[i].scope = n->scope;
    n->scope = PRICED - i;
    return &t->prices[i];
}

void drop_price(k3_tree *t, int32_t x) {
    node *n = &t->nodes[x];
    price *p = price_of(t, n);
    if (!p) return;
    int32_t i = PRICED - n->scope;
    n->scope = p->scope;
    *p = (price)BLANK_PRICE;
    p->timer = t->free_price;
    t->free_price = i;
}

void k3_tree_time(k3_tree *t, int64_t now) {
    if (now > 0 && (uint64_t)now > t->clock) t->clock = (uint64_t)now;
    reach_now(t);
}

int k3_tree_learn(k3_tree *t, int32_t n_classes, const uint16_t *class_of, const int64_t *edges, double state_tokens) {
    size_t cells = (size_t)n_classes * AGES, combinations = (size_t)STRUCTURES * NOTES_MAX * TURNS_MAX;
    if (t->n_classes || t->counters[CHECKPOINTS] || n_classes < 1 || n_classes >= NO_CLASS || edges[0] != 0)
        return K3_E_ARG;
    if (!(state_tokens > 0)) return K3_E_ARG;
    for (size_t i = 0; i < combinations; i++)
        if (class_of[i] >= n_classes) return K3_E_ARG;
    for (int i = 0; i < AGES; i++)
        if (edges[i + 1] <= edges[i]) return K3_E_ARG;
    t->edges = malloc((AGES + 1) * sizeof *t->edges);
    t->class_of = malloc(combinations * sizeof *t->class_of);
    t->values = calloc(cells, sizeof *t->values);
    t->returns = calloc(cells, sizeof *t->returns);
    t->exposure = calloc(cells, sizeof *t->exposure);
    if (!t->edges || !t->class_of || !t->values || !t->returns || !t->exposure) {
        free(t->edges);
        free(t->class_of);
        free(t->values);
        free(t->returns);
        free(t->exposure);
        t->edges = NULL;
        t->class_of = NULL;
        t->values = NULL;
        t->returns = t->exposure = NULL;
        return K3_E_MEMORY;
    }
    memcpy(t->edges, edges, (AGES + 1) * sizeof *t->edges);
    memcpy(t->class_of, class_of, combinations * sizeof *t->class_of);
    t->state_tokens = state_tokens;
    t->n_classes = n_classes;
    return K3_OK;
}

int64_t bytes_learned(const k3_tree *t) {
    if (!t->n_classes) return 0;
    size_t cell = sizeof *t->values + sizeof *t->returns + sizeof *t->exposure;
    size_t combinations = (size_t)STRUCTURES * NOTES_MAX * TURNS_MAX;
    return (int64_t)((AGES + 1) * sizeof *t->edges + combinations * sizeof *t->class_of +
                     (size_t)t->n_classes * AGES * cell);
}

int k3_tree_values(k3_tree *t, const float *values) {
    if (!t->n_classes) return K3_E_ARG;
    for (int32_t i = 0; values && i < t->n_classes * AGES; i++)
        if (!(values[i] >= 0)) return K3_E_ARG;
    t->valued = values != NULL;
    if (values) memcpy(t->values, values, (size_t)t->n_classes * AGES * sizeof *values);
    for (int32_t i = 0; i < t->heaps[EVICTABLE].n; i++) reweigh(t, t->heaps[EVICTABLE].at[i]);
    heapify(t);
    return K3_OK;
}

void k3_tree_learned(k3_tree *t, double **returns, double **exposure) {
    *returns = t->returns;
    *exposure = t->exposure;
}

/* -- ages: a heap by the time at which a node leaves its bucket */

static uint64_t crossing(const k3_tree *t, int32_t x) {
    const node *n = &t->nodes[x];
    return n->touch + t->edges[price_of(t, n)->age + 1];
}

static void seat_timer(k3_tree *t, int32_t i, int32_t x) {
    t->timers.at[i] = x;
    price_of(t, &t->nodes[x])->timer = i;
}

static void sift_timer(k3_tree *t, int32_t i) {
    heap *h = &t->timers;
    int32_t x = h->at[i];
    uint64_t when = crossing(t, x);
    for (; i > 0 && when < crossing(t, h->at[(i - 1) / 2]); i = (i - 1) / 2) seat_timer(t, i, h->at[(i - 1) / 2]);
    for (;;) {
        int64_t c = 2 * (int64_t)i + 1;
        if (c >= h->n) break;
        if (c + 1 < h->n && crossing(t, h->at[c + 1]) < crossing(t, h->at[c])) c++;
        if (crossing(t, h->at[c]) >= when) break;
        seat_timer(t, i, h->at[c]);
        i = (int32_t)c;
    }
    seat_timer(t, i, x);
}

void start_age(k3_tree *t, int32_t x) {
    price *p = price_of(t, &t->nodes[x]);
    p->age = 0;
    if (p->timer == NONE) seat_timer(t, t->timers.n++, x);
    sift_timer(t, p->timer);
}

static void stop_timer(k3_tree *t, int32_t x) {
    price *p = price_of(t, &t->nodes[x]);
    int32_t i = p->timer, last;
    if (i == NONE) return;
    p->timer = NONE;
    last = t->timers.at[--t->timers.n];
    if (last == x) return;
    seat_timer(t, i, last);
    sift_timer(t, i);
}

/* Seconds that n has been in its present bucket, at most the bucket's width. */
static double waited(const k3_tree *t, const node *n) {
    const price *p = price_of(t, n);
    uint64_t began = n->touch + t->edges[p->age], ends = n->touch + t->edges[p->age + 1];
    uint64_t now = t->clock < ends ? t->clock : ends;
    return now > began ? 1e-6 * (double)(now - began) : 0;
}

void end_age(k3_tree *t, int32_t x, bool returned) {
    const node *n = &t->nodes[x];
    price *p = price_of(t, n);
    if (!p || p->timer == NONE) return;
    size_t cell = (size_t)p->class * AGES + p->age;
    t->exposure[cell] += waited(t, n);
    if (returned) t->returns[cell]++;
    stop_timer(t, x);
    if (n->state < 0) p->class = NO_CLASS;
}

void k3_tree_waiting(k3_tree *t, double *out) {
    reach_now(t);
    for (int32_t i = 0; i < t->timers.n; i++) {
        const node *n = &t->nodes[t->timers.at[i]];
        const price *p = price_of(t, n);
        out[(size_t)p->class * AGES + p->age] += waited(t, n);
    }
}

void reach_now(k3_tree *t) {
    while (t->timers.n && crossing(t, t->timers.at[0]) <= t->clock && !K3_MUTANT(K3_MUTANT_AGE_STOPS)) {
        int32_t x = t->timers.at[0];
        const node *n = &t->nodes[x];
        price *p = price_of(t, n);
        t->exposure[(size_t)p->class * AGES + p->age] += waited(t, n);
        p->age++;
        if (p->age == AGES - 1) stop_timer(t, x);
        else sift_timer(t, 0);
        if (n->state < 0) {
            if (p->timer == NONE) p->class = NO_CLASS;
            continue;
        }
        reweigh(t, x);
        sift_at(t, x);
    }
    t->reached = t->clock;
}

/* -- classes and weights */

float value_of(const k3_tree *t, int32_t x) {
    const node *n = &t->nodes[x];
    const price *p = price_of(t, n);
    return n->state >= 0 && p && p->class != NO_CLASS ? t->values[(size_t)p->class * AGES + p->age] * p->weight : 0;
}

static int structure(const k3_tree *t, const node *n) {
    if (is_tail(t, n)) return price_of(t, n)->followed;
    if (n->kids[1] == NONE) return LEAF;
    return few_children(t, n) == 1 && n->kind != K3_BRANCH ? LINE : FORK;
}

void classify(k3_tree *t, int32_t x) {
    const node *n = &t->nodes[x];
    price *p = price_of(t, n);
    size_t row = (size_t)structure(t, n) * NOTES_MAX + p->note;
    p->class = t->class_of[row * TURNS_MAX + p->turn];
    reweigh(t, x);
}

bool reweigh(k3_tree *t, int32_t x) {
    const node *n = &t->nodes[x];
    if (n->state < 0 || K3_MUTANT(K3_MUTANT_WEIGHT_STALE)) return false;
    /* What goes with x: its edge and those above, up to a checkpoint, a fork, a lock. What it saves: all that lies
     * above the next checkpoint. */
    int64_t held = 0, saved = n->len;
    bool alone = n->kids[1] == NONE;
    if (alone) held = n->len;
    const node *above = &t->nodes[n->parent];
    for (; above->state < 0 && !(above->flags & ROOT); above = &t->nodes[above->parent]) {
        saved += above->len;
        alone = alone && above->lock == 0 && few_of(t, above, 1) == 1;
        if (alone) held += above->len;
    }
    float weight = (float)((double)saved / (t->state_tokens + (double)held));
    price *p = price_of(t, n);
    if (weight == p->weight) return false;
    p->weight = weight;
    return true;
}

void count_turns(k3_tree *t, int32_t x, bool again) {
    const node *n = &t->nodes[x], *above = &t->nodes[n->parent];
    while (above->state < 0 && !(above->flags & (ROOT | HAD_STATE))) above = &t->nodes[above->parent];
    bool earlier = (above->kind == K3_PROMPT_END || above->kind == K3_BRANCH) && stamp_of(above) != stamp_of(n);
    price *p = price_of(t, n);
    int turn = again ? p->turn + 1 : above->flags & ROOT ? 0 : price_of(t, above)->turn + earlier;
    p->turn = (uint8_t)(turn < TURNS_MAX ? turn : TURNS_MAX - 1);
}

int k3_tree_note(k3_tree *t, int32_t x, int32_t note) {
    int rc = need_live(t, x);
    if (rc < 0) return rc;
    if (note < 0 || note >= NOTES_MAX) return K3_E_ARG;
    reach_now(t);
    for (; x != NONE && !(t->nodes[x].flags & ROOT); x = t->nodes[x].parent) {
        node *n = &t->nodes[x];
        if (note == K3_USE_OVER && few_children(t, n) > 1) break;
        if (n->state >= 0) {
            if ((rc = reserve_prices(t, 1)) < 0) return rc;
            give_price(t, x)->note = (uint8_t)note;
            if (t->n_classes) {
                end_age(t, x, false);
                n->touch = ++t->clock;
                classify(t, x);
                start_age(t, x);
            }
            settle(t, x);
        }
        if (note != K3_USE_OVER) break;
    }
    return K3_OK;
}
