/*
 * Measures the points of one group, beside their floor: with bench_loss.h or bench_cuda.h a loss, with bench_head.h
 * linear and head. Inputs are made, measured and released; nothing is kept but the numbers.
 *
 * The floor of linear and head is the longer of two times: a plain read of as many bytes as the product's matrices
 * have, and its operations at the rate of a product of 512 x 512 x 512 in the type that is computed in. On a GPU it is
 * the product alone.
 */
#ifndef TOOL_SWEEP_POINT_H
#define TOOL_SWEEP_POINT_H

#include "sweep_plan.h"

typedef struct sweep_bench {
    onepass_handle *handle;
    team *members; /* make the inputs, and are the floor's threads */
    measure_rule rule;
    double rates[ELEMENT_FLOATS]; /* operations a second, by the type computed in; 0: not measured yet */
} sweep_bench;

/*
 * `count` points that differ in the gradient alone; each is measured or refused afterwards, or over memory if there is
 * less than the plan knew. Not ONEPASS_OK: the device is gone, and so is the sweep.
 */
onepass_status sweep_measure(sweep_bench *bench, const sweep_plan *plan, sweep_point *points, int count);

#endif
