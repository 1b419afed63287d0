/*
 * Losses whose columns are spread over several ranks: what a rank sends of its columns, and what the merged whole of it
 * is. The exchange is the caller's; everything that travels is double.
 *
 *   states, per row      header | one pick per index | one record per slice of ONEP_SHARD_SLICE columns
 *   statistics, per row  totals | one pick per index
 *   sums, per row        header | one record per slice: of divergences that need both softmaxes of the whole row first
 *
 * Slices begin anew at the first column of a rank, so ranks whose columns are whole slices cut the row as a single rank
 * does, and every number of ranks merges the same records in the same order. Neither probabilities nor logits travel,
 * but for those at the indices. Both are arrays of double in the order of the structures below; without targets there
 * is P alone of the sides, and what stands for S and T is left out.
 */
#ifndef ONEP_LOGITS_SHARD_H
#define ONEP_LOGITS_SHARD_H

#include "logits/logits.h"

enum { ONEP_SHARD_SLICE = 8192 };

/* What the records hold of the divergence. */
typedef enum onep_shard_kind {
    ONEP_SHARD_LABELS,     /* there is none */
    ONEP_SHARD_KL,         /* KL(T || S) within the slice */
    ONEP_SHARD_REVERSE_KL, /* KL(S || T) within the slice */
    /* Nothing: their sums are a second exchange. Merged states have less this kind, until the sums are added. */
    ONEP_SHARD_JS,
    ONEP_SHARD_SKEW_KL,
    ONEP_SHARD_SKEW_REVERSE_KL,
    ONEP_SHARD_TOTAL_VARIATION,
    ONEP_SHARD_KINDS,
} onep_shard_kind;

static inline int onep_shard_has_sums(onep_shard_kind kind)
{
    return kind > ONEP_SHARD_REVERSE_KL;
}

enum { ONEP_SIDE_P, ONEP_SIDE_S, ONEP_SIDE_T, ONEP_SIDES };

/* One softmax: max of v (before the temperature), others and spread as in cpu_softmax.inc. */
typedef struct onep_side_state {
    double max, others, spread;
} onep_side_state;

typedef struct onep_shard_header {
    double columns, kind, indices, slices;
    double bits; /* of the type computed in: a probability that is 0 there has no mass */
    double scale[ONEP_SIDES];
} onep_shard_header;

/* The logit at an index, if this rank has the column, and the weight of its class. */
typedef struct onep_pick {
    double has, v, weight;
} onep_pick;

typedef struct onep_slice_state {
    double first, best; /* the first column, from the rank's first, with the largest prediction, and its v in double */
    double divergence;  /* of the softmaxes of the slice, but for columns where only one side has mass */
    double bare;        /* of such columns: the largest v of the side that must not have any; -inf: there are none */
    double below, weights; /* sum of w (max of P - v), and of w, the class weights: for smoothing */
    onep_side_state side[ONEP_SIDES];
} onep_slice_state;

/* Of one slice in the softmaxes of the whole row: its part of D, and of what the softmax takes out of the derivatives.
 */
typedef struct onep_slice_sums {
    double divergence, sum_s, sum_t;
} onep_slice_sums;

typedef struct onep_sums_header {
    double columns, kind, mixture, slices;
} onep_sums_header;

typedef struct onep_row_statistics {
    double columns, kind, indices;
    double first;                    /* as above, from the first column of all; -1: there are no columns */
    double divergence, sum_s, sum_t; /* D, and what the softmax takes out of its derivatives as in cpu_terms.inc */
    double below, weights;
    onep_side_state side[ONEP_SIDES];
} onep_row_statistics;

/* How many doubles each of them is, without targets and with. */
static inline int onep_shard_sides(int has_targets)
{
    return has_targets ? ONEP_SIDES : 1;
}
static inline int onep_header_doubles(int sides)
{
    return 5 + sides;
}
static inline int onep_slice_doubles(int sides)
{
    return 6 + 3 * sides;
}
static inline int onep_statistics_doubles(int sides)
{
    return 9 + 3 * sides;
}
enum { ONEP_PICK_DOUBLES = 3, ONEP_SUMS_HEADER_DOUBLES = 4, ONEP_SUMS_DOUBLES = 3 };

static inline int64_t onep_shard_slices(int64_t columns)
{
    return columns / ONEP_SHARD_SLICE + (columns % ONEP_SHARD_SLICE != 0);
}

/* A row of states to be made: of the loss's predictions, targets and labels, or of `indices`. */
typedef struct onep_shard_problem {
    onep_logits_problem loss; /* its columns, first_column and total_columns say which of the whole row are here */
    onep_shard_kind kind;
    onep_type computed;
    int64_t index_count; /* 1 for labels */
    onep_operand indices;
    onep_operand states;
    int64_t width;
    double mixture; /* this: of sums, whose statistics are the loss's and whose records go to `states` */
} onep_shard_problem;

/* The columns of a call that is a shard: those that are here and take part, and which of all they are. */
typedef struct onep_shard_place {
    int64_t columns, first, total;
} onep_shard_place;

/* By option columns_option, which must be 0, first_option and the one after it; and the width of the logits. */
onepass_status onep_shard_place_of(const onep_call *call, int columns_option, int first_option, int64_t width,
                                   onep_shard_place *to);

/* Refuses statistics of another loss, or of another number of columns; kind less than 0: those that lack their sums. */
onepass_status onep_shard_check_statistics(const onep_call *call, int argument, int kind, int64_t indices,
                                           int64_t total);

/* Header of a row of that problem. */
onep_shard_header onep_shard_header_of(const onep_shard_problem *problem);

/* Index i of a row, as a column of this rank; -1: another rank's, or none. */
int64_t onep_shard_index(const onep_shard_problem *problem, int64_t row, int64_t i);

/* The parts of a row into its states; what lies beyond the last slice is set to 0. */
void onep_shard_put_header(const onep_shard_problem *problem, int64_t row);
void onep_shard_put_pick(const onep_shard_problem *problem, int64_t row, int64_t i, const onep_pick *pick);
void onep_shard_put_slice(const onep_shard_problem *problem, int64_t row, int64_t slice, const onep_slice_state *state);
void onep_shard_put_end(const onep_shard_problem *problem, int64_t row);

/* One slice by the definition, in double: ref.c. */
void onep_shard_slice(const onep_shard_problem *problem, int64_t row, int64_t slice, onep_slice_state *to);

/* The sums of a row: a slice (NULL: zeros), and the header and what lies beyond the last slice. */
void onep_shard_put_sums(const onep_shard_problem *problem, int64_t row, int64_t slice, const onep_slice_sums *sums);
void onep_shard_put_sums_ends(const onep_shard_problem *problem, int64_t row);

/* The sums of one slice by the definition, in double: ref.c. */
void onep_shard_slice_sums(const onep_shard_problem *problem, int64_t row, int64_t slice, onep_slice_sums *to);

/* The statistics of a row, and one of its picks. */
void onep_statistics_load(const onep_operand *statistics, const onep_rows *rows, int64_t row, onep_row_statistics *to);
onep_pick onep_statistics_pick(const onep_operand *statistics, const onep_rows *rows, int64_t row, int64_t i);

/* What all ranks have sent, [R, N, W], to be merged row by row. */
typedef struct onep_merge_problem {
    int64_t ranks, row_count;
    onep_rows sent_rows, rows;
    onep_operand gathered, statistics;
    onep_rows merged_rows; /* these two: where sums are added to the statistics */
    onep_operand merged;
} onep_merge_problem;

#endif
