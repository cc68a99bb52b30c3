/* What every module of the C core shares: status codes, and the switch for planted bugs. */
#ifndef K3_H
#define K3_H
#include <stddef.h>
#include <stdint.h>

/* cffi: begin */
enum { K3_OK = 0, K3_NOMEM = -1, K3_CORRUPT = -2 };
/* cffi: end */

/* A planted bug: 0 in release builds, so the branch costs nothing there. */
#ifdef K3_MUTANTS
extern int k3_mutant;
#define K3_MUTANT(id) (k3_mutant == (id))
#else
#define K3_MUTANT(id) 0
#endif

#endif
