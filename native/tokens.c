#include "tokens.h"

int64_t k3_tokens_copy(const int32_t *from, int64_t n, int32_t vocab, int32_t *to) {
  uint32_t wrong = 0; /* without a branch, so that it is done many at a time */
  for (int64_t i = 0; i < n; i++) {
    to[i] = from[i];
    wrong |= (uint32_t)from[i] >= (uint32_t)vocab;
  }
  for (int64_t i = 0; wrong && i < n; i++)
    if (from[i] < 0 || from[i] >= vocab) return i;
  return -1;
}

int64_t k3_tokens_common(const int32_t *a, const int32_t *b, int64_t n) {
  enum { STRIDE = 16 };
  int64_t at = 0;
  for (; at + STRIDE <= n; at += STRIDE) {
    uint32_t differ = 0; /* without a branch, as above */
    for (int64_t i = at; i < at + STRIDE; i++) differ |= (uint32_t)(a[i] ^ b[i]);
    if (differ) break;
  }
  while (at < n && a[at] == b[at]) at++;
  return at;
}
