#include "witness.h"

#include <string.h>

/* Whether a tenant stands where it says. */
static bool stands(k3_tree *t, const k3_lanes *l, const k3_stand *s, int32_t *scratch, int32_t *lock) {
  k3_node_info info;
  const k3_list *text = &l->text[s->lane], *held = &l->held[s->lane];
  if (k3_tree_info(t, (int32_t)s->node, &info) || s->node != (int32_t)s->node) return false;
  *lock = info.lock;
  if (info.scope != s->scope || info.depth != s->depth || info.lock < 1 || s->owned != s->depth / l->span) return false;
  if (!info.depth) return true;
  if (!info.has_kv || info.depth > text->count || s->owned > held->count) return false;
  if (k3_tree_path_tokens(t, (int32_t)s->node, scratch) ||
      memcmp(scratch, text->items, (size_t)info.depth * sizeof *scratch))
    return false;
  return !k3_tree_pages(t, (int32_t)s->node, scratch) &&
         !memcmp(scratch, held->items, (size_t)s->owned * sizeof *scratch);
}

int64_t k3_lanes_stand(k3_tree *t, const k3_lanes *l, const k3_stand *s, int64_t n, int32_t *scratch, int32_t *lock) {
  for (int64_t i = 0; i < n; i++)
    if (!stands(t, l, &s[i], scratch, &lock[i])) return i;
  return n;
}
