/* Tokens of prompts. */
#ifndef K3_TOKENS_H
#define K3_TOKENS_H
#include "k3.h"

/* cffi: begin */
/* Copy n tokens; the index of the first that is not in 0 .. vocab - 1, or -1 where all are. O(n). */
int64_t k3_tokens_copy(const int32_t *from, int64_t n, int32_t vocab, int32_t *to);
/* How many leading tokens a and b have in common, of n. O(those). */
int64_t k3_tokens_common(const int32_t *a, const int32_t *b, int64_t n);
/* cffi: end */

#endif
