/* A small server around the real tree and arena: writers that match, grow, publish and leave, under pressure, failures,
 * moves, leases and steps in flight. Its oracle is a shadow memory, addressed by place through a mirror of the tables
 * as an executor has one: every row and state holds a hash of the prefix that it was computed from.
 *
 *   op byte -> one of OPS -> changes of tree and arena -> inspect(): what they say against the shadow, and check()
 */
#ifndef K3_FUZZ_WORLD_H
#define K3_FUZZ_WORLD_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "arena.h"
#include "tree.h"

enum { PLACES = 352, ROWS = 16, TOKENS = 96, WRITERS = 5, SCOPES = 2, PROMPTS = 8, LEASES = 4, KINDS = 8 };
enum { NOTED = 6 }; /* classes: structure, and whether anything was said of the next use */
enum { FREE = 0, LIVE = 1, PENDING = 2 };

/* Ends the process where the core broke its word. */
#define NEED(ok, ...)                                                                \
  do {                                                                               \
    if (!(ok)) {                                                                     \
      fprintf(stderr, "k3 fuzz: %s:%d: not %s: ", __FILE__, __LINE__, #ok);          \
      fprintf(stderr, __VA_ARGS__);                                                  \
      fputc('\n', stderr);                                                           \
      abort();                                                                       \
    }                                                                                \
  } while (0)

typedef struct {
  uint64_t hash; /* of scope and tokens up to here; 0: lost or never written */
  int64_t step;  /* that wrote it */
} cell;

typedef struct {
  cell pages[PLACES][ROWS], states[PLACES];
  uint8_t use[2][PLACES];    /* of a place */
  int64_t busy[2][PLACES];   /* the step that a pending place waits for */
  int32_t mirror[2][PLACES]; /* id -> place, fed by drain alone; -1: not live */
} shadow;

typedef struct {
  int alive, scope, n; /* tokens absorbed */
  int own_from;        /* pages [own_from, pages(n)) are its own, those before are the tree's */
  int32_t node;        /* locked */
  int32_t state;       /* its working state */
  int32_t tokens[TOKENS], pages[TOKENS];
} writer;

/* A checkpoint in the tree, by state id; depth 0: none. */
typedef struct {
  int depth;
  uint64_t hash, touch; /* touch: the larger, the later used */
  int64_t stamp;
} checkpoint;

typedef struct {
  int kind;
  int32_t id, place, count;
} lease;

typedef struct {
  const uint8_t *data;
  size_t size, at;
  k3_tree *tree;
  k3_arena *arena;
  int page; /* page_tokens */
  int64_t top, bytes[2], most[2], ghost_limit;
  int64_t step, settled, lag; /* what is freed waits for step - lag */
  uint64_t clock;
  uint8_t classes[KINDS][2];
  int priced; /* victims go by value */
  float values[NOTED * 32];
  double state_tokens;
  uint64_t rank[PLACES]; /* by state id, as of the last look */
  shadow mem;
  writer writers[WRITERS];
  checkpoint kept[PLACES];
  lease leases[LEASES];
  struct {
    int scope, n;
    int32_t tokens[TOKENS];
  } prompts[PROMPTS];
  int n_prompts;
} world;

/* target.c: bytes to choices. 0 .. n - 1; 0 when the bytes are used up. */
int pick(world *w, int n);

/* memory.c: the arena and its shadow. */
int ensure(world *w, int n_pages, int n_states, int32_t protect); /* 1: fits now, after moves and evictions */
void hand_out(world *w, int n_pages, int n_states, int32_t *pages, int32_t *states);
void give_back(world *w, int kind, const int32_t *ids, int n); /* one reference each */
void settle_to(world *w, int64_t step);
void drain(world *w);
cell *row_at(world *w, int32_t page, int row);
cell *state_at(world *w, int32_t state);
void inspect_memory(world *w);
void op_moves(world *w);
void op_lease(world *w);
void op_breach(world *w);

/* sequences.c: writers and the tree. */
int evict_one(world *w, int32_t protect); /* 0: nothing is evictable */
void inspect_tree(world *w);
void op_start(world *w);
void op_grow(world *w);
void op_publish(world *w);
void op_finish(world *w);
void op_abort(world *w);
void op_evict(world *w);
void op_cap(world *w);
void op_note(world *w);
void op_take(world *w);
void op_fail(world *w);
void op_flush(world *w);
void close_all(world *w); /* every writer leaves and the tree is flushed */

#endif
