/*
 * The points of onepass bench sweep: every combination of operator, type, reduction, layout, rows and columns that the
 * options ask for and the operator has, each without and with gradient, and what was found out about it. The plan holds
 * every point from the start; what is not measured says why.
 */
#ifndef TOOL_SWEEP_PLAN_H
#define TOOL_SWEEP_PLAN_H

#include "element.h"
#include "loss_case.h"
#include "options.h"

/* In the order of the choices of --operators. */
typedef enum sweep_operator {
    SWEEP_KL,
    SWEEP_KL_LOGITS,
    SWEEP_XENT,
    SWEEP_TOKEN,
    SWEEP_LOSSES,
    SWEEP_LINEAR = SWEEP_LOSSES,
    SWEEP_HEAD,
    SWEEP_HEAD_EVAL,
    SWEEP_OPERATORS
} sweep_operator;

typedef enum sweep_state {
    SWEEP_NOT_REACHED,
    SWEEP_MEASURED,
    SWEEP_REFUSED,
    SWEEP_OVER_MEMORY,
    SWEEP_STATES
} sweep_state;

enum { SWEEP_NO_REDUCTION = -1 };

typedef struct sweep_point {
    sweep_operator operator_id;
    element_type type;
    int reduction; /* onepass_reduction, or SWEEP_NO_REDUCTION */
    loss_layout layout;
    bool gradient;
    int64_t rows, columns;
    uint64_t memory; /* bytes of all arrays */

    sweep_state state;
    char *message; /* of SWEEP_REFUSED: the library's; NULL without memory for it */

    /* Of SWEEP_MEASURED. */
    double seconds;         /* the median */
    double floor;           /* seconds of the plain loop or product for this amount, and a call */
    double amount;          /* bytes; of linear and head floating-point operations */
    const char *floor_name; /* what the floor is */
    size_t workspace;       /* bytes */
    int rounds;
} sweep_point;

typedef struct sweep_plan {
    sweep_point *points;
    size_t count;
    size_t *groups; /* the first point of each group: points that differ in the gradient alone; in random order */
    size_t group_count;
    int64_t depth;
    uint64_t memory; /* the limit */
    uint64_t seed;
    int64_t rows[LIST_MOST], columns[LIST_MOST]; /* in increasing order */
    int row_count, column_count;
} sweep_plan;

/* False: no memory. */
bool sweep_plan_make(sweep_plan *plan, const parsed_options *options);
void sweep_plan_free(sweep_plan *plan); /* also of a zeroed structure */

/* How many points the group has that begins there: 1 or 2. */
int sweep_group_size(const sweep_plan *plan, size_t first);

/* The case that a point of a loss is measured with. */
loss_case sweep_loss_case(const sweep_plan *plan, const sweep_point *point);

extern const char *const sweep_operator_names[SWEEP_OPERATORS];
extern const char *const sweep_layout_names[LOSS_LAYOUTS];
extern const char *const sweep_state_names[SWEEP_STATES];
const char *sweep_reduction_name(const sweep_point *point); /* "-": it has none */
double sweep_share(const sweep_point *point);               /* floor / time */

#endif
