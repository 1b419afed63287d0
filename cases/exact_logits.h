/* The exact answer of one row of a loss from logits, in long double, and what a kernel may be off by. */
#ifndef CASES_EXACT_LOGITS_H
#define CASES_EXACT_LOGITS_H

#include "cases/logits.h"

/* What targets are. */
enum { EXACT_TARGET_LOGITS, EXACT_TARGET_PROBS, EXACT_TARGET_LOG_PROBS, EXACT_TARGET_TOP_K, EXACT_NO_TARGET };

int exact_logits_form(const op_case *c);

/* A number and how far from it a kernel's may be. */
typedef struct bounded {
    long double x, error;
} bounded;

typedef struct exact_logits exact_logits;

/* For the rows of this case; NULL: no memory. */
exact_logits *exact_logits_begin(op_case *c, case_arithmetic arithmetic);
void exact_logits_end(exact_logits *e);

/* Sets what is expected of the row's gradients and results; returns its weighted value. */
bounded exact_logits_row(exact_logits *e, int64_t row, double divisor);

#endif
