/*
 * See kl_cases.h. The error model: a kernel rounds each element to the type it computes in, may add a few in that type,
 * and goes on in double. So a sum of n elements may be off by the sum of the elements' own errors, plus the additions'
 * share, 2^-53 of the sum of magnitudes a step, which random signs let grow with the root of n.
 */
#include "kl_cases.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A unit in the last place is 2u. The logarithm and the exponential are good to 1 unit, a division or product to half.
 */
#define LOG_ERROR       2 /* u: relative error of a logarithm */
#define EXP_ERROR       2 /* u: relative error of an exponential */
#define RATIO_ERROR     4 /* u: relative error of log(t / p), both passed as probabilities */
#define RATIO_FAR_ERROR 2 /* u: absolute error of the same where t / p is rounded first, not within 1/8 of 1 */
#define ROUNDING_ERROR  2 /* u: the products and sums after it */
#define SCALE_ERROR     4 /* u: weight, divisor and upstream gradient, combined and applied */
#define SUM_ERROR(n)    (0x1p-53L * (8 + 2 * sqrtl((long double)(n))))

/*
 * CUDA kernels may be off by more where they compute in fp32: division and logarithm go by approximate reciprocals and
 * polynomials, and up to a few dozen elements are added in fp32 before a sum goes on in double. For half types, whose
 * inputs have few digits anyway, the series of the logarithm is shorter (3.2e-7 of an element, 5 u).
 */
typedef struct device_slack {
    int factor;   /* of all the errors above */
    int absolute; /* u: of log(t / p) */
    int exp;      /* u: relative, of an exponential */
} device_slack;

static const device_slack no_slack = {1, 0, 0}, f32_slack = {2, 0, 4}, half_slack = {2, 8, 8};
static int on_cuda;

static device_slack slack_of(onep_type computed)
{
    return !on_cuda || computed == ONEP_F64 ? no_slack : computed == ONEP_F32 ? f32_slack : half_slack;
}

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
    const char *name;
    kl_entry *entry;
} forms[ONEP_KL_FORMS] = {
    [ONEP_KL_PROBS_PROBS] = {"probs_probs", onepass_kl_probs_probs},
    [ONEP_KL_LOG_PROBS_PROBS] = {"log_probs_probs", onepass_kl_log_probs_probs},
    [ONEP_KL_PROBS_LOG_PROBS] = {"probs_log_probs", onepass_kl_probs_log_probs},
    [ONEP_KL_LOG_PROBS_LOG_PROBS] = {"log_probs_log_probs", onepass_kl_log_probs_log_probs},
};

static const char *const tensor_names[KL_TENSORS] = {"predictions", "targets", "row_weights",      "row_mask",
                                                     "grad_value",  "value",   "grad_predictions", "grad_targets"};
static const char *const layout_names[KL_LAYOUTS] = {"compact",     "row-major",     "padded",           "fortran",
                                                     "column step", "negative rows", "negative columns", "negative all",
                                                     "rotated",     "repeated rows", "repeated columns", "repeated"};
static const char *const data_names[KL_DATA_KINDS] = {"softmax",   "sharp", "one-hot",      "zeros", "near 1e-3",
                                                      "near 1e-6", "wide",  "unnormalised", "deep"};
static const char *const guard_names[TEST_GUARDS] = {"bands", "page after", "page before"};
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
    static const onepass_dtype dtypes[] = {
        [ONEP_F16] = ONEPASS_F16, [ONEP_BF16] = ONEPASS_BF16, [ONEP_F32] = ONEPASS_F32,
        [ONEP_F64] = ONEPASS_F64, [ONEP_BYTE] = ONEPASS_U8,
    };
    onepass_tensor tensor = {
        .data = data, .device = {ONEPASS_CPU, 0}, .ndim = ndim, .dtype = dtypes[type], .shape = shape};
    return tensor;
}

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
        c->layout[i] = (kl_layout)test_random_below(random, is_input ? KL_LAYOUTS : KL_OUTPUT_LAYOUTS);
        c->guard[i] = (test_guard)test_random_below(random, TEST_GUARDS);
        c->shift[i] = (size_t)test_random_below(random, 3) == 0;
    }
    onep_type promoted = onep_promote(c->type[KL_PREDICTIONS], c->type[KL_TARGETS]);
    if (!onep_type_holds(c->type[KL_VALUE], promoted))
        c->type[KL_VALUE] = promoted;
    c->mask_is_bool = (int)test_random_below(random, 2);
    c->threads = 1 + (int32_t)test_random_below(random, 3);
}

/* ---- the exact answer of one element ----------------------------------------------------------------------------- */

/*
 * With L = log t - log p: v = t L, dv/dt = L + 1, dv/dy = t (L + 1), dv/dx = -t, dv/dp = -t / p. The error of L follows
 * from what is a logarithm already: those are exact, the others are off by LOG_ERROR of their own size.
 */
kl_exact kl_exact_element(onep_kl_form form, onepass_semantics semantics, onep_type computed, double prediction,
                          double target, long double u, long double s)
{
    int log_p = ONEP_KL_LOG_PREDICTIONS(form);
    int log_t = ONEP_KL_LOG_TARGETS(form);
    long double p = prediction;
    long double x = log_p ? p : logl(p);
    long double t = log_t ? expl((long double)target) : (long double)target;
    long double y = log_t ? (long double)target : logl(t);
    if (log_t && t <= (computed == ONEP_F64 ? (long double)DBL_TRUE_MIN : (long double)FLT_TRUE_MIN) / 2)
        t = 0;
    if (log_t && t >= (computed == ONEP_F64 ? 0x1.fffffffffffff8p1023L : 0x1.ffffffp127L))
        t = INFINITY;
    if (semantics == ONEPASS_FINITE && t == 0 && x < INFINITY)
        return (kl_exact){0, 0, 0, 0, 0, 0};

    long double ratio = y - x;
    long double ratio_error =
        u * (ROUNDING_ERROR * fabsl(ratio) + (log_p ? 0 : LOG_ERROR * fabsl(x)) + (log_t ? 0 : LOG_ERROR * fabsl(y)));
    if (!log_p && !log_t) {
        if (t > p / 2 && t < 2 * p)
            ratio = log1pl((t - p) / p);
        int near = fabsl(t - p) <= p / 8;
        ratio_error = u * (RATIO_ERROR * fabsl(ratio) + (near ? 0 : RATIO_FAR_ERROR));
    }
    long double t_error = log_t ? u * EXP_ERROR * t + s : 0;
    device_slack slack = slack_of(computed);
    ratio_error = slack.factor * ratio_error + u * slack.absolute;
    t_error = slack.factor * t_error + u * slack.exp * (log_t ? t : 0);
    u *= slack.factor;

    kl_exact e;
    e.d_prediction = log_p ? -t : -t / p;
    e.d_prediction_error = u * ROUNDING_ERROR * fabsl(e.d_prediction) + (log_p ? t_error : t_error / fabsl(p)) + s;
    if (log_t) {
        e.value = t * ratio;
        e.d_target = e.value + t;
    } else { /* as xlogy(t, t) - t x, term by term */
        e.value = t == 0 ? 0 - t * x : isinf(t) ? t * y - t * x : t * ratio;
        e.d_target = t == 0 || isinf(t) ? (long double)NAN : ratio + 1;
    }
    if (t == 0 && !log_t) { /* 0 times a finite logarithm: nothing is rounded */
        e.value_error = e.d_target_error = s;
        return e;
    }
    e.value_error = t * ratio_error + t_error * fabsl(ratio) + u * ROUNDING_ERROR * fabsl(e.value) + s;
    long double one_error = ratio_error + u * ROUNDING_ERROR * fabsl(ratio + 1);
    e.d_target_error = (log_t ? t * one_error + t_error * fabsl(ratio + 1) : one_error) + s;
    return e;
}

/* ---- tensors of the case in memory ------------------------------------------------------------------------------- */

/* One tensor: its descriptor, where each element (in index order) lies, and which bytes of the buffer are elements. */
typedef struct placed {
    test_buffer own;
    test_buffer *buffer; /* its own, or that of the input it lies over */
    onepass_tensor tensor;
    int64_t shape[KL_MAX_RANK], strides[KL_MAX_RANK];
    int64_t count;
    int64_t *offset; /* bytes from buffer->data */
    char *owned;     /* one flag a byte */
    char *before;    /* the buffer's bytes before the call */
    char *after;     /* and after it */
} placed;

static placed tensors[KL_TENSORS];

typedef struct answer {
    long double *expected, *allowed_fast, *allowed_ref;
} answer;

static answer answers[KL_TENSORS];

static int is_given(const kl_case *c, int tensor)
{
    return tensor == KL_PREDICTIONS || tensor == KL_TARGETS || (c->present & KL_BIT(tensor)) != 0;
}

static int64_t column_count(const kl_case *c)
{
    return c->ndim > 0 ? c->shape[c->ndim - 1] : 1;
}

static int64_t row_count(const kl_case *c)
{
    int64_t rows = 1;
    for (int d = 0; d < c->ndim - 1; d++)
        rows *= c->shape[d];
    return rows;
}

/* The number of dimensions the tensor shares with the predictions; -1: it has one element. */
static int shared_rank(const kl_case *c, int tensor)
{
    int per_row = c->ndim > 0 ? c->ndim - 1 : 0;
    if (tensor == KL_WEIGHTS || tensor == KL_MASK)
        return per_row;
    if (tensor == KL_VALUE || tensor == KL_UPSTREAM)
        return c->reduction == ONEPASS_NONE ? c->ndim : c->reduction == ONEPASS_ROWS ? per_row : -1;
    return c->ndim;
}

static void *claim(void *old, size_t bytes)
{
    void *memory = realloc(old, bytes ? bytes : 1);
    if (!memory) {
        perror("test memory");
        exit(2);
    }
    return memory;
}

/* Fills the strides of a layout; extents are in shape. */
static void lay_out(kl_layout layout, int ndim, const int64_t *shape, int64_t *strides)
{
    int64_t step = layout == KL_COLUMN_STEP ? 2 : 1;
    for (int k = 0; k < ndim; k++) {
        int d = ndim - 1 - k; /* from the fastest on */
        if (layout == KL_FORTRAN)
            d = k;
        if (layout == KL_ROTATED)
            d = (ndim - 1 - k + ndim / 2 + 1) % ndim;
        strides[d] = step;
        step *= shape[d] > 0 ? shape[d] : 1;
        if (layout == KL_PADDED && k == 0)
            step += 3;
        if (layout == KL_FORTRAN && shape[d] == 1)
            strides[d] = -(INT64_C(7919) << 40);
    }
    for (int d = 0; d < ndim; d++) {
        int is_column = d == ndim - 1;
        if (layout == KL_NEGATIVE_ALL || (layout == KL_NEGATIVE_ROWS && !is_column) ||
            (layout == KL_NEGATIVE_COLUMNS && is_column))
            strides[d] = -strides[d];
        if (layout == KL_REPEATED_ALL || (layout == KL_REPEATED_ROWS && !is_column) ||
            (layout == KL_REPEATED_COLUMNS && is_column))
            strides[d] = 0;
    }
}

/* Offsets of all elements, and the flags of the bytes they occupy. */
static void find_elements(placed *p, int64_t low, size_t size)
{
    p->offset = claim(p->offset, (size_t)p->count * sizeof *p->offset);
    p->owned = claim(p->owned, p->buffer->bytes);
    memset(p->owned, 0, p->buffer->bytes);
    int64_t index[KL_MAX_RANK] = {0};
    int64_t at = -low;
    for (int64_t i = 0; i < p->count; i++) {
        p->offset[i] = at * (int64_t)size;
        memset(p->owned + p->offset[i], 1, size);
        for (int d = p->tensor.ndim - 1; d >= 0; d--) {
            if (p->shape[d] > 1)
                at += p->strides[d];
            if (++index[d] < p->shape[d])
                break;
            if (p->shape[d] > 1)
                at -= p->strides[d] * p->shape[d];
            index[d] = 0;
        }
    }
}

static void place(const kl_case *c, int which, test_random *random)
{
    placed *p = &tensors[which];
    int rank = shared_rank(c, which);
    onep_type type = which == KL_MASK ? ONEP_BYTE : c->type[which];
    if (which == KL_GRAD_PREDICTIONS)
        type = c->type[KL_PREDICTIONS];
    if (which == KL_GRAD_TARGETS)
        type = c->type[KL_TARGETS];
    if (rank < 0) { /* one element: a scalar, or any shape of ones */
        rank = (int)test_random_below(random, 3);
        for (int d = 0; d < rank; d++)
            p->shape[d] = 1;
    } else {
        memcpy(p->shape, c->shape, (size_t)rank * sizeof p->shape[0]);
    }
    int over_input = c->output_in_place == which && which >= KL_VALUE;
    kl_layout layout = over_input ? c->layout[c->input_in_place] : c->layout[which];
    lay_out(layout, rank, p->shape, p->strides);

    p->count = 1;
    int64_t low = 0;
    int64_t high = 0;
    for (int d = 0; d < rank; d++) {
        p->count *= p->shape[d];
        int64_t reach = p->shape[d] > 1 ? (p->shape[d] - 1) * p->strides[d] : 0;
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
    }
    size_t size = onep_type_size(type);
    if (over_input) {
        p->buffer = &tensors[c->input_in_place].own;
    } else {
        p->buffer = &p->own;
        size_t bytes = p->count > 0 ? (size_t)(high - low + 1) * size : 0;
        test_buffer_place(p->buffer, bytes, c->guard[which], c->shift[which]);
        memset(p->buffer->data, 0, bytes);
    }
    /* The first element is named by data and byte_offset together: sometimes all in one, sometimes split. */
    uint64_t split = over_input ? 0 : (uint64_t)test_random_below(random, 2) * 24;
    char *first = p->buffer->data - low * (int64_t)size;
    p->tensor = kl_tensor(type, p->count > 0 ? first - split : NULL, rank, p->shape);
    p->tensor.byte_offset = p->count > 0 ? split : 0;
    if (layout != KL_COMPACT)
        p->tensor.strides = p->strides;
    if (which == KL_MASK && c->mask_is_bool)
        p->tensor.dtype.code = ONEPASS_BOOL;
    find_elements(p, low, size);
    p->before = claim(p->before, p->buffer->bytes);
    p->after = claim(p->after, p->buffer->bytes);
}

static onep_type type_in(const placed *p)
{
    return onep_type_of(p->tensor.dtype);
}

static double get(int which, int64_t index)
{
    const placed *p = &tensors[which];
    return onep_load(type_in(p), p->buffer->data + p->offset[index]);
}

static void put(int which, int64_t index, double x)
{
    placed *p = &tensors[which];
    if (type_in(p) == ONEP_BYTE)
        p->buffer->data[p->offset[index]] = (char)x;
    else
        onep_store(type_in(p), p->buffer->data + p->offset[index], x);
}

/* ---- data -------------------------------------------------------------------------------------------------------- */

static int repeats_rows(const kl_case *c, int which)
{
    return c->layout[which] == KL_REPEATED_ROWS || c->layout[which] == KL_REPEATED_ALL;
}

static int repeats(const kl_case *c, int which)
{
    return c->layout[which] >= KL_REPEATED_ROWS;
}

/* The smallest probability that keeps some digits in the type. */
static double least_probability(onep_type type)
{
    return type == ONEP_F16 ? 0x1p-20 : type == ONEP_F64 ? 1e-200 : 1e-30;
}

/* One probability before normalisation. `sum` is what a row of them adds up to, about. */
static double draw(kl_data data, onep_type type, double columns, test_random *random)
{
    double least = least_probability(type);
    double z = test_random_unit(random);
    switch (data) {
    case KL_SHARP:
        return fmax(least, exp(20 * z - 20));
    case KL_WIDE:
        return exp(log(least) * z);
    case KL_UNNORMALISED:
        return 0.1 + 49.9 * z;
    case KL_DEEP:
        return fmax(least, exp(-100 * z));
    default: /* softmax of uniform logits: the sum of exp(z) over a row is about (e - 1) columns */
        return fmax(least, exp(z) / (1.718281828 * columns));
    }
}

static void fill_row(const kl_case *c, int64_t row, test_random *random)
{
    int64_t columns = column_count(c);
    int finite = c->semantics == ONEPASS_FINITE;
    int pairs = finite && !repeats(c, KL_PREDICTIONS) && !repeats(c, KL_TARGETS);
    int64_t hot = columns > 0 ? test_random_below(random, columns) : 0;
    for (int64_t k = 0; k < columns; k++) {
        double p = draw(c->data, c->type[KL_PREDICTIONS], (double)columns, random);
        double t = draw(c->data, c->type[KL_TARGETS], (double)columns, random);
        double prediction = ONEP_KL_LOG_PREDICTIONS(c->form) ? log(p) : p;
        int zero = c->data == KL_ZEROS ? test_random_below(random, 3) == 0 : c->data == KL_ONE_HOT && k != hot;
        if (c->data == KL_ONE_HOT)
            t = 1;
        if (c->data == KL_NEAR_3 || c->data == KL_NEAR_6)
            t = p * (1 + (c->data == KL_NEAR_3 ? 1e-3 : 1e-6) * test_random_between(random, -1, 1));
        if (c->data == KL_DEEP && ONEP_KL_LOG_PREDICTIONS(c->form))
            prediction = -100 * test_random_unit(random);
        double target = ONEP_KL_LOG_TARGETS(c->form) ? log(t) : t;
        if (c->data == KL_DEEP && ONEP_KL_LOG_TARGETS(c->form))
            target = -100 * test_random_unit(random);
        if (zero) { /* a log target of -inf is a NaN under strict semantics, and would hide all else */
            target = !ONEP_KL_LOG_TARGETS(c->form) ? 0 : finite ? -INFINITY : -60;
            if (pairs && test_random_below(random, 2) == 0)
                prediction = ONEP_KL_LOG_PREDICTIONS(c->form) ? -INFINITY : 0;
        }
        put(KL_PREDICTIONS, row * columns + k, prediction);
        put(KL_TARGETS, row * columns + k, target);
    }
}

/* A masked row holds what must not be read: NaN and infinities in everything that is not shared with other rows. */
static void spoil_row(const kl_case *c, int64_t row, test_random *random)
{
    int64_t columns = column_count(c);
    for (int which = KL_PREDICTIONS; which <= KL_UPSTREAM; which++) {
        int per_element = shared_rank(c, which) == c->ndim;
        if (!is_given(c, which) || which == KL_MASK || (per_element ? repeats_rows(c, which) : repeats(c, which)))
            continue;
        if (shared_rank(c, which) < 0 || (c->ndim == 0 && which > KL_TARGETS))
            continue;
        for (int64_t k = 0; k < (per_element ? columns : 1); k++)
            put(which, per_element ? row * columns + k : row,
                test_random_below(random, 2) ? (double)NAN : (double)-INFINITY);
    }
}

static void fill(const kl_case *c, test_random *random)
{
    static const double weights[] = {1, 0, -1.5, 0.3, 2.75, 1e-3};
    int64_t rows = row_count(c);
    for (int64_t row = 0; row < rows; row++) {
        fill_row(c, row, random);
        if (is_given(c, KL_WEIGHTS))
            put(KL_WEIGHTS, row, weights[test_random_below(random, 6)]);
        if (is_given(c, KL_MASK))
            put(KL_MASK, row, c->mask_all || test_random_below(random, 3) == 0 ? 0 : c->mask_is_bool ? 1 : 128);
    }
    if (is_given(c, KL_UPSTREAM))
        for (int64_t i = 0; i < tensors[KL_UPSTREAM].count; i++)
            put(KL_UPSTREAM, i, test_random_between(random, -4, 4));
    if (is_given(c, KL_MASK) && c->layout[KL_MASK] < KL_REPEATED_ROWS)
        for (int64_t row = 0; row < rows; row++)
            if (get(KL_MASK, row) == 0)
                spoil_row(c, row, random);
}

/* ---- expected results -------------------------------------------------------------------------------------------- */

static double divisor_of(const kl_case *c)
{
    switch (c->reduction) {
    case ONEPASS_BATCHMEAN:
        return c->ndim > 0 ? (double)c->shape[0] : 1;
    case ONEPASS_MEAN:
        return (double)(row_count(c) * column_count(c));
    case ONEPASS_DIVISOR:
        return c->divisor;
    default:
        return 1;
    }
}

/* Computes all answers with the allowances of one kind of kernel. */
static void answer_all(const kl_case *c, int reference)
{
    onep_type computed = onep_promote(c->type[KL_PREDICTIONS], c->type[KL_TARGETS]);
    int wide = reference || computed == ONEP_F64;
    long double u = wide ? 0x1p-53L : 0x1p-24L;
    long double s = wide ? (long double)DBL_TRUE_MIN : (long double)FLT_TRUE_MIN;
    long double *allowed[KL_TENSORS];
    long double scale_error = u * SCALE_ERROR * slack_of(computed).factor;
    for (int i = KL_VALUE; i < KL_TENSORS; i++)
        allowed[i] = reference ? answers[i].allowed_ref : answers[i].allowed_fast;
    int64_t rows = row_count(c);
    int64_t columns = column_count(c);
    long double divisor = divisor_of(c);
    long double total = 0;
    long double total_size = 0;
    long double total_error = 0;
    for (int64_t row = 0; row < rows; row++) {
        int masked = is_given(c, KL_MASK) && get(KL_MASK, row) == 0;
        long double weight = is_given(c, KL_WEIGHTS) ? (long double)get(KL_WEIGHTS, row) : 1;
        long double sum = 0;
        long double size = 0;
        long double error = 0;
        for (int64_t k = 0; k < columns; k++) {
            int64_t i = row * columns + k;
            kl_exact e = {0, 0, 0, 0, 0, 0};
            long double scale = 0;
            if (!masked) {
                e = kl_exact_element(c->form, c->semantics, computed, get(KL_PREDICTIONS, i), get(KL_TARGETS, i), u, s);
                int64_t up = c->reduction == ONEPASS_NONE ? i : c->reduction == ONEPASS_ROWS ? row : 0;
                scale = weight / divisor * (is_given(c, KL_UPSTREAM) ? (long double)get(KL_UPSTREAM, up) : 1);
                e.value *= weight;
                e.value_error = fabsl(weight) * e.value_error + u * ROUNDING_ERROR * fabsl(e.value);
            }
            if (is_given(c, KL_VALUE) && c->reduction == ONEPASS_NONE) {
                answers[KL_VALUE].expected[i] = e.value;
                allowed[KL_VALUE][i] = e.value_error + s;
            }
            if (is_given(c, KL_GRAD_PREDICTIONS)) {
                long double g = answers[KL_GRAD_PREDICTIONS].expected[i] = e.d_prediction * scale;
                allowed[KL_GRAD_PREDICTIONS][i] =
                    e.d_prediction_error * fabsl(scale) + scale_error * fabsl(g) + (masked ? 0 : s);
            }
            if (is_given(c, KL_GRAD_TARGETS)) {
                long double g = answers[KL_GRAD_TARGETS].expected[i] = e.d_target * scale;
                allowed[KL_GRAD_TARGETS][i] =
                    e.d_target_error * fabsl(scale) + scale_error * fabsl(g) + (masked ? 0 : s);
            }
            sum += e.value;
            size += fabsl(e.value);
            error += e.value_error;
        }
        if (is_given(c, KL_VALUE) && c->reduction == ONEPASS_ROWS) {
            answers[KL_VALUE].expected[row] = sum;
            allowed[KL_VALUE][row] = error + SUM_ERROR(columns) * size;
        }
        total += sum;
        total_size += size;
        total_error += error;
    }
    if (is_given(c, KL_VALUE) && shared_rank(c, KL_VALUE) < 0) {
        answers[KL_VALUE].expected[0] = total / divisor;
        allowed[KL_VALUE][0] = (total_error + SUM_ERROR(rows * columns) * total_size) / fabsl(divisor);
    }
}

/* ---- running and checking ---------------------------------------------------------------------------------------- */

enum { COMPUTED_REF, COMPUTED_F32, COMPUTED_F64, COMPUTED };
static long double worst[ONEP_KL_FORMS][COMPUTED][KL_TENSORS];

void kl_print_worst(void)
{
    static const char *const computed_names[] = {"ref", "in fp32", "in fp64"};
    printf("largest error as a share of what is allowed (value, grad_predictions, grad_targets):\n");
    for (int form = 0; form < ONEP_KL_FORMS; form++) {
        printf("  %-20s", forms[form].name);
        for (int kind = 0; kind < COMPUTED; kind++)
            printf("  %s %.2Lf %.2Lf %.2Lf", computed_names[kind], worst[form][kind][KL_VALUE],
                   worst[form][kind][KL_GRAD_PREDICTIONS], worst[form][kind][KL_GRAD_TARGETS]);
        printf("\n");
    }
}

static void describe(const kl_case *c, onep_level level)
{
    char text[1600];
    size_t used = 0;
#define ADD(...)                                                                                                       \
    if (used < sizeof text)                                                                                            \
    used += (size_t)snprintf(text + used, sizeof text - used, __VA_ARGS__)
    for (int i = 0; i < KL_TENSORS; i++) {
        const placed *p = &tensors[i];
        if (!is_given(c, i))
            continue;
        ADD("\n    %s: %s, %s, %s, off by %zu, strides", tensor_names[i], onep_type_name(type_in(p)),
            layout_names[c->layout[i]], guard_names[c->guard[i]], c->shift[i]);
        for (int d = 0; d < p->tensor.ndim; d++)
            ADD(" %" PRId64, p->strides[d]);
    }
    ADD("\n    shape");
    for (int d = 0; d < c->ndim; d++)
        ADD(" %" PRId64, c->shape[d]);
#undef ADD
    test_context("level %s, %s, %s, %s, divisor %g, data %s, %d threads, %s%s%s stream %" PRIu64 ", seed %" PRIu64 "%s",
                 onep_level_name(level), forms[c->form].name, reduction_names[c->reduction],
                 c->semantics == ONEPASS_FINITE ? "finite" : "strict", c->divisor, data_names[c->data], (int)c->threads,
                 c->output_in_place ? tensor_names[c->output_in_place] : "", c->output_in_place ? " over " : "",
                 c->output_in_place ? tensor_names[c->input_in_place] : "", c->stream, test_seed(), text);
}

static int check_results(const kl_case *c, int which, int reference, int kind)
{
    const placed *p = &tensors[which];
    const answer *a = &answers[which];
    for (int64_t i = 0; i < p->count; i++) {
        double got = get(which, i);
        long double allowed = reference ? a->allowed_ref[i] : a->allowed_fast[i];
        if (!CHECK(test_close_in(type_in(p), got, a->expected[i], allowed),
                   "%s[%" PRId64 "]: got %.17g, expected %.17Lg, off by %.3Lg, allowed %.3Lg + half a unit",
                   tensor_names[which], i, got, a->expected[i], fabsl((long double)got - a->expected[i]), allowed))
            return 0;
        if (isfinite(got) && isfinite(a->expected[i]) && allowed > 0) {
            /* What storing the result rounds away is not the arithmetic's. */
            long double rounded = test_half_unit(type_in(p), a->expected[i]);
            long double share = (fabsl((long double)got - a->expected[i]) - rounded) / allowed;
            if (share > worst[c->form][kind][which])
                worst[c->form][kind][which] = share;
        }
    }
    return 1;
}

/* One call with outputs full of `poison`; then nothing but the outputs' elements may have changed. */
static int call_once(const kl_case *c, onepass_handle *handle, int poison)
{
    for (int i = 0; i < KL_TENSORS; i++) {
        placed *p = &tensors[i];
        if (!is_given(c, i) || p->buffer->bytes == 0 || p->buffer != &p->own)
            continue;
        if (i >= KL_VALUE)
            memset(p->before, poison, p->buffer->bytes);
        memcpy(p->buffer->data, p->before, p->buffer->bytes);
    }
    onepass_kl_options options = {
        .size = sizeof options,
        .reduction = c->reduction,
        .semantics = c->semantics,
        .divisor = c->divisor,
        .row_weights = is_given(c, KL_WEIGHTS) ? &tensors[KL_WEIGHTS].tensor : NULL,
        .row_mask = is_given(c, KL_MASK) ? &tensors[KL_MASK].tensor : NULL,
        .grad_value = is_given(c, KL_UPSTREAM) ? &tensors[KL_UPSTREAM].tensor : NULL,
    };
    kl_entry *entry = c->entry ? c->entry : forms[c->form].entry;
    onepass_status status = entry(handle, &tensors[KL_PREDICTIONS].tensor, &tensors[KL_TARGETS].tensor, &options,
                                  is_given(c, KL_VALUE) ? &tensors[KL_VALUE].tensor : NULL,
                                  is_given(c, KL_GRAD_PREDICTIONS) ? &tensors[KL_GRAD_PREDICTIONS].tensor : NULL,
                                  is_given(c, KL_GRAD_TARGETS) ? &tensors[KL_GRAD_TARGETS].tensor : NULL);
    int good = CHECK(status == ONEPASS_OK, "status %s: %s", onepass_status_name(status), onepass_last_error());
    for (int i = 0; i < KL_TENSORS; i++) {
        placed *p = &tensors[i];
        if (!is_given(c, i) || p->buffer != &p->own)
            continue;
        good &= CHECK(test_buffer_damage(p->buffer) == 0, "%s: %zu bytes beside it changed", tensor_names[i],
                      test_buffer_damage(p->buffer));
        int written = i >= KL_VALUE || (c->output_in_place && c->input_in_place == i);
        size_t changed = 0;
        for (size_t at = 0; at < p->buffer->bytes; at++)
            changed += p->buffer->data[at] != p->before[at] && !(written && p->owned[at]);
        good &= CHECK(changed == 0, "%s: %zu bytes changed that are not its to change", tensor_names[i], changed);
    }
    return good;
}

static int check_level(const kl_case *c, onep_level level)
{
    static onepass_handle *handles[ONEP_LEVELS][8];
    onepass_handle **handle = &handles[level][c->threads];
    if (!*handle)
        *handle = test_handle(level, c->threads);
    onep_type computed = onep_promote(c->type[KL_PREDICTIONS], c->type[KL_TARGETS]);
    int reference = level == ONEP_REF;
    int kind = reference ? COMPUTED_REF : computed == ONEP_F64 ? COMPUTED_F64 : COMPUTED_F32;

    describe(c, level);
    int good = call_once(c, *handle, 0xff); /* a NaN in every type */
    for (int i = KL_VALUE; i < KL_TENSORS && good; i++)
        if (is_given(c, i)) {
            good &= check_results(c, i, reference, kind);
            memcpy(tensors[i].after, tensors[i].buffer->data, tensors[i].buffer->bytes);
        }
    good = good && call_once(c, *handle, 0x55);
    for (int i = KL_VALUE; i < KL_TENSORS && good; i++) {
        const placed *p = &tensors[i];
        size_t different = 0;
        for (size_t at = 0; is_given(c, i) && at < p->buffer->bytes; at++)
            different += p->owned[at] && p->after[at] != p->buffer->data[at];
        good &=
            CHECK(different == 0, "%s: %zu bytes depend on what was there before the call", tensor_names[i], different);
    }
    return good;
}

int kl_case_check(const kl_case *c)
{
    test_random random = test_random_stream(c->stream);
    for (int i = 0; i < KL_TENSORS; i++) {
        if (!is_given(c, i))
            continue;
        place(c, i, &random);
        answer *a = &answers[i];
        size_t bytes = (size_t)tensors[i].count * sizeof(long double);
        a->expected = claim(a->expected, bytes);
        a->allowed_fast = claim(a->allowed_fast, bytes);
        a->allowed_ref = claim(a->allowed_ref, bytes);
    }
    fill(c, &random);
    for (int i = 0; i < KL_TENSORS; i++)
        if (is_given(c, i) && tensors[i].buffer->bytes)
            memcpy(tensors[i].before, tensors[i].buffer->data, tensors[i].buffer->bytes);
    answer_all(c, 0);
    answer_all(c, 1);
    int good = 1;
    for (int level = 0; level < ONEP_LEVELS; level++)
        if (onep_level_runs((onep_level)level) && (c->only == ONEP_LEVELS || c->only == (onep_level)level))
            good &= check_level(c, (onep_level)level);
    return good;
}
