/*
 * The divergence of one row of logits from a teacher that is k values and their columns, in double: what ref.c and
 * every level of the CPU compute of the k columns. Of the other columns, the tail, they hand over the softmax alone.
 *
 * With A the set of the columns that were named, `rest` what is outside of it, S and T the two sides:
 *
 *   S_rest = sum of S outside, T_rest = max(0, 1 - sum of T in A) for `tail`, otherwise 0
 *   D = sum over A and the rest of T log(T/S), or of S log(S/T)
 *   dD/dz in A = S W - T, or S (log(S/T) - D);  outside: S (W - T_rest / S_rest), or S (log(S_rest/T_rest) - D)
 *
 * with W the mass of T, the rest's included. For `subset` S is the softmax over A, and there is no rest.
 *
 * Nothing is stored but the order of the entries by their columns. docs/numerics.md has the words.
 */
#ifndef ONEP_LOGITS_TOP_K_H
#define ONEP_LOGITS_TOP_K_H

#include "logits/logits.h"

enum { ONEP_TOP_K_MOST = 4096 };

/* Of the columns outside of A: the largest z, -inf if none has mass, and the sum of exp(z - max) over all but one. */
typedef struct onep_top_k_tail {
    double max, others;
    int64_t first; /* the first column with the largest z; -1: none has mass */
} onep_top_k_tail;

/* A number with its logarithm. */
typedef struct onep_mass {
    double x, log;
} onep_mass;

typedef struct onep_top_k_row {
    const onep_logits_problem *problem;
    const char *predictions, *values, *indices; /* of this row */
    int count;                                  /* entries whose column is not below 0 */
    int has_bad_index;                          /* a column that does not exist: nothing else is known then */
    int columns_in_set;

    /* What the sides are normalised by: of probabilities T = y / t_sum, otherwise log T = y - t_max - t_log_sum; log S
     * likewise. */
    double t_max, t_sum, t_log_sum;
    double t_short; /* 1 less the mass of T in A, where T is as it was passed */
    double s_max, s_log_sum;
    int lacks_mass; /* T, or S in a subset */

    double all_max, all_others; /* S over all columns: the largest z, and the rest of its sum */
    int64_t first;              /* the first column with the largest z; -1: there are no columns */
    double value, mass;         /* D, W */
    double tail_slope;          /* dD/dz of a column outside is exp(z - tail.max) times this */

    uint16_t order[ONEP_TOP_K_MOST]; /* places of the entries, by column and then by place */
} onep_top_k_row;

/* Sorts the row's entries. */
void onep_top_k_begin(onep_top_k_row *row, const onep_logits_problem *problem, int64_t index);

/* The column of entry `at` in the order; past the last one: INT64_MAX. */
int64_t onep_top_k_column(const onep_top_k_row *row, int at);

/* The first entry of the next column. */
int onep_top_k_next(const onep_top_k_row *row, int at);

/* D and everything beside it, once the tail is known. */
void onep_top_k_finish(onep_top_k_row *row, const onep_top_k_tail *tail);

/* dD/dz of the column that entry `at` begins. */
double onep_top_k_slope(const onep_top_k_row *row, int at);

#endif
