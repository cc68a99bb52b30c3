#include "k3.h"

#ifdef K3_MUTANTS
int k3_mutant = K3_MUTANT_NONE;
#endif
