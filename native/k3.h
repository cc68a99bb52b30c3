/* Shared by the whole C core: result codes and planted bugs. */
#ifndef K3_H
#define K3_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define K3_OK 0

/* cffi: begin */
enum {
    K3_E_MEMORY = -1,  /* allocation failed; the structure is still consistent */
    K3_E_ARG = -2,     /* an argument that no caller may pass; nothing changed */
    K3_E_CORRUPT = -3, /* an invariant is broken; the structure's error text says which */
};
/* cffi: end */

/* Planted bugs of the tree. They exist only in builds with K3_MUTANTS, to prove that the tests would see them. */
enum {
    K3_MUTANT_NONE = 0,
    K3_MUTANT_EVICT_RECENT = 1,         /* evicts the most recent instead of the least recent */
    K3_MUTANT_EVICT_LOCKED = 2,         /* a lock does not keep an entry from eviction */
    K3_MUTANT_LIMIT = 3,                /* a match ignores its limit: a whole-prompt hit leaves nothing to compute */
    K3_MUTANT_STAMP = 4,                /* a match sees checkpoints that are written in the same step */
    K3_MUTANT_PROTECT = 5,              /* eviction takes from the path that it was told to protect */
    K3_MUTANT_TAILS = 6,                /* a match does not look at tails beside the path */
    K3_MUTANT_DROP_DEEPER = 7,          /* after a failed step, what stands on damaged KV stays */
    K3_MUTANT_ATTACH_SPLIT = 8,         /* a tail's checkpoint moves to the upper half on a split: depth != node end */
    K3_MUTANT_SPLIT_RECENCY = 9,        /* a split counts as a use of the lower half */
    K3_MUTANT_SPLIT_LOCK = 10,          /* a split moves the lock to the upper half */
    K3_MUTANT_SPLIT_STAMP = 11,         /* the upper half forgets which step wrote its KV */
    K3_MUTANT_TOMBSTONE = 12,           /* a match takes a tombstone for a checkpoint */
    K3_MUTANT_FIRST_PAGE = 13,          /* a match believes an edge whose first page agrees */
    K3_MUTANT_SCOPE = 14,               /* a match goes on in other scopes below the first page */
    K3_MUTANT_MATCH_TOUCHES = 15,       /* a match counts as a use */
    K3_MUTANT_TREAP_ORDER = 16,         /* a new child is put in order by its first token only */
    K3_MUTANT_TREAP_PRIORITY = 17,      /* removing a child merges in the wrong priority: the treap becomes a list */
    K3_MUTANT_TAIL_PAGE = 18,           /* a tail's last page is not reported as shared: two owners, one reference */
    K3_MUTANT_ADOPTED = 19,             /* the first adopted page is not reported: two owners, one reference */
    K3_MUTANT_REPLACED = 20,            /* an edge's last duplicate page is not reported: its owner waits for ever */
    K3_MUTANT_TAKEN = 21,               /* a state that the node had no use for is reported as taken: nobody owns it */
    K3_MUTANT_REVIVED_PAGES = 22,       /* a ghost comes back with the pages of the sequence's start */
    K3_MUTANT_LOCK_FLAG = 23,           /* a lock is a flag: a node's second one is not counted */
    K3_MUTANT_TOUCH_PATH = 24,          /* a use of a node refreshes all above it: stale prefixes stay (silent) */
    K3_MUTANT_SUPERSEDED_FORK = 25,     /* a superseded checkpoint keeps the mark when its path forks */
    K3_MUTANT_SUPERSEDED_KIND = 26,     /* a caller's hint becomes superseded like a chunk's end */
    K3_MUTANT_SUPERSEDED_LAST = 27,     /* superseded checkpoints are not the first to go */
    K3_MUTANT_HEAP_ORDER = 28,          /* the heap's order holds along left children only */
    K3_MUTANT_CAP_FORK = 29,            /* the cap takes a fork's checkpoint */
    K3_MUTANT_CAP_LOCKED = 30,          /* the cap takes a locked checkpoint */
    K3_MUTANT_EVICT_SHARED = 31,        /* with one branch goes the KV of the trunk that others stand on */
    K3_MUTANT_EVICT_LEAF = 32,          /* KV above a victim that nothing needs any more stays (silent) */
    K3_MUTANT_EVICT_TAIL_PAGE = 33,     /* a tail lets its last page go without saying so: leaked */
    K3_MUTANT_GHOST_LIMIT = 34,         /* ghosts are never forgotten (silent) */
    K3_MUTANT_FLUSH_LOCKED = 35,        /* a flush takes the KV that a locked node stands on */
    K3_MUTANT_DROP_STAMP = 36,          /* KV that the failed step itself wrote stays */
    K3_MUTANT_DROP_ROW = 37,            /* damage to a page's last row is not seen */
    K3_MUTANT_DROP_STATE = 38,          /* a damaged state stays in the tree */
    K3_MUTANT_VALUE_ORDER = 39,         /* the most valuable checkpoint goes first (silent) */
    K3_MUTANT_OVER_STAYS = 40,          /* an ended session's checkpoints wait their turn (silent) */
    K3_MUTANT_AGE_STOPS = 41,           /* a checkpoint's age is never looked at again (silent) */
    K3_MUTANT_WEIGHT_STALE = 42,        /* a checkpoint is weighed once, whatever changes around it (silent) */
    K3_MUTANT_TAIL_FORK = 43,           /* a tail that two lineages went on from counts as passed by one (silent) */
    K3_MUTANT_GHOST_FORK = 44,          /* a branch that was evicted is no fork: the checkpoint above is superseded */
};

/* Kinds of checkpoints that a rule of the core names; the numbers of k3mem.radix.Kind. */
enum { K3_PROMPT_END = 0, K3_BRANCH = 1, K3_CHUNK_END = 4, K3_ANSWER_END = 6, K3_RETRACT = 7 };
/* Notes that a rule of the core names; the numbers of k3mem.radix.Note. */
enum { K3_USE_RUNNING = 0, K3_USE_OVER = 1 };

#ifdef K3_MUTANTS
extern int k3_mutant;
#define K3_MUTANT(id) (k3_mutant == (id))
#else
#define K3_MUTANT(id) 0
#endif

#endif
