/* Everything that only reads: the match, paths and counters. */
#include "tree_internal.h"

typedef struct {
    const k3_tree *t;
    const int32_t *tokens;
    int32_t n, limit;
    int64_t before_step;
    k3_match *out;
} query;

/* A whole edge matches: is its checkpoint the deepest usable so far? */
static void consider(const query *q, int32_t x) {
    const node *n = &q->t->nodes[x];
    int32_t depth = depth_of(n);
    k3_match *out = q->out;
    if (n->state < 0 && !(K3_MUTANT(K3_MUTANT_TOMBSTONE) && n->flags & HAD_STATE)) {
        if (n->flags & HAD_STATE && depth > out->evicted) out->evicted = depth;
        return;
    }
    if (stamp_of(n) >= q->before_step && !K3_MUTANT(K3_MUTANT_STAMP)) return;
    if (depth > out->full) out->full = depth;
    if (depth > out->depth && (depth <= q->limit || K3_MUTANT(K3_MUTANT_LIMIT))) {
        out->node = x;
        out->depth = depth;
        out->state = n->state;
    }
}

static void know(const query *q, int32_t depth, int bit) {
    if (depth > q->out->known) q->out->known = depth;
    if (bit && depth > q->out->kv) q->out->kv = depth;
}

/* Children of one treap that agree with tokens[at:] inside their first page: the longest agreement is that of a
 * neighbour in the order; whole edges shorter than a page lie on prefixes of the key, longest first. Returns the child
 * that shares the whole page, or NONE. O(log c), once more for every prefix of the key that is an edge or nearly. */
static int32_t look_in_page(const query *q, int32_t root, int bit, int32_t at) {
    const k3_tree *t = q->t;
    const int32_t *key = q->tokens + at;
    int32_t n = q->n - at < t->page ? q->n - at : t->page, whole = NONE, after;
    int32_t x = child_at_or_before(t, root, key, n, &after);
    if (after != NONE) {
        const node *c = &t->nodes[after];
        know(q, at + common(c->tokens, key, c->len < n ? c->len : n), bit);
    }
    while (x != NONE) {
        const node *c = &t->nodes[x];
        int32_t same = common(c->tokens, key, c->len < n ? c->len : n);
        know(q, at + same, bit);
        if (same == t->page) whole = x;
        else if (same == c->len && !K3_MUTANT(K3_MUTANT_TAILS)) consider(q, x);
        n = same == n || same == c->len ? same - 1 : same;
        if (n <= 0) break;
        x = child_at_or_before(t, root, key, n, &after);
    }
    return whole;
}

static void match_below(const query *q, int32_t x) {
    const k3_tree *t = q->t;
    const int32_t *tokens = q->tokens;
    int32_t n = q->n, at = 0;
    *q->out = (k3_match){.node = x, .state = NONE};
    while (at < n) {
        const node *p = &t->nodes[x];
        int32_t child = NONE;
        if (few_children(t, p) == 1) {
            child = p->kids[p->kids[1] != NONE];
        } else {
            for (int bit = 0; bit < 2; bit++) {
                if (p->kids[bit] == NONE) continue;
                int32_t whole = look_in_page(q, p->kids[bit], bit, at);
                if (whole != NONE) child = whole;
            }
        }
        if (child == NONE) break;
        const node *c = &t->nodes[child];
        int32_t same = common(c->tokens, tokens + at, c->len < n - at ? c->len : n - at);
        if (K3_MUTANT(K3_MUTANT_FIRST_PAGE) && same >= t->page) same = c->len < n - at ? c->len : n - at;
        know(q, at + same, kv_bit(c));
        if (same < c->len) break;
        consider(q, child);
        if (is_tail(t, c)) break;
        at += same;
        x = child;
    }
}

int k3_tree_match(k3_tree *t, int32_t scope, const int32_t *tokens, int32_t n, int32_t limit, int64_t before_step,
                  k3_match *out) {
    if (scope < 0 || scope >= t->n_roots || n < 0) return K3_E_ARG;
    match_below(&(query){t, tokens, n, limit, before_step, out}, t->roots[scope]);
    for (int32_t s = 0; K3_MUTANT(K3_MUTANT_SCOPE) && s < t->n_roots && out->known >= t->page; s++) {
        k3_match other;
        match_below(&(query){t, tokens, n, limit, before_step, &other}, t->roots[s]);
        if (other.depth > out->depth) *out = other;
    }
    if (K3_MUTANT(K3_MUTANT_MATCH_TOUCHES)) {
        t->nodes[out->node].touch = ++t->clock;
        settle(t, out->node);
    }
    return K3_OK;
}

int32_t k3_tree_root(const k3_tree *t, int32_t scope) {
    return scope >= 0 && scope < t->n_roots ? t->roots[scope] : K3_E_ARG;
}

int32_t k3_tree_state(k3_tree *t, int32_t x) {
    int rc = need_live(t, x);
    return rc < 0 ? rc : t->nodes[x].state;
}

int32_t k3_tree_depth(k3_tree *t, int32_t x) {
    int rc = need_live(t, x);
    return rc < 0 ? rc : depth_of(&t->nodes[x]);
}

int k3_tree_pages(k3_tree *t, int32_t x, int32_t *out) {
    int rc = need_live(t, x);
    if (rc < 0) return rc;
    if (!kv_bit(&t->nodes[x])) return corrupt(t, "node %d is a ghost and has no pages", x);
    for (const node *n = &t->nodes[x]; n->parent != NONE; n = &t->nodes[n->parent])
        memcpy(out + n->start / t->page, pages_at(n), (size_t)pages_of(t, n->len) * sizeof *out);
    return K3_OK;
}

int k3_tree_path_tokens(k3_tree *t, int32_t x, int32_t *out) {
    int rc = need_live(t, x);
    if (rc < 0) return rc;
    for (const node *n = &t->nodes[x]; n->parent != NONE; n = &t->nodes[n->parent])
        memcpy(out + n->start, n->tokens, (size_t)n->len * sizeof *out);
    return K3_OK;
}

int k3_tree_info(k3_tree *t, int32_t x, k3_node_info *out) {
    int rc = need_live(t, x);
    if (rc < 0) return rc;
    const node *n = &t->nodes[x];
    *out = (k3_node_info){.depth = depth_of(n), .start = n->start, .parent = n->parent, .state = n->state,
                          .kind = n->kind, .lock = n->lock, .children = few_children(t, n), .scope = scope_of(t, n),
                          .has_kv = kv_bit(n), .superseded = (n->flags & SUPERSEDED) != 0, .is_tail = is_tail(t, n),
                          .had_state = (n->flags & HAD_STATE) != 0, .unused = n->state >= 0 && !(n->flags & USED),
                          .stamp = stamp_of(n), .kv_stamp = kv_stamp_of(n), .note = K3_USE_RUNNING, .class = NONE,
                          .value = value_of(t, x)};
    const price *p = price_of(t, n);
    if (!p) return K3_OK;
    out->note = p->note;
    out->turn = p->turn;
    out->class = p->class == NO_CLASS ? NONE : p->class;
    out->age = p->age;
    return K3_OK;
}

void k3_tree_count(const k3_tree *t, k3_tree_counters *out) {
    const int64_t *c = t->counters;
    int64_t words = c[KV_TOKENS] + c[GHOST_TOKENS] + c[KV_PAGES] + t->cap_pages + t->cap + t->cap_roots + t->cap_prices;
    *out = (k3_tree_counters){c[NODES], c[CHECKPOINTS], c[KV_PAGES], c[KV_TOKENS], c[GHOST_TOKENS], c[LOCKS],
                              c[KV_TOKENS] + c[GHOST_TOKENS],
                              (int64_t)sizeof *t + (int64_t)sizeof(node) * t->cap + 4 * words +
                                  (int64_t)sizeof(price) * t->cap_prices + bytes_learned(t)};
}

int32_t k3_tree_walk(const k3_tree *t, int32_t *id, int32_t *depth, int32_t *state, int64_t *stamp, int32_t *scope) {
    int32_t k = 0;
    for (int32_t x = 0; x < t->top; x++) {
        const node *n = &t->nodes[x];
        if (!(n->flags & LIVE) || !kv_bit(n) || n->flags & ROOT) continue;
        id[k] = x;
        depth[k] = depth_of(n);
        state[k] = n->state;
        stamp[k] = stamp_of(n);
        scope[k++] = scope_of(t, n);
    }
    return k;
}

void k3_tree_page_refs(const k3_tree *t, int32_t *out, int32_t n) {
    memset(out, 0, (size_t)n * sizeof *out);
    for (int32_t x = 0; x < t->top; x++) {
        const node *k = &t->nodes[x];
        if (!(k->flags & LIVE) || !kv_bit(k) || k->flags & ROOT) continue;
        const int32_t *pages = pages_at(k);
        for (int32_t i = 0; i < pages_of(t, k->len); i++)
            if (pages[i] >= 0 && pages[i] < n) out[pages[i]]++;
    }
}
