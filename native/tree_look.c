/* What the tree looks like, for reports and for those who place checkpoints. Nothing here changes it. */
#include "tree_internal.h"

void k3_tree_kinds(const k3_tree *t, int64_t *out) {
    memset(out, 0, (size_t)t->kinds * sizeof *out);
    for (int32_t x = 0; x < t->top; x++) {
        const node *n = &t->nodes[x];
        if (n->flags & LIVE && n->state >= 0) out[n->kind]++;
    }
}

typedef struct {
    const k3_tree *t;
    const int32_t *tokens;
    int32_t at, n, on; /* the path's place, the tokens from there, and the child that it goes on in */
    int32_t room, found;
    int32_t *depth, *count;
} forks;

/* Another one left at this depth; all who leave within a page are told together. */
static void note(forks *f, int32_t depth) {
    int32_t last = f->found - 1;
    if (last >= 0 && f->depth[last] / f->t->page == depth / f->t->page) {
        f->count[last]++;
    } else if (f->found < f->room) {
        f->depth[f->found] = depth / f->t->page * f->t->page;
        f->count[f->found++] = 1;
    }
}

/* All children in a treap that leave the path: those that the path neither goes on in nor contains whole. */
static void visit(forks *f, int32_t root) {
    const k3_tree *t = f->t;
    for (int32_t x = root; x != NONE; x = t->nodes[x].right) {
        const node *c = &t->nodes[x];
        if (x != f->on) {
            int32_t most = c->len < f->n ? c->len : f->n;
            int32_t same = common(c->tokens, f->tokens + f->at, most);
            if (same < most) note(f, f->at + same);
        }
        visit(f, c->left);
    }
}

int32_t k3_tree_forks(k3_tree *t, int32_t scope, const int32_t *tokens, int32_t n, int32_t room, int32_t *depth,
                      int32_t *count) {
    if (scope < 0 || scope >= t->n_roots || n < 0 || room < 0) return K3_E_ARG;
    forks f = {.t = t, .tokens = tokens, .room = room, .depth = depth, .count = count};
    for (int32_t x = t->roots[scope]; f.at < n;) {
        const node *p = &t->nodes[x];
        f.n = n - f.at;
        f.on = NONE;
        for (int bit = 0; bit < 2; bit++) {
            int32_t after, c = child_at_or_before(t, p->kids[bit], tokens + f.at, f.n < t->page ? f.n : t->page, &after);
            if (c == NONE) continue;
            const node *k = &t->nodes[c];
            if (k->len >= t->page && f.n >= t->page && common(k->tokens, tokens + f.at, t->page) == t->page) f.on = c;
        }
        for (int bit = 0; bit < 2; bit++) visit(&f, p->kids[bit]);
        if (f.on == NONE) break;
        const node *k = &t->nodes[f.on];
        int32_t most = k->len < f.n ? k->len : f.n;
        if (common(k->tokens, tokens + f.at, most) < k->len) break;
        f.at += k->len;
        x = f.on;
    }
    return f.found;
}
