/*
 * More than 2^31 elements, rows and bytes, without the memory for them. Untouched pages read as zeros:
 * log-probabilities of 0 on both sides, whose divergence is exactly 0. A few marked elements (x = -1, y = 0) are worth
 * exactly 1 each, so every sum is a whole number, and one element that is lost, doubled or read from a wrapped offset
 * shows. Zero strides make billions of rows of one number; huge strides put the elements of small outputs far beyond 4
 * GiB.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, MAP_NORESERVE */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kl_cases.h"

static const uint16_t half_minus_one = 0xbc00;

/* Zeros that cost no memory until they are written. */
static void *zeros(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        perror("address space for the large tests");
        exit(2);
    }
    return memory;
}

static int64_t marks_between(const int64_t *marks, int count, int64_t low, int64_t high)
{
    int64_t found = 0;
    for (int i = 0; i < count; i++)
        found += marks[i] >= low && marks[i] < high;
    return found;
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Up to `most` different positions below n: both ends, the powers of two and their neighbours, and random ones. */
static int choose_marks(int64_t n, int64_t *marks, int most, test_random *random)
{
    int count = 0;
    marks[count++] = n - 1;
    for (int64_t power = 1; power < n && count + 3 < most; power *= 2)
        for (int64_t near = power - 1; near <= power + 1; near++)
            if (near < n)
                marks[count++] = near;
    while (count < most)
        marks[count++] = test_random_below(random, n);
    qsort(marks, (size_t)count, sizeof marks[0], by_size);
    int kept = 1;
    for (int i = 1; i < count; i++)
        if (marks[i] != marks[kept - 1])
            marks[kept++] = marks[i];
    return kept;
}

/*
 * rows x columns float16 elements, the rows one after the other (row_stride = columns) or all the same (0): value of
 * each scalar reduction, and of every row where there are few.
 */
static void test_sums(onepass_handle *handle, int64_t rows, int64_t columns, int64_t row_stride, test_random *random)
{
    enum { MOST = 200, MOST_ROWS = 100000 };
    int64_t marks[MOST];
    int64_t stored = row_stride ? rows * columns : columns;
    size_t bytes = (size_t)stored * sizeof(uint16_t);
    char *predictions = zeros(bytes);
    char *targets = zeros(bytes);
    int count = choose_marks(stored, marks, MOST, random);
    for (int i = 0; i < count; i++)
        memcpy(predictions + (size_t)marks[i] * sizeof half_minus_one, &half_minus_one, sizeof half_minus_one);
    double total = (double)count * (double)(row_stride ? 1 : rows);
    int64_t shape[] = {rows, columns};
    int64_t strides[] = {row_stride, 1};
    onepass_tensor p = kl_tensor(ONEP_F16, predictions, 2, shape);
    onepass_tensor t = kl_tensor(ONEP_F16, targets, 2, shape);
    p.strides = t.strides = strides;

    static const onepass_reduction reductions[] = {ONEPASS_SUM, ONEPASS_MEAN, ONEPASS_BATCHMEAN};
    const double divisors[] = {1, (double)rows * (double)columns, (double)rows};
    for (int k = 0; k < 3; k++) {
        /* The largest sizes are summed once: the other divisors are applied to the same sum. */
        if (k > 0 && rows * columns > (INT64_C(1) << 28) && k != 1 + (int)(stored % 2))
            continue;
        double value = NAN;
        onepass_tensor v = kl_tensor(ONEP_F64, &value, 0, NULL);
        onepass_kl_options options = {.size = sizeof options, .reduction = reductions[k]};
        onepass_status status = onepass_kl_log_probs_log_probs(handle, &p, &t, &options, &v, NULL, NULL);
        test_context("level %s, %" PRId64 " x %" PRId64 ", row stride %" PRId64 ", %s", onepass_isa(handle), rows,
                     columns, row_stride, kl_reduction_name(reductions[k]));
        CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
        CHECK(value == total / divisors[k], "got %.17g, expected %.17g", value, total / divisors[k]);
    }
    if (rows <= MOST_ROWS) {
        double *values = malloc((size_t)rows * sizeof *values);
        onepass_tensor v = kl_tensor(ONEP_F64, values, 1, shape);
        onepass_kl_options options = {.size = sizeof options, .reduction = ONEPASS_ROWS};
        onepass_status status = onepass_kl_log_probs_log_probs(handle, &p, &t, &options, &v, NULL, NULL);
        test_context("level %s, %" PRId64 " x %" PRId64 ", rows", onepass_isa(handle), rows, columns);
        CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
        for (int64_t row = 0; row < rows; row++) {
            int64_t first = row * row_stride;
            double expected = (double)marks_between(marks, count, first, first + columns);
            CHECK(values[row] == expected, "row %" PRId64 ": got %.17g, expected %.17g", row, values[row], expected);
        }
        free(values);
    }
    munmap(predictions, bytes);
    munmap(targets, bytes);
}

/* Billions of rows or columns of one number, x = -1 and y = 0: the sum is their count, exactly. */
static void test_one_number(onepass_handle *handle, int64_t rows, int64_t columns)
{
    float x = -1;
    float y = 0;
    int64_t shape[] = {rows, columns};
    int64_t strides[] = {0, 0};
    double value = NAN;
    onepass_tensor p = kl_tensor(ONEP_F32, &x, 2, shape);
    onepass_tensor t = kl_tensor(ONEP_F32, &y, 2, shape);
    onepass_tensor v = kl_tensor(ONEP_F64, &value, 0, NULL);
    p.strides = t.strides = strides;
    onepass_kl_options options = {.size = sizeof options, .reduction = ONEPASS_SUM};
    onepass_status status = onepass_kl_log_probs_log_probs(handle, &p, &t, &options, &v, NULL, NULL);
    test_context("level %s, %" PRId64 " x %" PRId64 " of one number", onepass_isa(handle), rows, columns);
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(value == (double)rows * (double)columns, "got %.17g, expected %.17g", value, (double)rows * (double)columns);
}

/* A 2 x 3 problem whose elements lie GiBs apart, forwards and backwards, in inputs, outputs, weights and mask. */
static void test_far_apart(onepass_handle *handle, onep_type type, int sign)
{
    enum { ROWS = 2, COLUMNS = 3, TENSORS = 5 };
    size_t size = onep_type_size(type);
    const int64_t column_gap = (INT64_C(1) << 30) + 3; /* elements: more than 4 GiB from the second column on */
    const int64_t row_gap = 3 * column_gap + 5;
    size_t bytes = (size_t)(row_gap + 2 * column_gap + 1) * size;
    int64_t shape[] = {ROWS, COLUMNS};
    int64_t strides[] = {sign * row_gap, sign * column_gap};
    char *memory[TENSORS];
    onepass_tensor tensors[TENSORS]; /* predictions, targets, value, both gradients */
    for (int i = 0; i < TENSORS; i++) {
        memory[i] = zeros(bytes);
        tensors[i] = kl_tensor(type, memory[i] + (sign < 0 ? bytes - size : 0), 2, shape);
        tensors[i].strides = strides;
    }
#define AT(tensor, row, column)                                                                                        \
    ((char *)tensors[tensor].data + (strides[0] * (row) + strides[1] * (column)) * (int64_t)size)
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS; column++) {
            onep_store(type, AT(0, row, column), -1 - row - column);
            onep_store(type, AT(1, row, column), 0);
        }
    char *weight_memory = zeros((size_t)(row_gap + 1) * size);
    char *mask_memory = zeros((size_t)(row_gap + 1));
    int64_t row_strides[] = {row_gap};
    onepass_tensor weights = kl_tensor(type, weight_memory, 1, shape);
    onepass_tensor mask = kl_tensor(ONEP_BYTE, mask_memory, 1, shape);
    weights.strides = mask.strides = row_strides;
    onep_store(type, weight_memory, 2);
    onep_store(type, weight_memory + (size_t)row_gap * size, 4);
    mask_memory[0] = mask_memory[row_gap] = 1;

    onepass_kl_options options = {
        .size = sizeof options, .reduction = ONEPASS_NONE, .row_weights = &weights, .row_mask = &mask};
    onepass_status status = onepass_kl_log_probs_log_probs(handle, &tensors[0], &tensors[1], &options, &tensors[2],
                                                           &tensors[3], &tensors[4]);
    test_context("level %s, %s, elements %.1f GiB apart", onepass_isa(handle), onep_type_name(type),
                 sign * (double)column_gap * (double)size / 0x1p30);
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS; column++) {
            double weight = row ? 4 : 2;
            double value = weight * (1 + row + column); /* exp(0) (0 - x) */
            CHECK(onep_load(type, AT(2, row, column)) == value, "value[%d][%d] is %g", row, column,
                  onep_load(type, AT(2, row, column)));
            CHECK(onep_load(type, AT(3, row, column)) == -weight, "grad_predictions[%d][%d] is %g", row, column,
                  onep_load(type, AT(3, row, column)));
            CHECK(onep_load(type, AT(4, row, column)) == value + weight, "grad_targets[%d][%d] is %g", row, column,
                  onep_load(type, AT(4, row, column)));
        }
#undef AT
    for (int i = 0; i < TENSORS; i++)
        munmap(memory[i], bytes);
    munmap(weight_memory, (size_t)(row_gap + 1) * size);
    munmap(mask_memory, (size_t)(row_gap + 1));
}

/* Cross-entropy of 2 x 3 equal logits whose elements, and labels, lie GiBs apart: NLL log 3, P = 1/3. */
static void test_logits_far_apart(onepass_handle *handle, onep_type type, int sign)
{
    enum { ROWS = 2, COLUMNS = 3 };
    size_t size = onep_type_size(type);
    const int64_t column_gap = (INT64_C(1) << 30) + 3, row_gap = 3 * column_gap + 5;
    size_t bytes = (size_t)(row_gap + 2 * column_gap + 1) * size, label_bytes = (size_t)(row_gap + 1) * sizeof(int64_t);
    int64_t shape[] = {ROWS, COLUMNS}, strides[] = {sign * row_gap, sign * column_gap}, row_strides[] = {row_gap};
    char *memory[2] = {zeros(bytes), zeros(bytes)};
    int64_t *labels = zeros(label_bytes), argmax[ROWS];
    double value[ROWS];
    onepass_tensor x = kl_tensor(type, memory[0] + (sign < 0 ? bytes - size : 0), 2, shape), g = x;
    g.data = memory[1] + (sign < 0 ? bytes - size : 0);
    x.strides = g.strides = strides;
    onepass_tensor l = kl_tensor(ONEP_I64, labels, 1, shape), v = kl_tensor(ONEP_F64, value, 1, shape);
    onepass_tensor a = kl_tensor(ONEP_I64, argmax, 1, shape);
    l.strides = row_strides;
    labels[0] = 1;
    labels[row_gap] = 2;
    onepass_logits_options options = {.size = sizeof options, .reduction = ONEPASS_ROWS, .argmax = &a};
    test_context("level %s, %s, logits %.1f GiB apart", onepass_isa(handle), onep_type_name(type),
                 sign * (double)column_gap * (double)size / 0x1p30);
    CHECK(onepass_cross_entropy_logits_labels(handle, &x, &l, &options, &v, &g) == ONEPASS_OK, "%s",
          onepass_last_error());
    for (int row = 0; row < ROWS; row++) {
        CHECK(test_close(value[row], log(3), 1e-6L) && argmax[row] == 0, "value[%d] is %.9g, argmax %" PRId64, row,
              value[row], argmax[row]);
        for (int column = 0; column < COLUMNS; column++) {
            double got = onep_load(type, (char *)g.data + (strides[0] * row + strides[1] * column) * (int64_t)size);
            CHECK(test_close_in(type, got, column == 1 + row ? -2 / 3.0L : 1 / 3.0L, 1e-7L), "gradient[%d][%d] is %g",
                  row, column, got);
        }
    }
    munmap(memory[0], bytes);
    munmap(memory[1], bytes);
    munmap(labels, label_bytes);
}

/* One row of more than 2^31 logits, all of them one number in memory: an LSE of log(count). Only where there is a
 * kernel that takes seconds. */
static void test_one_long_row(onepass_handle *handle, int64_t columns)
{
    float x = 0;
    double lse = NAN, log_prob = NAN;
    int64_t label = columns - 1, shape[] = {1, columns}, one[] = {1, 1}, strides[] = {0, 0};
    onepass_tensor logits = kl_tensor(ONEP_F32, &x, 2, shape), index = kl_tensor(ONEP_I64, &label, 2, one);
    onepass_tensor p = kl_tensor(ONEP_F64, &log_prob, 2, one), s = kl_tensor(ONEP_F64, &lse, 1, shape);
    logits.strides = strides;
    test_context("level %s, a row of %" PRId64 " logits", onepass_isa(handle), columns);
    CHECK(onepass_token_log_probs(handle, &logits, &index, NULL, &p, NULL, &s) == ONEPASS_OK, "%s",
          onepass_last_error());
    CHECK(test_close(lse, log((double)columns), 1e-5L) && test_close(log_prob, -log((double)columns), 1e-5L),
          "lse %.9g, log_prob %.9g, expected %.9g", lse, log_prob, log((double)columns));
}

int main(void)
{
    test_begin("test_large");
    test_print_levels();
    test_random random = test_random_stream(0);
    const int64_t giga = INT64_C(1) << 30;
    for (int level = 0; level < ONEP_LEVELS; level++) {
        if (!onep_level_runs((onep_level)level))
            continue;
        onepass_handle *handle = test_handle((onep_level)level, 2);
        for (int type = 0; type < ONEP_FLOAT_TYPES; type++)
            for (int sign = -1; sign <= 1; sign += 2)
                test_far_apart(handle, (onep_type)type, sign);
        for (int type = 0; type < ONEP_FLOAT_TYPES; type++)
            for (int sign = -1; sign <= 1; sign += 2)
                test_logits_far_apart(handle, (onep_type)type, sign);

        /* Around 512 blocks of 32768 elements, from where on blocks grow instead of becoming more. Plain C, which takes
         * seconds for that, is spared most of it. */
        const int64_t blocks = INT64_C(512) * 32768;
        int is_vector = level != ONEP_REF && level != ONEP_SCALAR;
        int64_t most = is_vector && !test_quick() ? blocks : blocks / 32;
        for (int64_t n = most - 1; n <= most + 1; n++)
            test_sums(handle, 1, n, n, &random);
        test_sums(handle, most / 256 + 5, 300, 300, &random);
        test_sums(handle, 3, most / 2 + 7, 0, &random);
        test_sums(handle, 2, most / 2 + 12345, most / 2 + 12345, &random);
        if (level == ONEP_SCALAR || (is_vector && test_quick()))
            test_sums(handle, 1, blocks + 1, blocks + 1, &random);

        const char *exhaustive = getenv("ONEPASS_TEST_EXHAUSTIVE");
        int is_fast = level == (int)onep_best_level() || (exhaustive && *exhaustive);
        if (test_quick() || !is_fast) {
            test_left_out("level %s above 2^31 elements: %s", onep_level_name((onep_level)level),
                          test_quick() ? "quick" : "minutes; ONEPASS_TEST_EXHAUSTIVE=1 runs it");
            test_one_number(handle, 5000, 1000);
            test_one_long_row(handle, 100000);
        } else {
            const onep_operator *token = onepass_operator_named("token_log_probs");
            test_one_long_row(handle, token->kernels[level] ? 2 * giga + 5 : 100000);
            test_sums(handle, 1, 2 * giga + 101, 2 * giga + 101, &random);
            test_sums(handle, 3, giga + 7, 0, &random);
            test_one_number(handle, 2 * giga + 5, 1);
        }
        onepass_destroy(handle);
    }
    return test_end();
}
