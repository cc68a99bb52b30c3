/* Nodes, the ordered children, the heaps, and the changes of state that keep both right. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "tree_internal.h"

int corrupt(k3_tree *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(t->error, sizeof t->error, format, args);
    va_end(args);
    return K3_E_CORRUPT;
}

int need_live(k3_tree *t, int32_t x) { return is_live(t, x) ? K3_OK : corrupt(t, "node %d is not in the tree", x); }

/* -- storage */

static int grow_nodes(k3_tree *t) {
    if (t->cap > INT32_MAX / 2) return K3_E_MEMORY;
    int32_t cap = t->cap + t->cap / 16 + 64, ghosts = t->heaps[GHOSTS].n;
    void *p;
    if (!(p = realloc(t->nodes, (size_t)cap * sizeof *t->nodes))) return K3_E_MEMORY;
    t->nodes = p;
    if (!(p = realloc(t->seats, (size_t)cap * sizeof(int32_t)))) return K3_E_MEMORY;
    t->seats = p;
    memmove(t->seats + cap - ghosts, t->seats + t->cap - ghosts, (size_t)ghosts * sizeof(int32_t));
    t->heaps[EVICTABLE].at = t->seats;
    t->heaps[GHOSTS].at = t->seats + cap - 1;
    t->cap = cap;
    return K3_OK;
}

int32_t node_new(k3_tree *t) {
    int32_t x = t->free;
    if (x == NONE) {
        if (t->top == t->cap && grow_nodes(t) != K3_OK) return K3_E_MEMORY;
        x = t->top++;
    } else {
        t->free = t->nodes[x].parent;
    }
    t->nodes[x] = (node)BLANK_NODE;
    t->nodes[x].flags = LIVE;
    t->counters[NODES]++;
    return x;
}

static void node_free(k3_tree *t, int32_t x) {
    node *n = &t->nodes[x];
    end_age(t, x, false);
    drop_price(t, x);
    free(n->tokens);
    *n = (node)BLANK_NODE;
    n->parent = t->free;
    t->free = x;
    t->counters[NODES]--;
}

int reserve_pages(k3_tree *t, int64_t need) {
    if (need <= t->cap_pages) return K3_OK;
    int64_t cap = need + need / 4 + 64;
    if (cap > INT32_MAX) return K3_E_MEMORY;
    int32_t *p = realloc(t->pages, (size_t)cap * sizeof *p);
    if (!p) return K3_E_MEMORY;
    t->pages = t->out = p;
    t->cap_pages = (int32_t)cap;
    return K3_OK;
}

/* -- ordered children */

int32_t child_at_or_before(const k3_tree *t, int32_t root, const int32_t *key, int32_t n, int32_t *after) {
    int32_t before = NONE;
    *after = NONE;
    for (int32_t x = root; x != NONE;) {
        const node *c = &t->nodes[x];
        int side = order(t, c->tokens, c->len, key, n);
        if (side == 0) return x;
        if (side < 0) {
            before = x;
            x = c->right;
        } else {
            *after = x;
            x = c->left;
        }
    }
    return before;
}

static int sibling_order(const k3_tree *t, const node *a, const node *b) {
    if (K3_MUTANT(K3_MUTANT_TREAP_ORDER)) return a->tokens[0] < b->tokens[0] ? -1 : 1;
    return order(t, a->tokens, a->len, b->tokens, b->len);
}

void link_child(k3_tree *t, int32_t p, int32_t x) {
    node *n = &t->nodes[x];
    int32_t *link = &t->nodes[p].kids[kv_bit(n)];
    while (*link != NONE && priority(*link) > priority(x)) {
        node *c = &t->nodes[*link];
        link = sibling_order(t, c, n) < 0 ? &c->right : &c->left;
    }
    int32_t rest = *link, *low = &n->left, *high = &n->right;
    *link = x;
    while (rest != NONE) {
        node *c = &t->nodes[rest];
        if (sibling_order(t, c, n) < 0) {
            *low = rest;
            low = &c->right;
            rest = c->right;
        } else {
            *high = rest;
            high = &c->left;
            rest = c->left;
        }
    }
    *low = *high = NONE;
    n->parent = p;
}

void unlink_child(k3_tree *t, int32_t p, int32_t x) {
    node *n = &t->nodes[x];
    int32_t *link = &t->nodes[p].kids[kv_bit(n)];
    while (*link != x) {
        node *c = &t->nodes[*link];
        link = order(t, c->tokens, c->len, n->tokens, n->len) < 0 ? &c->right : &c->left;
    }
    int32_t low = n->left, high = n->right;
    while (low != NONE && high != NONE) {
        if ((priority(low) > priority(high)) != K3_MUTANT(K3_MUTANT_TREAP_PRIORITY)) {
            *link = low;
            link = &t->nodes[low].right;
            low = *link;
        } else {
            *link = high;
            link = &t->nodes[high].left;
            high = *link;
        }
    }
    *link = low != NONE ? low : high;
    n->left = n->right = NONE;
}

/* -- heaps: smallest key first; node.seat is the place in the array */

uint64_t heap_key(const k3_tree *t, int32_t x) {
    const node *n = &t->nodes[x];
    const uint64_t touch_bits = ((uint64_t)1 << 56) - 1;
    uint64_t touch = (K3_MUTANT(K3_MUTANT_EVICT_RECENT) ? ~n->touch : n->touch) & touch_bits;
    int first = (n->flags & SUPERSEDED) != 0 && !K3_MUTANT(K3_MUTANT_SUPERSEDED_LAST);
    bool over = is_over(t, n) && few_children(t, n) <= 1 && !K3_MUTANT(K3_MUTANT_OVER_STAYS);
    uint64_t class = n->state >= 0 && !over ? t->classes[n->kind][first] : 0;
    if (!t->valued || class == 0) return class << 56 | touch;
    /* A value is >= 0, so its bits stand in its order; ties go to the older, as far as 24 bits tell. */
    float value = value_of(t, x);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (K3_MUTANT(K3_MUTANT_VALUE_ORDER)) bits = ~bits;
    return class << 56 | (uint64_t)bits << 24 | (touch & 0xffffff);
}

bool belongs_in_heap(const k3_tree *t, int32_t x) {
    const node *n = &t->nodes[x];
    if (n->flags & ROOT) return false;
    if (!kv_bit(n)) return n->lock == 0 && n->kids[0] == NONE;
    if (n->lock > 0 && !K3_MUTANT(K3_MUTANT_EVICT_LOCKED)) return false;
    return n->state >= 0 || n->kids[1] == NONE;
}

static void place(k3_tree *t, heap *h, int32_t i, int32_t x) {
    h->at[(ptrdiff_t)i * h->way] = x;
    t->nodes[x].seat = i;
}

/* Sinks x from place i to where nothing below is smaller. */
static void sink(k3_tree *t, heap *h, int32_t i, int32_t x) {
    uint64_t key = heap_key(t, x);
    for (;;) {
        int64_t next = 2 * (int64_t)i + 1;
        if (next >= h->n) break;
        int32_t c = (int32_t)next;
        if (c + 1 < h->n && heap_key(t, heap_at(h, c + 1)) < heap_key(t, heap_at(h, c)) &&
            !K3_MUTANT(K3_MUTANT_HEAP_ORDER))
            c++;
        if (heap_key(t, heap_at(h, c)) >= key) break;
        place(t, h, i, heap_at(h, c));
        i = c;
    }
    place(t, h, i, x);
}

static void sift(k3_tree *t, heap *h, int32_t i) {
    int32_t x = heap_at(h, i);
    uint64_t key = heap_key(t, x);
    while (i > 0 && key < heap_key(t, heap_at(h, (i - 1) / 2))) {
        place(t, h, i, heap_at(h, (i - 1) / 2));
        i = (i - 1) / 2;
    }
    sink(t, h, i, x);
}

void heapify(k3_tree *t) {
    heap *h = &t->heaps[EVICTABLE];
    for (int32_t i = h->n / 2 - 1; i >= 0; i--) sink(t, h, i, heap_at(h, i));
}

void sift_at(k3_tree *t, int32_t x) {
    if (t->nodes[x].seat != NONE) sift(t, &t->heaps[EVICTABLE], t->nodes[x].seat);
}

static void leave_heap(k3_tree *t, int32_t x) {
    heap *h = &t->heaps[kv_bit(&t->nodes[x])];
    int32_t i = t->nodes[x].seat;
    if (i == NONE) return;
    t->nodes[x].seat = NONE;
    int32_t last = heap_at(h, --h->n);
    if (last == x) return;
    place(t, h, i, last);
    sift(t, h, i);
}

void settle(k3_tree *t, int32_t x) {
    node *n = &t->nodes[x];
    bool line = (few_of(t, n, 0) == 0 && few_of(t, n, 1) == 1) || is_tail(t, n) || K3_MUTANT(K3_MUTANT_SUPERSEDED_FORK);
    if (n->state < 0 || !line) n->flags &= (uint8_t)~SUPERSEDED;
    if (t->n_classes && n->state >= 0) classify(t, x);
    heap *h = &t->heaps[kv_bit(n)];
    if (!belongs_in_heap(t, x)) {
        leave_heap(t, x);
        return;
    }
    if (n->seat == NONE) place(t, h, h->n++, x);
    sift(t, h, n->seat);
}

/* -- changes of one node */

void detach(k3_tree *t, int32_t x) {
    node *n = &t->nodes[x];
    n->state = NONE;
    set_stamp(n, -1);
    n->flags = (uint8_t)((n->flags & ~(SUPERSEDED | USED)) | HAD_STATE);
    t->counters[CHECKPOINTS]--;
    if (!t->n_classes) drop_price(t, x);
}

int32_t split(k3_tree *t, int32_t x, int32_t at) {
    int32_t u = node_new(t);
    if (u < 0) return K3_E_MEMORY;
    node *low = &t->nodes[x], *up = &t->nodes[u];
    int32_t p = low->parent, rest = low->len - at;
    const int32_t *pages = pages_at(low);
    int32_t upper_pages = pages ? at / t->page : 0, lower_pages = pages ? pages_of(t, rest) : 0;
    int32_t *tokens = malloc(((size_t)rest + (size_t)lower_pages) * sizeof *tokens);
    if (!tokens) {
        node_free(t, u);
        return K3_E_MEMORY;
    }
    unlink_child(t, p, x);
    memcpy(tokens, low->tokens + at, (size_t)rest * sizeof *tokens);
    if (pages) memcpy(tokens + rest, pages + upper_pages, (size_t)lower_pages * sizeof *tokens);
    if (pages) memmove(low->tokens + at, pages, (size_t)upper_pages * sizeof *tokens);
    up->flags = (uint8_t)(LIVE | (low->flags & KV));
    up->start = low->start;
    up->len = at;
    set_kv_stamp(up, kv_stamp_of(low));
    up->touch = low->touch;
    up->scope = scope_of(t, low);
    /* The upper half keeps the array; a shrink that fails leaves it longer, which is harmless. */
    int32_t *shrunk = realloc(low->tokens, ((size_t)at + (size_t)upper_pages) * sizeof *shrunk);
    up->tokens = shrunk ? shrunk : low->tokens;
    low->tokens = tokens;
    low->start += at;
    low->len = rest;
    link_child(t, p, u);
    link_child(t, u, x);
    if (K3_MUTANT(K3_MUTANT_ATTACH_SPLIT) && low->state >= 0 && is_tail(t, low) && !t->n_classes) {
        up->state = low->state;
        up->kind = low->kind;
        set_stamp(up, stamp_of(low));
        low->state = NONE;
        set_stamp(low, -1);
        settle(t, x);
    }
    if (K3_MUTANT(K3_MUTANT_SPLIT_STAMP) && kv_stamp_of(up) > 0) set_kv_stamp(up, 0);
    if (K3_MUTANT(K3_MUTANT_SPLIT_RECENCY)) low->touch = ++t->clock;
    if (K3_MUTANT(K3_MUTANT_SPLIT_LOCK)) {
        up->lock = low->lock;
        low->lock = 0;
    }
    if (K3_MUTANT(K3_MUTANT_SPLIT_RECENCY) || K3_MUTANT(K3_MUTANT_SPLIT_LOCK)) settle(t, x);
    settle(t, u);
    return u;
}

int give_kv(k3_tree *t, int32_t x, const int32_t *pages, int64_t stamp) {
    node *n = &t->nodes[x];
    int32_t p = n->parent, count = pages_of(t, n->len);
    int32_t *both = realloc(n->tokens, ((size_t)n->len + (size_t)count) * sizeof *both);
    if (!both) return K3_E_MEMORY;
    n->tokens = both;
    memcpy(both + n->len, pages, (size_t)count * sizeof *both);
    leave_heap(t, x);
    unlink_child(t, p, x);
    n->flags |= KV;
    set_kv_stamp(n, stamp);
    const price *own = price_of(t, n);
    if (!own || own->timer == NONE) n->touch = ++t->clock; /* the age of what once stood here goes on */
    link_child(t, p, x);
    t->counters[KV_PAGES] += count;
    t->counters[KV_TOKENS] += n->len;
    t->counters[GHOST_TOKENS] -= n->len;
    settle(t, x);
    settle(t, p);
    return K3_OK;
}

void lose_kv(k3_tree *t, int32_t x) {
    node *n = &t->nodes[x];
    int32_t p = n->parent, count = pages_of(t, n->len);
    memcpy(t->out + t->n_pages, pages_at(n), (size_t)count * sizeof *t->out);
    t->n_pages += count - (K3_MUTANT(K3_MUTANT_EVICT_TAIL_PAGE) && is_tail(t, n));
    leave_heap(t, x);
    unlink_child(t, p, x);
    n->flags &= (uint8_t)~KV;
    set_kv_stamp(n, -1);
    int32_t *shrunk = realloc(n->tokens, (size_t)n->len * sizeof *shrunk);
    if (shrunk) n->tokens = shrunk;
    link_child(t, p, x);
    t->counters[KV_PAGES] -= count;
    t->counters[KV_TOKENS] -= n->len;
    t->counters[GHOST_TOKENS] += n->len;
    settle(t, x);
    settle(t, p);
}

void forget(k3_tree *t, int32_t x) {
    int32_t p = t->nodes[x].parent;
    leave_heap(t, x);
    unlink_child(t, p, x);
    t->counters[GHOST_TOKENS] -= t->nodes[x].len;
    node_free(t, x);
    settle(t, p);
}

void trim_ghosts(k3_tree *t) {
    if (t->ghost_limit < 0 || K3_MUTANT(K3_MUTANT_GHOST_LIMIT)) return;
    while (t->counters[GHOST_TOKENS] > t->ghost_limit && t->heaps[GHOSTS].n) forget(t, heap_at(&t->heaps[GHOSTS], 0));
}

void mark_path(k3_tree *t, int32_t x) {
    for (; x != NONE && !(t->nodes[x].flags & MARK); x = t->nodes[x].parent) t->nodes[x].flags |= MARK;
}

void clear_path(k3_tree *t, int32_t x) {
    for (; x != NONE && t->nodes[x].flags & MARK; x = t->nodes[x].parent) t->nodes[x].flags &= (uint8_t)~MARK;
}
