/* onepass check, for losses from logits: every level that has them against the exact results of cases/. */
#ifndef TOOL_CHECK_LOGITS_H
#define TOOL_CHECK_LOGITS_H

#include "check_head.h"

enum { CHECK_LOSSES = 7 };

/* What the lines of a loss are called. */
extern const char *const check_loss_names[CHECK_LOSSES];

/* Divergences, cross-entropy, token log-probabilities, from logits or from hidden states, in one type: a line
 * per level; and what they are made of over several ranks. Handles that are NULL, or whose device has no kernels for
 * them, are left out: their lines have no cases.
 */
onepass_status check_loss(check_line lines[], onepass_handle *const handles[], int levels, int loss, uint64_t seed,
                          bool quick);

#endif
