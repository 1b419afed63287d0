/* What the cases of losses over several ranks share: the layout of what is exchanged, as src/logits/shard.h has it. */
#ifndef CASES_SHARDS_H
#define CASES_SHARDS_H

#include "cases/case.h"

enum { COLUMNS, KIND, INDICES, SLICES, BITS, SCALES };
enum { FIRST, BEST, DIVERGENCE, BARE, BELOW, WEIGHTS, SIDES };
enum { ALL_COLUMNS, ALL_KIND, ALL_INDICES, ALL_FIRST, ALL_DIVERGENCE, SUM_S, SUM_T, ALL_BELOW, ALL_WEIGHTS, ALL_SIDES };
enum { MAX, OTHERS, SPREAD, SIDE };
enum { SUMS_COLUMNS, SUMS_KIND, SUMS_MIXTURE, SUMS_SLICES, SUMS_BEGIN };
enum { PICK = 3, SUMS = 3, SLICE = 8192 };

/* In the order of onepass_divergence after the first. From JS on sums are exchanged; a row that lacks them has less
 * the kind. */
enum { NO_DIVERGENCE, FORWARD_KL, REVERSE_KL, FIRST_WITH_SUMS, KINDS = FIRST_WITH_SUMS + 4 };

#endif
