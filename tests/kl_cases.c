/* See kl_cases.h. */
#include "kl_cases.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int on_cuda;

void kl_allow_cuda(void)
{
    on_cuda = 1;
}

double kl_small_error(void)
{
    return on_cuda ? 1e-7 : 1e-8;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *operator_name;
    kl_entry *entry;
} forms[ONEP_KL_FORMS] = {
    [ONEP_KL_PROBS_PROBS] = {"probs_probs", "kl_probs_probs", onepass_kl_probs_probs},
    [ONEP_KL_LOG_PROBS_PROBS] = {"log_probs_probs", "kl_log_probs_probs", onepass_kl_log_probs_probs},
    [ONEP_KL_PROBS_LOG_PROBS] = {"probs_log_probs", "kl_probs_log_probs", onepass_kl_probs_log_probs},
    [ONEP_KL_LOG_PROBS_LOG_PROBS] = {"log_probs_log_probs", "kl_log_probs_log_probs", onepass_kl_log_probs_log_probs},
};

static const char *const reduction_names[] = {"batchmean", "mean", "sum", "rows", "none", "divisor"};

kl_entry *kl_entry_of(onep_kl_form form)
{
    return forms[form].entry;
}

const char *kl_form_name(onep_kl_form form)
{
    return forms[form].name;
}

const char *kl_reduction_name(onepass_reduction reduction)
{
    return reduction_names[reduction];
}

onepass_tensor kl_tensor(onep_type type, void *data, int ndim, int64_t *shape)
{
    return (onepass_tensor){
        .data = data, .device = {ONEPASS_CPU, 0}, .ndim = ndim, .dtype = test_dtype(type), .shape = shape};
}

/* ---- a case ------------------------------------------------------------------------------------------------------ */

kl_case kl_case_plain(onep_kl_form form, onep_type type, int64_t rows, int64_t columns)
{
    kl_case c = {.form = form,
                 .ndim = 2,
                 .shape = {rows, columns},
                 .present = KL_BIT(KL_VALUE) | KL_BIT(KL_GRAD_PREDICTIONS) | KL_BIT(KL_GRAD_TARGETS),
                 .threads = 1,
                 .only = ONEP_LEVELS};
    for (int i = 0; i < KL_TENSORS; i++)
        c.type[i] = type;
    return c;
}

void kl_case_shuffle(kl_case *c, test_random *random)
{
    for (int i = 0; i < KL_TENSORS; i++) {
        int is_input = i < KL_VALUE;
        c->type[i] = (onep_type)test_random_below(random, ONEP_FLOAT_TYPES);
        c->layout[i] = (case_layout)test_random_below(random, is_input ? CASE_LAYOUTS : CASE_OUTPUT_LAYOUTS);
        c->guard[i] = (case_guard)test_random_below(random, CASE_GUARDS);
        c->shift[i] = (size_t)test_random_below(random, 3) == 0;
    }
    onep_type promoted = onep_promote(c->type[KL_PREDICTIONS], c->type[KL_TARGETS]);
    if (!onep_type_holds(c->type[KL_VALUE], promoted))
        c->type[KL_VALUE] = promoted;
    c->mask_is_bool = (int)test_random_below(random, 2);
    c->threads = 1 + (int32_t)test_random_below(random, 3);
}

static op_case made;
static kl_entry *made_entry;

static onepass_status call_entry(onepass_handle *handle, const onepass_operator *op,
                                 const onepass_tensor *const *tensors, const double *options, void *workspace,
                                 size_t workspace_size)
{
    (void)op;
    return entry_point_kl(made_entry, handle, tensors, options, workspace, workspace_size);
}

static void make(const kl_case *c)
{
    test_random random = test_random_stream(c->stream);
    if (!case_begin(&made, forms[c->form].operator_name)) {
        fprintf(stderr, "%s has no cases\n", forms[c->form].operator_name);
        exit(2);
    }
    made.options[KL_REDUCTION] = c->reduction;
    made.options[KL_SEMANTICS] = c->semantics;
    made.options[KL_DIVISOR] = c->divisor;
    made.is_scalar = c->ndim == 0;
    made.leading_rank = c->ndim > 0 ? c->ndim - 1 : 0;
    memcpy(made.leading, c->shape, (size_t)made.leading_rank * sizeof made.leading[0]);
    made.extents['C' - 'A'] = c->ndim > 0 ? c->shape[c->ndim - 1] : 1;
    made.family = (int)c->data;
    made.amount = c->mask_all;
    made.seed = test_random_bits(&random);
    for (int i = 0; i < KL_TENSORS; i++) {
        case_argument *a = &made.argument[i];
        int like = i == KL_GRAD_PREDICTIONS ? KL_PREDICTIONS : i == KL_GRAD_TARGETS ? KL_TARGETS : i;
        a->given = a->info->is_required || (c->present & KL_BIT(i)) != 0;
        a->dtype = i == KL_MASK ? (c->mask_is_bool ? case_b8 : case_u8) : test_dtype(c->type[like]);
        a->layout = c->layout[i];
        a->guard = c->guard[i];
        a->shift = c->shift[i];
        a->over = c->output_in_place == i && i >= KL_VALUE ? c->input_in_place + 1 : 0;
    }
    made_entry = c->entry ? c->entry : forms[c->form].entry;
    made.entry = call_entry;
    made.entry_carries = 1; /* the CPU needs none; the carrier to a device brings its own */
    if (!case_make(&made)) {
        fprintf(stderr, "no memory for a case\n");
        exit(2);
    }
}

/* ---- running and checking ---------------------------------------------------------------------------------------- */

enum { COMPUTED_REF, COMPUTED_F32, COMPUTED_F64, COMPUTED };
static double worst[ONEP_KL_FORMS][COMPUTED][KL_TENSORS];

void kl_print_worst(void)
{
    static const char *const computed_names[] = {"ref", "in fp32", "in fp64"};
    printf("largest error as a share of what is allowed (value, grad_predictions, grad_targets):\n");
    for (int form = 0; form < ONEP_KL_FORMS; form++) {
        printf("  %-20s", forms[form].name);
        for (int kind = 0; kind < COMPUTED; kind++)
            printf("  %s %.2f %.2f %.2f", computed_names[kind], worst[form][kind][KL_VALUE],
                   worst[form][kind][KL_GRAD_PREDICTIONS], worst[form][kind][KL_GRAD_TARGETS]);
        printf("\n");
    }
}

static int check_level(const kl_case *c, onep_level level)
{
    static onepass_handle *handles[ONEP_LEVELS][8];
    onepass_handle **handle = &handles[level][c->threads];
    if (!*handle)
        *handle = test_handle(level, c->threads);
    onep_type computed = onep_promote(c->type[KL_PREDICTIONS], c->type[KL_TARGETS]);
    int kind = level == ONEP_REF ? COMPUTED_REF : computed == ONEP_F64 ? COMPUTED_F64 : COMPUTED_F32;
    char text[1800];
    test_context("level %s, %s, %d threads, stream %" PRIu64 ", seed %" PRIu64 ": %s", onep_level_name(level),
                 reduction_names[c->reduction], (int)c->threads, c->stream, test_seed(),
                 case_describe(&made, text, sizeof text));
    for (int i = 0; i < KL_TENSORS; i++)
        made.argument[i].worst = 0;
    int good = case_check(&made, *handle, &test_judge);
    for (int i = KL_VALUE; i < KL_TENSORS; i++)
        if (made.argument[i].worst > worst[c->form][kind][i])
            worst[c->form][kind][i] = made.argument[i].worst;
    return good;
}

int kl_case_check(const kl_case *c)
{
    make(c);
    int good = 1;
    for (int level = 0; level < ONEP_LEVELS; level++)
        if (onep_level_runs((onep_level)level) && (c->only == ONEP_LEVELS || c->only == (onep_level)level))
            good &= check_level(c, (onep_level)level);
    return good;
}
