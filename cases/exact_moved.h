/* How far a divergence and its derivatives move when the logits of both sides do. */
#ifndef CASES_EXACT_MOVED_H
#define CASES_EXACT_MOVED_H

#include "cases/softmax.h"

/* D = a KL(T || M) + b KL(S || M), M = q T + (1-q) S, or total variation. */
typedef struct moved_terms {
    long double a, b, q;
    int is_total_variation;
} moved_terms;

/* The terms of a case whose options are those of logits.h. */
moved_terms moved_terms_of(const op_case *c);

/* What a column's dD/dz (z of S) is made of in magnitude, and what it moves by. */
typedef struct moved_slope {
    long double size, moved;
} moved_slope;

/*
 * If no z of S moves by more than s_off and no z of T by more than t_off: what D moves by, and into `slopes` what dD/dz
 * of each column does. 0 where D, or a slope, is not finite. Both softmaxes have mass and are defined.
 */
long double moved_divergence(const moved_terms *terms, const exact_softmax *s, const exact_softmax *t,
                             long double s_off, long double t_off, moved_slope *slopes);

#endif
