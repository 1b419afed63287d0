/* See check_head.h. */
#include "check_head.h"

#include <stdio.h>
#include <string.h>

#include "cases/head.h"
#include "cases/linear.h"

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

/* ---- one case ---------------------------------------------------------------------------------------------------- */

typedef struct check_context {
    check_line *line;
    const op_case *c;
} check_context;

static int note(void *context, int passed, const char *text)
{
    const check_context *at = context;
    if (passed || at->line->failures++ > 0)
        return passed;
    char whole[1800];
    case_describe(at->c, whole, sizeof whole);
    for (char *end = whole; (end = strchr(end, '\n')); end++)
        *end = ';';
    snprintf(at->line->first, sizeof at->line->first, "%s: %.200s; %.600s", at->line->level, text, whole);
    return passed;
}

onepass_status check_one(check_line *line, op_case *c, onepass_handle *handle)
{
    check_context context = {line, c};
    case_judge judge = {note, &context};
    onepass_status status = ONEPASS_OK;
    if (!case_expect(c, case_arithmetic_of(handle)))
        return ONEPASS_OUT_OF_MEMORY;
    case_call(c, handle, 0xff, &judge, &status);
    if (status != ONEPASS_OK)
        return status;
    for (int i = 0; i < c->arguments; i++)
        c->argument[i].worst = 0;
    case_compare(c, &judge);
    for (int i = 0; i < c->arguments; i++)
        line->worst = c->argument[i].worst > line->worst ? c->argument[i].worst : line->worst;
    line->cases++;
    return ONEPASS_OK;
}

/* ---- linear and head --------------------------------------------------------------------------------------------- */

/* What is multiplied and normalised has the line's type; parameters and statistics the one computed in. */
static void choose_types(op_case *c, onepass_dtype type)
{
    for (int i = 0; i < c->arguments; i++)
        if (case_is_float(c->argument[i].dtype))
            c->argument[i].dtype = strlen(case_shape_of(c, i)) > 1 ? type : case_computed(type);
    case_settle(c);
}

static void choose_shape(op_case *c, const int64_t shape[3])
{
    c->leading_rank = 1;
    c->leading[0] = c->extents['B' - 'A'] = shape[0];
    c->extents['K' - 'A'] = shape[1];
    c->extents['N' - 'A'] = shape[2];
}

/* On devices, too, unless none has kernels for it. */
static onepass_status check_levels(check_line lines[], onepass_handle *const handles[], int levels, op_case *c,
                                   bool on_devices)
{
    if (!case_make(c))
        return ONEPASS_OUT_OF_MEMORY;
    onepass_status status = ONEPASS_OK;
    for (int level = 0; level < levels && status == ONEPASS_OK; level++)
        if (handles[level] && (on_devices || case_arithmetic_of(handles[level]) != CASE_CUDA))
            status = check_one(&lines[level], c, handles[level]);
    return status;
}

onepass_status check_layer(check_line lines[], onepass_handle *const handles[], int levels, bool head, uint64_t seed,
                           bool quick)
{
    static const char *const operators[2][2] = {{"linear", "linear_backward"}, {"head", "head_backward"}};
    static const char *const synchronised[] = {"head_statistics", "head_synchronised", "head_backward_sums",
                                               "head_backward_synchronised"};
    static op_case c;
    onepass_dtype type = element_infos[lines[0].types[0]].dtype;
    onepass_status status = ONEPASS_OK;
    int modes = head ? 2 : 1; /* batch and running statistics */
    int alone = 2 * modes, calls = head ? alone + 4 : alone;
    for (int i = 0; i < (quick ? QUICK_SHAPES : SHAPES) && status == ONEPASS_OK; i++)
        for (int which = 0; which < calls && status == ONEPASS_OK; which++) {
            case_begin(&c, which < alone ? operators[head][which % 2] : synchronised[which - alone]);
            choose_shape(&c, shapes[i]);
            if (head && which < alone)
                c.options[HEAD_STATISTICS] = which / 2;
            for (int family = 0; family < c.definition->families && status == ONEPASS_OK; family++) {
                if (i >= QUICK_SHAPES && family != (i + which) % c.definition->families)
                    continue; /* large ones take turns */
                c.family = family;
                c.amount = family == HEAD_MEANS ? 100 : 0;
                c.seed = seed + (uint64_t)i;
                choose_types(&c, type);
                status = check_levels(lines, handles, levels, &c, which < alone);
            }
        }
    return status;
}
