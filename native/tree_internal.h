/* Inside of the token tree: the node, its two ordered sets of children, the two heaps. */
#ifndef K3_TREE_INTERNAL_H
#define K3_TREE_INTERNAL_H

#include <string.h>

#include "tree.h"

enum { NONE = -1, PRICED = -2 };
enum { LIVE = 1, KV = 2, SUPERSEDED = 4, HAD_STATE = 8, USED = 16, ROOT = 32 };
enum { MARK = 64, DAMAGED = 128 }; /* set and cleared within one call */
enum { GHOSTS = 0, EVICTABLE = 1 }; /* heaps; also children by their KV bit */
enum { KINDS_MAX = 32, NOTES_MAX = 32, TURNS_MAX = 256, AGES = 32, NO_CLASS = 0xffff };
enum { LEAF = 0, LINE = 1, FORK = 2, STRUCTURES = 3 };
enum { NODES, CHECKPOINTS, KV_PAGES, KV_TOKENS, GHOST_TOKENS, LOCKS, COUNTERS };

/* Children stand in two treaps, ghosts [0] and KV [1], ordered by the tokens of the edge's first page (a shorter edge
 * before its extension); a treap's priority is a hash of the node id. Free nodes are chained through `parent`.
 * A page of 64 tokens has less than 100 bytes beside them: 72 here, a seat, a page id, the allocator's header. */
typedef struct {
    uint64_t touch;
    int32_t *tokens; /* len, own copy; behind them, with KV, the ceil(len / P) page ids. NULL at a root */
    int32_t parent;
    int32_t left, right;
    int32_t kids[2];
    int32_t start, len;
    int32_t state;
    int32_t lock;
    int32_t seat; /* place in the heap of its KV bit, or NONE */
    int32_t scope; /* or PRICED - the place of its price, which then holds the scope: see scope_of, price_of */
    uint32_t stamp_low, kv_stamp_low; /* steps are 40 bits: see stamp_of, kv_stamp_of */
    int8_t stamp_high, kv_stamp_high;
    uint8_t kind, flags;
} node;

#define BLANK_NODE \
    {.parent = NONE, .left = NONE, .right = NONE, .kids = {NONE, NONE}, .state = NONE, .seat = NONE, .scope = NONE, \
     .stamp_low = UINT32_MAX, .kv_stamp_low = UINT32_MAX, .stamp_high = -1, .kv_stamp_high = -1}

/* What else is known of a checkpoint: where the tree learns, of each one and of those that were evicted; else only
 * where something was said of it, or a lineage went on from a tail. Free ones are chained through `timer`. */
typedef struct {
    int32_t scope;    /* the node's */
    int32_t timer;    /* place in `timers`, or NONE */
    float weight;     /* tokens of recompute saved a token's worth of bytes held, as of the last settle or crossing */
    uint16_t class;   /* what its return is learned under, or NO_CLASS; a tombstone keeps it until it is asked for */
    uint8_t age;      /* bucket of now - touch, as of the last crossing */
    uint8_t note;     /* what the caller said of its next use */
    uint8_t followed; /* lineages that went on from a tail's checkpoint: 0, 1, 2 or more */
    uint8_t turn;     /* ends and forks of earlier prompts above it, saturating */
} price;

#define BLANK_PRICE {.scope = NONE, .timer = NONE, .class = NO_CLASS}

/* Both heaps in one array of `cap` places, from its two ends: element i of a heap is at[i * way]. */
typedef struct {
    int32_t *at;
    int32_t n, way;
} heap;

struct k3_tree {
    node *nodes;
    int32_t cap, top, free; /* nodes [0, top) have been used, free ones are chained from `free` */
    int32_t page, kinds;
    int32_t *roots;
    int32_t n_roots, cap_roots;
    int32_t *seats; /* of both heaps: a node sits in one at most, so seating never allocates */
    heap heaps[2];
    int32_t *pages; /* room to put out the pages of any one path, or of a publish */
    int32_t cap_pages;
    int32_t *out; /* where page ids go: `pages`, or the caller's array (drop, flush) */
    int32_t n_pages;
    uint64_t clock;
    int64_t last_stamp; /* largest stamp seen */
    int64_t ghost_limit;
    int64_t counters[COUNTERS];
    uint8_t classes[KINDS_MAX][2];
    price *prices;
    int32_t cap_prices, top_prices, free_price;
    /* What is learned: nothing (n_classes 0) unless k3_tree_learn was called. Tables [class][age bucket]. */
    int32_t n_classes;
    bool valued; /* order by values, not by touch */
    uint64_t reached; /* the clock that all ages have reached */
    double state_tokens; /* a state's bytes in tokens of KV */
    heap timers;         /* tracked nodes by the time at which they leave their age bucket; room for cap_prices */
    uint64_t *edges;     /* [AGES + 1] ages at which buckets begin, microseconds; the last never comes */
    uint16_t *class_of;  /* [STRUCTURES][NOTES_MAX][TURNS_MAX] */
    float *values;
    double *returns, *exposure; /* exposure in seconds */
    char error[256];
};

/* Tokens that a and b have in common, at most n; near memcmp on long runs. O(result). */
static inline int32_t common(const int32_t *a, const int32_t *b, int32_t n) {
    int32_t i = 0;
    while (n - i >= 512 && memcmp(a + i, b + i, 512 * sizeof *a) == 0) i += 512;
    while (n - i >= 32 && memcmp(a + i, b + i, 32 * sizeof *a) == 0) i += 32;
    while (i < n && a[i] == b[i]) i++;
    return i;
}

static inline int32_t depth_of(const node *n) { return n->start + n->len; }
static inline int32_t pages_of(const k3_tree *t, int32_t tokens) { return tokens / t->page + (tokens % t->page != 0); }
static inline int kv_bit(const node *n) { return (n->flags & KV) != 0; }
static inline bool is_tail(const k3_tree *t, const node *n) { return n->len % t->page != 0; }
/* Kinds that a deeper checkpoint of the same lineage makes worth less. */
static inline bool passes(const node *n) {
    return n->kind == K3_PROMPT_END || n->kind == K3_CHUNK_END || n->kind == K3_ANSWER_END || n->kind == K3_RETRACT;
}
static inline bool is_live(const k3_tree *t, int32_t x) { return x >= 0 && x < t->top && (t->nodes[x].flags & LIVE); }

static inline int64_t join(uint32_t low, int8_t high) { return (int64_t)(((uint64_t)(int64_t)high << 32) | low); }
/* Step that wrote the checkpoint, and the KV; -1 without. O(1). */
static inline int64_t stamp_of(const node *n) { return join(n->stamp_low, n->stamp_high); }
static inline int64_t kv_stamp_of(const node *n) { return join(n->kv_stamp_low, n->kv_stamp_high); }
static inline void set_stamp(node *n, int64_t step) {
    n->stamp_low = (uint32_t)step;
    n->stamp_high = (int8_t)(step >> 32);
}
static inline void set_kv_stamp(node *n, int64_t step) {
    n->kv_stamp_low = (uint32_t)step;
    n->kv_stamp_high = (int8_t)(step >> 32);
}

/* The node's price, NULL without one. O(1). */
static inline price *price_of(const k3_tree *t, const node *n) {
    return n->scope <= PRICED ? &t->prices[PRICED - n->scope] : NULL;
}
static inline int32_t scope_of(const k3_tree *t, const node *n) {
    const price *p = price_of(t, n);
    return p ? p->scope : n->scope;
}
static inline bool is_over(const k3_tree *t, const node *n) {
    const price *p = price_of(t, n);
    return p && p->note == K3_USE_OVER;
}

/* Page ids of a KV node, NULL of others. O(1). */
static inline int32_t *pages_at(const node *n) { return (n->flags & (KV | ROOT)) == KV ? n->tokens + n->len : NULL; }

/* Children with that KV bit, or all: 0, 1, or 2 for more. O(1). */
static inline int32_t few_of(const k3_tree *t, const node *n, int bit) {
    if (n->kids[bit] == NONE) return 0;
    const node *top = &t->nodes[n->kids[bit]];
    return top->left == NONE && top->right == NONE ? 1 : 2;
}
static inline int32_t few_children(const k3_tree *t, const node *n) {
    int32_t all = few_of(t, n, 0) + few_of(t, n, 1);
    return all < 2 ? all : 2;
}

static inline int32_t heap_at(const heap *h, int32_t i) { return h->at[(ptrdiff_t)i * h->way]; }

/* A bijection of node ids, so priorities never tie. */
static inline uint32_t priority(int32_t x) {
    uint32_t h = (uint32_t)x + 0x9e3779b9u;
    h = (h ^ (h >> 16)) * 0x85ebca6bu;
    h = (h ^ (h >> 13)) * 0xc2b2ae35u;
    return h ^ (h >> 16);
}

/* Order of two edges within the first page. O(P). */
static inline int order(const k3_tree *t, const int32_t *a, int32_t na, const int32_t *b, int32_t nb) {
    if (na > 0 && nb > 0 && a[0] != b[0]) return a[0] < b[0] ? -1 : 1; /* most of them */
    if (na > t->page) na = t->page;
    if (nb > t->page) nb = t->page;
    int32_t n = na < nb ? na : nb, i = common(a, b, n);
    if (i < n) return a[i] < b[i] ? -1 : 1;
    return (na > nb) - (na < nb);
}

/* tree_nodes.c */
int corrupt(k3_tree *t, const char *format, ...); /* writes the error text, returns K3_E_CORRUPT */
int need_live(k3_tree *t, int32_t x);
int32_t node_new(k3_tree *t);                      /* a live, unlinked ghost or K3_E_MEMORY; may move t->nodes */
int reserve_pages(k3_tree *t, int64_t need);       /* room to put out so many page ids */
int32_t child_at_or_before(const k3_tree *t, int32_t root, const int32_t *key, int32_t n, int32_t *after);
void link_child(k3_tree *t, int32_t p, int32_t x);   /* O(P log c) */
void unlink_child(k3_tree *t, int32_t p, int32_t x); /* O(P log c) */
uint64_t heap_key(const k3_tree *t, int32_t x);
bool belongs_in_heap(const k3_tree *t, int32_t x);
void settle(k3_tree *t, int32_t x);     /* re-seats x and re-judges its superseded mark. O(log n) */
void detach(k3_tree *t, int32_t x);     /* takes the checkpoint off; the caller settles */
int32_t split(k3_tree *t, int32_t x, int32_t at); /* new upper half [start, start + at) of x, or K3_E_MEMORY */
int give_kv(k3_tree *t, int32_t x, const int32_t *pages, int64_t stamp); /* ghost -> KV; copies the ids. O(len) */
void lose_kv(k3_tree *t, int32_t x);    /* KV -> ghost; puts its pages out */
void forget(k3_tree *t, int32_t x);     /* removes a ghost leaf */
void trim_ghosts(k3_tree *t);           /* down to the ghost limit */
void mark_path(k3_tree *t, int32_t x);  /* sets MARK from x up to the first that has it */
void clear_path(k3_tree *t, int32_t x); /* and takes it off again */
void sift_at(k3_tree *t, int32_t x);    /* x's key changed: puts it right among the evictable. O(log n) */
void heapify(k3_tree *t);               /* after all keys of the evictable may have changed. O(n) */
/* tree_price.c */
int reserve_prices(k3_tree *t, int32_t more); /* room for so many more */
price *give_price(k3_tree *t, int32_t x);     /* its price, for which there is room */
void drop_price(k3_tree *t, int32_t x);       /* takes it away: x is not tracked */
void classify(k3_tree *t, int32_t x);  /* class and weight of a checkpoint as it stands now. O(path to the next above) */
void start_age(k3_tree *t, int32_t x); /* tracks x from its touch on. O(log n) */
void end_age(k3_tree *t, int32_t x, bool returned); /* books x's age under its class and forgets it. O(log n) */
void reach_now(k3_tree *t);            /* lets ages reach the clock. O(log n) a crossing */
float value_of(const k3_tree *t, int32_t x);
void count_turns(k3_tree *t, int32_t x, bool again); /* again: it had a checkpoint, and another turn comes by */
bool reweigh(k3_tree *t, int32_t x);   /* whether the weight changed */
int64_t bytes_learned(const k3_tree *t); /* of the tables by class */

#endif
