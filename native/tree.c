/* Life of the tree and everything that changes what it knows: publish, evict, cap, drop, flush. */
#include <stdlib.h>

#include "tree_internal.h"

k3_tree *k3_tree_new(int32_t page_tokens, const uint8_t *classes, int32_t kinds, int64_t ghost_tokens) {
    if (page_tokens < 1 || kinds < 1 || kinds > KINDS_MAX) return NULL;
    k3_tree *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->page = page_tokens;
    t->kinds = kinds;
    t->free = t->free_price = NONE;
    t->timers.way = 1;
    t->ghost_limit = ghost_tokens;
    t->last_stamp = -1;
    t->heaps[EVICTABLE].way = 1;
    t->heaps[GHOSTS].way = -1;
    memcpy(t->classes, classes, (size_t)kinds * 2);
    return t;
}

void k3_tree_free(k3_tree *t) {
    if (!t) return;
    for (int32_t x = 0; x < t->top; x++) free(t->nodes[x].tokens);
    free(t->nodes);
    free(t->seats);
    free(t->prices);
    free(t->timers.at);
    free(t->edges);
    free(t->class_of);
    free(t->values);
    free(t->returns);
    free(t->exposure);
    free(t->roots);
    free(t->pages);
    free(t);
}

const char *k3_tree_error(const k3_tree *t) { return t->error; }
const int32_t *k3_tree_out_pages(const k3_tree *t) { return t->pages; }

int32_t k3_tree_new_scope(k3_tree *t) {
    if (t->n_roots == t->cap_roots) {
        int32_t cap = t->cap_roots < 8 ? 8 : 2 * t->cap_roots;
        int32_t *p = realloc(t->roots, (size_t)cap * sizeof *p);
        if (!p) return K3_E_MEMORY;
        t->roots = p;
        t->cap_roots = cap;
    }
    int32_t x = node_new(t);
    if (x < 0) return x;
    t->nodes[x].flags |= KV | ROOT;
    t->nodes[x].scope = t->n_roots;
    t->roots[t->n_roots] = x;
    return t->n_roots++;
}

/* -- publish */

/* Marks the nearest checkpoint above x, reached through single children, as superseded. */
static void supersede_above(k3_tree *t, int32_t x) {
    for (int32_t p = t->nodes[x].parent; p != NONE; p = t->nodes[p].parent) {
        node *n = &t->nodes[p];
        int32_t ways = K3_MUTANT(K3_MUTANT_GHOST_FORK) ? few_of(t, n, 1) : few_children(t, n);
        if (n->flags & ROOT || ways != 1) return;
        if (n->state < 0) continue;
        if (passes(n) || K3_MUTANT(K3_MUTANT_SUPERSEDED_KIND)) n->flags |= SUPERSEDED;
        settle(t, p);
        return;
    }
}

/* A lineage goes on from tail x, as a sibling: a tail has no children. The first one supersedes x, a second one makes
 * it a fork. */
static void follow_tail(k3_tree *t, int32_t x) {
    node *n = &t->nodes[x];
    if (!is_tail(t, n) || n->state < 0) return;
    price *p = give_price(t, x);
    if (p->followed < 2) p->followed++;
    if (passes(n) && (p->followed == 1 || K3_MUTANT(K3_MUTANT_TAIL_FORK))) n->flags |= SUPERSEDED;
    else n->flags &= (uint8_t)~SUPERSEDED;
    settle(t, x);
}

static void attach(k3_tree *t, int32_t x, int32_t state, int32_t kind, int64_t stamp) {
    node *n = &t->nodes[x];
    bool again = (n->flags & HAD_STATE) != 0;
    n->state = state;
    n->kind = (uint8_t)kind;
    set_stamp(n, stamp);
    n->touch = ++t->clock;
    n->flags &= (uint8_t)~(HAD_STATE | USED | SUPERSEDED);
    t->counters[CHECKPOINTS]++;
    if (t->n_classes) {
        price *p = give_price(t, x);
        p->note = K3_USE_RUNNING;
        p->followed = 0;
        end_age(t, x, false);
        count_turns(t, x, again);
        classify(t, x);
        start_age(t, x);
    }
    settle(t, x);
    supersede_above(t, x);
}

/* New ghost child of p with tokens[0:len], and room for `pages` page ids behind them. */
static int32_t add_ghost(k3_tree *t, int32_t p, const int32_t *tokens, int32_t len, int32_t pages) {
    int32_t x = node_new(t);
    if (x < 0) return x;
    node *n = &t->nodes[x];
    n->tokens = malloc(((size_t)len + (size_t)pages) * sizeof *tokens);
    n->start = depth_of(&t->nodes[p]);
    n->scope = scope_of(t, &t->nodes[p]);
    if (!n->tokens) {
        link_child(t, p, x);
        forget(t, x);
        return K3_E_MEMORY;
    }
    memcpy(n->tokens, tokens, (size_t)len * sizeof *tokens);
    n->len = len;
    n->touch = ++t->clock;
    t->counters[GHOST_TOKENS] += len;
    link_child(t, p, x);
    settle(t, x);
    settle(t, p);
    return x;
}

/* New KV child of p with tokens[0:len] and pages[0:ceil(len / P)]. */
static int32_t add_leaf(k3_tree *t, int32_t p, const int32_t *tokens, int32_t len, const int32_t *pages,
                        int64_t stamp) {
    int32_t x = add_ghost(t, p, tokens, len, pages_of(t, len));
    if (x >= 0 && give_kv(t, x, pages, stamp) < 0) {
        forget(t, x);
        return K3_E_MEMORY;
    }
    return x;
}

static bool is_tracked(const k3_tree *t, const node *n) {
    const price *p = price_of(t, n);
    return p && p->timer != NONE;
}

/* A request came for what x once kept. */
static void asked_again(k3_tree *t, int32_t x) {
    if (x != NONE && t->nodes[x].state < 0) end_age(t, x, true);
}

/* Steps onto child x of the publisher's path: a ghost takes the publisher's pages, a KV node keeps its own. */
static int step_on(k3_tree *t, int32_t x, const int32_t *pages, int64_t stamp, k3_published *out) {
    node *n = &t->nodes[x];
    int32_t first = n->start / t->page, count = pages_of(t, n->len);
    if (kv_bit(n)) {
        const int32_t *own = pages_at(n);
        for (int32_t i = 0; i < n->len / t->page - K3_MUTANT(K3_MUTANT_REPLACED); i++) {
            if (own[i] == pages[first + i]) continue;
            t->pages[t->n_pages++] = first + i;
            t->pages[t->n_pages++] = own[i];
            out->n_replaced++;
        }
        return K3_OK;
    }
    const int32_t *given = pages + (K3_MUTANT(K3_MUTANT_REVIVED_PAGES) ? 0 : first);
    int rc = give_kv(t, x, given, stamp);
    if (rc < 0) return rc;
    if (out->adopted_from < 0) out->adopted_from = first;
    if (is_tail(t, n)) out->shared_page = given[count - 1];
    return K3_OK;
}

/* The child of x to step onto for tokens[0:rest], split where they part; NONE when none shares a page. */
static int32_t child_for(k3_tree *t, int32_t x, const int32_t *tokens, int32_t rest) {
    for (int bit = 1; bit >= 0; bit--) {
        int32_t after, c = child_at_or_before(t, t->nodes[x].kids[bit], tokens, rest, &after);
        if (c == NONE) continue;
        const node *n = &t->nodes[c];
        if (order(t, n->tokens, n->len, tokens, rest) != 0) continue;
        int32_t same = common(n->tokens, tokens, n->len < rest ? n->len : rest);
        if (same == n->len && (!is_tail(t, n) || same == rest)) return c;
        return split(t, c, same / t->page * t->page);
    }
    return NONE;
}

/* Where publishing from x goes on: x itself, or for a tail the last page multiple of its path. */
static int32_t leave_tail(k3_tree *t, int32_t x) {
    const node *n = &t->nodes[x];
    int32_t whole = n->len / t->page * t->page;
    if (whole == n->len) return x;
    return whole == 0 ? n->parent : split(t, x, whole);
}

int k3_tree_publish(k3_tree *t, int32_t x, const int32_t *tokens, int32_t end, const int32_t *pages, int32_t n_pages,
                    int32_t state, int32_t kind, int64_t stamp, k3_published *out) {
    int rc = need_live(t, x);
    if (rc < 0) return rc;
    if (!kv_bit(&t->nodes[x])) return corrupt(t, "publisher's node %d is a ghost", x);
    int32_t depth = depth_of(&t->nodes[x]);
    if (end < 1 || end < depth || n_pages < pages_of(t, end)) return K3_E_ARG;
    if (kind < 0 || kind >= t->kinds || state < NONE || stamp < 0 || stamp > K3_LAST_STEP) return K3_E_ARG;
    /* A pair for each page from the tail's own on; and later, the pages of this path. */
    int64_t pairs = 2 * ((int64_t)pages_of(t, end - depth) + 2), path = pages_of(t, end);
    if ((rc = reserve_pages(t, pairs > path ? pairs : path)) < 0) return rc;
    if ((rc = reserve_prices(t, 2)) < 0) return rc; /* the new checkpoint's, and that of the tail it goes on from */
    t->n_pages = 0;
    *out = (k3_published){.adopted_from = NONE, .shared_page = NONE};
    if (stamp > t->last_stamp) t->last_stamp = stamp;
    const int32_t from = x;
    if (end > depth && (x = leave_tail(t, x)) < 0) return K3_E_MEMORY;
    int32_t passed = NONE;
    for (int32_t at; (at = depth_of(&t->nodes[x])) < end;) {
        int32_t c = child_for(t, x, tokens + at, end - at);
        if (c == NONE) {
            c = add_leaf(t, x, tokens + at, end - at, pages + at / t->page, stamp);
            if (c < 0) return c;
            if (out->adopted_from < 0) out->adopted_from = at / t->page + K3_MUTANT(K3_MUTANT_ADOPTED);
            if (end % t->page && !K3_MUTANT(K3_MUTANT_TAIL_PAGE)) out->shared_page = pages[end / t->page];
        } else if (c < 0) {
            return c;
        } else if ((rc = step_on(t, c, pages, stamp, out)) < 0) {
            return rc;
        }
        x = c;
        if (is_tracked(t, &t->nodes[x])) passed = x;
    }
    asked_again(t, passed);
    out->node = x;
    if (out->adopted_from < 0) out->adopted_from = end / t->page;
    if (state < 0) return K3_OK;
    if (t->nodes[x].state < 0) {
        attach(t, x, state, kind, stamp);
        if (from != x) follow_tail(t, from);
        out->taken = 1;
    } else {
        out->taken = K3_MUTANT(K3_MUTANT_TAKEN);
        end_age(t, x, false);
        t->nodes[x].touch = ++t->clock;
        if (t->n_classes) start_age(t, x);
        settle(t, x);
    }
    return K3_OK;
}

int k3_tree_remember(k3_tree *t, int32_t x, const int32_t *tokens, int32_t end) {
    int rc = need_live(t, x);
    if (rc < 0) return rc;
    int32_t depth = depth_of(&t->nodes[x]);
    end -= end % t->page;
    if (end <= depth) return K3_OK;
    t->n_pages = 0;
    if ((x = leave_tail(t, x)) < 0) return K3_E_MEMORY;
    int32_t passed = NONE;
    for (int32_t at; (at = depth_of(&t->nodes[x])) < end;) {
        int32_t c = child_for(t, x, tokens + at, end - at);
        if (c == NONE) c = add_ghost(t, x, tokens + at, end - at, 0);
        if (c < 0) return c;
        x = c;
        if (is_tracked(t, &t->nodes[x])) passed = x;
    }
    asked_again(t, passed);
    trim_ghosts(t);
    return K3_OK;
}

/* -- use */

int k3_tree_touch(k3_tree *t, int32_t x) {
    int rc = need_live(t, x);
    if (rc < 0) return rc;
    reach_now(t);
    end_age(t, x, true);
    t->nodes[x].touch = ++t->clock;
    t->nodes[x].flags |= USED;
    price *known = price_of(t, &t->nodes[x]);
    if (known) known->note = K3_USE_RUNNING;
    if (t->n_classes && t->nodes[x].state >= 0) {
        classify(t, x);
        start_age(t, x);
    }
    settle(t, x);
    for (int32_t p = t->nodes[x].parent; K3_MUTANT(K3_MUTANT_TOUCH_PATH) && p != NONE; p = t->nodes[p].parent) {
        t->nodes[p].touch = ++t->clock;
        settle(t, p);
    }
    return K3_OK;
}

int k3_tree_lock(k3_tree *t, int32_t x) {
    int rc = need_live(t, x);
    if (rc < 0) return rc;
    if (K3_MUTANT(K3_MUTANT_LOCK_FLAG) && t->nodes[x].lock > 0) return K3_OK;
    t->nodes[x].lock++;
    t->counters[LOCKS]++;
    settle(t, x);
    return K3_OK;
}

int k3_tree_unlock(k3_tree *t, int32_t x) {
    int rc = need_live(t, x);
    if (rc < 0) return rc;
    if (t->nodes[x].lock <= 0) return corrupt(t, "lock of node %d would fall below %d", x, t->nodes[x].lock);
    t->nodes[x].lock--;
    t->counters[LOCKS]--;
    settle(t, x);
    trim_ghosts(t);
    return K3_OK;
}

int32_t k3_tree_take(k3_tree *t, int32_t x) {
    int rc = need_live(t, x);
    if (rc < 0) return rc;
    int32_t state = t->nodes[x].state;
    if (state < 0) return corrupt(t, "node %d has no checkpoint to take", x);
    end_age(t, x, false);
    detach(t, x);
    settle(t, x);
    return state;
}

/* -- eviction */

/* Takes x's checkpoint and then the KV that only it needed, upwards; marked nodes keep their KV. The caller takes off
 * the marks and trims the ghosts. */
static void retire(k3_tree *t, int32_t x, k3_evicted *out) {
    node *n = &t->nodes[x];
    t->n_pages = 0;
    *out = (k3_evicted){.node = x, .kind = n->kind, .state = n->state, .depth = depth_of(n),
                        .unused = n->state >= 0 && !(n->flags & USED)};
    if (n->state >= 0) {
        detach(t, x);
        settle(t, x);
    }
    for (; (n = &t->nodes[x])->state < 0 && !(n->flags & (ROOT | MARK)); x = n->parent) {
        if (n->kids[1] != NONE && !K3_MUTANT(K3_MUTANT_EVICT_SHARED)) break;
        if (n->lock > 0 && !K3_MUTANT(K3_MUTANT_EVICT_LOCKED)) break;
        out->tokens += n->len;
        lose_kv(t, x);
        if (K3_MUTANT(K3_MUTANT_EVICT_LEAF)) break;
    }
    out->n_pages = t->n_pages;
    out->page = t->n_pages ? t->out[0] : NONE;
}

/* Smallest unmarked entry at or below heap place i: looks only below marked ones. O(marked entries met). */
static int32_t least_unmarked(const k3_tree *t, int64_t i) {
    const heap *h = &t->heaps[EVICTABLE];
    if (i >= h->n) return NONE;
    int32_t x = heap_at(h, (int32_t)i);
    if (!(t->nodes[x].flags & MARK)) return x;
    int32_t a = least_unmarked(t, 2 * i + 1), b = least_unmarked(t, 2 * i + 2);
    if (a == NONE || b == NONE) return a == NONE ? b : a;
    return heap_key(t, a) <= heap_key(t, b) ? a : b;
}

int k3_tree_evict(k3_tree *t, int32_t protect, k3_evicted *out) {
    if (protect != NONE) {
        int rc = need_live(t, protect);
        if (rc < 0) return rc;
        if (!K3_MUTANT(K3_MUTANT_PROTECT)) mark_path(t, protect);
    }
    reach_now(t);
    int32_t x = least_unmarked(t, 0);
    /* What changed around a checkpoint since it was weighed shows when it would go. A weight is right once it has been
     * looked at, so each is looked at once at most. */
    while (x != NONE && t->valued && reweigh(t, x)) {
        sift_at(t, x);
        x = least_unmarked(t, 0);
    }
    if (x != NONE) retire(t, x, out);
    clear_path(t, protect);
    trim_ghosts(t);
    return x != NONE;
}

int k3_tree_remove(k3_tree *t, int32_t x, int32_t protect, k3_evicted *out) {
    if (!is_live(t, x)) return 0;
    if (protect != NONE) {
        int rc = need_live(t, protect);
        if (rc < 0) return rc;
        mark_path(t, protect);
    }
    const node *n = &t->nodes[x];
    bool may_go = kv_bit(n) && n->seat != NONE && !(n->flags & MARK);
    if (may_go) retire(t, x, out);
    clear_path(t, protect);
    trim_ghosts(t);
    return may_go;
}

int32_t k3_tree_next_class(k3_tree *t, int32_t protect) {
    if (protect != NONE) {
        int rc = need_live(t, protect);
        if (rc < 0) return rc;
        mark_path(t, protect);
    }
    int32_t x = least_unmarked(t, 0);
    clear_path(t, protect);
    return x == NONE ? NONE : (int32_t)(heap_key(t, x) >> 56);
}

int k3_tree_cap(k3_tree *t, int32_t x, int32_t limit, uint32_t kinds, k3_evicted *out) {
    int rc = need_live(t, x);
    if (rc < 0) return rc;
    int32_t found = 0, best = NONE, best_loss = INT32_MAX, open = NONE; /* open: waits for the checkpoint above it */
    for (int32_t p = t->nodes[x].parent; p != NONE; p = t->nodes[p].parent) {
        const node *n = &t->nodes[p];
        if (n->state < 0 && !(n->flags & ROOT)) continue;
        if (open != NONE && depth_of(&t->nodes[open]) - depth_of(n) <= best_loss) {
            best = open;
            best_loss = depth_of(&t->nodes[open]) - depth_of(n);
        }
        open = NONE;
        if (n->flags & ROOT || !(kinds >> n->kind & 1)) continue;
        if (few_children(t, n) > 1 && !K3_MUTANT(K3_MUTANT_CAP_FORK)) continue;
        if (n->lock > 0 && !K3_MUTANT(K3_MUTANT_CAP_LOCKED)) continue;
        open = p;
        found++;
    }
    if (found <= limit || best == NONE) return 0;
    retire(t, best, out);
    trim_ghosts(t);
    return 1;
}

/* -- many at once */

static void put_out_state(k3_tree *t, int32_t x, int32_t *states, int32_t *n) {
    states[(*n)++] = t->nodes[x].state;
    detach(t, x);
}

/* Page ids go to the caller's array until the end. */
static void begin_output(k3_tree *t, int32_t *pages_out, int32_t *n_out) {
    t->out = pages_out;
    t->n_pages = n_out[0] = 0;
}

static void end_output(k3_tree *t, int32_t *n_out) {
    t->out = t->pages;
    n_out[1] = t->n_pages;
    trim_ghosts(t);
}

static bool holds_kv(const node *n) { return (n->flags & (LIVE | KV | ROOT)) == (LIVE | KV); }

/* A page is damaged where its used rows reach beyond the first damaged row. */
static bool kv_damaged(const k3_tree *t, const node *n, int64_t stamp, const int32_t *damaged_rows, int32_t n_rows) {
    if (kv_stamp_of(n) >= stamp + K3_MUTANT(K3_MUTANT_DROP_STAMP)) return true;
    const int32_t *pages = pages_at(n);
    int32_t whole = n->len / t->page, rest = n->len % t->page;
    for (int32_t i = 0; i < whole; i++)
        if (pages[i] < n_rows && damaged_rows[pages[i]] < t->page - K3_MUTANT(K3_MUTANT_DROP_ROW)) return true;
    return rest && pages[whole] < n_rows && damaged_rows[pages[whole]] < rest;
}

/* Marks every KV node: DAMAGED too where it stands on a damaged one; each node is climbed over at most twice. */
static void spread_damage(k3_tree *t) {
    for (int32_t x = 0; x < t->top; x++) {
        if (!holds_kv(&t->nodes[x])) continue;
        int32_t y = x;
        while (!(t->nodes[y].flags & (ROOT | MARK))) y = t->nodes[y].parent;
        int verdict = t->nodes[y].flags & DAMAGED && !K3_MUTANT(K3_MUTANT_DROP_DEEPER) ? MARK | DAMAGED : MARK;
        for (int32_t z = x; z != y; z = t->nodes[z].parent) t->nodes[z].flags |= (uint8_t)verdict;
    }
}

int k3_tree_drop(k3_tree *t, int64_t stamp, const int32_t *damaged_rows, int32_t n_rows, const uint8_t *damaged_states,
                 int32_t n_states, int32_t *states_out, int32_t *pages_out, int32_t *n_out) {
    begin_output(t, pages_out, n_out);
    for (int32_t x = 0; x < t->top; x++) {
        node *n = &t->nodes[x];
        if (holds_kv(n) && kv_damaged(t, n, stamp, damaged_rows, n_rows)) n->flags |= MARK | DAMAGED;
    }
    spread_damage(t);
    for (int32_t x = 0; x < t->top; x++) {
        node *n = &t->nodes[x];
        if (!holds_kv(n)) continue;
        bool gone = n->flags & DAMAGED, unborn = stamp_of(n) >= stamp;
        bool damaged = n->state >= 0 && n->state < n_states && damaged_states[n->state];
        if (K3_MUTANT(K3_MUTANT_DROP_STATE)) damaged = false;
        if (n->state >= 0 && (gone || unborn || damaged)) {
            put_out_state(t, x, states_out, n_out);
            if (unborn) n->flags &= (uint8_t)~HAD_STATE;
            settle(t, x);
        }
        if (gone) lose_kv(t, x);
        n->flags &= (uint8_t)~(MARK | DAMAGED);
    }
    end_output(t, n_out);
    return K3_OK;
}

int k3_tree_flush(k3_tree *t, int32_t *states_out, int32_t *pages_out, int32_t *n_out) {
    begin_output(t, pages_out, n_out);
    for (int32_t x = 0; x < t->top; x++)
        if (t->nodes[x].flags & LIVE && t->nodes[x].lock > 0 && !K3_MUTANT(K3_MUTANT_FLUSH_LOCKED))
            mark_path(t, x);
    for (int32_t x = 0; x < t->top; x++) {
        node *n = &t->nodes[x];
        if (!holds_kv(n) || n->lock > 0) continue;
        if (n->state >= 0) {
            put_out_state(t, x, states_out, n_out);
            settle(t, x);
        }
        if (!(n->flags & MARK)) lose_kv(t, x);
    }
    for (int32_t x = 0; x < t->top; x++) t->nodes[x].flags &= (uint8_t)~MARK;
    end_output(t, n_out);
    return k3_tree_forget_ghosts(t);
}

int k3_tree_forget_ghosts(k3_tree *t) {
    while (t->heaps[GHOSTS].n) forget(t, heap_at(&t->heaps[GHOSTS], 0));
    return K3_OK;
}
