/*
 * onepass check, for linear and head: every level against the reference on the same inputs, forward in both modes and
 * backward. Backward of both sides is given what the reference stored, so that it is compared by itself.
 */
#ifndef TOOL_CHECK_HEAD_H
#define TOOL_CHECK_HEAD_H

#include "head_case.h"

typedef struct head_check {
    const char *operator_name, *level;
    element_type type;
    bool on_device; /* the level is a GPU */
    int64_t cases, failures;
    double worst;    /* units */
    char first[400]; /* what the first failure was */
} head_check;

/* One line: a level and the reference, one type; `head` or linear. */
onepass_status check_head(head_check *line, onepass_handle *reference, onepass_handle *level, bool head, uint64_t seed,
                          bool quick, double most_units);

#endif
