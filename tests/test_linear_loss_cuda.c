/*
 * Losses from hidden states on a GPU: every operator against the exact results of cases/ with every option, reduction,
 * type, layout, rank and choice of results; the same bits of everything but grad_weight and grad_bias from any number
 * of chunks, with fp32 products on tensor cores too, which small ones do not go to by themselves. That no kernel was
 * left out is checked too.
 *
 * It is run by ./dev gpu, and a smaller sample of it by ctest under the stand-in for the driver (driver_standin.c).
 */
#include "cuda/fatbin.h"
#include "cuda/kernels.h"
#include "cuda_harness.h"
#include "linear_cases.h"

static const char *const names[] = {"linear_cross_entropy", "linear_divergence", "linear_token_log_probs",
                                    "linear_token_log_probs_backward"};
enum { NAMES = 4 };

/* cuda_harness.c has the device stand for this level, and no other run. */
#define DEVICE handles[ONEP_SCALAR]

/* ---- which kernels ran ------------------------------------------------------------------------------------------- */

static long launches[ONEP_CUDA_KERNEL_COUNT];

onepass_status __real_onep_cuda_launch(const onep_cuda *cuda, const char *operator_name, const onep_launch *launch,
                                       const void *args);
onepass_status __wrap_onep_cuda_launch(const onep_cuda *cuda, const char *operator_name, const onep_launch *launch,
                                       const void *args);

onepass_status __wrap_onep_cuda_launch(const onep_cuda *cuda, const char *operator_name, const onep_launch *launch,
                                       const void *args)
{
    launches[launch->kernel]++;
    return __real_onep_cuda_launch(cuda, operator_name, launch, args);
}

static void check_all_ran(void)
{
    test_context("all kernels");
    for (int i = 0; i < (int)ONEP_CUDA_KERNEL_COUNT; i++) {
        const char *name = onep_fatbin_kernels[i].name;
        if (strncmp(name, "onep_linear_loss_", 17) == 0)
            CHECK(launches[i] > 0, "%s was never launched", name);
    }
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

/* The depth goes by another letter where K counts indices. */
static void begin(op_case *c, const char *name, onepass_dtype type, int64_t rows, int64_t depth, int64_t columns,
                  int family, int amount, uint64_t seed)
{
    begin_case(c, name, type, rows, depth, columns, family, amount, seed);
    if (case_option_named(c, "reduction") >= 0)
        return;
    c->extents['K' - 'A'] = 1 + (int64_t)(seed % 3);
    c->extents['D' - 'A'] = depth;
    for (int i = 0; i < c->option_count; i++)
        c->options[i] = 0;
    for (int i = 0; i < c->arguments; i++)
        c->argument[i].given = 1;
}

static void check_any(const char *name, test_random *random)
{
    static const int64_t extents[] = {0, 1, 2, 5, 13, 33, 65, 130};
    enum { EXTENTS = sizeof extents / sizeof extents[0] };
    static op_case c;
    for (int i = 0; i < (test_quick() ? 60 : 250); i++) {
        begin(&c, name, type_at(i), extents[test_random_below(random, EXTENTS)],
              extents[test_random_below(random, EXTENTS)], extents[test_random_below(random, EXTENTS)],
              (int)test_random_below(random, LINEAR_LOSS_SPECIAL + 1), i % 3 ? 50 : 0, test_random_bits(random));
        for (int k = 0; k < c.option_count; k++) {
            int32_t choices = onepass_operator_option(c.op, k)->choices;
            if (choices)
                c.options[k] = (double)test_random_below(random, choices);
        }
        c.options[case_option_named(&c, "chunk_bytes")] = i % 2;
        if (i % 3 == 0) { /* any layout, alignment, rank and mixture of types */
            c.leading_rank = i % 4;
            for (int d = 0; d < c.leading_rank; d++)
                c.leading[d] = 1 + test_random_below(random, 4);
            case_shuffle(&c, random);
        }
        for (int a = 0; a < c.arguments && i % 3 != 1; a++)
            if (!c.argument[a].info->is_required)
                c.argument[a].given = test_random_below(random, 3) > 0;
        case_settle(&c);
        check_everywhere(&c);
    }
}

/* As many chunks as can be against the exact results, and against the bits of a single chunk. */
static void check_chunks_against_one(const char *name, onepass_dtype type, int64_t rows, int64_t depth, int64_t columns,
                                     test_random *random)
{
    static op_case c, other;
    begin(&c, name, type, rows, depth, columns, LINEAR_LOSS_ORDINARY, 50, test_random_bits(random));
    int chunk_bytes = case_option_named(&c, "chunk_bytes"), results[CASE_MAX_ARGUMENTS];
    int grad_weight = case_argument_named(&c, "grad_weight"), grad_bias = case_argument_named(&c, "grad_bias");
    c.options[chunk_bytes] = 1;
    case_settle(&c);
    check_everywhere(&c);
    call_well(&c, DEVICE, 0x11);
    copy_case(&other, &c);
    other.options[chunk_bytes] = 0;
    CHECK(case_make(&other), "no memory");
    test_context("%s, %s, %" PRId64 " x %" PRId64 " x %" PRId64 " in one chunk", name, case_type_name(type), rows,
                 depth, columns);
    call_well(&other, DEVICE, 0x22);
    int count = written_of(&c, results);
    for (int r = 0; r < count; r++)
        if (results[r] != grad_weight && results[r] != grad_bias)
            same_bits(&c, &other, results[r]);
}

int main(void)
{
    test_begin("test_linear_loss_cuda");
    test_print_levels();
    test_random random = test_random_stream(0);
    open_levels();
    for (int i = 0; i < NAMES; i++) {
        check_any(names[i], &random);
        for (int type = 0; type < (test_quick() ? 2 : 4); type++) {
            check_chunks_against_one(names[i], type_at(type), 265, 9, 33, &random);
            if (!test_quick())
                check_chunks_against_one(names[i], type_at(type), 700, 64, 200, &random);
        }
    }
    CHECK(cuda_tickets_are_zero(DEVICE), "a kernel left its ticket");
    check_chunks_against_one("linear_cross_entropy", case_bf16, 200, 64, 600, &random);
    onepass_handle *usual = DEVICE;
    onepass_config config = {.size = sizeof config, .device = {ONEPASS_CUDA, 0}, .fp32_products = ONEPASS_FP32_SPLIT};
    CHECK(onepass_create(&config, &DEVICE) == ONEPASS_OK, "%s", onepass_last_error());
    check_chunks_against_one("linear_cross_entropy", case_f32, 300, 40, 130, &random);
    check_chunks_against_one("linear_divergence", case_f32, 265, 33, 70, &random);
    onepass_destroy(DEVICE);
    DEVICE = usual;
    check_all_ran();
    close_levels("test_linear_loss_cuda");
    return test_end();
}
