/* LLVMFuzzerTestOneInput: bytes are a world's shape and then operations. Works under libFuzzer, AFL++ and driver.c. */
#include <string.h>

#include "world.h"

int pick(world *w, int n) { return w->at < w->size ? w->data[w->at++] % n : 0; }

static void op_step(world *w) {
  w->step++;
  if (w->priced) k3_tree_time(w->tree, 16 * w->step);
  w->lag = pick(w, 3);
  settle_to(w, w->step - 1 - pick(w, 3));
}

typedef struct {
  int weight;
  void (*run)(world *w);
} op;

static const op OPS[] = {
    {9, op_start}, {6, op_grow}, {9, op_publish}, {5, op_finish}, {2, op_abort}, {3, op_evict}, {2, op_cap},
    {2, op_take},  {3, op_note},  {2, op_fail}, {1, op_flush},   {4, op_moves},  {3, op_lease}, {1, op_breach}, {7, op_step},
};

static void run_one(world *w) {
  int weights = 0;
  for (size_t i = 0; i < sizeof OPS / sizeof *OPS; i++) weights += OPS[i].weight;
  int at = pick(w, weights);
  for (size_t i = 0; i < sizeof OPS / sizeof *OPS; i++)
    if ((at -= OPS[i].weight) < 0) {
      OPS[i].run(w);
      return;
    }
}

/* Classes by structure and note, ages in octaves, values without any order. */
static void price(world *w) {
  static uint16_t class_of[3][32][256];
  int64_t edges[33] = {0};
  int seed = pick(w, 256);
  for (int s = 0; s < 3; s++)
    for (int note = 0; note < 32; note++)
      for (int turn = 0; turn < 256; turn++) class_of[s][note][turn] = (uint16_t)(2 * s + (note > 0));
  for (int i = 1; i <= 32; i++) edges[i] = (int64_t)1 << (i + 2);
  for (int i = 0; i < NOTED * 32; i++) w->values[i] = (float)(1 + (i * i + seed * (i + 7)) % 13);
  w->state_tokens = 1 + pick(w, 20);
  NEED(k3_tree_learn(w->tree, NOTED, class_of[0][0], edges, w->state_tokens) == K3_OK, "learn");
  w->priced = 1;
}

/* Shapes: page_tokens, bytes of a page and a state, how many fit, a fixed split, a ghost limit. */
static void build(world *w) {
  static const int PAGES[] = {1, 2, 3, 4, 16};
  memset(w->classes, 1, sizeof w->classes);
  w->page = PAGES[pick(w, 5)];
  w->bytes[K3_PAGE] = 1 + pick(w, 7);
  w->bytes[K3_STATE] = 1 + pick(w, 23);
  w->top = 2 * (w->bytes[0] + w->bytes[1]) + 20 + pick(w, 256);
  int64_t limit[2] = {w->top, w->top};
  if (pick(w, 4) == 3) { /* fixed split */
    limit[1] = 2 * w->bytes[1] + w->top * (1 + pick(w, 3)) / 8;
    limit[0] = w->top - limit[1];
  }
  for (int kind = 0; kind < 2; kind++) {
    w->most[kind] = limit[kind] / w->bytes[kind];
    if (w->most[kind] < 2) w->most[kind] = 2;
    if (w->most[kind] > PLACES) w->most[kind] = PLACES;
  }
  w->ghost_limit = pick(w, 3) * 20 - 1; /* -1: none */
  if (pick(w, 2)) w->classes[K3_CHUNK_END][1] = w->classes[K3_PROMPT_END][1] = 0;
  w->tree = k3_tree_new(w->page, w->classes[0], KINDS, w->ghost_limit);
  w->arena = k3_arena_new(w->bytes[0], w->bytes[1], w->top, w->most[0], w->most[1]);
  NEED(w->tree && w->arena, "memory");
  if (pick(w, 3) == 2) price(w);
  memset(w->mem.mirror, 0xff, sizeof w->mem.mirror);
  w->mem.mirror[0][0] = w->mem.mirror[1][0] = 0;
  w->mem.use[0][0] = w->mem.use[1][0] = LIVE;
  for (int s = 0; s < SCOPES; s++) NEED(k3_tree_new_scope(w->tree) == s, "scope");
  w->step = 1;
}

static void inspect(world *w) {
  inspect_memory(w);
  inspect_tree(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static world w;
  memset(&w, 0, sizeof w);
  w.data = data;
  w.size = size;
  build(&w);
  for (int ops = 0; w.at < w.size; ops++) {
    run_one(&w);
    if (ops % 4 == 0) inspect(&w); /* it costs more than an operation */
  }
  inspect(&w);
  close_all(&w);
  inspect(&w);
  k3_tree_free(w.tree);
  k3_arena_delete(w.arena);
  return 0;
}
