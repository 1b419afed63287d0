/*
 * See check_head.h. A unit is what rounding alone may cost an array of results: half an ulp of its largest element, and
 * of the type computed in an ulp times the root of the number of terms. What comes of a difference of numbers far
 * larger than itself, as rstd does, may lose as many times more as they are larger: the condition. A GPU multiplies
 * halves by halves: in the gradients to input and weight dy, too, is rounded to the type, and where its terms cancel
 * that shows: three half ulps there.
 */
#include "check_head.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Each shape (B, K, N) with its reason; --quick takes the first ones. */
static const int64_t shapes[][3] = {
    {5, 7, 19},     /* tails everywhere */
    {2, 1, 1},      /* the smallest batch */
    {270, 3, 33},   /* two tiles of rows */
    {17, 300, 40},  /* two blocks of the depth */
    {13, 64, 290},  /* two tiles of columns */
    {600, 20, 130}, /* more of all */
};

enum { SHAPES = sizeof shapes / sizeof shapes[0], QUICK_SHAPES = 3 };

static element_type type_of(const head_case *it, int array)
{
    onepass_dtype dtype = it->tensors[array].dtype;
    int type = 0;
    while (memcmp(&element_infos[type].dtype, &dtype, sizeof dtype) != 0)
        type++;
    return (element_type)type;
}

/* The largest magnitude in an array. */
static double largest_of(const head_case *it, int array)
{
    element_type type = type_of(it, array);
    double largest = 0;
    for (int64_t i = 0; i < head_case_count(it, array); i++)
        largest = fmax(largest, fabs(element_load(type, it->arrays[array], (size_t)i)));
    return largest;
}

/* The largest distance of two arrays in units; infinite where one is not finite. */
static double distance(const head_case *it, const head_case *reference, int array, double condition, bool on_device)
{
    element_type type = type_of(it, array);
    double largest = largest_of(reference, array), off = 0;
    /* One value for all features is a sum of what those two are made of, and may be small beside it. */
    if (array == HEAD_CASE_GRAD_SCALE)
        largest = fmax(largest,
                       fmax(largest_of(reference, HEAD_CASE_GRAD_GAMMA), largest_of(reference, HEAD_CASE_GRAD_BETA)));
    int64_t count = head_case_count(it, array);
    for (int64_t i = 0; i < count; i++) {
        double want = element_load(type, reference->arrays[array], (size_t)i);
        double got = element_load(type, it->arrays[array], (size_t)i);
        off = isfinite(got) && isfinite(want) ? fmax(off, fabs(got - want)) : (double)INFINITY;
    }
    double terms = sqrt((double)(it->depth + it->rows + it->columns));
    bool made_of_halves =
        on_device && type < ELEMENT_F32 && (array == HEAD_CASE_GRAD_INPUT || array == HEAD_CASE_GRAD_WEIGHT);
    double roundings = made_of_halves ? 1.5 : 0.5;
    double unit = (terms * condition * element_epsilon(it->computed) + roundings * element_epsilon(type)) * largest;
    return off == 0 ? 0 : off / unit;
}

static void compare(head_check *line, const head_case *it, const head_case *reference, bool train, int first, int last,
                    double condition, double most_units)
{
    for (int array = first; array <= last; array++) {
        double units = distance(it, reference, array, condition, line->on_device);
        if (!(units <= line->worst))
            line->worst = units;
        if (units <= most_units || line->failures++ > 0)
            continue;
        snprintf(line->first, sizeof line->first,
                 "%s %s %s: %s is %.1f units from the reference's; %" PRId64 " x %" PRId64 " x %" PRId64 ", %s; seed "
                 "%" PRIu64,
                 line->level, line->operator_name, element_infos[it->type].name, head_case_names[array], units,
                 it->rows, it->depth, it->columns, train ? "train" : "eval", it->seed);
    }
}

/* What a call writes is looked at only if it did: NaN before it. */
static void spoil(head_case *it)
{
    for (int array = HEAD_CASE_OUTPUT; array < HEAD_CASE_ARRAYS; array++)
        memset(it->arrays[array], 0xff, (size_t)head_case_count(it, array) * element_infos[type_of(it, array)].size);
}

/* How much larger the terms of a result of linear may be than all that they add up to: with two of them, much. */
static double linear_condition(const head_case *it, int array)
{
    double input = largest_of(it, HEAD_CASE_INPUT), weight = largest_of(it, HEAD_CASE_WEIGHT);
    double upstream = largest_of(it, HEAD_CASE_GRAD_OUTPUT), largest = largest_of(it, array);
    double terms = array == HEAD_CASE_OUTPUT        ? fmax(input * weight, largest_of(it, HEAD_CASE_BIAS))
                   : array == HEAD_CASE_GRAD_INPUT  ? upstream * weight
                   : array == HEAD_CASE_GRAD_WEIGHT ? upstream * input
                                                    : upstream;
    return largest > 0 ? fmax(1, terms / largest) : 1;
}

static onepass_status check_linear(head_check *line, head_case *cases[2], onepass_handle *handles[2], double most_units)
{
    onepass_status status = ONEPASS_OK;
    for (int side = 0; side < 2 && status == ONEPASS_OK; side++) {
        spoil(cases[side]);
        status = head_case_linear(cases[side], handles[side], true);
        if (status == ONEPASS_OK)
            status = head_case_linear_backward(cases[side], handles[side]);
    }
    if (status != ONEPASS_OK)
        return status;
    static const int results[] = {HEAD_CASE_OUTPUT, HEAD_CASE_GRAD_INPUT, HEAD_CASE_GRAD_WEIGHT, HEAD_CASE_GRAD_BIAS};
    for (int i = 0; i < 4; i++)
        compare(line, cases[1], cases[0], true, results[i], results[i], linear_condition(cases[0], results[i]),
                most_units);
    return ONEPASS_OK;
}

/* The largest |mean| / sigma of a feature, and 1. */
static double condition_of(const head_case *it)
{
    double condition = 0;
    for (int64_t j = 0; j < it->columns; j++) {
        double mean = element_load(type_of(it, HEAD_CASE_MEAN), it->arrays[HEAD_CASE_MEAN], (size_t)j);
        double rstd = element_load(type_of(it, HEAD_CASE_RSTD), it->arrays[HEAD_CASE_RSTD], (size_t)j);
        condition = fmax(condition, fabs(mean * rstd));
    }
    return 1 + condition;
}

static onepass_status check_mode(head_check *line, head_case *cases[2], onepass_handle *handles[2], bool train,
                                 double most_units)
{
    onepass_status status = ONEPASS_OK;
    for (int side = 0; side < 2 && status == ONEPASS_OK; side++) {
        spoil(cases[side]);
        status = head_case_forward(cases[side], handles[side], train);
    }
    if (status != ONEPASS_OK)
        return status;
    compare(line, cases[1], cases[0], train, HEAD_CASE_OUTPUT, HEAD_CASE_RSTD, condition_of(cases[0]), most_units);
    for (int array = HEAD_CASE_OUTPUT; array <= HEAD_CASE_RSTD; array++)
        memcpy(cases[1]->arrays[array], cases[0]->arrays[array],
               (size_t)head_case_count(cases[0], array) * element_infos[type_of(cases[0], array)].size);
    for (int side = 0; side < 2 && status == ONEPASS_OK; side++)
        status = head_case_backward(cases[side], handles[side], train);
    if (status == ONEPASS_OK)
        compare(line, cases[1], cases[0], train, HEAD_CASE_GRAD_INPUT, HEAD_CASE_GRAD_SCALE, 1, most_units);
    return status;
}

onepass_status check_head(head_check *line, onepass_handle *reference, onepass_handle *level, bool head, uint64_t seed,
                          bool quick, double most_units)
{
    onepass_handle *handles[2] = {reference, level};
    onepass_status status = ONEPASS_OK;
    for (int i = 0; i < (quick ? QUICK_SHAPES : SHAPES) && status == ONEPASS_OK; i++) {
        head_case sides[2] = {{0}};
        head_case *cases[2] = {&sides[0], &sides[1]};
        bool made = true;
        for (int side = 0; side < 2 && made; side++) {
            sides[side] = (head_case){.rows = shapes[i][0],
                                      .depth = shapes[i][1],
                                      .columns = shapes[i][2],
                                      .type = line->type,
                                      .seed = seed + (uint64_t)i};
            made = head_case_create(&sides[side]) && head_case_prepare(&sides[side], handles[side]) == ONEPASS_OK;
        }
        if (!made)
            status = ONEPASS_OUT_OF_MEMORY;
        else if (!head)
            status = check_linear(line, cases, handles, most_units);
        else
            for (int train = 0; train < 2 && status == ONEPASS_OK; train++)
                status = check_mode(line, cases, handles, train, most_units);
        line->cases += head ? 2 : 1;
        head_case_destroy(&sides[0]);
        head_case_destroy(&sides[1]);
    }
    return status;
}
