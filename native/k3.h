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
    K3_MUTANT_EVICT_RECENT = 1,  /* evicts the most recent instead of the least recent */
    K3_MUTANT_EVICT_LOCKED = 2,  /* a lock does not keep an entry from eviction */
    K3_MUTANT_LIMIT = 3,         /* a match ignores its limit: a whole-prompt hit leaves nothing to compute */
    K3_MUTANT_STAMP = 4,         /* a match sees checkpoints that are written in the same step */
    K3_MUTANT_PROTECT = 5,       /* eviction takes from the path that it was told to protect */
    K3_MUTANT_TAILS = 6,         /* a match does not look at tails beside the path */
    K3_MUTANT_DROP_DEEPER = 7,   /* after a failed step, what stands on damaged KV stays */
    K3_MUTANT_ATTACH_SPLIT = 8,  /* a tail's checkpoint moves to the upper half on a split: depth != node end */
};

/* Kinds of checkpoints that a rule of the core names; the numbers of k3mem.radix.Kind. */
enum { K3_PROMPT_END = 0, K3_CHUNK_END = 4 };

#ifdef K3_MUTANTS
extern int k3_mutant;
#define K3_MUTANT(id) (k3_mutant == (id))
#else
#define K3_MUTANT(id) 0
#endif

#endif
