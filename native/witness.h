/* Lanes and tree, each a witness of the other: whether every tenant stands where it says. */
#ifndef K3_WITNESS_H
#define K3_WITNESS_H
#include "lanes.h"
#include "tree.h"

/* cffi: begin */
/* A tenant's word: it holds a lock on this node, which ends at `depth`, in this scope; the first `owned` pages of its
 * list are the tree's. */
typedef struct {
  int64_t lane, node, depth, owned, scope;
} k3_stand;

/* How many of s[n], from the first on, stand where they say: on a locked node of that depth and scope whose tokens
 * are those of the lane's text, and whose pages begin its list. lock[n]: locks on each node. scratch: as long as the
 * deepest of them. O(nodes on the paths + tokens). */
int64_t k3_lanes_stand(k3_tree *t, const k3_lanes *l, const k3_stand *s, int64_t n, int32_t *scratch, int32_t *lock);
/* cffi: end */

#endif
