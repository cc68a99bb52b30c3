/* The whole of the tree's invariants, walked from the plain ranges up, so that one broken word is named and never
 * followed. */
#include <stdio.h>
#include <stdlib.h>

#include "tree_internal.h"

#define FAIL(table, x, value, why) \
    return corrupt(t, "tree table '%s', node %d: value %lld: %s", table, (int)(x), (long long)(value), why)
#define NEED(ok, table, x, value, why) \
    do { \
        if (!(ok)) FAIL(table, x, value, why); \
    } while (0)

/* Each counter, and the table whose words it adds up. */
static const char *const COUNTER_NAMES[COUNTERS][2] = {{"nodes", "flags"},    {"checkpoints", "state"},
                                                       {"kv_pages", "len"},   {"kv_tokens", "len"},
                                                       {"ghost_tokens", "len"}, {"locks", "lock"}};

typedef struct {
    const char *name;
    size_t offset, width;
} field;

#define FIELD(name, member) {name, offsetof(node, member), sizeof(((node *)0)->member)}

static const field FIELDS[] = {
    FIELD("touch", touch),           FIELD("parent", parent),
    FIELD("left", left),             FIELD("right", right),
    FIELD("kids_ghost", kids[0]),    FIELD("kids_kv", kids[1]),
    FIELD("start", start),           FIELD("len", len),
    FIELD("state", state),           FIELD("lock", lock),
    FIELD("seat", seat),             FIELD("scope", scope),
    FIELD("stamp_low", stamp_low),   FIELD("kv_stamp_low", kv_stamp_low),
    FIELD("stamp_high", stamp_high), FIELD("kv_stamp_high", kv_stamp_high),
    FIELD("kind", kind),             FIELD("flags", flags),
};

#define PRICE(name, member) {name, offsetof(price, member), sizeof(((price *)0)->member)}

static const field PRICES[] = {
    PRICE("price_scope", scope), PRICE("timer", timer), PRICE("weight", weight),     PRICE("class", class),
    PRICE("age", age),           PRICE("note", note),   PRICE("followed", followed), PRICE("turn", turn),
};

/* A free node holds nothing but its link. */
static int check_blank(k3_tree *t, int32_t x) {
    const node blank = BLANK_NODE;
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
        const field *f = &FIELDS[i];
        if (f->offset == offsetof(node, parent)) continue;
        const char *at = (const char *)&t->nodes[x] + f->offset;
        NEED(memcmp(at, (const char *)&blank + f->offset, f->width) == 0, f->name, x, *at, "a free node is not blank");
    }
    return K3_OK;
}

static int check_free(k3_tree *t) {
    int64_t live = 0, free_nodes = 0;
    for (int32_t x = 0; x < t->top; x++) {
        NEED((t->nodes[x].flags & (MARK | DAMAGED)) == 0, "flags", x, t->nodes[x].flags, "a mark was left behind");
        live += t->nodes[x].flags & LIVE;
    }
    for (int32_t x = t->free; x != NONE; x = t->nodes[x].parent, free_nodes++) {
        NEED(x >= 0 && x < t->top, "parent", x, x, "free list leads outside the nodes");
        NEED(t->nodes[x].flags == 0, "flags", x, t->nodes[x].flags, "a node of the free list is in use");
        NEED(free_nodes < t->top, "parent", x, t->nodes[x].parent, "free list has a cycle");
        int rc = check_blank(t, x);
        if (rc < 0) return rc;
    }
    NEED(live + free_nodes == t->top, "flags", t->free, live, "live nodes and free list do not add up");
    for (int32_t s = 0; s < t->n_roots; s++) {
        int32_t x = t->roots[s];
        NEED(is_live(t, x) && t->nodes[x].flags & ROOT, "roots", x, s, "not a root node");
        NEED(scope_of(t, &t->nodes[x]) == s, "roots", x, s, "root of another scope (table 'scope')");
    }
    return K3_OK;
}

/* Every word 'scope' is one, or leads to a price; before anybody follows it. */
static int check_priced(k3_tree *t) {
    NEED(t->top_prices >= 0 && t->top_prices <= t->cap_prices, "scope", NONE, t->top_prices, "no such prices");
    for (int32_t x = 0; x < t->top; x++) {
        int32_t word = t->nodes[x].scope;
        NEED(word > PRICED || PRICED - (int64_t)word < t->top_prices, "scope", x, word, "no such price");
        NEED(word > PRICED || t->nodes[x].flags & LIVE, "scope", x, word, "a free node has a price");
    }
    return K3_OK;
}

static bool link_ok(const k3_tree *t, int32_t x) { return x == NONE || is_live(t, x); }

/* Every word of one node lies in its range; nothing is followed yet. */
static int check_words(k3_tree *t, int32_t x) {
    const node *n = &t->nodes[x];
    bool root = n->flags & ROOT;
    NEED(root ? n->parent == NONE : is_live(t, n->parent), "parent", x, n->parent, "no such node");
    NEED(link_ok(t, n->left), "left", x, n->left, "no such node");
    NEED(link_ok(t, n->right), "right", x, n->right, "no such node");
    for (int bit = 0; bit < 2; bit++)
        NEED(link_ok(t, n->kids[bit]), bit ? "kids_kv" : "kids_ghost", x, n->kids[bit], "no such node");
    NEED(n->start >= 0 && n->start % t->page == 0, "start", x, n->start, "not a page multiple");
    NEED(root ? n->len == 0 : n->len > 0 && n->len <= INT32_MAX - n->start, "len", x, n->len, "no possible length");
    NEED(!is_tail(t, n) || (n->kids[0] == NONE && n->kids[1] == NONE), "len", x, n->len,
         "ends inside a page but has children (tables 'kids_kv', 'kids_ghost')");
    NEED(n->state >= NONE, "state", x, n->state, "no state id");
    NEED(n->state < 0 || (kv_bit(n) && !root), "state", x, n->state, "a checkpoint without KV");
    int64_t stamp = stamp_of(n), kv_stamp = kv_stamp_of(n);
    NEED(stamp <= t->last_stamp && stamp >= -1, "stamp_low", x, stamp, "no step (tables 'stamp_low', 'stamp_high')");
    NEED((n->state >= 0) == (stamp >= 0), "state", x, n->state, "state and stamp (table 'stamp_low') disagree");
    NEED(n->lock >= 0, "lock", x, n->lock, "below 0");
    NEED(n->kind < t->kinds, "kind", x, n->kind, "no such kind");
    NEED(n->touch <= t->clock, "touch", x, n->touch, "ahead of the clock");
    NEED(kv_stamp <= t->last_stamp && (kv_bit(n) && !root ? kv_stamp >= 0 : kv_stamp == -1), "kv_stamp_low", x,
         kv_stamp, "no stamp of this node (tables 'kv_stamp_low', 'kv_stamp_high', 'flags')");
    int32_t scope = scope_of(t, n);
    NEED(scope >= 0 && scope < t->n_roots, n->scope < 0 ? "price_scope" : "scope", x, scope, "no such scope");
    NEED(!root || t->roots[scope] == x, "scope", x, scope, "not the root of its scope");
    NEED(!root || kv_bit(n), "flags", x, n->flags, "a root counts as KV");
    NEED(root == (n->tokens == NULL), "flags", x, n->flags, "only a root has no tokens");
    return K3_OK;
}

/* The arrays of a node, once the counters have shown that its length is right. */
static int check_arrays(k3_tree *t, int32_t x) {
    const node *n = &t->nodes[x];
    for (int32_t i = 0; i < n->len; i++) NEED(n->tokens[i] >= 0, "tokens", x, n->tokens[i], "no token id");
    const int32_t *pages = pages_at(n);
    for (int32_t i = 0; pages && i < pages_of(t, n->len); i++)
        NEED(pages[i] >= 0, "pages", x, pages[i], "no page id");
    return K3_OK;
}

/* One treap in order. Priorities fall along every link, so it ends even where links are wrong. */
static int check_treap(k3_tree *t, int32_t p, int bit, int32_t x, int32_t *before, int64_t *seen) {
    const node *n = &t->nodes[x];
    for (int side = 0; side < 2; side++) {
        int32_t c = side ? n->right : n->left;
        if (side) {
            const node *b = *before == NONE ? NULL : &t->nodes[*before];
            NEED(!b || order(t, b->tokens, b->len, n->tokens, n->len) < 0, "tokens", x, *before,
                 "siblings out of order or with a common first page (tables 'left', 'right', 'kids_kv', 'kids_ghost')");
            int32_t after, kv = bit ? NONE : t->nodes[p].kids[1];
            int32_t twin = child_at_or_before(t, kv, n->tokens, n->len, &after);
            NEED(twin == NONE || order(t, t->nodes[twin].tokens, t->nodes[twin].len, n->tokens, n->len) != 0, "tokens",
                 x, twin, "a ghost and a KV sibling share the first page");
            *before = x;
            ++*seen;
            NEED(*seen <= t->counters[NODES], side ? "right" : "left", x, *seen, "more children than nodes");
        }
        if (c == NONE) continue;
        NEED(priority(c) < priority(x), side ? "right" : "left", x, c, "treap order broken");
        NEED(t->nodes[c].parent == p, side ? "right" : "left", x, c, "its parent is another (table 'parent')");
        NEED(kv_bit(&t->nodes[c]) == bit, side ? "right" : "left", x, c, "KV among ghosts or the reverse");
        int rc = check_treap(t, p, bit, c, before, seen);
        if (rc < 0) return rc;
    }
    return K3_OK;
}

static int check_children(k3_tree *t, int32_t p, int64_t *linked) {
    const node *n = &t->nodes[p];
    for (int bit = 1; bit >= 0; bit--) { /* KV first: each ghost is then looked up among them */
        int32_t top = n->kids[bit], before = NONE;
        int64_t seen = 0;
        if (top == NONE) continue;
        const char *table = bit ? "kids_kv" : "kids_ghost";
        NEED(t->nodes[top].parent == p, table, p, top, "its parent is another (table 'parent')");
        NEED(kv_bit(&t->nodes[top]) == bit, table, p, top, "KV among ghosts or the reverse");
        NEED(!bit || kv_bit(n), table, p, top, "KV below a ghost");
        int rc = check_treap(t, p, bit, top, &before, &seen);
        if (rc < 0) return rc;
        *linked += seen;
    }
    return K3_OK;
}

static int check_heap(k3_tree *t, int which) {
    const heap *h = &t->heaps[which];
    const char *table = which == EVICTABLE ? "evictable" : "ghosts";
    NEED(h->n >= 0 && h->n <= t->cap - t->heaps[!which].n, table, NONE, h->n, "impossible size");
    for (int32_t i = 0; i < h->n; i++) {
        int32_t x = heap_at(h, i);
        NEED(is_live(t, x), table, x, i, "not a node");
        NEED(kv_bit(&t->nodes[x]) == which, table, x, i, "stands in the wrong heap");
        NEED(t->nodes[x].seat == i, table, x, i, "its seat (table 'seat') is another");
        NEED(i == 0 || heap_key(t, heap_at(h, (i - 1) / 2)) <= heap_key(t, x), table, x, i,
             "heap order broken (tables 'touch', 'kind')");
    }
    return K3_OK;
}

static int compare_pair(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Prices: each is one node's or free, every checkpoint of a tree that learns has one, and what is tracked stands in the
 * order of its next crossing. */
static int check_price(k3_tree *t, int32_t x) {
    const node *n = &t->nodes[x];
    const price *p = price_of(t, n);
    NEED(p || n->state < 0 || !t->n_classes, "scope", x, n->scope, "a checkpoint without a price");
    if (!p) return K3_OK;
    NEED(n->state >= 0 || t->n_classes, "scope", x, n->scope, "a price without a checkpoint");
    NEED(p->class == NO_CLASS || p->class < t->n_classes, "class", x, p->class, "no such class");
    NEED(p->note < NOTES_MAX, "note", x, p->note, "no such note");
    NEED(p->followed < STRUCTURES, "followed", x, p->followed, "above 2");
    NEED(p->age < AGES, "age", x, p->age, "no such bucket");
    NEED(p->timer >= NONE && p->timer < t->timers.n, "timer", x, p->timer, "not a place in table 'timers'");
    NEED(p->timer == NONE || t->timers.at[p->timer] == x, "timer", x, p->timer, "its place in table 'timers' is another's");
    NEED(p->timer == NONE || p->class != NO_CLASS, "class", x, p->class, "tracked without a class");
    NEED(n->state < 0 || !t->n_classes || p->timer != NONE || p->age == AGES - 1, "timer", x, p->timer,
         "a checkpoint that is not tracked");
    NEED(n->state < 0 || !t->n_classes || p->class != NO_CLASS, "class", x, p->class, "a checkpoint without a class");
    NEED(p->weight >= 0, "weight", x, (int64_t)p->weight, "below 0");
    return K3_OK;
}

static int check_timers(k3_tree *t) {
    const heap *h = &t->timers;
    for (int32_t i = 0; i < h->n; i++) {
        int32_t x = h->at[i];
        NEED(is_live(t, x), "timers", x, i, "not a node");
        const price *p = price_of(t, &t->nodes[x]);
        NEED(p && p->timer == i, "timers", x, i, "not tracked at this place (table 'timer')");
        NEED(p->age < AGES - 1, "age", x, p->age, "the last bucket has no end to wait for");
        uint64_t ends = t->nodes[x].touch + t->edges[p->age + 1];
        NEED(ends > t->reached, "age", x, p->age, "it has left its bucket (table 'touch')");
        int32_t up = h->at[i ? (i - 1) / 2 : 0];
        NEED(t->nodes[up].touch + t->edges[price_of(t, &t->nodes[up])->age + 1] <= ends, "timers", x, i,
             "heap order broken (tables 'touch', 'age')");
    }
    return K3_OK;
}

static int check_prices(k3_tree *t) {
    int64_t used = 0, free_prices = 0;
    int rc = K3_OK;
    NEED(t->timers.n >= 0 && t->timers.n <= t->cap_prices, "timers", NONE, t->timers.n, "impossible size");
    for (int32_t x = 0; rc == K3_OK && x < t->top; x++) {
        if (!(t->nodes[x].flags & LIVE)) continue;
        used += price_of(t, &t->nodes[x]) != NULL;
        rc = check_price(t, x);
    }
    if (rc == K3_OK) rc = check_timers(t);
    if (rc < 0) return rc;
    for (int32_t i = t->free_price; i != NONE; i = t->prices[i].timer, free_prices++) {
        NEED(i >= 0 && i < t->top_prices, "timer", NONE, i, "free prices lead outside the table");
        NEED(free_prices < t->top_prices, "timer", NONE, i, "free prices have a cycle");
        const price *p = &t->prices[i];
        NEED(p->scope == NONE && p->class == NO_CLASS && !p->weight && !p->age && !p->note && !p->followed && !p->turn,
             "price_scope", NONE, i, "a free price is not blank");
    }
    NEED(used + free_prices == t->top_prices, "scope", NONE, used, "prices and free ones do not add up");
    for (int32_t i = 0; i < t->n_classes * AGES; i++)
        NEED(t->returns[i] >= 0 && t->exposure[i] >= 0 && t->values[i] >= 0, "returns", NONE, i, "below 0 or no number");
    return K3_OK;
}

/* Sorts (id << 32 | node) and names an id that stands twice. */
static int check_unique(k3_tree *t, int64_t *pairs, int64_t n, const char *table) {
    qsort(pairs, (size_t)n, sizeof *pairs, compare_pair);
    for (int64_t i = 1; i < n; i++)
        NEED(pairs[i] >> 32 != pairs[i - 1] >> 32, table, pairs[i] & 0x7fffffff, pairs[i] >> 32, "has two owners");
    return K3_OK;
}

static int check_owners(k3_tree *t) {
    int64_t n_states = 0, n_pages = 0, most = t->counters[KV_PAGES];
    int64_t *states = malloc(sizeof *states * (size_t)(t->top + 1));
    int64_t *pages = malloc(sizeof *pages * (size_t)(most + 1));
    int64_t *prices = malloc(sizeof *prices * (size_t)(t->top + 1)), n_prices = 0;
    int rc = states && pages && prices ? K3_OK : K3_E_MEMORY;
    for (int32_t x = 0; rc == K3_OK && x < t->top; x++) {
        const node *n = &t->nodes[x];
        if (!(n->flags & LIVE)) continue;
        if (n->state >= 0) states[n_states++] = (int64_t)n->state << 32 | x;
        if (n->scope <= PRICED) prices[n_prices++] = (int64_t)(PRICED - n->scope) << 32 | x;
        const int32_t *own = pages_at(n);
        for (int32_t i = 0; own && i < n->len / t->page; i++) pages[n_pages++] = (int64_t)own[i] << 32 | x;
    }
    if (rc == K3_OK) rc = check_unique(t, states, n_states, "state");
    if (rc == K3_OK) rc = check_unique(t, pages, n_pages, "pages");
    if (rc == K3_OK) rc = check_unique(t, prices, n_prices, "scope");
    free(states);
    free(pages);
    free(prices);
    return rc;
}

static int check_counters(k3_tree *t) {
    int64_t sum[COUNTERS] = {0};
    int32_t deepest = 0;
    for (int32_t x = 0; x < t->top; x++) {
        const node *n = &t->nodes[x];
        if (!(n->flags & LIVE)) continue;
        sum[NODES]++;
        sum[CHECKPOINTS] += n->state >= 0;
        sum[KV_PAGES] += pages_at(n) ? pages_of(t, n->len) : 0;
        if (kv_bit(n) && pages_of(t, depth_of(n)) > deepest) deepest = pages_of(t, depth_of(n));
        sum[kv_bit(n) ? KV_TOKENS : GHOST_TOKENS] += n->len;
        sum[LOCKS] += n->lock;
    }
    for (int i = 0; i < COUNTERS; i++)
        if (sum[i] != t->counters[i])
            return corrupt(t, "tree table 'counters', %s: value %lld, but the nodes (table '%s') add up to %lld",
                           COUNTER_NAMES[i][0], (long long)t->counters[i], COUNTER_NAMES[i][1], (long long)sum[i]);
    NEED(t->cap_pages >= deepest, "counters", NONE, t->cap_pages, "no room to put a path's pages out");
    NEED(t->out == t->pages, "counters", NONE, t->n_pages, "page ids would go to an array of the past");
    return K3_OK;
}

int k3_tree_check(k3_tree *t) {
    int rc = check_priced(t);
    if (rc == K3_OK) rc = check_free(t);
    int64_t linked = 0;
    for (int32_t x = 0; rc == K3_OK && x < t->top; x++)
        if (t->nodes[x].flags & LIVE) rc = check_words(t, x);
    if (rc == K3_OK) rc = check_counters(t);
    for (int32_t x = 0; rc == K3_OK && x < t->top; x++)
        if (t->nodes[x].flags & LIVE) rc = check_arrays(t, x);
    for (int32_t x = 0; rc == K3_OK && x < t->top; x++)
        if (t->nodes[x].flags & LIVE) rc = check_children(t, x, &linked);
    if (rc == K3_OK) rc = check_heap(t, GHOSTS);
    if (rc == K3_OK) rc = check_prices(t);
    if (rc == K3_OK) rc = check_heap(t, EVICTABLE);
    if (rc < 0) return rc;
    NEED(linked + t->n_roots == t->counters[NODES], "parent", NONE, linked,
         "nodes that no parent links to (tables 'left', 'right', 'kids_kv', 'kids_ghost')");
    for (int32_t x = 0; x < t->top; x++) {
        const node *n = &t->nodes[x];
        if (!(n->flags & LIVE)) continue;
        const heap *h = &t->heaps[kv_bit(n)];
        NEED((n->seat != NONE) == belongs_in_heap(t, x), "seat", x, n->seat, "in a heap and eligible disagree");
        NEED(n->seat == NONE || (n->seat >= 0 && n->seat < h->n && heap_at(h, n->seat) == x), "seat", x, n->seat,
             "not its place in the heap");
        bool line = few_of(t, n, 0) == 0 && few_of(t, n, 1) == 1;
        bool followed = is_tail(t, n) && price_of(t, n) && price_of(t, n)->followed == 1;
        NEED(!(n->flags & SUPERSEDED) || (n->state >= 0 && passes(n) && (line || followed)), "flags", x, n->flags,
             "superseded without one KV child, or one lineage that follows a tail, or of a kind that stays");
        if (n->parent == NONE) continue;
        NEED(n->start == depth_of(&t->nodes[n->parent]), "start", x, n->start, "not where the parent ends");
        NEED(scope_of(t, n) == scope_of(t, &t->nodes[n->parent]), n->scope < 0 ? "price_scope" : "scope", x,
             scope_of(t, n), "not the parent's (tables 'scope', 'price_scope')");
    }
    return check_owners(t);
}

static int give_table(void *at, int64_t n, size_t size, void **ptr, int32_t *count, int32_t *width, int32_t *stride) {
    *ptr = at;
    *count = (int32_t)n;
    *width = *stride = (int32_t)size;
    return K3_OK;
}

int k3_tree_table(k3_tree *t, const char *name, int32_t x, void **ptr, int32_t *count, int32_t *width,
                  int32_t *stride) {
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
        if (strcmp(name, FIELDS[i].name) != 0) continue;
        give_table((char *)t->nodes + FIELDS[i].offset, t->top, FIELDS[i].width, ptr, count, width, stride);
        *stride = (int32_t)sizeof(node);
        return K3_OK;
    }
    for (size_t i = 0; i < sizeof PRICES / sizeof *PRICES; i++) {
        if (strcmp(name, PRICES[i].name) != 0) continue;
        give_table((char *)t->prices + PRICES[i].offset, t->top_prices, PRICES[i].width, ptr, count, width, stride);
        *stride = (int32_t)sizeof(price);
        return K3_OK;
    }
    if (!strcmp(name, "roots")) return give_table(t->roots, t->n_roots, 4, ptr, count, width, stride);
    if (!strcmp(name, "evictable"))
        return give_table(t->heaps[EVICTABLE].at, t->heaps[EVICTABLE].n, 4, ptr, count, width, stride);
    if (!strcmp(name, "ghosts")) { /* from the heap's end to its top */
        const heap *h = &t->heaps[GHOSTS];
        return give_table(h->n ? h->at - (h->n - 1) : NULL, h->n, 4, ptr, count, width, stride);
    }
    if (!strcmp(name, "timers")) return give_table(t->timers.at, t->timers.n, 4, ptr, count, width, stride);
    if (!strcmp(name, "counters")) return give_table(t->counters, COUNTERS, 8, ptr, count, width, stride);
    if (!is_live(t, x)) return K3_E_ARG;
    const node *n = &t->nodes[x];
    if (!strcmp(name, "tokens")) return give_table(n->tokens, n->len, 4, ptr, count, width, stride);
    if (!strcmp(name, "pages"))
        return give_table(pages_at(n), pages_at(n) ? pages_of(t, n->len) : 0, 4, ptr, count, width, stride);
    return K3_E_ARG;
}
