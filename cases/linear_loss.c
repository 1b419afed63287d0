/*
 * See linear_loss.h. The exact answer is that of a case of the loss from logits whose logits are the exact products,
 * and of the exact products of its gradient. A kernel's logits are off by no more than E in a row (linear_side.h), and
 * what that does to the label terms is, with E' = E / label_temperature and r = exp(2 E') - 1,
 *
 *   lse                   E'
 *   log P                 2 E'
 *   P, and 1 - P          r of it
 *   entropy H             r (H + 2 E') + 2 E'
 *   NLL                   2 E' times its weights
 *   z_loss lse^2          z_loss (2 |lse| E' + E'^2)
 *   slope of a softcap    0.77 E / cap, that of 1 - tanh^2
 *
 * and to the gradient of the logits what follows from these; what it does to a divergence is in exact_moved.c. That,
 * the bound of the loss itself and the rounding of a stored gradient go through the products of grad_input, grad_weight
 * and grad_bias, whose own bounds are added.
 */
#include "cases/linear_loss.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/exact_moved.h"
#include "cases/linear_side.h"

/* ---- what is expected -------------------------------------------------------------------------------------------- */

typedef struct exact_linear_loss {
    op_case *c, *loss; /* the case, and that of the loss from its logits */
    linear_types types;
    softmax_precision precision;
    int has_teacher;
    linear_side student, teacher;
    int64_t rows, width, columns;
    double temperature, target_temperature, label_temperature;
    long double divided_by;
    long double *slack;  /* of each logit's gradient */
    double *z, *y;       /* a row of logits, and of the teacher's */
    moved_slope *slopes; /* of the divergence of a row */
    long double value_error;
} exact_linear_loss;

static int has_teacher(const op_case *c)
{
    return strcmp(c->name, "linear_divergence") == 0;
}

static double or_default(double x, double otherwise)
{
    return x != 0 ? x : otherwise;
}

static long double class_weight(const exact_linear_loss *e, int64_t column)
{
    return fabsl((long double)case_was_or(e->c, LOGITS_CLASS_WEIGHTS, column, 1));
}

/* Adds to what a result of the loss may be off by, and expects it. */
static void expect_result(exact_linear_loss *e, int argument, int64_t row, long double more)
{
    const case_argument *a = &e->loss->argument[argument];
    if (a->given)
        case_expected(e->c, argument, row, a->expected[row], a->allowed[row] + more);
}

/* Any column whose logit is within 2 E of the largest may pass for it. */
static void expect_argmax(exact_linear_loss *e, int64_t row, const exact_softmax *s, long double unsure)
{
    const case_argument *a = &e->loss->argument[LOGITS_ARGMAX];
    if (!a->given)
        return;
    long double first = a->expected[row] - a->allowed[row], last = a->expected[row] + a->allowed[row], most = -INFINITY;
    for (int64_t k = 0; k < e->columns; k++)
        most = (long double)e->z[k] > most ? (long double)e->z[k] : most;
    for (int64_t k = 0; k < e->columns && !s->is_undefined && !s->has_no_mass; k++)
        if ((long double)e->z[k] >= most - 2 * unsure) {
            first = (long double)k < first ? (long double)k : first;
            last = (long double)k > last ? (long double)k : last;
        }
    case_expected(e->c, LOGITS_ARGMAX, row, (first + last) / 2, (last - first) / 2);
}

/* What the entropy of a softmax moves by. */
static long double entropy_moves(const exact_softmax *s, long double off)
{
    return s->has_no_mass || s->is_undefined ? 0 : expm1l(2 * off) * (s->entropy + 2 * off) + 2 * off;
}

/* What the label terms of a row move by; what their slopes do, times the label temperature, is added to `slopes`. */
static long double label_terms_move(exact_linear_loss *e, const exact_softmax *s, int64_t row, long double off)
{
    const double *o = e->c->options;
    int has_label = e->c->argument[LOGITS_LABELS].given;
    long double label_weight = fabsl((long double)or_default(o[LOGITS_LABEL_WEIGHT], e->has_teacher ? 0 : 1));
    long double smoothing = o[LOGITS_SMOOTHING], z_loss = fabsl((long double)o[LOGITS_Z_LOSS]);
    long double bonus = fabsl((long double)o[LOGITS_ENTROPY_BONUS]), r = expm1l(2 * off), lse = fabsl(s->lse);
    int64_t label = (int64_t)case_was_or(e->c, LOGITS_LABELS, row, -1);
    long double own = 0, share = 0, all = 0, entropy_off = entropy_moves(s, off);
    for (int64_t k = 0; k < e->columns; k++)
        all += class_weight(e, k);
    if (has_label && label_weight != 0) {
        own = label_weight * (1 - smoothing) * class_weight(e, label);
        share = label_weight * smoothing / (long double)e->columns;
    }
    for (int64_t k = 0; k < e->columns; k++) {
        softmax_column p = exact_column_of(s, k);
        long double at_label = k == label ? p.less : p.p, surprise = p.p > 0 ? fabsl(p.log_p + s->entropy) : 0;
        e->slopes[k].size +=
            own * at_label + share * (all * p.p + class_weight(e, k)) + 2 * z_loss * lse * p.p + bonus * p.p * surprise;
        e->slopes[k].moved +=
            r * (own * at_label + share * all * p.p + 2 * z_loss * lse * p.p + bonus * p.p * surprise) +
            (1 + r) * p.p * (2 * z_loss * off + bonus * (2 * off + entropy_off));
    }
    return 2 * off * (own + share * all) + z_loss * (2 * lse * off + off * off) + bonus * entropy_off;
}

/* The row's divergence likewise; its slopes become `slopes`, times the label temperature. */
static long double divergence_moves(exact_linear_loss *e, const exact_softmax *t, long double unsure,
                                    long double target_off)
{
    const double *o = e->c->options;
    moved_terms terms = moved_terms_of(e->c);
    long double weight = fabsl((long double)or_default(o[LOGITS_DIVERGENCE_WEIGHT], 1));
    exact_softmax s =
        exact_softmax_of((softmax_row){e->z, e->columns, o[LOGITS_SOFTCAP], e->temperature}, e->precision);
    long double moved = moved_divergence(&terms, &s, t, unsure / (long double)e->temperature, target_off, e->slopes);
    long double factor = weight * (long double)e->label_temperature / (long double)e->temperature;
    for (int64_t k = 0; k < e->columns; k++) {
        e->slopes[k].size *= factor;
        e->slopes[k].moved *= factor;
    }
    return weight * moved;
}

static void expect_row(exact_linear_loss *e, int64_t row, long double unsure, long double target_unsure)
{
    const double *o = e->c->options;
    long double temperature = e->label_temperature, cap = o[LOGITS_SOFTCAP], off = unsure / temperature;
    int per_row = (int)o[LOGITS_REDUCTION] == ONEPASS_ROWS, has_label = e->c->argument[LOGITS_LABELS].given;
    softmax_load_row(e->loss, LOGITS_PREDICTIONS, row, e->z);
    exact_softmax s = exact_softmax_of((softmax_row){e->z, e->columns, (double)cap, (double)temperature}, e->precision);
    exact_softmax t = {.has_no_mass = 0};
    long double target_off = 0;
    expect_result(e, LOGITS_LSE, row, off);
    expect_result(e, LOGITS_LOG_PROB, row, 2 * off);
    expect_result(e, LOGITS_ENTROPY, row, entropy_moves(&s, off));
    expect_argmax(e, row, &s, unsure);
    if (e->has_teacher) {
        softmax_load_row(e->loss, LOGITS_TARGETS, row, e->y);
        t = exact_softmax_of((softmax_row){e->y, e->columns, o[LOGITS_TARGET_SOFTCAP], e->target_temperature},
                             e->precision);
        target_off = target_unsure / (long double)e->target_temperature;
        expect_result(e, LOGITS_TARGET_LSE, row, target_off);
        expect_result(e, LOGITS_TARGET_ENTROPY, row, entropy_moves(&t, target_off));
    }
    int64_t label = (int64_t)case_was_or(e->c, LOGITS_LABELS, row, -1);
    int needs_label = has_label && (!e->has_teacher || o[LOGITS_LABEL_WEIGHT] != 0);
    if (e->columns == 0 || s.has_no_mass || s.is_undefined || t.has_no_mass || t.is_undefined ||
        (needs_label && (label < 0 || label >= e->columns)))
        return; /* NaN or 0, whatever the logits are */
    memset(e->slopes, 0, (size_t)e->columns * sizeof *e->slopes);
    long double value_off = e->has_teacher ? divergence_moves(e, &t, unsure, target_off) : 0;
    value_off += label_terms_move(e, &s, row, off);
    long double weight = fabsl((long double)case_was_or(e->c, LOGITS_WEIGHTS, row, 1));
    if (per_row)
        expect_result(e, LOGITS_VALUE, row, weight * value_off);
    e->value_error += weight * value_off;
    long double upstream = case_was_or(e->c, LOGITS_UPSTREAM, per_row ? row : 0, 1);
    long double scale = weight * fabsl(upstream / e->divided_by) / temperature;
    for (int64_t k = 0; k < e->columns; k++) {
        moved_slope d = e->slopes[k];
        e->slack[row * e->width + k] = scale * (d.moved + (cap > 0 ? 0.77L * unsure / cap * (d.size + d.moved) : 0));
    }
}

static int takes_part(const op_case *c, int64_t row)
{
    return case_was_or(c, LOGITS_MASK, row, 1) != 0 &&
           !(c->argument[LOGITS_LABELS].given &&
             case_was(c, LOGITS_LABELS, row) == logits_ignored(c, LOGITS_HAS_IGNORE_INDEX, LOGITS_IGNORE_INDEX));
}

/* The case of the loss from the exact logits, in the type they are kept in. 0: no memory. */
static int make_loss(const exact_linear_loss *e)
{
    op_case *c = e->c, *loss = e->loss;
    case_begin(loss, e->has_teacher ? "divergence_logits_logits" : "cross_entropy_logits_labels");
    loss->leading_rank = c->leading_rank;
    for (int d = 0; d < c->leading_rank; d++)
        loss->leading[d] = c->leading[d];
    loss->extents['C' - 'A'] = e->width;
    for (int i = 0; i < loss->option_count; i++)
        loss->options[i] = c->options[i];
    for (int i = 0; i < loss->arguments; i++) {
        case_argument *a = &loss->argument[i];
        a->given = c->argument[i].given || i == LOGITS_VALUE || i == LOGITS_GRAD_PREDICTIONS;
        if (case_is_float(a->dtype))
            a->dtype = case_f64;
    }
    loss->argument[LOGITS_PREDICTIONS].dtype = e->types.computed;
    loss->argument[LOGITS_MADE_FOR].given = 0;
    if (e->has_teacher) {
        loss->argument[LOGITS_TARGETS].dtype = e->types.computed;
        loss->argument[LOGITS_GRAD_TARGETS].given = 0;
    }
    if (!case_place(loss))
        return 0;
    for (int i = LOGITS_LABELS; i < LOGITS_TARGETS; i++)
        for (int64_t k = 0; k < loss->argument[i].count && loss->argument[i].given; k++)
            if (loss->argument[i].info->role == ONEPASS_READ)
                case_put(loss, i, k, case_was(c, i, k));
    return 1;
}

static int exact_rows(exact_linear_loss *e, long double *unsure)
{
    if (!make_loss(e))
        return 0;
    for (int64_t i = 0; i < e->rows; i++) {
        unsure[2 * i] = linear_side_put_logits(e->c, &e->student, e->types, i, e->columns, e->loss, LOGITS_PREDICTIONS);
        if (e->has_teacher)
            unsure[2 * i + 1] =
                linear_side_put_logits(e->c, &e->teacher, e->types, i, e->columns, e->loss, LOGITS_TARGETS);
    }
    case_remember(e->loss);
    e->loss->expected_for = 0;
    if (!case_expect(e->loss, e->types.arithmetic))
        return 0;
    static const int results[] = {LOGITS_LSE,    LOGITS_ENTROPY,    LOGITS_LOG_PROB,
                                  LOGITS_ARGMAX, LOGITS_TARGET_LSE, LOGITS_TARGET_ENTROPY};
    int per_row = (int)e->c->options[LOGITS_REDUCTION] == ONEPASS_ROWS;
    for (int64_t i = 0; i < e->rows; i++) {
        for (int k = 0; k < (e->has_teacher ? 6 : 4); k++)
            expect_result(e, results[k], i, 0);
        if (per_row)
            expect_result(e, LOGITS_VALUE, i, 0);
        if (takes_part(e->c, i))
            expect_row(e, i, unsure[2 * i], unsure[2 * i + 1]);
    }
    if (!per_row)
        expect_result(e, LOGITS_VALUE, 0, e->value_error > 0 ? e->value_error / fabsl(e->divided_by) : 0);
    return 1;
}

/* The type that everything promotes to. */
static onepass_dtype promoted_of(const op_case *c)
{
    linear_side s = linear_side_of(c);
    onepass_dtype promoted = case_promote(c->argument[s.input].dtype, c->argument[s.weight].dtype);
    if (!has_teacher(c))
        return promoted;
    linear_side t = linear_side_of_teacher(c);
    return case_promote(promoted, case_promote(c->argument[t.input].dtype, c->argument[t.weight].dtype));
}

static int exact(op_case *c, case_arithmetic arithmetic)
{
    static op_case loss;
    const double *o = c->options;
    onepass_dtype promoted = promoted_of(c);
    exact_linear_loss e = {.c = c,
                           .loss = &loss,
                           .types = linear_types_of(arithmetic, promoted),
                           .precision = softmax_precision_of(arithmetic, promoted),
                           .has_teacher = has_teacher(c),
                           .student = linear_side_of(c),
                           .rows = case_rows(c),
                           .width = case_extent(c, 'C'),
                           .columns = logits_columns(c, LOGITS_COLUMNS),
                           .temperature = or_default(o[LOGITS_TEMPERATURE], 1),
                           .divided_by = logits_divisor(c)};
    e.label_temperature = e.temperature;
    if (e.has_teacher) {
        e.teacher = linear_side_of_teacher(c);
        e.target_temperature = or_default(o[LOGITS_TARGET_TEMPERATURE], e.temperature);
        e.label_temperature = or_default(o[LOGITS_LABEL_TEMPERATURE], 1);
    }
    size_t elements = (size_t)(e.rows * e.width), width = (size_t)e.width;
    e.slack = calloc(elements + 1, sizeof *e.slack);
    e.z = calloc(2 * width + 1, sizeof *e.z);
    e.y = e.z ? e.z + width : NULL;
    e.slopes = calloc(width + 1, sizeof *e.slopes);
    long double *unsure = calloc(2 * (size_t)e.rows + 1, sizeof *unsure);
    int has_memory = e.slack && e.z && e.slopes && unsure && exact_rows(&e, unsure);
    if (has_memory) {
        linear_gradient g = {.types = e.types,
                             .rows = e.rows,
                             .width = e.width,
                             .of_logits = &loss.argument[LOGITS_GRAD_PREDICTIONS],
                             .slack = e.slack,
                             .takes_part = takes_part};
        linear_side_expect_gradients(c, &e.student, LINEAR_LOSS_GRAD_INPUT, &g);
    }
    free(e.slack);
    free(e.z);
    free(e.slopes);
    free(unsure);
    return has_memory;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

enum { ORDINARY_ROW, NAN_ROW, INFINITE_ROW, BAD_LABEL_ROW, SPECIAL_ROWS };

/* Columns that the student lacks; a teacher lacks the same, more, or others. */
enum { SAME_MASK, LARGER_MASK, OTHER_MASK, MASKS };

static void put_biases(op_case *c, const linear_side *student, const linear_side *teacher, case_random *random)
{
    int64_t width = case_extent(c, 'C');
    int has_no_mass = c->family == LINEAR_LOSS_SPECIAL && case_random_below(random, 6) == 0;
    int mask = (int)case_random_below(random, MASKS), is_near = c->family == LINEAR_LOSS_NEAR;
    for (int64_t j = 0; j < width; j++) {
        int is_masked = c->family == LINEAR_LOSS_MASKED && (j < width / 3 || case_random_below(random, 4) == 0);
        double bias = case_random_normal(random) / 2;
        if (c->argument[student->bias].given)
            case_put(c, student->bias, j, has_no_mass || is_masked ? (double)-INFINITY : bias);
        if (!teacher || !c->argument[teacher->bias].given)
            continue;
        int is_other = c->family == LINEAR_LOSS_MASKED && case_random_below(random, 3) == 0;
        int target_is_masked = mask == SAME_MASK ? is_masked : mask == LARGER_MASK ? is_masked || is_other : is_other;
        double target_bias = is_near && c->argument[student->bias].given ? bias : case_random_normal(random) / 2;
        case_put(c, teacher->bias, j, target_is_masked ? (double)-INFINITY : target_bias);
    }
}

/* A teacher of the family NEAR has the student's weight but for a thousandth, and nothing where it is deeper. */
static void put_near_weight(op_case *c, const linear_side *student, const linear_side *teacher, case_random *random)
{
    double size = 2e-3 / sqrt((double)(teacher->depth > 0 ? teacher->depth : 1));
    for (int64_t j = 0; j < case_extent(c, 'C'); j++)
        for (int64_t k = 0; k < teacher->depth; k++)
            case_put(c, teacher->weight, j * teacher->depth + k,
                     k < student->depth
                         ? case_get(c, student->weight, j * student->depth + k) + size * case_random_normal(random)
                         : 0);
}

static void spoil_row(op_case *c, const linear_side *side, int64_t row, int kind, case_random *random)
{
    if ((kind == NAN_ROW || kind == INFINITE_ROW) && side->depth > 0)
        case_put(c, side->input, row * side->depth + case_random_below(random, side->depth),
                 kind == NAN_ROW ? (double)NAN : (double)INFINITY);
}

static void put_row(op_case *c, const linear_side *side, int64_t row, case_random *random)
{
    int64_t used = logits_columns(c, LOGITS_COLUMNS);
    int kind = c->family == LINEAR_LOSS_SPECIAL ? (int)case_random_below(random, SPECIAL_ROWS) : ORDINARY_ROW;
    int64_t label = used > 0 ? case_random_below(random, used) : 0;
    for (int64_t k = 0; k < side->depth; k++)
        case_put(c, side->input, row * side->depth + k, case_random_normal(random));
    if (c->family == LINEAR_LOSS_SHARP && used > 0)
        linear_side_put_towering_row(c, side, row, row & 1 ? label : case_random_below(random, used),
                                     case_random_between(random, 5, 20));
    spoil_row(c, side, row, kind, random);
    if (kind == BAD_LABEL_ROW)
        label = row & 1 ? used : -1;
    double ignored = logits_ignored(c, LOGITS_HAS_IGNORE_INDEX, LOGITS_IGNORE_INDEX);
    int is_ignored = case_random_below(random, 6) == 0;
    if (c->argument[LOGITS_LABELS].given)
        case_put(c, LOGITS_LABELS, row, is_ignored ? ignored : (double)label);
}

static void put_teacher_row(op_case *c, const linear_side *student, const linear_side *teacher, int64_t row,
                            case_random *random)
{
    int64_t used = logits_columns(c, LOGITS_COLUMNS);
    for (int64_t k = 0; k < teacher->depth; k++) {
        double x = case_random_normal(random);
        if (c->family == LINEAR_LOSS_NEAR && k < student->depth)
            x = case_get(c, student->input, row * student->depth + k);
        case_put(c, teacher->input, row * teacher->depth + k, x);
    }
    if (c->family == LINEAR_LOSS_SHARP && used > 0)
        linear_side_put_towering_row(c, teacher, row, case_random_below(random, used),
                                     case_random_between(random, 5, 20));
    if (c->family == LINEAR_LOSS_SPECIAL && case_random_below(random, 3) == 0)
        spoil_row(c, teacher, row, case_random_below(random, 2) ? NAN_ROW : INFINITE_ROW, random);
}

static void generate(op_case *c)
{
    case_random random = case_random_stream(c->seed, 1);
    linear_side student = linear_side_of(c), teacher = {.input = -1};
    double size = c->family == LINEAR_LOSS_SHARP ? 0.5 : 2;
    linear_side_put_weight(c, &student, size, &random);
    if (has_teacher(c)) {
        teacher = linear_side_of_teacher(c);
        if (c->family == LINEAR_LOSS_NEAR)
            put_near_weight(c, &student, &teacher, &random);
        else
            linear_side_put_weight(c, &teacher, size, &random);
    }
    put_biases(c, &student, has_teacher(c) ? &teacher : NULL, &random);
    for (int64_t row = 0; row < case_rows(c); row++) {
        put_row(c, &student, row, &random);
        if (has_teacher(c))
            put_teacher_row(c, &student, &teacher, row, &random);
    }
    logits_put_row_options(c, &random);
    case_remember(c);
    const int spoiled[] = {student.input, LOGITS_WEIGHTS, LOGITS_UPSTREAM, teacher.input};
    for (int64_t row = 0; row < case_rows(c); row++)
        for (int i = 0; i < (has_teacher(c) ? 4 : 3) && !takes_part(c, row); i++)
            logits_spoil(c, spoiled[i], row, &random);
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static const char *shape(const op_case *c, int argument)
{
    (void)argument; /* value and grad_value: one value, or one per row */
    return (int)c->options[LOGITS_REDUCTION] == ONEPASS_ROWS ? "*" : "";
}

static void settle(op_case *c)
{
    static const int results[] = {LOGITS_VALUE,    LOGITS_LSE,        LOGITS_ENTROPY,
                                  LOGITS_LOG_PROB, LOGITS_TARGET_LSE, LOGITS_TARGET_ENTROPY};
    /* Those that are something else to the settle of losses from logits, which has families of its own too. */
    const char *const own[] = {"grad_input", "weight", "bias", "grad_weight", "grad_bias", "target_weight"};
    enum { OWN = sizeof own / sizeof own[0] };
    case_argument *argument[OWN] = {NULL};
    onepass_dtype types[OWN];
    int given[OWN], family = c->family, chunk_bytes = case_option_named(c, "chunk_bytes");
    for (int i = 0; i < (has_teacher(c) ? OWN : OWN - 1); i++) {
        argument[i] = &c->argument[case_argument_named(c, own[i])];
        types[i] = argument[i]->dtype;
        given[i] = argument[i]->given;
    }
    c->family = LOGITS_GAUSSIAN;
    case_logits.settle(c);
    c->family = family;
    for (int i = 0; i < OWN && argument[i]; i++) {
        argument[i]->dtype = types[i];
        argument[i]->given = given[i];
    }
    onepass_dtype promoted = promoted_of(c);
    int is_any = argument[0]->given || argument[3]->given || argument[4]->given || c->argument[LOGITS_ARGMAX].given;
    for (int i = 0; i < (has_teacher(c) ? 6 : 4); i++) {
        if (!case_holds(c->argument[results[i]].dtype, promoted))
            c->argument[results[i]].dtype = promoted;
        is_any |= c->argument[results[i]].given;
    }
    if (!is_any)
        argument[0]->given = 1;
    if (c->family == LINEAR_LOSS_MASKED) {
        argument[2]->given = 1;
        if (has_teacher(c))
            c->argument[case_argument_named(c, "target_bias")].given = 1;
    }
    if (c->amount != 0 && c->options[chunk_bytes] == 0)
        c->options[chunk_bytes] = (double)(c->seed / 7 % 2); /* tile by tile */
}

static void begin(op_case *c)
{
    c->leading_rank = 1;
    c->leading[0] = 3;
    c->extents['C' - 'A'] = 7;
    c->extents['K' - 'A'] = 5;
    c->extents['L' - 'A'] = 4;
    c->argument[LOGITS_MASK].dtype = case_u8;
    c->argument[LOGITS_LABELS].dtype = c->argument[LOGITS_ARGMAX].dtype = case_i64;
    const char *const given[] = {"value", "grad_input", "bias", "grad_weight", "grad_bias"};
    for (int i = 0; i < 5; i++)
        c->argument[case_argument_named(c, given[i])].given = 1;
}

static const char *const names[] = {"linear_cross_entropy", "linear_divergence", NULL};

const case_definition case_linear_loss = {.names = names,
                                          .families = LINEAR_LOSS_SPECIAL + 1,
                                          .begin = begin,
                                          .shape = shape,
                                          .settle = settle,
                                          .generate = generate,
                                          .exact = exact};
