/* Life of the tree and everything that changes what it knows: publish, evict, cap, drop, flush. */
#include <stdlib.h>

#include "tree_internal.h"

k3_tree *k3_tree_new(int32_t page_tokens, const uint8_t *classes, int32_t kinds, int64_t ghost_tokens) {
    if (page_tokens < 1 || kinds < 1 || kinds > KINDS_MAX) return NULL;
    k3_tree *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->page = page_tokens;
    t->kinds = kinds;
    t->free = NONE;
    t->ghost_limit = ghost_tokens;
    t->last_stamp = -1;
    memcpy(t->classes, classes, (size_t)kinds * 2);
    return t;
}

void k3_tree_free(k3_tree *t) {
    if (!t) return;
    for (int32_t x = 0; x < t->top; x++) {
        free(t->nodes[x].tokens);
        free(t->nodes[x].pages);
    }
    free(t->nodes);
    free(t->heaps[0].at);
    free(t->heaps[1].at);
    free(t->timers.at);
    free(t->edges);
    free(t->class_of);
    free(t->values);
    free(t->returns);
    free(t->exposure);
    free(t->roots);
    free(t->states);
    free(t->pages);
    free(t);
}

const char *k3_tree_error(const k3_tree *t) { return t->error; }
const int32_t *k3_tree_out_pages(const k3_tree *t) { return t->pages; }
const int32_t *k3_tree_out_states(const k3_tree *t) { return t->states; }

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
        if (n->flags & ROOT || children_of(n) != 1) return;
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
    if (n->followed < 2) n->followed++;
    if (passes(n) && (n->followed == 1 || K3_MUTANT(K3_MUTANT_TAIL_FORK))) n->flags |= SUPERSEDED;
    else n->flags &= (uint8_t)~SUPERSEDED;
    settle(t, x);
}

static void attach(k3_tree *t, int32_t x, int32_t state, int32_t kind, int64_t stamp) {
    node *n = &t->nodes[x];
    bool again = (n->flags & HAD_STATE) != 0;
    n->state = state;
    n->kind = (uint8_t)kind;
    n->stamp = stamp;
    n->touch = ++t->clock;
    n->flags &= (uint8_t)~(HAD_STATE | USED | SUPERSEDED);
    n->note = K3_USE_RUNNING;
    n->followed = 0;
    t->counters[CHECKPOINTS]++;
    if (t->n_classes) {
        end_age(t, x, false);
        count_turns(t, x, again);
        classify(t, x);
        start_age(t, x);
    }
    settle(t, x);
    supersede_above(t, x);
}

/* New ghost child of p with tokens[0:len]. */
static int32_t add_ghost(k3_tree *t, int32_t p, const int32_t *tokens, int32_t len) {
    int32_t x = node_new(t);
    if (x < 0) return x;
    node *n = &t->nodes[x];
    n->tokens = malloc((size_t)len * sizeof *tokens);
    n->start = depth_of(&t->nodes[p]);
    n->scope = t->nodes[p].scope;
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
    int32_t count = pages_of(t, len), x = add_ghost(t, p, tokens, len);
    if (x < 0) return x;
    int32_t *own = malloc((size_t)count * sizeof *own);
    if (!own) {
        forget(t, x);
        return K3_E_MEMORY;
    }
    memcpy(own, pages, (size_t)count * sizeof *own);
    give_kv(t, x, own, stamp);
    return x;
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
        for (int32_t i = 0; i < n->len / t->page - K3_MUTANT(K3_MUTANT_REPLACED); i++) {
            if (n->pages[i] == pages[first + i]) continue;
            t->pages[t->n_pages++] = first + i;
            t->pages[t->n_pages++] = n->pages[i];
            out->n_replaced++;
        }
        return K3_OK;
    }
    int32_t *own = malloc((size_t)count * sizeof *own);
    if (!own) return K3_E_MEMORY;
    memcpy(own, pages + (K3_MUTANT(K3_MUTANT_REVIVED_PAGES) ? 0 : first), (size_t)count * sizeof *own);
    give_kv(t, x, own, stamp);
    if (out->adopted_from < 0) out->adopted_from = first;
    if (is_tail(t, n)) out->shared_page = own[count - 1];
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
    if (kind < 0 || kind >= t->kinds || state < NONE || stamp < 0) return K3_E_ARG;
    if ((rc = reserve_pages(t, pages_of(t, end - depth) + 2)) < 0) return rc;
    t->n_pages = t->n_states = 0;
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
        if (t->nodes[x].timer != NONE) passed = x;
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
    t->n_pages = t->n_states = 0;
    if ((x = leave_tail(t, x)) < 0) return K3_E_MEMORY;
    int32_t passed = NONE;
    for (int32_t at; (at = depth_of(&t->nodes[x])) < end;) {
        int32_t c = child_for(t, x, tokens + at, end - at);
        if (c == NONE) c = add_ghost(t, x, tokens + at, end - at);
        if (c < 0) return c;
        x = c;
        if (t->nodes[x].timer != NONE) passed = x;
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
    t->nodes[x].note = K3_USE_RUNNING;
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

/* Takes x's checkpoint and then the KV that only it needed, upwards; nodes marked `epoch` keep their KV. */
static void retire(k3_tree *t, int32_t x, uint32_t epoch, k3_evicted *out) {
    node *n = &t->nodes[x];
    t->n_pages = t->n_states = 0;
    *out = (k3_evicted){.node = x, .kind = n->kind, .state = n->state, .depth = depth_of(n),
                        .unused = n->state >= 0 && !(n->flags & USED)};
    if (n->state >= 0) {
        detach(t, x);
        settle(t, x);
    }
    for (; (n = &t->nodes[x])->state < 0 && !(n->flags & ROOT) && n->mark != epoch; x = n->parent) {
        if (n->count[1] > 0 && !K3_MUTANT(K3_MUTANT_EVICT_SHARED)) break;
        if (n->lock > 0 && !K3_MUTANT(K3_MUTANT_EVICT_LOCKED)) break;
        out->tokens += n->len;
        lose_kv(t, x);
        if (K3_MUTANT(K3_MUTANT_EVICT_LEAF)) break;
    }
    out->n_pages = t->n_pages;
    trim_ghosts(t);
}

/* Smallest unmarked entry at or below heap place i: looks only below marked ones. O(marked entries met). */
static int32_t least_unmarked(const k3_tree *t, int64_t i, uint32_t epoch) {
    const heap *h = &t->heaps[EVICTABLE];
    if (i >= h->n) return NONE;
    int32_t x = h->at[i];
    if (t->nodes[x].mark != epoch) return x;
    int32_t a = least_unmarked(t, 2 * i + 1, epoch), b = least_unmarked(t, 2 * i + 2, epoch);
    if (a == NONE || b == NONE) return a == NONE ? b : a;
    return heap_key(t, a) <= heap_key(t, b) ? a : b;
}

int k3_tree_evict(k3_tree *t, int32_t protect, k3_evicted *out) {
    uint32_t epoch = next_epoch(t);
    if (protect != NONE) {
        int rc = need_live(t, protect);
        if (rc < 0) return rc;
        if (!K3_MUTANT(K3_MUTANT_PROTECT)) mark_path(t, protect, epoch);
    }
    reach_now(t);
    int32_t x = least_unmarked(t, 0, epoch);
    if (x == NONE) return 0;
    /* What changed around a checkpoint since it was weighed shows when it would go. A weight is right once it has been
     * looked at, so each is looked at once at most. */
    while (t->valued && reweigh(t, x)) {
        sift_at(t, &t->heaps[EVICTABLE], t->nodes[x].seat);
        x = least_unmarked(t, 0, epoch);
    }
    retire(t, x, epoch, out);
    return 1;
}

int k3_tree_remove(k3_tree *t, int32_t x, int32_t protect, k3_evicted *out) {
    uint32_t epoch = next_epoch(t);
    if (!is_live(t, x)) return 0;
    if (protect != NONE) {
        int rc = need_live(t, protect);
        if (rc < 0) return rc;
        mark_path(t, protect, epoch);
    }
    if (!kv_bit(&t->nodes[x]) || t->nodes[x].seat == NONE || t->nodes[x].mark == epoch) return 0;
    retire(t, x, epoch, out);
    return 1;
}

int32_t k3_tree_next_class(const k3_tree *t) {
    const heap *h = &t->heaps[EVICTABLE];
    return h->n ? (int32_t)(heap_key(t, h->at[0]) >> 56) : NONE;
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
        if (children_of(n) > 1 && !K3_MUTANT(K3_MUTANT_CAP_FORK)) continue;
        if (n->lock > 0 && !K3_MUTANT(K3_MUTANT_CAP_LOCKED)) continue;
        open = p;
        found++;
    }
    if (found <= limit || best == NONE) return 0;
    retire(t, best, next_epoch(t), out);
    return 1;
}

/* -- many at once */

static void put_out_state(k3_tree *t, int32_t x) {
    t->states[t->n_states++] = t->nodes[x].state;
    detach(t, x);
}

static bool holds_kv(const node *n) { return (n->flags & (LIVE | KV | ROOT)) == (LIVE | KV); }

/* A page is damaged where its used rows reach beyond the first damaged row. */
static bool kv_damaged(const k3_tree *t, const node *n, int64_t stamp, const int32_t *damaged_rows, int32_t n_rows) {
    if (n->kv_stamp >= stamp + K3_MUTANT(K3_MUTANT_DROP_STAMP)) return true;
    int32_t whole = n->len / t->page, rest = n->len % t->page;
    for (int32_t i = 0; i < whole; i++)
        if (n->pages[i] < n_rows && damaged_rows[n->pages[i]] < t->page - K3_MUTANT(K3_MUTANT_DROP_ROW)) return true;
    return rest && n->pages[whole] < n_rows && damaged_rows[n->pages[whole]] < rest;
}

/* Marks every KV node that stands on a node marked `bad`; each node is climbed over at most twice. */
static void spread_damage(k3_tree *t, uint32_t bad, uint32_t good) {
    for (int32_t x = 0; x < t->top; x++) {
        if (!holds_kv(&t->nodes[x])) continue;
        int32_t y = x;
        while (!(t->nodes[y].flags & ROOT) && t->nodes[y].mark != bad && t->nodes[y].mark != good)
            y = t->nodes[y].parent;
        uint32_t verdict = t->nodes[y].mark == bad && !K3_MUTANT(K3_MUTANT_DROP_DEEPER) ? bad : good;
        for (int32_t z = x; z != y; z = t->nodes[z].parent) t->nodes[z].mark = verdict;
    }
}

int k3_tree_drop(k3_tree *t, int64_t stamp, const int32_t *damaged_rows, int32_t n_rows, const uint8_t *damaged_states,
                 int32_t n_states, int32_t *n_states_out, int32_t *n_pages_out) {
    uint32_t bad = next_epoch(t), good = next_epoch(t);
    if (good < bad) bad = next_epoch(t);
    t->n_pages = t->n_states = 0;
    for (int32_t x = 0; x < t->top; x++) {
        node *n = &t->nodes[x];
        if (holds_kv(n) && kv_damaged(t, n, stamp, damaged_rows, n_rows)) n->mark = bad;
    }
    spread_damage(t, bad, good);
    for (int32_t x = 0; x < t->top; x++) {
        node *n = &t->nodes[x];
        if (!holds_kv(n)) continue;
        bool unborn = n->stamp >= stamp;
        bool damaged = n->state >= 0 && n->state < n_states && damaged_states[n->state];
        if (K3_MUTANT(K3_MUTANT_DROP_STATE)) damaged = false;
        if (n->state >= 0 && (n->mark == bad || unborn || damaged)) {
            put_out_state(t, x);
            if (unborn) n->flags &= (uint8_t)~HAD_STATE;
            settle(t, x);
        }
        if (n->mark == bad) lose_kv(t, x);
    }
    trim_ghosts(t);
    *n_states_out = t->n_states;
    *n_pages_out = t->n_pages;
    return K3_OK;
}

int k3_tree_flush(k3_tree *t, int32_t *n_states_out, int32_t *n_pages_out) {
    uint32_t epoch = next_epoch(t);
    t->n_pages = t->n_states = 0;
    for (int32_t x = 0; x < t->top; x++)
        if (t->nodes[x].flags & LIVE && t->nodes[x].lock > 0 && !K3_MUTANT(K3_MUTANT_FLUSH_LOCKED))
            mark_path(t, x, epoch);
    for (int32_t x = 0; x < t->top; x++) {
        node *n = &t->nodes[x];
        if (!holds_kv(n) || n->lock > 0) continue;
        if (n->state >= 0) {
            put_out_state(t, x);
            settle(t, x);
        }
        if (n->mark != epoch) lose_kv(t, x);
    }
    *n_states_out = t->n_states;
    *n_pages_out = t->n_pages;
    return k3_tree_forget_ghosts(t);
}

int k3_tree_forget_ghosts(k3_tree *t) {
    while (t->heaps[GHOSTS].n) forget(t, t->heaps[GHOSTS].at[0]);
    return K3_OK;
}
