/*
 * The harness catches what it is there for: correct results pass, and a zeroed, an unwritten, a NaN, a shifted and a
 * slightly wrong output, a write outside, a changed input and a read beyond the end are each caught. The faults are
 * made by entries that call the library and then spoil what it did.
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
    bytes_of(value)[size_of(value) + TEST_BAND - 1] ^= 1;
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
    c.layout[KL_GRAD_PREDICTIONS] = KL_COLUMN_STEP;
    CHECK(kl_case_check(&c), "a correct strided call must pass");
    c.entry = writes_gaps;
    test_capture_begin();
    int passed = kl_case_check(&c);
    test_capture_end();
    CHECK(!passed, "a write between the elements of a strided output must be caught");
}

/* Touches the byte beside a buffer in a child; the child must not survive it. */
static void expect_death(test_guard guard, ptrdiff_t offset_from_end, const char *what)
{
    test_buffer buffer = {0};
    test_buffer_place(&buffer, 100, guard, 0);
    volatile const char *at = buffer.data + (guard == TEST_PAGE_AFTER ? 100 : 0) + offset_from_end;
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
    test_buffer_free(&buffer);
}

static void test_buffers(void)
{
    test_context("buffers");
    expect_death(TEST_PAGE_AFTER, 0, "a read of the byte after the end");
    expect_death(TEST_PAGE_BEFORE, -1, "a read of the byte before the start");
    for (int guard = 0; guard < TEST_GUARDS; guard++)
        for (size_t shift = 0; shift < 2; shift++)
            for (size_t bytes = 0; bytes < 3 * TEST_BAND; bytes = 2 * bytes + 1) {
                test_buffer buffer = {0};
                test_buffer_place(&buffer, bytes, (test_guard)guard, shift);
                memset(buffer.data, 0, bytes);
                CHECK(test_buffer_damage(&buffer) == 0, "guard %d, %zu bytes: damage without a write", guard, bytes);
                if (guard != TEST_PAGE_AFTER) {
                    buffer.data[bytes] ^= 16;
                    CHECK(test_buffer_damage(&buffer) == 1, "guard %d, %zu bytes: a write after", guard, bytes);
                    buffer.data[bytes] ^= 16;
                }
                if (guard != TEST_PAGE_BEFORE) {
                    buffer.data[-1] ^= 1;
                    CHECK(test_buffer_damage(&buffer) == 1, "guard %d, %zu bytes: a write before", guard, bytes);
                }
                test_buffer_free(&buffer);
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
    kl_exact e = kl_exact_element(ONEP_KL_PROBS_PROBS, ONEPASS_STRICT, ONEP_F64, 0.25, 0.5, 0x1p-53L, 0);
    CHECK(fabsl(e.value - 0.34657359027997265471L) < 1e-18L, "0.5 log 2: %.20Lg", e.value);
    CHECK(e.d_prediction == -2, "-0.5 / 0.25: %.20Lg", e.d_prediction);
    CHECK(fabsl(e.d_target - 1.69314718055994530942L) < 1e-18L, "log 2 + 1: %.20Lg", e.d_target);
    e = kl_exact_element(ONEP_KL_LOG_PROBS_LOG_PROBS, ONEPASS_STRICT, ONEP_F64, -2, -1, 0x1p-53L, 0);
    CHECK(fabsl(e.value - 0.36787944117144232160L) < 1e-18L, "exp(-1): %.20Lg", e.value);
    CHECK(fabsl(e.d_prediction + 0.36787944117144232160L) < 1e-18L, "-exp(-1): %.20Lg", e.d_prediction);
    CHECK(fabsl(e.d_target - 0.73575888234288464320L) < 1e-18L, "2 exp(-1): %.20Lg", e.d_target);
    e = kl_exact_element(ONEP_KL_LOG_PROBS_PROBS, ONEPASS_STRICT, ONEP_F64, -1, 0.5, 0x1p-53L, 0);
    CHECK(fabsl(e.value - 0.15342640972002734529L) < 1e-18L, "0.5 (log 0.5 + 1): %.20Lg", e.value);
    e = kl_exact_element(ONEP_KL_PROBS_LOG_PROBS, ONEPASS_STRICT, ONEP_F64, 0.5, 0, 0x1p-53L, 0);
    CHECK(fabsl(e.value - 0.69314718055994530942L) < 1e-18L, "-log 0.5: %.20Lg", e.value);
}

int main(void)
{
    test_begin("test_harness");
    test_faults();
    test_buffers();
    test_comparison();
    test_catching();
    test_exact();
    return test_end();
}
