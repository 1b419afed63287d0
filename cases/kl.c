/*
 * See kl.h. The error model: a kernel rounds each element to the type it computes in, may add a few in that type, and
 * goes on in double. So a sum of n elements may be off by the sum of the elements' own errors, plus the additions'
 * share, 2^-53 of the sum of magnitudes a step, which random signs let grow with the root of n.
 */
#include "cases/kl.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* A unit in the last place is 2u. The logarithm and the exponential are good to 1 unit, a division or product to half.
 */
#define LOG_ERROR       2 /* u: relative error of a logarithm */
#define EXP_ERROR       2 /* u: relative error of an exponential */
#define RATIO_ERROR     4 /* u: relative error of log(t / p), both passed as probabilities */
#define RATIO_FAR_ERROR 2 /* u: absolute error of the same where t / p is rounded first, not within 1/8 of 1 */
#define ROUNDING_ERROR  2 /* u: the products and sums after it */
#define SCALE_ERROR     4 /* u: weight, divisor and upstream gradient, combined and applied */

long double kl_sum_error(int64_t n)
{
    return 0x1p-53L * (8 + 2 * sqrtl((long double)n));
}

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

static device_slack slack_of(const kl_precision *precision)
{
    if (precision->arithmetic != CASE_CUDA || precision->promoted.bits == 64)
        return (device_slack){1, 0, 0};
    return precision->promoted.bits == 32 ? (device_slack){2, 0, 4} : (device_slack){2, 8, 8};
}

kl_form kl_form_of(const char *operator_name)
{
    static const char log_predictions[] = "kl_log_probs", log_targets[] = "_probs_log_probs";
    size_t length = strlen(operator_name), tail = sizeof log_targets - 1;
    return (kl_form){strncmp(operator_name, log_predictions, sizeof log_predictions - 1) == 0,
                     length > tail && strcmp(operator_name + length - tail, log_targets) == 0};
}

kl_precision kl_precision_of(case_arithmetic arithmetic, onepass_dtype promoted)
{
    int wide = arithmetic == CASE_REFERENCE || promoted.bits == 64;
    return (kl_precision){arithmetic, promoted, wide ? 0x1p-53L : 0x1p-24L,
                          wide ? (long double)DBL_TRUE_MIN : (long double)FLT_TRUE_MIN};
}

/* ---- the exact answer -------------------------------------------------------------------------------------------- */

/*
 * With L = log t - log p: v = t L, dv/dt = L + 1, dv/dy = t (L + 1), dv/dx = -t, dv/dp = -t / p. The error of L follows
 * from what is a logarithm already: those are exact, the others are off by LOG_ERROR of their own size.
 */
kl_exact kl_exact_element(kl_form form, onepass_semantics semantics, const kl_precision *precision, double prediction,
                          double target)
{
    int log_p = form.log_predictions, log_t = form.log_targets, in_f64 = precision->promoted.bits == 64;
    long double u = precision->u, s = precision->s;
    long double p = prediction;
    long double x = log_p ? p : logl(p);
    long double t = log_t ? expl((long double)target) : (long double)target;
    long double y = log_t ? (long double)target : logl(t);
    if (log_t && t <= (in_f64 ? (long double)DBL_TRUE_MIN : (long double)FLT_TRUE_MIN) / 2)
        t = 0;
    if (log_t && t >= (in_f64 ? 0x1.fffffffffffff8p1023L : 0x1.ffffffp127L))
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
    device_slack slack = slack_of(precision);
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

long double kl_gradient_error(const kl_precision *precision, long double derivative, long double derivative_error,
                              long double scale)
{
    /* Where t / p leaves the type computed in, the gradient may be infinite even if the scale would bring it back. */
    if (isfinite(derivative) && fabsl(derivative) >= (precision->u < 0x1p-50L ? 0x1p1024L : 0x1p128L))
        return INFINITY;
    long double scale_error = precision->u * SCALE_ERROR * slack_of(precision).factor;
    return derivative_error * fabsl(scale) + scale_error * fabsl(derivative * scale) + precision->s;
}

static int64_t row_count(const op_case *c)
{
    return c->is_scalar ? 1 : case_rows(c);
}

static int64_t column_count(const op_case *c)
{
    return c->is_scalar ? 1 : case_extent(c, 'C');
}

static double divisor_of(const op_case *c)
{
    switch ((onepass_reduction)c->options[KL_REDUCTION]) {
    case ONEPASS_BATCHMEAN: /* the first dimension is that of the columns if it is the only one */
        return c->is_scalar ? 1 : (double)(c->leading_rank ? c->leading[0] : column_count(c));
    case ONEPASS_MEAN:
        return (double)(row_count(c) * column_count(c));
    case ONEPASS_DIVISOR:
        return c->options[KL_DIVISOR];
    default:
        return 1;
    }
}

/* Sums of values with the sizes and the errors of what is added up. */
typedef struct total {
    long double value, size, error;
} total;

static void add(total *to, total more)
{
    to->value += more.value;
    to->size += more.size;
    to->error += more.error;
}

/* One element: its gradients are expected, its weighted value is returned. */
static total exact_one(op_case *c, const kl_precision *precision, int64_t row, int64_t i, int masked)
{
    onepass_reduction reduction = (onepass_reduction)c->options[KL_REDUCTION];
    long double u = precision->u, s = precision->s, scale = 0;
    long double weight = case_was_or(c, KL_WEIGHTS, row, 1);
    kl_exact e = {0, 0, 0, 0, 0, 0};
    if (!masked) {
        e = kl_exact_element(kl_form_of(c->name), (onepass_semantics)c->options[KL_SEMANTICS], precision,
                             case_was(c, KL_PREDICTIONS, i), case_was(c, KL_TARGETS, i));
        int64_t up = reduction == ONEPASS_NONE ? i : reduction == ONEPASS_ROWS ? row : 0;
        scale = weight / (long double)divisor_of(c) * (long double)case_was_or(c, KL_UPSTREAM, up, 1);
        e.value *= weight;
        e.value_error = fabsl(weight) * e.value_error + u * ROUNDING_ERROR * fabsl(e.value);
        if (c->argument[KL_WEIGHTS].given) /* a product may end below the normal numbers */
            e.value_error += s;
    }
    if (reduction == ONEPASS_NONE)
        case_expected(c, KL_VALUE, i, e.value, e.value_error + s);
    case_expected(c, KL_GRAD_PREDICTIONS, i, e.d_prediction * scale,
                  masked ? 0 : kl_gradient_error(precision, e.d_prediction, e.d_prediction_error, scale));
    case_expected(c, KL_GRAD_TARGETS, i, e.d_target * scale,
                  masked ? 0 : kl_gradient_error(precision, e.d_target, e.d_target_error, scale));
    return (total){e.value, fabsl(e.value), e.value_error};
}

static int exact(op_case *c, case_arithmetic arithmetic)
{
    kl_precision precision =
        kl_precision_of(arithmetic, case_promote(c->argument[KL_PREDICTIONS].dtype, c->argument[KL_TARGETS].dtype));
    onepass_reduction reduction = (onepass_reduction)c->options[KL_REDUCTION];
    int64_t rows = row_count(c), columns = column_count(c);
    total all = {0, 0, 0};
    for (int64_t row = 0; row < rows; row++) {
        int masked = case_was_or(c, KL_MASK, row, 1) == 0;
        total sum = {0, 0, 0};
        for (int64_t k = 0; k < columns; k++)
            add(&sum, exact_one(c, &precision, row, row * columns + k, masked));
        if (reduction == ONEPASS_ROWS)
            case_expected(c, KL_VALUE, row, sum.value, sum.error + kl_sum_error(columns) * sum.size);
        add(&all, sum);
    }
    long double divisor = divisor_of(c);
    if (reduction != ONEPASS_ROWS && reduction != ONEPASS_NONE)
        case_expected(c, KL_VALUE, 0, all.value / divisor,
                      (all.error + kl_sum_error(rows * columns) * all.size) / fabsl(divisor));
    return 1;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

void kl_softmax_row(onepass_dtype type, void *to, int64_t columns, double scale, int logarithms, uint64_t seed,
                    int64_t row)
{
    case_random first = case_random_stream(seed, (uint64_t)row), again = first;
    double sum = 0;
    for (int64_t k = 0; k < columns; k++)
        sum += exp(scale * case_random_unit(&first)); /* no overflow: scale is at most 1 */
    double log_sum = log(sum);
    for (int64_t k = 0; k < columns; k++) {
        double logarithm = scale * case_random_unit(&again) - log_sum;
        case_store(type, (char *)to + (size_t)k * case_size(type), logarithms ? logarithm : exp(logarithm));
    }
}

static int repeats_rows(const op_case *c, int which)
{
    return c->argument[which].layout == CASE_REPEATED_ROWS || c->argument[which].layout == CASE_REPEATED_ALL;
}

static int repeats(const op_case *c, int which)
{
    return c->argument[which].layout >= CASE_REPEATED_ROWS;
}

/* One probability before normalisation. A row of them adds up to about 1, where that is asked for. */
static double draw(int family, onepass_dtype type, double columns, case_random *random)
{
    /* The smallest probability that keeps some digits in the type. */
    double least = case_same_type(type, case_f16) ? 0x1p-20 : type.bits == 64 ? 1e-200 : 1e-30;
    double z = case_random_unit(random);
    switch (family) {
    case KL_SHARP:
        return fmax(least, exp(20 * z - 20));
    case KL_WIDE:
        return exp(log(least) * z);
    case KL_UNNORMALISED:
        return 0.1 + 49.9 * z;
    case KL_DEEP:
        return fmax(least, exp(-100 * z));
    case KL_SPECIAL:
        return exp(-0.1 - 9 * z);
    default: /* softmax of uniform logits: the sum of exp(z) over a row is about (e - 1) columns */
        return fmax(least, exp(z) / (1.718281828 * columns));
    }
}

/* A number that is no ordinary one, a zero or one of the others; NaN for "none of them". */
static double draw_special(int logarithms, case_random *random, int *is_special)
{
    static const double zeros[] = {0, -0.0, 1, 1e-40, 0x1p-126, 0x1p-24, 1e-310};
    static const double log_zeros[] = {-INFINITY, 0, -0.0, -90, -100, -103.5, -740};
    static const double others[] = {NAN, INFINITY, -INFINITY, -1, -0x1p-149, 3, 1e6};
    double choice = case_random_unit(random);
    int pick = (int)case_random_below(random, 7);
    *is_special = choice < 0.3;
    return choice < 0.2 ? (logarithms ? log_zeros : zeros)[pick] : others[pick];
}

static void fill_row(op_case *c, int64_t row, case_random *random)
{
    kl_form form = kl_form_of(c->name);
    int64_t columns = column_count(c);
    int finite = (int)c->options[KL_SEMANTICS] == ONEPASS_FINITE;
    int pairs = finite && !repeats(c, KL_PREDICTIONS) && !repeats(c, KL_TARGETS);
    int64_t hot = columns > 0 ? case_random_below(random, columns) : 0;
    for (int64_t k = 0; k < columns; k++) {
        double p = draw(c->family, c->argument[KL_PREDICTIONS].dtype, (double)columns, random);
        double t = draw(c->family, c->argument[KL_TARGETS].dtype, (double)columns, random);
        double prediction = form.log_predictions ? log(p) : p;
        int zero = c->family == KL_ZEROS ? case_random_below(random, 3) == 0 : c->family == KL_ONE_HOT && k != hot;
        if (c->family == KL_ONE_HOT)
            t = 1;
        if (c->family == KL_NEAR_3 || c->family == KL_NEAR_6)
            t = p * (1 + (c->family == KL_NEAR_3 ? 1e-3 : 1e-6) * case_random_between(random, -1, 1));
        if (c->family == KL_DEEP && form.log_predictions)
            prediction = -100 * case_random_unit(random);
        double target = form.log_targets ? log(t) : t;
        if (c->family == KL_DEEP && form.log_targets)
            target = -100 * case_random_unit(random);
        if (zero) { /* a log target of -inf is a NaN under strict semantics, and would hide all else */
            target = !form.log_targets ? 0 : finite ? -INFINITY : -60;
            if (pairs && case_random_below(random, 2) == 0)
                prediction = form.log_predictions ? -INFINITY : 0;
        }
        if (c->family == KL_SPECIAL) {
            int special[2];
            double p_special = draw_special(form.log_predictions, random, &special[0]);
            double t_special = draw_special(form.log_targets, random, &special[1]);
            prediction = special[0] ? p_special : prediction;
            target = special[1] ? t_special : target;
        }
        case_put(c, KL_PREDICTIONS, row * columns + k, prediction);
        case_put(c, KL_TARGETS, row * columns + k, target);
    }
}

/* A masked row holds what must not be read: NaN and infinities in everything that is not shared with other rows. */
static void spoil_row(op_case *c, int64_t row, case_random *random)
{
    int64_t columns = column_count(c);
    for (int which = KL_PREDICTIONS; which <= KL_UPSTREAM; which++) {
        const char *shape = case_shape_of(c, which);
        int per_element = strcmp(shape, "*C") == 0;
        if (!c->argument[which].given || which == KL_MASK || (per_element ? repeats_rows(c, which) : repeats(c, which)))
            continue;
        if (!*shape || (c->is_scalar && which > KL_TARGETS))
            continue;
        for (int64_t k = 0; k < (per_element ? columns : 1); k++)
            case_put(c, which, per_element ? row * columns + k : row,
                     case_random_below(random, 2) ? (double)NAN : (double)-INFINITY);
    }
}

/* c->amount 1 masks every row. */
static void generate(op_case *c)
{
    static const double weights[] = {1, 0, -1.5, 0.3, 2.75, 1e-3};
    case_random random = case_random_stream(c->seed, 1);
    int64_t rows = row_count(c);
    int skips_zero = c->family == KL_SPECIAL; /* 0 times an infinity tells nothing */
    for (int64_t row = 0; row < rows; row++) {
        fill_row(c, row, &random);
        double weight = weights[case_random_below(&random, 6)];
        if (c->argument[KL_WEIGHTS].given)
            case_put(c, KL_WEIGHTS, row, skips_zero && weight == 0 ? 1 : weight);
        int masked = c->amount == 1 || case_random_below(&random, 3) == 0;
        if (c->argument[KL_MASK].given)
            case_put(c, KL_MASK, row, masked ? 0 : c->argument[KL_MASK].dtype.code == ONEPASS_BOOL ? 1 : 128);
    }
    for (int64_t i = 0; c->argument[KL_UPSTREAM].given && i < c->argument[KL_UPSTREAM].count; i++)
        case_put(c, KL_UPSTREAM, i, case_random_between(&random, -4, 4));
    if (c->argument[KL_MADE_FOR].given) /* what no upstream gradient is: everything is made */
        case_put(c, KL_MADE_FOR, 0, 100);
    if (c->argument[KL_MASK].given && c->argument[KL_MASK].layout < CASE_REPEATED_ROWS)
        for (int64_t row = 0; row < rows; row++)
            if (case_get(c, KL_MASK, row) == 0)
                spoil_row(c, row, &random);
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static const char *shape(const op_case *c, int argument)
{
    (void)argument; /* value and grad_value: one value, one per row or one per element */
    onepass_reduction reduction = (onepass_reduction)c->options[KL_REDUCTION];
    return reduction == ONEPASS_NONE ? "*C" : reduction == ONEPASS_ROWS ? "*" : "";
}

static void settle(op_case *c)
{
    onepass_dtype promoted = case_promote(c->argument[KL_PREDICTIONS].dtype, c->argument[KL_TARGETS].dtype);
    c->argument[KL_GRAD_PREDICTIONS].dtype = c->argument[KL_PREDICTIONS].dtype;
    c->argument[KL_GRAD_TARGETS].dtype = c->argument[KL_TARGETS].dtype;
    if (!case_holds(c->argument[KL_VALUE].dtype, promoted))
        c->argument[KL_VALUE].dtype = promoted;
    if (*shape(c, KL_VALUE)) /* grad_made_for goes with one value, and with gradients alone */
        c->argument[KL_MADE_FOR].given = 0;
    if (c->argument[KL_MADE_FOR].given)
        c->argument[KL_VALUE].given = 0;
    if (!c->argument[KL_VALUE].given && !c->argument[KL_GRAD_TARGETS].given)
        c->argument[KL_GRAD_PREDICTIONS].given = 1;
    if ((int)c->options[KL_REDUCTION] != ONEPASS_DIVISOR)
        c->options[KL_DIVISOR] = 0;
    else if (c->options[KL_DIVISOR] == 0)
        c->options[KL_DIVISOR] = -2.5;
}

static void begin(op_case *c)
{
    c->leading_rank = 1;
    c->leading[0] = 3;
    c->extents['C' - 'A'] = 7;
    c->argument[KL_MASK].dtype = case_u8;
    for (int i = KL_VALUE; i <= KL_GRAD_TARGETS; i++)
        c->argument[i].given = 1;
}

static const char *const names[] = {"kl_probs_probs", "kl_log_probs_probs", "kl_probs_log_probs",
                                    "kl_log_probs_log_probs", NULL};

const case_definition case_kl = {.names = names,
                                 .families = KL_SPECIAL + 1,
                                 .begin = begin,
                                 .shape = shape,
                                 .settle = settle,
                                 .generate = generate,
                                 .exact = exact};
