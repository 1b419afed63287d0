/* See every_call.h. */
#include "every_call.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kl_cases.h"

enum { READ, WRITTEN, KEPT };

static const char *const operator_names[CALL_OPERATORS] = {
    "kl_probs_probs",
    "kl_log_probs_probs",
    "kl_probs_log_probs",
    "kl_log_probs_log_probs",
    "divergence_logits_logits",
    "divergence_logits_probs",
    "divergence_logits_log_probs",
    "divergence_logits_top_k",
    "cross_entropy_logits_labels",
    "token_log_probs",
    "token_log_probs_backward",
    "shard_states",
    "shard_merge",
    "shard_sums",
    "shard_merge_sums",
    "shard_loss",
    "shard_token_log_probs",
    "shard_token_log_probs_backward",
    "linear",
    "linear_backward",
    "linear_cross_entropy",
    "linear_divergence",
    "linear_token_log_probs",
    "linear_token_log_probs_backward",
    "head",
    "head_backward",
};

const char *call_name(call_operator operator_id)
{
    return operator_names[operator_id];
}

int call_has_depth(call_operator operator_id)
{
    return operator_id >= CALL_TOKEN && !(operator_id >= CALL_SHARD_STATES && operator_id <= CALL_SHARD_LOSS);
}

int call_is_from_logits(call_operator operator_id)
{
    return operator_id >= CALL_DIVERGENCE_LOGITS && operator_id < CALL_LINEAR;
}

static void place(case_buffer *buffer, size_t bytes)
{
    if (!case_buffer_place(buffer, bytes, CASE_PAGE_AFTER, 0))
        exit(2);
}

static void *take(size_t bytes)
{
    void *memory = malloc(bytes);
    if (!memory && bytes) {
        perror("test memory");
        exit(2);
    }
    return memory;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* A tensor of up to two dimensions; a call that is strided leaves an element between any two. */
static onepass_tensor *add(every_call *c, const char *name, int role, onep_type type, int ndim, int64_t first,
                           int64_t second)
{
    call_tensor *t = &c->tensor[c->count++];
    int64_t step = c->strided ? 2 : 1;
    t->name = name;
    t->type = type;
    t->is_output = role == WRITTEN;
    t->is_kept = role == KEPT;
    t->shape[0] = first;
    t->shape[1] = second;
    t->strides[0] = ndim == 2 ? step * second + (step - 1) : step;
    t->strides[1] = step;
    t->tensor = kl_tensor(call_is_integer(type) ? ONEP_F64 : type, NULL, ndim, t->shape);
    if (call_is_integer(type))
        t->tensor.dtype = type == ONEP_I32 ? case_i32 : case_i64;
    if (c->strided && ndim > 0)
        t->tensor.strides = t->strides;
    size_t bytes = call_tensor_bytes(t);
    t->on_heap = c->kind.memory != CALL_PAGE_AFTER;
    if (!t->on_heap)
        place(&t->buffer, bytes);
    else if (bytes > 0 || c->kind.memory == CALL_HEAP)
        t->buffer.data = take(bytes);
    t->tensor.data = t->buffer.data;
    return &t->tensor;
}

static call_tensor *last(every_call *c)
{
    return &c->tensor[c->count - 1];
}

/* An input with numbers in it. */
static onepass_tensor *given(every_call *c, const char *name, onep_type type, int ndim, int64_t first, int64_t second,
                             double low, double high, test_random *random)
{
    onepass_tensor *tensor = add(c, name, READ, type, ndim, first, second);
    call_tensor_fill(last(c), low, high, random);
    return tensor;
}

/* ---- the operators' tensors -------------------------------------------------------------------------------------- */

static void make_kl(every_call *c, test_random *random)
{
    call_kind k = c->kind;
    onep_kl_form form = (onep_kl_form)(k.operator_id - CALL_KL_PROBS_PROBS);
    double m = c->magnitude;
    c->kl = (onepass_kl_options){.size = sizeof c->kl, .reduction = (onepass_reduction)(k.variant % 5)};
    int ndim = c->kl.reduction == ONEPASS_NONE ? 2 : c->kl.reduction == ONEPASS_ROWS ? 1 : 0;
    int p_log = ONEP_KL_LOG_PREDICTIONS(form), t_log = ONEP_KL_LOG_TARGETS(form);
    given(c, "predictions", k.type, 2, k.rows, k.columns, p_log ? -9 : m / 1000, p_log ? 0 : m, random);
    given(c, "targets", k.type, 2, k.rows, k.columns, t_log ? -9 : m / 1000, t_log ? 0 : m, random);
    if (k.variant % 2) {
        c->kl.row_weights = given(c, "row_weights", k.type, 1, k.rows, 0, m / 2, m * 2, random);
        c->kl.row_mask = given(c, "row_mask", ONEP_BYTE, 1, k.rows, 0, 0, 1, random);
        c->kl.grad_value = given(c, "grad_value", k.type, ndim, k.rows, k.columns, m / 2, m * 2, random);
    }
    add(c, "value", WRITTEN, k.type, ndim, k.rows, k.columns);
    add(c, "grad_predictions", WRITTEN, k.type, 2, k.rows, k.columns);
    add(c, "grad_targets", WRITTEN, k.type, 2, k.rows, k.columns);
}

/* One number for every row or one for all, as the reduction says. */
static int value_rank(onepass_reduction reduction)
{
    return reduction == ONEPASS_ROWS ? 1 : 0;
}

/* Labels among the columns, and some that are ignored. */
static onepass_tensor *labels(every_call *c, const char *name, int ndim, int64_t second, test_random *random)
{
    call_kind k = c->kind;
    onepass_tensor *tensor = add(c, name, READ, k.variant / 2 % 2 ? ONEP_I32 : ONEP_I64, ndim, k.rows, second);
    for (int64_t i = 0; i < call_tensor_elements(last(c)); i++)
        call_tensor_put(
            last(c), i,
            k.columns == 0 || test_random_below(random, 5) == 0 ? -100 : (double)test_random_below(random, k.columns));
    return tensor;
}

/* Logits; those of a total variation are not where the two sides might be equal. */
static void fill_logits(const call_tensor *t, int is_apart, test_random *random)
{
    for (int64_t i = 0; i < call_tensor_elements(t); i++)
        call_tensor_put(t, i,
                        is_apart ? (i % t->shape[1] % 2 ? 2 : -2) + test_random_between(random, -0.2, 0.2)
                                 : test_random_between(random, -4, 4));
}

static void make_targets(every_call *c, int is_apart, test_random *random)
{
    call_kind k = c->kind;
    add(c, "targets", READ, k.type, 2, k.rows, k.columns);
    for (int64_t i = 0; i < call_tensor_elements(last(c)); i++) {
        double p = (is_apart ? 1 : test_random_between(random, 0.2, 1.8)) / (double)k.columns;
        call_tensor_put(last(c), i, k.operator_id == CALL_DIVERGENCE_PROBS ? p : log(p));
    }
    add(c, "grad_targets", WRITTEN, k.type, 2, k.rows, k.columns);
}

/* A teacher of two entries, or of `depth`, some of them padding. */
static void make_top_k(every_call *c, test_random *random)
{
    call_kind k = c->kind;
    onepass_logits_options *o = &c->logits;
    int64_t used = o->columns ? o->columns : k.columns, entries = k.depth > 0 ? k.depth : 2;
    o->divergence = k.variant % 2 ? ONEPASS_REVERSE_KL : ONEPASS_KL;
    o->outside = k.variant % 2 ? ONEPASS_OUTSIDE_TAIL : (onepass_outside)(k.variant / 2 % 4);
    o->top_values = (onepass_top_values)(k.variant % 2);
    add(c, "top_values", READ, k.type, 2, k.rows, entries);
    for (int64_t i = 0; i < call_tensor_elements(last(c)); i++) {
        double p = test_random_between(random, 0.2, 0.9) / (double)(entries + 1);
        call_tensor_put(last(c), i, o->top_values == ONEPASS_TOP_PROBS ? p : log(p));
    }
    add(c, "top_indices", READ, k.variant / 2 % 2 ? ONEP_I32 : ONEP_I64, 2, k.rows, entries);
    for (int64_t i = 0; i < call_tensor_elements(last(c)); i++) /* the first entry of a row always counts */
        call_tensor_put(last(c), i,
                        used == 0 || (i % entries && test_random_below(random, 5) == 0)
                            ? -1
                            : (double)test_random_below(random, used));
}

static const onepass_reduction reductions[] = {ONEPASS_BATCHMEAN, ONEPASS_MEAN, ONEPASS_SUM, ONEPASS_ROWS,
                                               ONEPASS_VALID};

/* The label terms, what there is of rows and of classes, and results per row but the argmax. */
static void make_label_terms(every_call *c, test_random *random)
{
    call_kind k = c->kind;
    double m = c->magnitude;
    onepass_logits_options *o = &c->logits;
    o->label_weight = 0.5;
    o->label_smoothing = 0.1;
    o->z_loss = 1e-2;
    o->entropy_bonus = 0.1;
    o->class_weights = given(c, "class_weights", k.type, 1, k.columns, 0, 0.5, 2, random);
    o->row_weights = given(c, "row_weights", k.type, 1, k.rows, 0, m / 2, m * 2, random);
    o->row_mask = given(c, "row_mask", ONEP_BYTE, 1, k.rows, 0, 0, 1, random);
    o->grad_value = given(c, "grad_value", k.type, value_rank(o->reduction), k.rows, 0, m / 2, m * 2, random);
    o->log_prob = add(c, "log_prob", WRITTEN, k.type, 1, k.rows, 0);
    o->lse = add(c, "lse", WRITTEN, k.type, 1, k.rows, 0);
    o->entropy = add(c, "entropy", WRITTEN, k.type, 1, k.rows, 0);
}

static void make_logits(every_call *c, test_random *random)
{
    call_kind k = c->kind;
    int has_targets = k.operator_id != CALL_CROSS_ENTROPY;
    onepass_logits_options *o = &c->logits;
    *o = (onepass_logits_options){.size = sizeof *o, .reduction = reductions[k.variant % 5]};
    int is_top_k = k.operator_id == CALL_DIVERGENCE_TOP_K;
    int is_apart = has_targets && !is_top_k && k.variant % 6 == ONEPASS_TOTAL_VARIATION;
    add(c, "predictions", READ, k.type, 2, k.rows, k.columns);
    fill_logits(last(c), is_apart, random);
    if (has_targets && !is_top_k) {
        o->divergence = (onepass_divergence)(k.variant % 6);
        o->mixture = o->divergence >= ONEPASS_JS && !is_apart ? 0.3 : 0;
        make_targets(c, is_apart, random);
    }
    if (k.variant % 3 == 1) {
        o->temperature = 1.5;
        o->softcap = 8;
        o->columns = k.columns > 1 ? k.columns - 1 : 0;
    }
    if (is_top_k)
        make_top_k(c, random);
    if (!has_targets)
        labels(c, "labels", 1, 0, random);
    else if (k.variant % 2)
        o->labels = labels(c, "options.labels", 1, 0, random);
    if (k.variant % 2) {
        make_label_terms(c, random);
        o->argmax = add(c, "argmax", WRITTEN, ONEP_I64, 1, k.rows, 0);
    }
    add(c, "value", WRITTEN, k.type, value_rank(o->reduction), k.rows, 0);
    add(c, "grad_predictions", WRITTEN, k.type, 2, k.rows, k.columns);
}

static void make_token(every_call *c, test_random *random)
{
    call_kind k = c->kind;
    double m = c->magnitude;
    c->token = (onepass_token_options){.size = sizeof c->token};
    if (k.variant % 3 == 1) {
        c->token.temperature = 1.5;
        c->token.softcap = 8;
        c->token.columns = k.columns > 1 ? k.columns - 1 : 0;
    }
    int is_linear = k.operator_id >= CALL_LINEAR_TOKEN,
        is_forward = (k.operator_id == CALL_TOKEN) | (k.operator_id == CALL_LINEAR_TOKEN);
    int64_t count = is_linear ? 2 : k.depth;
    if (is_linear) {
        given(c, "input", k.type, 2, k.rows, k.depth, -m, m, random);
        given(c, "weight", k.type, 2, k.columns, k.depth, -1, 1, random);
        c->token.chunk_bytes = k.variant / 4 % 2;
    } else {
        add(c, "logits", READ, k.type, 2, k.rows, k.columns);
        fill_logits(last(c), 0, random);
    }
    labels(c, "indices", 2, count, random);
    if (k.variant % 2)
        c->token.row_mask = given(c, "row_mask", ONEP_BYTE, 1, k.rows, 0, 0, 1, random);
    if (k.variant % 2 && is_linear)
        given(c, "bias", k.type, 1, k.columns, 0, -1, 1, random);
    if (is_forward) {
        add(c, "log_prob", WRITTEN, k.type, 2, k.rows, count);
        add(c, "entropy", WRITTEN, k.type, 1, k.rows, 0);
        add(c, "lse", WRITTEN, k.type, 1, k.rows, 0);
        return;
    }
    given(c, "log_prob", k.type, 2, k.rows, count, m / 2, m * 2, random);
    given(c, "entropy", k.type, 1, k.rows, 0, m / 2, m * 2, random);
    given(c, "lse", k.type, 1, k.rows, 0, m / 2, m * 2, random);
    if (!is_linear) {
        add(c, "grad_logits", WRITTEN, k.type, 2, k.rows, k.columns);
        return;
    }
    add(c, "grad_input", WRITTEN, k.type, 2, k.rows, k.depth);
    if (k.variant % 4 != 1)
        add(c, "grad_weight", WRITTEN, k.variant / 4 % 2 ? ONEP_F32 : k.type, 2, k.columns, k.depth);
    if (k.variant % 2)
        add(c, "grad_bias", WRITTEN, k.type, 1, k.columns, 0);
}

/* ---- over several ranks ------------------------------------------------------------------------------------------ */

/* Compact memory of a call's own: [.., rows, numbers]. */
typedef struct exchanged {
    double *data;
    int64_t shape[3];
    onepass_tensor rows, ranks; /* the same without the rank before it, and with it */
} exchanged;

static void open_exchanged(exchanged *e, int64_t rows, int64_t numbers)
{
    e->data = take(((size_t)(rows * numbers) + 1) * sizeof *e->data);
    e->shape[0] = 1;
    e->shape[1] = rows;
    e->shape[2] = numbers;
    e->rows = kl_tensor(ONEP_F64, e->data, 2, e->shape + 1);
    e->ranks = kl_tensor(ONEP_F64, e->data, 3, e->shape);
}

static void must(onepass_status status)
{
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
}

/* An input with what has been exchanged. Gathered states are of one rank, whose dimension `add` has no place for. */
static void put_exchanged(every_call *c, const char *name, const exchanged *from, int has_ranks)
{
    add(c, name, READ, ONEP_F64, 2, from->shape[1], from->shape[2]);
    for (int64_t i = 0; i < from->shape[1] * from->shape[2]; i++)
        call_tensor_put(last(c), i, from->data[i]);
    if (!has_ranks)
        return;
    call_tensor *t = last(c);
    memmove(t->shape + 1, t->shape, 2 * sizeof t->shape[0]);
    memmove(t->strides + 1, t->strides, 2 * sizeof t->strides[0]);
    t->shape[0] = 1;
    t->strides[0] = t->strides[1] * t->shape[1];
    t->tensor.ndim = 3;
}

/* Logits on one side or on both, labels or indices, and what has been exchanged before this call, by level "ref". */
static void make_shard(every_call *c, test_random *random)
{
    call_kind k = c->kind;
    int is_token = k.operator_id == CALL_SHARD_TOKEN || k.operator_id == CALL_SHARD_TOKEN_BACKWARD;
    int has_sums = k.operator_id == CALL_SHARD_SUMS || k.operator_id == CALL_SHARD_MERGE_SUMS;
    int has_targets = has_sums || (!is_token && k.variant % 2);
    onepass_logits_options *o = &c->logits;
    *o = (onepass_logits_options){.size = sizeof *o, .reduction = reductions[k.variant % 5]};
    o->divergence = (onepass_divergence)(has_sums ? ONEPASS_JS + k.variant % 4 : has_targets ? k.variant / 2 % 6 : 0);
    int is_apart = o->divergence == ONEPASS_TOTAL_VARIATION;
    o->mixture = o->divergence >= ONEPASS_JS && !is_apart ? 0.3 : 0;
    o->temperature = k.variant % 3 == 1 ? 1.5 : 0;
    c->token = (onepass_token_options){.size = sizeof c->token, .temperature = o->temperature};
    o->total_columns = c->token.total_columns = k.columns;
    onepass_tensor *logits = add(c, is_token ? "logits" : "predictions", READ, k.type, 2, k.rows, k.columns);
    fill_logits(last(c), is_apart, random);
    onepass_tensor *targets = NULL, *indices = NULL;
    if (has_targets) {
        make_targets(c, is_apart, random);
        targets = &c->tensor[c->count - 2].tensor;
    }
    if (is_token)
        indices = labels(c, "indices", 2, k.depth, random);
    else if (!has_targets || k.variant / 2 % 2)
        o->labels = labels(c, "options.labels", 1, 0, random);
    if (k.variant % 2)
        o->row_mask = c->token.row_mask = given(c, "row_mask", ONEP_BYTE, 1, k.rows, 0, 0, 1, random);
    if (!is_token && o->labels)
        o->class_weights = given(c, "class_weights", k.type, 1, k.columns, 0, 0.5, 2, random);
    o->label_smoothing = o->labels ? 0.1 : 0;
    int64_t count = is_token ? k.depth : o->labels != NULL;
    exchanged states, statistics, sums;
    open_exchanged(&states, k.rows, onepass_shard_states_width(k.columns, count, has_targets));
    open_exchanged(&statistics, k.rows, onepass_shard_statistics_width(count, has_targets));
    open_exchanged(&sums, k.rows, onepass_shard_sums_width(k.columns));
    onepass_handle *handle = test_handle(ONEP_REF, 1);
    if (k.operator_id != CALL_SHARD_STATES) {
        must(onepass_shard_states(handle, logits, targets, indices, o, &states.rows));
        must(onepass_shard_merge(handle, &states.ranks, &statistics.rows));
    }
    if (k.operator_id == CALL_SHARD_STATES)
        add(c, "states", WRITTEN, ONEP_F64, 2, k.rows, states.shape[2]);
    else if (k.operator_id == CALL_SHARD_MERGE)
        put_exchanged(c, "gathered", &states, 1);
    else if (k.operator_id == CALL_SHARD_SUMS || k.operator_id == CALL_SHARD_MERGE_SUMS)
        put_exchanged(c, "statistics", &statistics, 0);
    if (k.operator_id == CALL_SHARD_SUMS)
        add(c, "sums", WRITTEN, ONEP_F64, 2, k.rows, sums.shape[2]);
    else if (has_targets && o->divergence >= ONEPASS_JS && k.operator_id > CALL_SHARD_SUMS)
        must(onepass_shard_sums(handle, logits, targets, &statistics.rows, o, &sums.rows));
    if (k.operator_id == CALL_SHARD_MERGE_SUMS)
        put_exchanged(c, "gathered", &sums, 1);
    if (k.operator_id == CALL_SHARD_MERGE || k.operator_id == CALL_SHARD_MERGE_SUMS) {
        add(c, "merged", WRITTEN, ONEP_F64, 2, k.rows, statistics.shape[2]);
    } else if (k.operator_id >= CALL_SHARD_LOSS) {
        if (o->divergence >= ONEPASS_JS)
            must(onepass_shard_merge_sums(handle, &statistics.rows, &sums.ranks, &statistics.rows));
        put_exchanged(c, "statistics", &statistics, 0);
    }
    onepass_destroy(handle);
    free(states.data);
    free(statistics.data);
    free(sums.data);
    if (k.operator_id == CALL_SHARD_LOSS) {
        o->lse = add(c, "lse", WRITTEN, k.type, 1, k.rows, 0);
        o->entropy = add(c, "entropy", WRITTEN, k.type, 1, k.rows, 0);
        add(c, "value", WRITTEN, k.type, value_rank(o->reduction), k.rows, 0);
        add(c, "grad_predictions", WRITTEN, k.type, 2, k.rows, k.columns);
    } else if (is_token) {
        int is_backward = k.operator_id == CALL_SHARD_TOKEN_BACKWARD;
        static const char *const names[] = {"log_prob", "entropy", "lse"};
        for (int i = 0; i < 3; i++) {
            add(c, names[i], is_backward ? READ : WRITTEN, k.type, i ? 1 : 2, k.rows, i ? 0 : k.depth);
            if (is_backward)
                call_tensor_fill(last(c), 0.5, 2, random);
        }
        if (is_backward)
            add(c, "grad_logits", WRITTEN, k.type, 2, k.rows, k.columns);
    }
}

static void make_linear(every_call *c, test_random *random)
{
    call_kind k = c->kind;
    double m = c->magnitude;
    given(c, "input", k.type, 2, k.rows, k.depth, -m, m, random);
    given(c, "weight", k.type, 2, k.columns, k.depth, -1, 1, random);
    if (k.operator_id == CALL_LINEAR) {
        given(c, "bias", k.type, 1, k.columns, 0, -m, m, random);
        add(c, "output", WRITTEN, k.type, 2, k.rows, k.columns);
        return;
    }
    given(c, "grad_output", k.type, 2, k.rows, k.columns, -m, m, random);
    add(c, "grad_input", WRITTEN, k.type, 2, k.rows, k.depth);
    add(c, "grad_weight", WRITTEN, k.type, 2, k.columns, k.depth);
    add(c, "grad_bias", WRITTEN, k.type, 1, k.columns, 0);
}

/* Of a depth of its own, and with labels now and then. No total variation: small hidden states make both sides equal
 * but for rounding, which its derivative takes the sign of. */
static void make_teacher(every_call *c, test_random *random)
{
    call_kind k = c->kind;
    onepass_logits_options *o = &c->logits;
    int64_t depth = k.depth > 0 ? k.depth + k.variant % 3 - 1 : k.variant % 2;
    o->divergence = (onepass_divergence)(k.variant % ONEPASS_TOTAL_VARIATION);
    o->mixture = o->divergence >= ONEPASS_JS ? 0.3 : 0;
    given(c, "target_input", k.type, 2, k.rows, depth, -c->magnitude, c->magnitude, random);
    given(c, "target_weight", k.type, 2, k.columns, depth, -1, 1, random);
    if (k.variant % 2) {
        given(c, "target_bias", k.type, 1, k.columns, 0, -1, 1, random);
        o->labels = labels(c, "labels", 1, 0, random);
        o->label_weight = 0.5;
    }
    if (k.variant % 5 == 3) {
        o->target_temperature = 0.8;
        o->target_softcap = 6;
        o->target_lse = add(c, "target_lse", WRITTEN, k.type, 1, k.rows, 0);
        o->target_entropy = add(c, "target_entropy", WRITTEN, k.type, 1, k.rows, 0);
    }
}

/* Without an argmax: products of a few numbers are equal now and then, but for their rounding. */
static void make_linear_loss(every_call *c, test_random *random)
{
    call_kind k = c->kind;
    double m = c->magnitude;
    onepass_logits_options *o = &c->logits;
    *o = (onepass_logits_options){.size = sizeof *o, .reduction = reductions[k.variant % 5]};
    given(c, "input", k.type, 2, k.rows, k.depth, -m, m, random);
    given(c, "weight", k.type, 2, k.columns, k.depth, -1, 1, random);
    if (k.operator_id == CALL_LINEAR_DIVERGENCE)
        make_teacher(c, random);
    else
        labels(c, "labels", 1, 0, random);
    if (k.variant % 3 == 1) {
        o->temperature = 1.5;
        o->softcap = 8;
        o->columns = k.columns > 1 ? k.columns - 1 : 0;
    }
    if (k.variant % 2) {
        given(c, "bias", k.type, 1, k.columns, 0, -1, 1, random);
        make_label_terms(c, random);
        add(c, "grad_bias", WRITTEN, k.type, 1, k.columns, 0);
    }
    o->chunk_bytes = k.variant / 4 % 2;
    if (k.variant % 4 != 2)
        add(c, "value", WRITTEN, k.type, value_rank(o->reduction), k.rows, 0);
    if (k.variant % 4 != 3)
        add(c, "grad_input", WRITTEN, k.type, 2, k.rows, k.depth);
    if (k.variant % 4 != 1)
        add(c, "grad_weight", WRITTEN, k.variant / 4 % 2 ? ONEP_F32 : k.type, 2, k.columns, k.depth);
}

static void make_head(every_call *c, test_random *random)
{
    call_kind k = c->kind;
    double m = c->magnitude;
    onep_type computed = k.type == ONEP_F64 ? ONEP_F64 : ONEP_F32;
    onepass_head_options *o = &c->head;
    *o = (onepass_head_options){.size = sizeof *o, .statistics = (onepass_statistics)(k.variant / 2 % 2), .eps = 1e-5};
    c->gradients = (onepass_head_gradients){.size = sizeof c->gradients};
    int backward = k.operator_id == CALL_HEAD_BACKWARD;
    int batch = o->statistics == ONEPASS_BATCH_STATISTICS;
    int one_scale = k.variant / 4 % 2;
    given(c, "input", k.type, 2, k.rows, k.depth, -m, m, random);
    given(c, "weight", k.type, 2, k.columns, k.depth, -1, 1, random);
    if (k.variant % 2) {
        o->bias = given(c, "bias", computed, 1, k.columns, 0, -1, 1, random);
        o->gamma = given(c, "gamma", computed, 1, k.columns, 0, 0.5, 2, random);
        o->beta = given(c, "beta", computed, 1, k.columns, 0, -1, 1, random);
        o->scale = given(c, "scale", computed, 1, one_scale ? 1 : k.columns, 0, 0.5, 2, random);
    }
    if (!backward) {
        if (!batch || k.variant % 2) {
            o->running_mean = add(c, "running_mean", batch ? KEPT : READ, computed, 1, k.columns, 0);
            call_tensor_fill(last(c), -1, 1, random);
            o->running_var = add(c, "running_var", batch ? KEPT : READ, computed, 1, k.columns, 0);
            call_tensor_fill(last(c), 0.5, 2, random);
        }
        if (batch) {
            o->momentum = 0.1;
            o->batches_tracked = add(c, "batches_tracked", KEPT, ONEP_I64, 1, 1, 0);
        }
        add(c, "output", WRITTEN, k.type, 2, k.rows, k.columns);
        if (k.variant / 8 % 2) {
            add(c, "product", WRITTEN, computed, 2, k.rows, k.columns);
            add(c, "mean", WRITTEN, computed, 1, k.columns, 0);
            add(c, "rstd", WRITTEN, computed, 1, k.columns, 0);
        }
        return;
    }
    given(c, "grad_output", k.type, 2, k.rows, k.columns, -m, m, random);
    given(c, "output", k.type, 2, k.rows, k.columns, m / 1000, m, random);
    given(c, "product", computed, 2, k.rows, k.columns, -1, 1, random);
    given(c, "mean", computed, 1, k.columns, 0, -1, 1, random);
    given(c, "rstd", computed, 1, k.columns, 0, 0.5, 2, random);
    c->gradients.input = add(c, "gradients.input", WRITTEN, k.type, 2, k.rows, k.depth);
    c->gradients.weight = add(c, "gradients.weight", WRITTEN, k.type, 2, k.columns, k.depth);
    if (k.variant % 2) {
        c->gradients.bias = add(c, "gradients.bias", WRITTEN, computed, 1, k.columns, 0);
        c->gradients.gamma = add(c, "gradients.gamma", WRITTEN, computed, 1, k.columns, 0);
        c->gradients.beta = add(c, "gradients.beta", WRITTEN, computed, 1, k.columns, 0);
        c->gradients.scale = add(c, "gradients.scale", WRITTEN, computed, 1, one_scale ? 1 : k.columns, 0);
    }
}

every_call *call_make(call_kind kind, double magnitude, uint64_t stream)
{
    every_call *c = calloc(1, sizeof *c);
    if (!c) {
        perror("test memory");
        exit(2);
    }
    test_random random = test_random_stream(stream);
    c->kind = kind;
    c->strided = kind.variant >= CALL_VARIANTS / 2;
    c->magnitude = magnitude;
    if (kind.operator_id <= CALL_KL_LOG_PROBS_LOG_PROBS)
        make_kl(c, &random);
    else if (kind.operator_id <= CALL_CROSS_ENTROPY)
        make_logits(c, &random);
    else if (kind.operator_id <= CALL_TOKEN_BACKWARD)
        make_token(c, &random);
    else if (kind.operator_id <= CALL_SHARD_TOKEN_BACKWARD)
        make_shard(c, &random);
    else if (kind.operator_id <= CALL_LINEAR_BACKWARD)
        make_linear(c, &random);
    else if (kind.operator_id <= CALL_LINEAR_DIVERGENCE)
        make_linear_loss(c, &random);
    else if (kind.operator_id <= CALL_LINEAR_TOKEN_BACKWARD)
        make_token(c, &random);
    else
        make_head(c, &random);
    return c;
}

void call_free(every_call *c)
{
    for (int i = 0; i < c->count; i++)
        if (c->tensor[i].on_heap)
            free(c->tensor[i].buffer.data);
        else
            case_buffer_free(&c->tensor[i].buffer);
    case_buffer_free(&c->workspace);
    free(c);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

const onepass_tensor *call_named(const every_call *c, const char *name)
{
    for (int i = 0; i < c->count; i++)
        if (strcmp(c->tensor[i].name, name) == 0)
            return &c->tensor[i].tensor;
    return NULL;
}

int call_is_refused(const every_call *c)
{
    return c->kind.operator_id == CALL_HEAD && c->head.statistics == ONEPASS_BATCH_STATISTICS && c->kind.rows == 1;
}

void *call_prepare(every_call *c, onepass_handle *handle, size_t *bytes)
{
    for (int i = 0; i < c->count; i++) {
        const call_tensor *t = &c->tensor[i];
        if ((t->is_output || t->is_kept) && call_tensor_bytes(t) > 0)
            memset(t->buffer.data, 0xa5, call_tensor_bytes(t));
        for (int64_t k = 0; t->is_kept && k < call_tensor_elements(t); k++)
            call_tensor_put(t, k, call_is_integer(t->type) ? 3 : 0.75);
    }
    *bytes = 0;
    onepass_status status = ONEPASS_OK;
    const onepass_tensor *input = call_named(c, "input"), *weight = call_named(c, "weight");
    if (c->kind.operator_id <= CALL_KL_LOG_PROBS_LOG_PROBS)
        status = onepass_kl_workspace_size(handle, call_named(c, "predictions"), &c->kl, bytes);
    else if (c->kind.operator_id <= CALL_CROSS_ENTROPY)
        status = onepass_logits_workspace_size(handle, call_named(c, "predictions"), &c->logits, bytes);
    else if (c->kind.operator_id <= CALL_TOKEN_BACKWARD)
        status = onepass_token_workspace_size(handle, call_named(c, "logits"), &c->token, bytes);
    else if (c->kind.operator_id <= CALL_SHARD_TOKEN_BACKWARD)
        *bytes = 0; /* on no level */
    else if (c->kind.operator_id <= CALL_LINEAR_BACKWARD)
        status = onepass_linear_workspace_size(handle, input, weight, bytes);
    else if (c->kind.operator_id == CALL_LINEAR_CROSS_ENTROPY)
        status = onepass_linear_cross_entropy_workspace_size(handle, input, weight, &c->logits,
                                                             call_named(c, "grad_weight"), bytes);
    else if (c->kind.operator_id == CALL_LINEAR_DIVERGENCE)
        status = onepass_linear_divergence_workspace_size(handle, input, weight, call_named(c, "target_input"),
                                                          call_named(c, "target_weight"), &c->logits,
                                                          call_named(c, "grad_weight"), bytes);
    else if (c->kind.operator_id <= CALL_LINEAR_TOKEN_BACKWARD)
        status =
            onepass_linear_token_workspace_size(handle, input, weight, &c->token, call_named(c, "grad_weight"), bytes);
    else if (c->kind.operator_id == CALL_HEAD)
        status = onepass_head_workspace_size(handle, input, weight, &c->head, call_named(c, "output"),
                                             call_named(c, "product"), bytes);
    else
        status = onepass_head_backward_workspace_size(handle, input, weight, &c->head, bytes);
    CHECK(status == ONEPASS_OK, "the workspace's size: %s", onepass_last_error());
    if (c->kind.memory == CALL_NULL && *bytes == 0)
        return NULL;
    if (c->kind.memory != CALL_PAGE_AFTER)
        return take(*bytes);
    place(&c->workspace, *bytes);
    return c->workspace.data;
}

void call_release(every_call *c, void *workspace)
{
    if (c->kind.memory != CALL_PAGE_AFTER)
        free(workspace);
}

onepass_status call_run(every_call *c, onepass_handle *handle)
{
    size_t bytes;
    void *workspace = call_prepare(c, handle, &bytes);
    onepass_status status = call_execute(c, handle, workspace, bytes);
    call_release(c, workspace);
    return status;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

uint64_t call_digest(const every_call *c)
{
    uint64_t digest = 0xcbf29ce484222325u; /* FNV-1a */
    for (int i = 0; i < c->count; i++) {
        const call_tensor *t = &c->tensor[i];
        size_t bytes = t->is_output || t->is_kept ? call_tensor_bytes(t) : 0;
        for (size_t k = 0; k < bytes; k++)
            digest = (digest ^ (unsigned char)t->buffer.data[k]) * 0x100000001b3u;
    }
    return digest;
}

void call_compare(const every_call *got, const every_call *expected, double relative, double absolute)
{
    for (int i = 0; i < got->count; i++) {
        const call_tensor *t = &got->tensor[i], *of = &expected->tensor[i];
        for (int64_t k = 0; k < call_tensor_elements(t) && (t->is_output || t->is_kept); k++) {
            if (call_is_integer(t->type)) {
                CHECK(memcmp(call_tensor_at(t, k), call_tensor_at(of, k), onep_type_size(t->type)) == 0, "%s differs",
                      t->name);
                continue;
            }
            double x = onep_load(t->type, call_tensor_at(t, k)), y = onep_load(of->type, call_tensor_at(of, k));
            if (!CHECK(test_close(x, y, relative * fabs(y) + absolute), "%s[%d] is %.9g, not %.9g", t->name, (int)k, x,
                       y))
                break;
        }
    }
}
