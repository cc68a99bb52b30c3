/* Writers, the checkpoints they leave, and what a match of any prompt must find. */
#include <string.h>

#include "world.h"

static int pages_of(const world *w, int tokens) { return (tokens + w->page - 1) / w->page; }

/* out[i]: the prefix of i tokens. */
static void hashes(int scope, const int32_t *tokens, int n, uint64_t *out) {
  uint64_t h = out[0] = 0x9e3779b97f4a7c15u * (uint64_t)(scope + 1);
  for (int i = 0; i < n; i++) {
    h = (h ^ (uint64_t)(tokens[i] + 1)) * 0xff51afd7ed558ccdu;
    out[i + 1] = h ^= h >> 32;
  }
}

static void need_rows(world *w, const int32_t *pages, int n, const uint64_t *h, int who) {
  for (int i = 0; i < n; i++)
    NEED(row_at(w, pages[i / w->page], i % w->page)->hash == h[i + 1], "node or writer %d: row %d of page %d is another",
         who, i, pages[i / w->page]);
}

/* -- what leaves the tree */

static void forget_state(world *w, int32_t state, int depth) {
  NEED(state > 0 && state < PLACES && w->kept[state].depth > 0, "state %d leaves and was not in", state);
  NEED(!depth || w->kept[state].depth == depth, "state %d stood at %d, not %d", state, w->kept[state].depth, depth);
  w->kept[state].depth = 0;
  give_back(w, K3_STATE, &state, 1);
}

static void let_go(world *w, const k3_evicted *e) {
  int32_t pages[PLACES];
  NEED(e->n_pages <= PLACES, "%d pages", e->n_pages);
  if (e->n_pages) memcpy(pages, k3_tree_out_pages(w->tree), (size_t)e->n_pages * sizeof *pages);
  k3_node_info info;
  if (k3_tree_info(w->tree, e->node, &info) == K3_OK && info.depth == e->depth) {
    NEED(info.lock == 0, "node %d is locked and a victim", e->node);
    NEED(info.state == -1, "node %d keeps state %d", e->node, info.state);
  }
  if (e->state >= 0) forget_state(w, e->state, e->depth);
  give_back(w, K3_PAGE, pages, e->n_pages);
}

/* All KV nodes but the roots. */
typedef struct {
  int32_t n, *node, *depth, *state, *scope;
  int64_t *stamp;
} nodes;

static nodes all_nodes(world *w) {
  k3_tree_counters c;
  k3_tree_count(w->tree, &c);
  int32_t most = (int32_t)c.nodes, *at = malloc((size_t)most * 4 * sizeof *at);
  nodes all = {0, at, at + most, at + 2 * most, at + 3 * most, malloc((size_t)most * sizeof(int64_t))};
  NEED(at && all.stamp, "memory");
  all.n = k3_tree_walk(w->tree, all.node, all.depth, all.state, all.stamp, all.scope);
  return all;
}

static void drop_nodes(nodes *all) {
  free(all->node);
  free(all->stamp);
}

static int on_path(world *w, int32_t node, int32_t end) {
  k3_node_info info;
  for (; end >= 0 && end != node; end = info.parent)
    NEED(k3_tree_info(w->tree, end, &info) == K3_OK, "%s", k3_tree_error(w->tree));
  return end >= 0;
}

static uint64_t rank_of(world *w, int32_t state, const k3_node_info *i) {
  int over = i->note == K3_USE_OVER && i->children <= 1;
  uint64_t class = over ? 0 : w->classes[i->kind][i->superseded];
  uint32_t bits;
  memcpy(&bits, &i->value, sizeof bits); /* never negative: its bits stand in its order */
  return class << 56 | (w->priced ? (class ? bits : 0) : w->kept[state].touch);
}

/* A value is that of its class and age, times what it saves over what goes with it; here from the paths alone. */
static void need_value(world *w, const nodes *all, int at, double state_tokens) {
  k3_node_info i, p;
  int below = 0;
  NEED(k3_tree_info(w->tree, all->node[at], &i) == K3_OK, "%s", k3_tree_error(w->tree));
  for (int k = 0; k < all->n; k++) {
    k3_node_info c;
    below += k3_tree_info(w->tree, all->node[k], &c) == K3_OK && c.parent == all->node[at];
  }
  if (!below || i.lock) return; /* what would go with a leaf is seen when it goes; a locked one is not weighed */
  int32_t above = i.parent;
  while (k3_tree_info(w->tree, above, &p) == K3_OK && p.state < 0 && p.parent >= 0) above = p.parent;
  float want = w->values[i.class * 32 + i.age] * (float)((i.depth - p.depth) / state_tokens);
  NEED(want == i.value, "node %d is worth %f, not %f", all->node[at], i.value, want);
}

/* Smallest rank of the checkpoints that may be evicted; its state id in *state, -1: there is none. */
static void least_ranked(world *w, int32_t protect, int32_t *state, uint64_t *rank) {
  if (w->priced) {
    k3_tree_time(w->tree, 0);
    NEED(k3_tree_values(w->tree, w->values) == K3_OK, "values");
  }
  nodes all = all_nodes(w);
  *state = -1;
  *rank = UINT64_MAX;
  for (int i = 0; i < all.n; i++) {
    k3_node_info info;
    if (all.state[i] < 0) continue;
    NEED(k3_tree_info(w->tree, all.node[i], &info) == K3_OK, "%s", k3_tree_error(w->tree));
    if (w->priced) need_value(w, &all, i, w->state_tokens);
    w->rank[all.state[i]] = rank_of(w, all.state[i], &info);
    if (info.lock || on_path(w, all.node[i], protect) || rank_of(w, all.state[i], &info) >= *rank) continue;
    *rank = rank_of(w, all.state[i], &info);
    *state = all.state[i];
  }
  drop_nodes(&all);
}

/* No KV stays above a victim that lost its own, unless something needs it. */
static void need_kv_gone(world *w, const k3_evicted *e, int32_t protect) {
  k3_node_info info, above;
  if (!e->n_pages || k3_tree_info(w->tree, e->node, &info) != K3_OK || info.depth != e->depth) return;
  if (info.has_kv || k3_tree_info(w->tree, info.parent, &above) != K3_OK || above.parent < 0) return;
  if (!above.has_kv || above.lock || above.state >= 0 || on_path(w, info.parent, protect)) return;
  nodes all = all_nodes(w);
  int needed = 0;
  for (int i = 0; i < all.n && !needed; i++) {
    k3_node_info child;
    needed = k3_tree_info(w->tree, all.node[i], &child) == K3_OK && child.parent == info.parent;
  }
  NEED(needed, "node %d keeps KV that nobody needs", info.parent);
  drop_nodes(&all);
}

int evict_one(world *w, int32_t protect) {
  k3_evicted e;
  int32_t least, state = protect >= 0 ? k3_tree_state(w->tree, protect) : -1;
  uint64_t rank;
  least_ranked(w, protect, &least, &rank);
  int rc = k3_tree_evict(w->tree, protect, &e);
  NEED(rc >= 0, "evict: %s", k3_tree_error(w->tree));
  NEED(rc || least < 0, "state %d could go", least);
  if (!rc) return 0;
  if (w->priced) NEED(e.state < 0 || w->rank[e.state] <= rank, "state %d goes before %d", e.state, least);
  else NEED(e.state < 0 || e.state == least, "state %d goes before %d", e.state, least);
  if (protect >= 0) NEED(k3_tree_state(w->tree, protect) == state, "the protected node %d lost its state", protect);
  need_kv_gone(w, &e, protect);
  let_go(w, &e);
  return 1;
}

/* All at once: what drop and flush put out. */
typedef struct {
  int32_t states[PLACES], pages[2 * PLACES], n[2];
} many;

/* They fit: as many as the tree says it has. */
static void need_room(world *w) {
  k3_tree_counters c;
  k3_tree_count(w->tree, &c);
  NEED(c.checkpoints <= PLACES && c.kv_pages <= 2 * PLACES, "%d states, %d pages", (int)c.checkpoints, (int)c.kv_pages);
}

static void let_many_go(world *w, many *out) {
  NEED(out->n[0] <= PLACES && out->n[1] <= 2 * PLACES, "%d states, %d pages", out->n[0], out->n[1]);
  for (int i = 0; i < out->n[0]; i++) forget_state(w, out->states[i], 0);
  for (int i = 0; i < out->n[1]; i++) give_back(w, K3_PAGE, &out->pages[i], 1);
}

/* -- match */

/* Matches and compares with every checkpoint there is: the deepest whose prefix this is, no other. */
static k3_match look(world *w, int scope, const int32_t *tokens, int n, int limit, int64_t before) {
  uint64_t h[TOKENS + 1];
  k3_match m;
  int best = 0, full = 0;
  hashes(scope, tokens, n, h);
  for (int s = 1; s < PLACES; s++) {
    const checkpoint *c = &w->kept[s];
    if (!c->depth || c->depth > n || c->hash != h[c->depth] || c->stamp >= before) continue;
    if (c->depth > full) full = c->depth;
    if (c->depth <= limit && c->depth > best) best = c->depth;
  }
  NEED(k3_tree_match(w->tree, scope, tokens, n, limit, before, &m) == K3_OK, "match");
  NEED(m.depth == best && m.full == full, "hit %d (full %d), not %d (full %d)", m.depth, m.full, best, full);
  NEED(m.known >= m.kv && m.kv >= m.depth && m.known <= n, "known %d, kv %d, hit %d", m.known, m.kv, m.depth);
  if (!m.depth) {
    NEED(m.node == k3_tree_root(w->tree, scope) && m.state == -1, "no hit but node %d, state %d", m.node, m.state);
    return m;
  }
  int32_t pages[TOKENS];
  NEED(state_at(w, m.state)->hash == h[m.depth], "state %d is not of the prefix of %d", m.state, m.depth);
  NEED(k3_tree_pages(w->tree, m.node, pages) == K3_OK, "%s", k3_tree_error(w->tree));
  need_rows(w, pages, m.depth, h, m.node);
  return m;
}

/* A prompt that often begins like an earlier one. */
static int prompt(world *w, int32_t *tokens) {
  int n = 0;
  if (w->n_prompts) {
    int i = pick(w, PROMPTS) % w->n_prompts, kept = pick(w, TOKENS);
    n = w->prompts[i].n < kept ? w->prompts[i].n : kept;
    memcpy(tokens, w->prompts[i].tokens, (size_t)n * sizeof *tokens);
  }
  int more = pick(w, 2 * w->page + 3), seed = more ? pick(w, 27) : 0;
  for (; more && n < TOKENS - 2 * ROWS; more--, seed = (seed * 7 + 1) % 81) tokens[n++] = seed / 3 % 3;
  return n;
}

static void remember(world *w, const writer *r) {
  int i = w->n_prompts < PROMPTS ? w->n_prompts++ : pick(w, PROMPTS);
  w->prompts[i].n = r->n;
  memcpy(w->prompts[i].tokens, r->tokens, sizeof r->tokens);
}

/* -- writers */

static writer *some_writer(world *w) {
  for (int i = pick(w, WRITERS), tries = 0; tries < WRITERS; tries++, i = (i + 1) % WRITERS)
    if (w->writers[i].alive) return &w->writers[i];
  return NULL;
}

static void leave(world *w, writer *r) {
  int32_t own = pages_of(w, r->n);
  NEED(k3_tree_unlock(w->tree, r->node) == K3_OK, "%s", k3_tree_error(w->tree));
  give_back(w, K3_PAGE, r->pages + r->own_from, own > r->own_from ? own - r->own_from : 0);
  if (r->state > 0) give_back(w, K3_STATE, &r->state, 1);
  r->alive = 0;
}

/* The forward pass: rows [from, n) and the state after them, from the state before. */
static void forward(world *w, writer *r, int from) {
  uint64_t h[TOKENS + 1];
  hashes(r->scope, r->tokens, r->n, h);
  need_rows(w, r->pages, from, h, r->node);
  NEED(state_at(w, r->state)->hash == h[from], "working state %d is not of %d tokens", r->state, from);
  for (int i = from; i < r->n; i++) *row_at(w, r->pages[i / w->page], i % w->page) = (cell){h[i + 1], w->step};
  *state_at(w, r->state) = (cell){h[r->n], w->step};
}

void op_start(world *w) {
  writer *r = NULL;
  for (int i = 0; i < WRITERS; i++)
    if (!w->writers[i].alive) r = &w->writers[i];
  if (!r) return;
  uint64_t h[TOKENS + 1];
  *r = (writer){.scope = pick(w, SCOPES)};
  if ((r->n = prompt(w, r->tokens)) == 0) return;
  hashes(r->scope, r->tokens, 0, h);
  k3_match m = look(w, r->scope, r->tokens, r->n, r->n - 1, w->step);
  r->node = m.node;
  r->own_from = m.depth / w->page;
  if (m.depth) {
    NEED(k3_tree_touch(w->tree, m.node) == K3_OK, "touch");
    w->kept[m.state].touch = ++w->clock;
  }
  NEED(k3_tree_lock(w->tree, m.node) == K3_OK, "lock");
  int fresh = pages_of(w, r->n) - r->own_from;
  if (!ensure(w, fresh, 1, m.node)) {
    NEED(k3_tree_unlock(w->tree, m.node) == K3_OK, "unlock");
    return;
  }
  int32_t inherited[TOKENS];
  NEED(k3_tree_pages(w->tree, m.node, inherited) == K3_OK, "%s", k3_tree_error(w->tree));
  memcpy(r->pages, inherited, (size_t)r->own_from * sizeof *inherited);
  hand_out(w, fresh, 1, r->pages + r->own_from, &r->state);
  for (int row = 0; row < m.depth % w->page; row++)
    *row_at(w, r->pages[r->own_from], row) = (cell){row_at(w, inherited[r->own_from], row)->hash, w->step};
  *state_at(w, r->state) = (cell){m.depth ? state_at(w, m.state)->hash : h[0], w->step};
  r->alive = 1;
  forward(w, r, m.depth);
  remember(w, r);
}

void op_grow(world *w) {
  writer *r = some_writer(w);
  if (!r) return;
  int from = r->n, to = r->n + 1 + pick(w, w->page + 2), seed = pick(w, 27);
  if (to > TOKENS) return;
  int old = pages_of(w, from), fresh = pages_of(w, to) - old;
  if (!ensure(w, fresh, 0, r->node)) {
    leave(w, r);
    return;
  }
  hand_out(w, fresh, 0, r->pages + old, NULL);
  for (; r->n < to; seed = (seed * 7 + 1) % 81) r->tokens[r->n++] = seed / 3 % 3;
  forward(w, r, from);
  remember(w, r);
}

/* What became of the writer's pages in [own_from, end / P) and of the page that end lies in. */
static void settle_pages(world *w, writer *r, int end, const k3_published *out) {
  int whole = end / w->page, from = out->adopted_from < whole ? out->adopted_from : whole;
  int32_t pairs[2 * TOKENS];
  NEED(from >= r->own_from && out->n_replaced == from - r->own_from, "%d replaced, adopted from %d, own from %d",
       out->n_replaced, out->adopted_from, r->own_from);
  if (from > r->own_from) memcpy(pairs, k3_tree_out_pages(w->tree), (size_t)(2 * out->n_replaced) * sizeof *pairs);
  for (int i = 0; i < out->n_replaced; i++) {
    int at = pairs[2 * i];
    NEED(at == r->own_from + i, "page %d is replaced, not %d", at, r->own_from + i);
    give_back(w, K3_PAGE, &r->pages[at], 1);
    r->pages[at] = pairs[2 * i + 1];
  }
  if (out->shared_page >= 0) {
    NEED(end % w->page && out->shared_page == r->pages[whole], "page %d is shared", out->shared_page);
    NEED(k3_arena_ref(w->arena, K3_PAGE, out->shared_page) == K3_OK, "page %d is not live", out->shared_page);
  }
  r->own_from = whole;
}

/* The nearest checkpoint at or above a node: its state, or -1, and whether it is superseded. */
static int32_t nearest(world *w, int32_t node, int *superseded) {
  k3_node_info i;
  for (; k3_tree_info(w->tree, node, &i) == K3_OK && i.parent >= 0; node = i.parent)
    if (i.state >= 0) {
      *superseded = i.superseded;
      return i.state;
    }
  return -1;
}

/* A new checkpoint supersedes nothing above a fork, be its other branches evicted or not. */
static void need_forks_spared(world *w, int32_t node, int32_t state) {
  k3_node_info i;
  int forked = 0;
  NEED(k3_tree_info(w->tree, node, &i) == K3_OK, "%s", k3_tree_error(w->tree));
  while (k3_tree_info(w->tree, i.parent, &i) == K3_OK && i.parent >= 0) {
    forked |= i.children > 1;
    if (i.state >= 0) {
      NEED(i.state != state || !forked || !i.superseded, "the checkpoint at %d, above a fork, is superseded", i.depth);
      return;
    }
  }
}

/* Publishes tokens[0:end] and attaches `state`, if any; 1: the tree took it. */
static int publish(world *w, writer *r, int end, int32_t state, int kind) {
  uint64_t h[TOKENS + 1];
  k3_published out;
  int superseded = 1;
  int32_t above = nearest(w, r->node, &superseded);
  hashes(r->scope, r->tokens, r->n, h);
  int rc = k3_tree_publish(w->tree, r->node, r->tokens, end, r->pages, pages_of(w, r->n), state, kind, w->step, &out);
  NEED(rc == K3_OK, "publish to %d: %d %s", end, rc, k3_tree_error(w->tree));
  settle_pages(w, r, end, &out);
  if (state >= 0) {
    int32_t there = k3_tree_state(w->tree, out.node);
    NEED(there > 0 && out.taken == (there == state), "taken %d, but node %d has state %d", out.taken, out.node, there);
    if (out.taken && !superseded) need_forks_spared(w, out.node, above);
    if (out.taken) w->kept[state] = (checkpoint){.depth = end, .hash = h[end], .stamp = w->step};
    w->kept[there].touch = ++w->clock;
  }
  NEED(k3_tree_lock(w->tree, out.node) == K3_OK, "lock");
  NEED(k3_tree_unlock(w->tree, r->node) == K3_OK, "%s", k3_tree_error(w->tree));
  r->node = out.node;
  look(w, r->scope, r->tokens, r->n, end, w->step + 1);
  return out.taken;
}

void op_publish(world *w) {
  writer *r = some_writer(w);
  if (!r) return;
  int depth = k3_tree_depth(w->tree, r->node), end = r->n, kind = pick(w, 6);
  if (pick(w, 2)) end -= pick(w, end - depth + 1);
  if (end < r->n) end = end / w->page * w->page;
  if (end <= depth) return;
  int32_t state = -1;
  if (pick(w, 4) && ensure(w, 0, 1, r->node)) {
    uint64_t h[TOKENS + 1];
    hand_out(w, 0, 1, NULL, &state);
    hashes(r->scope, r->tokens, end, h);
    *state_at(w, state) = (cell){h[end], w->step};
  }
  if (!publish(w, r, end, state, kind) && state > 0) give_back(w, K3_STATE, &state, 1);
}

void op_finish(world *w) {
  writer *r = some_writer(w);
  if (!r) return;
  if (publish(w, r, r->n, r->state, 6)) r->state = -1;
  leave(w, r);
}

void op_abort(world *w) {
  writer *r = some_writer(w);
  if (r) leave(w, r);
}

/* -- the tree alone */

void op_evict(world *w) {
  const writer *r = pick(w, 2) ? some_writer(w) : NULL;
  evict_one(w, r ? r->node : -1);
}

void op_cap(world *w) {
  const writer *r = some_writer(w);
  k3_evicted e;
  if (!r || k3_tree_cap(w->tree, r->node, pick(w, 3), ~0u, &e) <= 0) return;
  k3_node_info info;
  if (k3_tree_info(w->tree, e.node, &info) == K3_OK) NEED(info.children < 2, "the cap takes fork %d", e.node);
  let_go(w, &e);
}

/* What is known of the next use of what a prompt would hit. Without prices that orders nothing but what is over. */
void op_note(world *w) {
  int32_t tokens[TOKENS];
  int scope = pick(w, SCOPES), n = prompt(w, tokens), note = pick(w, 6);
  k3_match m = look(w, scope, tokens, n, n, w->step);
  NEED(k3_tree_note(w->tree, m.node, note) == K3_OK, "note: %s", k3_tree_error(w->tree));
  k3_node_info info;
  if (m.depth && k3_tree_info(w->tree, m.node, &info) == K3_OK && !(note == K3_USE_OVER && info.children > 1))
    NEED(info.note == note, "note %d is %d", note, info.note);
}

/* A restore's source that is the only place for a working state leaves the tree. */
void op_take(world *w) {
  int32_t tokens[TOKENS];
  int scope = pick(w, SCOPES), n = prompt(w, tokens);
  k3_match m = look(w, scope, tokens, n, n, w->step);
  k3_node_info info;
  if (!m.depth || k3_tree_info(w->tree, m.node, &info) != K3_OK || info.lock) return;
  NEED(k3_tree_take(w->tree, m.node) == m.state, "take");
  forget_state(w, m.state, m.depth);
}

/* Steps from `stamp` on fail, and some place is damaged besides. Every writer leaves; what stays must be whole. */
void op_fail(world *w) {
  int64_t stamp = w->step - pick(w, 2);
  int32_t rows[PLACES], page = 1 + pick(w, 64), state = 1 + pick(w, 64), row = pick(w, w->page);
  uint8_t states[PLACES] = {0};
  for (int i = 0; i < PLACES; i++) rows[i] = INT32_MAX;
  if (pick(w, 2) && w->mem.mirror[K3_PAGE][page] > 0) {
    rows[page] = row;
    for (int i = row; i < w->page; i++) row_at(w, page, i)->hash = 0;
  }
  if (pick(w, 2) && w->mem.mirror[K3_STATE][state] > 0) {
    states[state] = 1;
    state_at(w, state)->hash = 0;
  }
  for (int p = 0; p < PLACES; p++) {
    for (int i = 0; i < ROWS; i++)
      if (w->mem.pages[p][i].step >= stamp) w->mem.pages[p][i].hash = 0;
    if (w->mem.states[p].step >= stamp) w->mem.states[p].hash = 0;
  }
  many out;
  need_room(w);
  NEED(k3_tree_drop(w->tree, stamp, rows, PLACES, states, PLACES, out.states, out.pages, out.n) == K3_OK, "drop");
  let_many_go(w, &out);
  for (int i = 0; i < WRITERS; i++)
    if (w->writers[i].alive) leave(w, &w->writers[i]);
}

void op_flush(world *w) {
  many out;
  need_room(w);
  NEED(k3_tree_flush(w->tree, out.states, out.pages, out.n) == K3_OK, "flush");
  let_many_go(w, &out);
}

void close_all(world *w) {
  for (int i = 0; i < WRITERS; i++)
    if (w->writers[i].alive) leave(w, &w->writers[i]);
  op_flush(w);
  settle_to(w, w->step);
  for (int kind = 0; kind < 2; kind++)
    NEED(w->arena->kind[kind].frontier == 1, "a drained world owns %d places", (int)w->arena->kind[kind].frontier - 1);
}

/* -- inspection */

/* Every page has as many references as owners: nodes of the tree, and writers for their own. */
static void inspect_owners(world *w, const k3_tree_counters *c) {
  int32_t refs[PLACES], states = 0, alive = 0;
  const k3_kind *k = &w->arena->kind[K3_PAGE];
  k3_tree_page_refs(w->tree, refs, PLACES);
  for (int i = 0; i < WRITERS; i++) {
    const writer *r = &w->writers[i];
    if (!r->alive) continue;
    alive++;
    for (int p = r->own_from; p < pages_of(w, r->n); p++) refs[r->pages[p]]++;
  }
  for (int id = 1; id < k->n_ids; id++)
    NEED(k->refs[id] == refs[id], "page %d has %d references and %d owners", id, k->refs[id], refs[id]);
  for (int s = 1; s < PLACES; s++) {
    if (!w->kept[s].depth) continue;
    states++;
    NEED(state_at(w, s)->hash == w->kept[s].hash, "state %d in the tree is another", s);
  }
  NEED(states == c->checkpoints, "%d checkpoints, not %d", (int)c->checkpoints, states);
  int32_t live = (int32_t)(w->arena->kind[K3_STATE].n_ids - w->arena->kind[K3_STATE].n_free) - 1;
  NEED(live == states + alive, "%d states live, %d owned", live, states + alive);
  NEED(alive == c->locks, "%d locks by %d writers", (int)c->locks, alive);
}

/* Every KV node of the tree: its rows are those of its tokens. */
static void inspect_nodes(world *w) {
  nodes all = all_nodes(w);
  for (int i = 0; i < all.n; i++) {
    int32_t tokens[TOKENS], pages[TOKENS], state = all.state[i], depth = all.depth[i];
    uint64_t h[TOKENS + 1];
    NEED(depth <= TOKENS, "depth %d", depth);
    k3_tree_path_tokens(w->tree, all.node[i], tokens);
    NEED(k3_tree_pages(w->tree, all.node[i], pages) == K3_OK, "%s", k3_tree_error(w->tree));
    hashes(all.scope[i], tokens, depth, h);
    need_rows(w, pages, depth, h, all.node[i]);
    if (state < 0) continue;
    NEED(state < PLACES && w->kept[state].depth == depth && w->kept[state].hash == h[depth],
         "node %d has state %d at %d", all.node[i], state, depth);
  }
  drop_nodes(&all);
}

void inspect_tree(world *w) {
  k3_tree_counters c;
  NEED(k3_tree_check(w->tree) == K3_OK, "tree check: %s", k3_tree_error(w->tree));
  k3_tree_count(w->tree, &c);
  inspect_owners(w, &c);
  inspect_nodes(w);
  if (w->ghost_limit >= 0 && !c.locks)
    NEED(c.ghost_tokens <= w->ghost_limit, "%d tokens in ghosts", (int)c.ghost_tokens);
  for (int i = 0; i < WRITERS; i++) {
    const writer *r = &w->writers[i];
    if (!r->alive) continue;
    k3_node_info info;
    int locks = 0;
    for (int j = 0; j < WRITERS; j++) locks += w->writers[j].alive && w->writers[j].node == r->node;
    NEED(k3_tree_info(w->tree, r->node, &info) == K3_OK && info.lock == locks, "node %d: %d locks, not %d", r->node,
         info.lock, locks);
    uint64_t h[TOKENS + 1];
    hashes(r->scope, r->tokens, r->n, h);
    need_rows(w, r->pages, r->n, h, -1 - i);
  }
}
