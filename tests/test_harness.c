/*
 * The harness catches what it is there for: correct results pass, and a zeroed, an unwritten, a NaN, a shifted and a
 * slightly wrong output, a write outside, a changed input and a read beyond the end are each caught. The faults are
 * made by entries that call the library and then spoil what it did, every result of every operator in turn.
 */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kl_cases.h"

/* ---- faulty entries: each has the library's signature ------------------------------------------------------------ */

#define FAULT(name)                                                                                                    \
    static onepass_status name(onepass_handle *handle, const onepass_tensor *predictions,                              \
                               const onepass_tensor *targets, const onepass_kl_options *options,                       \
                               const onepass_tensor *value, const onepass_tensor *grad_predictions,                    \
                               const onepass_tensor *grad_targets)
#define CALL() onepass_kl_probs_probs(handle, predictions, targets, options, value, grad_predictions, grad_targets)

static char *bytes_of(const onepass_tensor *tensor)
{
    return (char *)tensor->data + tensor->byte_offset;
}

static size_t size_of(const onepass_tensor *tensor)
{
    return (size_t)onep_elements(tensor) * onep_type_size(onep_type_of(tensor->dtype));
}

/* Multiplies element `index` of a tensor by `factor`. */
static void scale_element(const onepass_tensor *tensor, int64_t index, double factor)
{
    onep_type type = onep_type_of(tensor->dtype);
    char *at = bytes_of(tensor) + (size_t)index * onep_type_size(type);
    onep_store(type, at, onep_load(type, at) * factor);
}

FAULT(correct)
{
    return CALL();
}

FAULT(zeroed)
{
    onepass_status status = CALL();
    memset(bytes_of(grad_predictions), 0, size_of(grad_predictions));
    return status;
}

FAULT(zeroed_value)
{
    onepass_status status = CALL();
    memset(bytes_of(value), 0, size_of(value));
    return status;
}

FAULT(unwritten)
{
    grad_targets = NULL;
    return CALL();
}

FAULT(last_element_unwritten)
{
    size_t size = onep_type_size(onep_type_of(grad_targets->dtype));
    char *last = bytes_of(grad_targets) + size_of(grad_targets) - size;
    char kept[8];
    memcpy(kept, last, size);
    onepass_status status = CALL();
    memcpy(last, kept, size);
    return status;
}

FAULT(nan_element)
{
    onepass_status status = CALL();
    scale_element(grad_predictions, 3, NAN);
    return status;
}

FAULT(nan_value)
{
    onepass_status status = CALL();
    scale_element(value, 0, NAN);
    return status;
}

FAULT(shifted)
{
    onepass_status status = CALL();
    size_t size = onep_type_size(onep_type_of(grad_predictions->dtype));
    memmove(bytes_of(grad_predictions) + size, bytes_of(grad_predictions), size_of(grad_predictions) - size);
    return status;
}

FAULT(slightly_wrong)
{
    onepass_status status = CALL();
    scale_element(grad_predictions, 7, 1.001);
    return status;
}

FAULT(slightly_wrong_value)
{
    onepass_status status = CALL();
    scale_element(value, 0, 1 + 1e-5);
    return status;
}

FAULT(wrong_sign)
{
    onepass_status status = CALL();
    scale_element(grad_predictions, 0, -1);
    return status;
}

FAULT(writes_after)
{
    onepass_status status = CALL();
    bytes_of(grad_predictions)[size_of(grad_predictions)] ^= 1;
    return status;
}

FAULT(writes_before)
{
    onepass_status status = CALL();
    bytes_of(grad_predictions)[-1] ^= 1;
    return status;
}

FAULT(writes_far_after)
{
    onepass_status status = CALL();
    bytes_of(value)[size_of(value) + CASE_BAND - 1] ^= 1;
    return status;
}

FAULT(changes_input)
{
    onepass_status status = CALL();
    bytes_of(targets)[5] ^= 1;
    return status;
}

FAULT(depends_on_garbage)
{
    char stale = bytes_of(grad_targets)[0];
    onepass_status status = CALL();
    bytes_of(grad_targets)[0] ^= (char)(stale >> 1 & 1); /* the last bit of the digits: within any tolerance */
    return status;
}

FAULT(refuses)
{
    (void)handle, (void)predictions, (void)targets, (void)options, (void)value, (void)grad_predictions,
        (void)grad_targets;
    return ONEPASS_UNSUPPORTED;
}

/* The classical mistakes: the other direction, and a mean over the columns too. */
FAULT(reversed)
{
    return onepass_kl_probs_probs(handle, targets, predictions, options, value, grad_targets, grad_predictions);
}

FAULT(divided_by_columns)
{
    onepass_status status = CALL();
    scale_element(value, 0, 1.0 / (double)predictions->shape[1]);
    return status;
}

FAULT(writes_gaps)
{
    onepass_status status = CALL();
    size_t size = onep_type_size(onep_type_of(grad_predictions->dtype));
    bytes_of(grad_predictions)[size] ^= 1; /* with a column step of 2 this element is not part of the tensor */
    return status;
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

/* In fp32 and fp64; a fault of 1e-3 or of the last bit is below what a half type can show in every element. */
static void test_faults(void)
{
    static const struct {
        const char *name;
        kl_entry *entry;
        int caught;
    } faults[] = {
        {"a correct call", correct, 0},
        {"a zeroed gradient", zeroed, 1},
        {"a zeroed value", zeroed_value, 1},
        {"an unwritten gradient", unwritten, 1},
        {"an unwritten last element", last_element_unwritten, 1},
        {"a NaN in a gradient", nan_element, 1},
        {"a NaN value", nan_value, 1},
        {"a gradient shifted by one", shifted, 1},
        {"an element off by 1e-3", slightly_wrong, 1},
        {"a value off by 1e-5", slightly_wrong_value, 1},
        {"a wrong sign", wrong_sign, 1},
        {"a write after the end", writes_after, 1},
        {"a write before the start", writes_before, 1},
        {"a write at the end of the guard band", writes_far_after, 1},
        {"a changed input", changes_input, 1},
        {"a bit that depends on the output's old contents", depends_on_garbage, 1},
        {"a refused call", refuses, 1},
        {"the reversed direction", reversed, 1},
        {"a division by the columns", divided_by_columns, 1},
    };
    for (onep_type type = ONEP_F32; type <= ONEP_F64; type++)
        for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
            kl_case c = kl_case_plain(ONEP_KL_PROBS_PROBS, type, 3, 37);
            c.entry = faults[i].entry;
            c.stream = i;
            test_capture_begin();
            int passed = kl_case_check(&c);
            long failures = test_capture_end();
            test_context("fault \"%s\" in %s", faults[i].name, onep_type_name(type));
            CHECK(passed == !faults[i].caught, "kl_case_check returned %d", passed);
            CHECK((failures > 0) == faults[i].caught, "%ld checks failed", failures);
        }

    kl_case c = kl_case_plain(ONEP_KL_PROBS_PROBS, ONEP_F32, 3, 37);
    c.layout[KL_GRAD_PREDICTIONS] = CASE_COLUMN_STEP;
    CHECK(kl_case_check(&c), "a correct strided call must pass");
    c.entry = writes_gaps;
    test_capture_begin();
    int passed = kl_case_check(&c);
    test_capture_end();
    CHECK(!passed, "a write between the elements of a strided output must be caught");
}

/* ---- the same for every operator, through its cases ---------------------------------------------------------------
 */

typedef enum spoil_kind { RIGHT, ZEROED, STALE, NAN_IN_IT, SHIFTED, SLIGHTLY_WRONG, SPOILS } spoil_kind;
static const char *const spoil_names[SPOILS] = {"right", "zeroed", "stale", "NaN in it", "shifted", "slightly wrong"};

static struct {
    spoil_kind kind;
    int argument;
    int64_t element; /* the largest that is expected */
} spoiled;

/* The library's call, and then one result spoiled. */
static onepass_status spoil_result(onepass_handle *handle, const onepass_operator *op,
                                   const onepass_tensor *const *tensors, const double *options, void *workspace,
                                   size_t workspace_size)
{
    const onepass_tensor *t = tensors[spoiled.argument];
    size_t size = case_size(t->dtype);
    char before[4096], *at = bytes_of(t) + (size_t)spoiled.element * size;
    memcpy(before, bytes_of(t), size_of(t));
    onepass_status status = onepass_call(handle, op, tensors, options, workspace, workspace_size);
    double x = case_load(t->dtype, at);
    switch (spoiled.kind) {
    case ZEROED:
        memset(bytes_of(t), 0, size_of(t));
        break;
    case STALE:
        memcpy(bytes_of(t), before, size_of(t));
        break;
    case NAN_IN_IT:
        case_store(t->dtype, at, NAN);
        break;
    case SHIFTED:
        memmove(bytes_of(t) + size, bytes_of(t), size_of(t) - size);
        break;
    case SLIGHTLY_WRONG:
        case_store(t->dtype, at, case_is_float(t->dtype) ? (x == 0 ? 1e-3 : x * 1.001) : x + 1);
        break;
    default:
        break;
    }
    return status;
}

static void test_spoiled(op_case *c, onepass_handle *handle, int argument)
{
    const case_argument *a = &c->argument[argument];
    CHECK(case_make(c) && case_expect(c, case_arithmetic_of(handle)), "no memory");
    spoiled.argument = argument;
    spoiled.element = 0;
    for (int64_t i = 1; i < a->count; i++)
        if (isfinite(a->expected[i]) && fabsl(a->expected[i]) > fabsl(a->expected[spoiled.element]))
            spoiled.element = i;
    int is_zero = a->expected[spoiled.element] == 0;
    for (int kind = RIGHT; kind < SPOILS; kind++) {
        int is_float = case_is_float(a->dtype);
        if ((is_zero && kind == ZEROED) || (!is_float && kind == NAN_IN_IT) ||
            ((is_zero || a->count == 1) && kind == SHIFTED))
            continue; /* which would change nothing */
        spoiled.kind = (spoil_kind)kind;
        c->entry = spoil_result;
        test_capture_begin();
        int passed = case_check(c, handle, &test_judge);
        long failures = test_capture_end();
        test_context("%s of %s: %s", a->info->name, c->name, spoil_names[kind]);
        CHECK(passed == (kind == RIGHT) && (failures == 0) == (kind == RIGHT), "%ld checks failed", failures);
    }
}

static void test_every_operator(void)
{
    static op_case c;
    onepass_handle *handle = test_handle(onep_best_level(), 1);
    for (int i = 0; onepass_operator_at(i); i++)
        for (int argument = 0; case_begin(&c, onepass_operator_name(onepass_operator_at(i))) && argument < c.arguments;
             argument++)
            if (c.argument[argument].given && case_is_written(&c, argument) && c.definition->exact)
                test_spoiled(&c, handle, argument);
    onepass_destroy(handle);
}

/* Touches the byte beside a buffer in a child; the child must not survive it. */
static void expect_death(case_guard guard, ptrdiff_t offset_from_end, const char *what)
{
    case_buffer buffer = {0};
    case_buffer_place(&buffer, 100, guard, 0);
    volatile const char *at = buffer.data + (guard == CASE_PAGE_AFTER ? 100 : 0) + offset_from_end;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int nowhere = open("/dev/null", O_WRONLY);
        dup2(nowhere, 2); /* a sanitizer's report of this very fault is not wanted */
        char seen = *at;
        (void)seen;
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(!(WIFEXITED(status) && WEXITSTATUS(status) == 0), "%s went unnoticed", what);
    case_buffer_free(&buffer);
}

static void test_buffers(void)
{
    test_context("buffers");
    expect_death(CASE_PAGE_AFTER, 0, "a read of the byte after the end");
    expect_death(CASE_PAGE_BEFORE, -1, "a read of the byte before the start");
    for (int guard = 0; guard < CASE_GUARDS; guard++)
        for (size_t shift = 0; shift < 2; shift++)
            for (size_t bytes = 0; bytes < 3 * CASE_BAND; bytes = 2 * bytes + 1) {
                case_buffer buffer = {0};
                case_buffer_place(&buffer, bytes, (case_guard)guard, shift);
                memset(buffer.data, 0, bytes);
                CHECK(case_buffer_damage(&buffer) == 0, "guard %d, %zu bytes: damage without a write", guard, bytes);
                if (guard != CASE_PAGE_AFTER) {
                    buffer.data[bytes] ^= 16;
                    CHECK(case_buffer_damage(&buffer) == 1, "guard %d, %zu bytes: a write after", guard, bytes);
                    buffer.data[bytes] ^= 16;
                }
                if (guard != CASE_PAGE_BEFORE) {
                    buffer.data[-1] ^= 1;
                    CHECK(case_buffer_damage(&buffer) == 1, "guard %d, %zu bytes: a write before", guard, bytes);
                }
                case_buffer_free(&buffer);
            }
}

static void test_comparison(void)
{
    const double inf = INFINITY;
    test_context("comparison");
    CHECK(test_close(1, 1, 0), "equal numbers");
    CHECK(test_close(1.5, 1, 0.5), "at the tolerance");
    CHECK(!test_close(1.5, 1, 0.49), "beyond the tolerance");
    CHECK(!test_close(NAN, 1, 1e300L), "a NaN is close to no number");
    CHECK(!test_close(1, NAN, 1e300L), "a number is not close to NaN");
    CHECK(test_close(NAN, NAN, 0), "NaN meets NaN");
    CHECK(test_close(inf, INFINITY, 0), "infinity meets infinity");
    CHECK(!test_close(-inf, INFINITY, 1e300L), "but not the other one");
    CHECK(!test_close(inf, 1, 1e300L), "nor a number");
    CHECK(!test_close(1e300, INFINITY, 1e300L), "nor a large one");
    CHECK(!test_close(NAN, INFINITY, 1e300L), "nor a NaN");
    CHECK(!test_close(1, 1, NAN), "an allowance of NaN allows nothing");
    CHECK(test_close_in(ONEP_BF16, 1.0, 1.0L + 0x1p-9L, 0), "half a unit of bfloat16 is allowed");
    CHECK(!test_close_in(ONEP_BF16, 1.0, 1.0L + 0x1p-7L, 0), "a whole one is not");
    CHECK(!test_close_in(ONEP_F16, 0, 0x1p-23L, 0), "a lost subnormal of float16 is seen");
    CHECK(test_close_in(ONEP_F16, inf, 65530.0L, 0), "beyond 65520 float16 is infinite");
    CHECK(!test_close_in(ONEP_F16, inf, 65000.0L, 0), "before it is not");
    CHECK(!test_close_in(ONEP_F16, -inf, 1e6L, 0), "and has the right sign");
    CHECK(!test_close_in(ONEP_F16, inf, 1.0L, 0), "an infinity is not a number");
    CHECK(!test_close_in(ONEP_F32, NAN, 1.0L, 1), "neither is a NaN");
    /* The result may lie above 1, where half a unit of float16 is 2^-11: the share of what is allowed says the same. */
    const long double below = 1 - 0x1p-13L, allowed = 0x1p-12L;
    for (int i = 0; i <= 32; i++) {
        double got = (double)(below + i * 0x1p-15L);
        int close = case_close_in(case_f16, got, below, allowed);
        double share = case_share(case_f16, got, below, allowed);
        CHECK(close == (i <= 24) && close == (share <= 1), "off by %d of 32: close %d, share %g", i, close, share);
    }
}

/* Every number of 16 bits comes back as it was; a NaN as one. */
static void test_halves(void)
{
    const onepass_dtype types[] = {case_f16, case_bf16};
    for (int type = 0; type < 2; type++) {
        test_context("%s", type ? "bf16" : "f16");
        for (uint32_t pattern = 0; pattern < 1u << 16; pattern++) {
            uint16_t given = (uint16_t)pattern, back = 0;
            double x = case_load(types[type], &given);
            case_store(types[type], &back, x);
            CHECK(isnan(x) ? isnan(case_load(types[type], &back)) : back == given, "%04x became %04x", given, back);
        }
    }
}

static void test_catching(void)
{
    test_context("caught output");
    test_catch_output();
    CHECK(test_release_output() == 0, "silence");
    for (int i = 0; i < 2; i++) {
        test_catch_output();
        printf("four");
        CHECK(test_release_output() == 4, "four bytes on stdout");
        test_catch_output();
        fprintf(stderr, "to err");
        CHECK(test_release_output() == 6, "six bytes on stderr");
    }
}

/* The harness's own answer against numbers worked out by hand. */
static void test_exact(void)
{
    test_context("the exact answer");
    const kl_precision f64 = kl_precision_of(CASE_VECTOR, case_f64);
    kl_exact e = kl_exact_element((kl_form){0, 0}, ONEPASS_STRICT, &f64, 0.25, 0.5);
    CHECK(fabsl(e.value - 0.34657359027997265471L) < 1e-18L, "0.5 log 2: %.20Lg", e.value);
    CHECK(e.d_prediction == -2, "-0.5 / 0.25: %.20Lg", e.d_prediction);
    CHECK(fabsl(e.d_target - 1.69314718055994530942L) < 1e-18L, "log 2 + 1: %.20Lg", e.d_target);
    e = kl_exact_element((kl_form){1, 1}, ONEPASS_STRICT, &f64, -2, -1);
    CHECK(fabsl(e.value - 0.36787944117144232160L) < 1e-18L, "exp(-1): %.20Lg", e.value);
    CHECK(fabsl(e.d_prediction + 0.36787944117144232160L) < 1e-18L, "-exp(-1): %.20Lg", e.d_prediction);
    CHECK(fabsl(e.d_target - 0.73575888234288464320L) < 1e-18L, "2 exp(-1): %.20Lg", e.d_target);
    e = kl_exact_element((kl_form){1, 0}, ONEPASS_STRICT, &f64, -1, 0.5);
    CHECK(fabsl(e.value - 0.15342640972002734529L) < 1e-18L, "0.5 (log 0.5 + 1): %.20Lg", e.value);
    e = kl_exact_element((kl_form){0, 1}, ONEPASS_STRICT, &f64, 0.5, 0);
    CHECK(fabsl(e.value - 0.69314718055994530942L) < 1e-18L, "-log 0.5: %.20Lg", e.value);
}

int main(void)
{
    test_begin("test_harness");
    test_faults();
    test_every_operator();
    test_buffers();
    test_comparison();
    test_halves();
    test_catching();
    test_exact();
    return test_end();
}
