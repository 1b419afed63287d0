/*
 * onepass check, for linear and head: every level against the exact results of cases/, forward in both modes and
 * backward.
 */
#ifndef TOOL_CHECK_HEAD_H
#define TOOL_CHECK_HEAD_H

#include <stdbool.h>

#include "cases/case.h"
#include "element.h"

/* One line of the answer: a level, an operator and its types. */
typedef struct check_line {
    const char *level;
    const char *operator_name; /* NULL: KL divergence */
    element_type types[2];     /* of predictions and targets; the first of linear and head */
    int64_t cases, failures;
    double worst;    /* the largest share of what is allowed */
    char first[900]; /* what the first failure was */
} check_line;

/* The case at a level: one more of the line. The status is the library's. */
onepass_status check_one(check_line *line, op_case *c, onepass_handle *handle);

/* Linear or head in one type: a line per level, NULL handles are left out. */
onepass_status check_layer(check_line lines[], onepass_handle *const handles[], int levels, bool head, uint64_t seed,
                           bool quick);

#endif
