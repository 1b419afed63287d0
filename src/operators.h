/* The list of operators, and the levels that are there to run them. */
#ifndef ONEP_OPERATORS_H
#define ONEP_OPERATORS_H

#include "core/operator.h"

#define OPERATOR(name) extern const onep_operator onep_##name;
#include "operators.def"
#undef OPERATOR

/* In the list's order; *count receives their number. */
const onep_operator *const *onep_operators(int *count);

/* Built into this library, and runs on this machine. ONEP_CUDA runs if the driver shows a device. */
int onep_level_built(onep_level level);
int onep_level_runs(onep_level level);
onep_level onep_best_level(void);

#endif
