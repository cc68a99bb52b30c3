/* The token tree: which prefixes are known, where their KV pages and checkpoints are, what may be evicted.
 *
 *   root --[0,128)--> n1 --[128,192)--> n2 --[192,230)--> tail      page_tokens = 64: edges start at page multiples;
 *                       \--[128,256)--> n3                          only a tail ends inside a page and has no children
 *
 * A node's checkpoint, if any, stands at the node's end. A node is KV (it has pages) or a ghost (tokens only); the
 * ancestors of a KV node are KV. One tree has many roots, one a scope; scopes share nothing.
 *
 * Ids of pages and states come from the caller, who counts their references; the tree only reports what it took, kept
 * or let go. Nodes are int32 indexes and are reused. No global state; one thread. Costs: n nodes, c children of a
 * node, P page_tokens, "path" the number of nodes from the root.
 */
#ifndef K3_TREE_H
#define K3_TREE_H

#include "k3.h"

#define K3_LAST_STEP 549755813887 /* 2^39 - 1: no stamp is larger */

/* cffi: begin */
typedef struct k3_tree k3_tree;

typedef struct {
    int32_t node, depth, state; /* deepest usable checkpoint: its node, depth and state; else root, 0, -1 */
    int32_t known;              /* leading tokens on any known path, ghosts included */
    int32_t kv;                 /* leading tokens on paths with KV */
    int32_t evicted;            /* depth of the deepest matched node that lost its checkpoint, else 0 */
    int32_t full;               /* depth of the deepest matched checkpoint whatever the limit, else 0 */
} k3_match;

typedef struct {
    int32_t node;         /* the node that ends at the published depth */
    int32_t taken;        /* 1: the state now belongs to the tree */
    int32_t adopted_from; /* pages [adopted_from, end / P) of the publisher now belong to the tree */
    int32_t n_replaced;   /* pairs (index, the tree's page id) in k3_tree_out_pages */
    int32_t shared_page;  /* page id that a new tail references, else -1 */
} k3_published;

typedef struct {
    int32_t node, kind, state, depth;
    int32_t n_pages; /* page ids in k3_tree_out_pages */
    int32_t tokens;  /* tokens whose KV went */
    int32_t unused;  /* 1: a checkpoint that was never touched */
    int32_t page;    /* the first of those pages, if any */
} k3_evicted;

typedef struct {
    int32_t depth, start, parent, state, kind, lock, scope;
    int32_t children; /* 0, 1, or 2 for more */
    int32_t has_kv, superseded, is_tail, had_state;
    int32_t unused; /* 1: a checkpoint that was never touched */
    int32_t note, turn, class, age; /* of a checkpoint; class -1: none */
    float value;                    /* by which it is ordered within its rank, where there are values */
    int64_t stamp, kv_stamp;
} k3_node_info;

typedef struct {
    int64_t nodes, checkpoints, kv_pages, kv_tokens, ghost_tokens, locks, edge_tokens, metadata_bytes;
} k3_tree_counters;

/* New tree. classes: kinds x 2 bytes (class by kind and superseded), each < 255. ghost_tokens: most tokens in ghosts,
 * -1 = unlimited. NULL when memory is out. O(1). */
k3_tree *k3_tree_new(int32_t page_tokens, const uint8_t *classes, int32_t kinds, int64_t ghost_tokens);
/* Frees all. O(n). */
void k3_tree_free(k3_tree *t);
/* Text of the last K3_E_CORRUPT. O(1). */
const char *k3_tree_error(const k3_tree *t);
/* Page ids that the last publish, evict or cap put out; valid until the next call. O(1). */
const int32_t *k3_tree_out_pages(const k3_tree *t);

/* New root; returns its scope (0, 1, ...) or an error. Amortised O(1). */
int32_t k3_tree_new_scope(k3_tree *t);
/* The scope's root node or K3_E_ARG. O(1). */
int32_t k3_tree_root(const k3_tree *t, int32_t scope);

/* Longest known prefix of tokens[0:n] and its deepest checkpoint with depth <= limit and stamp < before_step. Pure
 * read, no allocation. O(n + path * P log c). */
int k3_tree_match(k3_tree *t, int32_t scope, const int32_t *tokens, int32_t n, int32_t limit, int64_t before_step,
                  k3_match *out);
/* Adds tokens[depth(node):end] below node and attaches the checkpoint there; pages[i] covers [i P, (i+1) P).
 * O(end - depth(node) + P + edges split), plus log n a node; superseding walks up single children to a checkpoint. */
int k3_tree_publish(k3_tree *t, int32_t node, const int32_t *tokens, int32_t end, const int32_t *pages,
                    int32_t n_pages, int32_t state, int32_t kind, int64_t stamp, k3_published *out);

/* Remembers tokens[depth(node):end] below node, whole pages of it, as seen: what is not known there becomes a ghost.
 * O(end - depth(node) + P and the edges split), plus log n a node. */
int k3_tree_remember(k3_tree *t, int32_t node, const int32_t *tokens, int32_t end);

/* Marks as used now. O(log n). */
int k3_tree_touch(k3_tree *t, int32_t node);
/* One more lock. O(log n). */
int k3_tree_lock(k3_tree *t, int32_t node);
/* One lock less; K3_E_CORRUPT below 0. O(log n). */
int k3_tree_unlock(k3_tree *t, int32_t node);

/* Detaches the checkpoint; returns its state id or an error. O(log n). */
int32_t k3_tree_take(k3_tree *t, int32_t node);
/* Removes the entry with the smallest key outside the path root..protect (-1: none protected). 1: a victim in *out,
 * 0: nothing is evictable. Amortised O(log n + path to protect + protected entries met). */
int k3_tree_evict(k3_tree *t, int32_t protect, k3_evicted *out);
/* Removes this entry, if it may go: 1 with the victim in *out, else 0. O(log n + path to protect). */
int k3_tree_remove(k3_tree *t, int32_t node, int32_t protect, k3_evicted *out);
/* Removes the state of least loss if more than `limit` capped checkpoints of `kinds` (bit set) lie on the path above
 * node. 1: a victim in *out, 0: none. O(path). */
int k3_tree_cap(k3_tree *t, int32_t node, int32_t limit, uint32_t kinds, k3_evicted *out);
/* After a failed step: see tree.py. damaged_rows by page id, damaged_states by state id. What goes is put out into
 * states_out and pages_out, which have room for all checkpoints and kv_pages of k3_tree_count; n_out: how many of each.
 * O(n + pages). */
int k3_tree_drop(k3_tree *t, int64_t stamp, const int32_t *damaged_rows, int32_t n_rows, const uint8_t *damaged_states,
                 int32_t n_states, int32_t *states_out, int32_t *pages_out, int32_t *n_out);
/* Drops every unlocked checkpoint and all KV outside locked paths; forgets ghosts. Outputs as above. O(n log n). */
int k3_tree_flush(k3_tree *t, int32_t *states_out, int32_t *pages_out, int32_t *n_out);
/* Forgets all ghosts without a locked descendant. O(ghosts log n). */
int k3_tree_forget_ghosts(k3_tree *t);

/* Microseconds on the caller's clock; what is used from now on is used then. Never runs back. O(1). */
void k3_tree_time(k3_tree *t, int64_t now);
/* From now on checkpoints have classes, and their returns are learned. class_of [3][32][256]: class below n_classes by
 * structure (0 leaf, 1 line: one child below a passing kind, 2 fork), note and turn; edges [33]: ages at which buckets
 * begin, microseconds, edges[0] = 0; state_tokens: a state's bytes in tokens of KV. Once, on an empty tree. O(1). */
int k3_tree_learn(k3_tree *t, int32_t n_classes, const uint16_t *class_of, const int64_t *edges, double state_tokens);
/* Orders victims by values[class][32] x recompute saved a byte, within the rank that `classes` gave, all weighed anew;
 * NULL: by touch. O(n). */
int k3_tree_values(k3_tree *t, const float *values);
/* What was learned: [class][32] returns, and seconds spent waiting; writable, valid while the tree is. O(1). */
void k3_tree_learned(k3_tree *t, double **returns, double **exposure);
/* Adds to out [class][32] the seconds that were spent in the present bucket of age by all who still wait, which are
 * booked when they leave it. O(checkpoints and tombstones tracked). */
void k3_tree_waiting(k3_tree *t, double *out);
/* What the caller says of a checkpoint's next use, as of now (K3_USE_OVER: also of those above it up to a fork).
 * Nothing happens without a checkpoint. O(log n). */
int k3_tree_note(k3_tree *t, int32_t node, int32_t note);

/* Depth of a node or an error. O(1). */
int32_t k3_tree_depth(k3_tree *t, int32_t node);
/* State of a node's checkpoint, -1 without one, K3_E_CORRUPT for a node not in the tree. O(1). */
int32_t k3_tree_state(k3_tree *t, int32_t node);
/* Page ids of [0, depth), root first, into out[ceil(depth / P)]. O(pages + path). */
int k3_tree_pages(k3_tree *t, int32_t node, int32_t *out);
/* Tokens of [0, depth) into out[depth]. O(depth + path). */
int k3_tree_path_tokens(k3_tree *t, int32_t node, int32_t *out);
/* O(1). */
int k3_tree_info(k3_tree *t, int32_t node, k3_node_info *out);
/* O(1). */
void k3_tree_count(const k3_tree *t, k3_tree_counters *out);
/* out[kind] = checkpoints of that kind, for all kinds of k3_tree_new. O(n). */
void k3_tree_kinds(const k3_tree *t, int64_t *out);
/* Where others left the known path of tokens[0:n], ghosts included: page depths, ascending, and how many branches left
 * in each page; returns how many pages, at most `room`, or an error. A branch that ends on the path has not left it.
 * O(n + branches x P). */
int32_t k3_tree_forks(k3_tree *t, int32_t scope, const int32_t *tokens, int32_t n, int32_t room, int32_t *depth,
                      int32_t *count);
/* All KV nodes but roots, by node id, into arrays of counters.nodes entries each; returns how many. O(n). */
int32_t k3_tree_walk(const k3_tree *t, int32_t *node, int32_t *depth, int32_t *state, int64_t *stamp, int32_t *scope);

/* out[page id] = nodes that hold the page, for ids < n. O(pages). */
void k3_tree_page_refs(const k3_tree *t, int32_t *out, int32_t n);
/* Class of the entry that k3_tree_evict(t, protect, ..) would remove, -1 if there is none, or K3_E_CORRUPT. O(1), and
 * as evict where something is protected. */
int32_t k3_tree_next_class(k3_tree *t, int32_t protect);

/* Every invariant; K3_E_CORRUPT with the table, node and value in k3_tree_error. O(n log n + tokens + pages). */
int k3_tree_check(k3_tree *t);
/* For tests: where a table lies. Node fields by name (one word a node), fields of prices (one a price), "roots", "evictable", "ghosts" (the
 * heaps), "timers", "counters", and of one node "tokens" and "pages". count words of width bytes, stride bytes apart. */
int k3_tree_table(k3_tree *t, const char *name, int32_t node, void **ptr, int32_t *count, int32_t *width,
                  int32_t *stride);
/* cffi: end */

#endif
