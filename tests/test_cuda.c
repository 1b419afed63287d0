/*
 * What only a GPU can get wrong: shapes around the kernels' chunks, every distance from an aligned address, the same
 * bits in every run, beside other work and on any grid, graphs that are captured and replayed, more than 2^31 elements,
 * the backward call that may find its work already done, memory and devices that are not the call's. The values
 * themselves are the business of test_kl.c and test_kl_special.c, which run on the GPU too (cuda_harness.h). Calls that
 * are repeated or captured are in cuda_repeated.c.
 *
 * It is run by ./dev gpu, and a smaller sample of it by ctest under the stand-in for the driver (driver_standin.c),
 * which has the kernels compute the same on a CPU and is no GPU.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_repeated.h"
#include "cuda_resident.h"

enum { REDUCTIONS = ONEPASS_DIVISOR + 1 };

static int run(kl_case *c)
{
    c->stream = ++cuda_streams;
    return kl_case_check(c);
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

/* Every form, type, reduction and set of outputs, with rows that end inside a vector. */
static void test_combinations(test_random *random)
{
    static const unsigned outputs[] = {
        KL_BIT(KL_VALUE),
        KL_BIT(KL_GRAD_PREDICTIONS),
        KL_BIT(KL_VALUE) | KL_BIT(KL_GRAD_PREDICTIONS),
        KL_BIT(KL_VALUE) | KL_BIT(KL_GRAD_PREDICTIONS) | KL_BIT(KL_GRAD_TARGETS),
    };
    for (int form = 0; form < ONEP_KL_FORMS; form++)
        for (int type = 0; type < ONEP_FLOAT_TYPES; type++)
            for (int reduction = 0; reduction < REDUCTIONS; reduction++)
                for (int k = 0; k < 4; k++) {
                    if (test_quick() && (form + type + reduction + k) % 4 != 0)
                        continue;
                    kl_case c = kl_case_plain((onep_kl_form)form, (onep_type)type, 5, k % 2 ? 1003 : 512);
                    c.reduction = (onepass_reduction)reduction;
                    c.divisor = reduction == ONEPASS_DIVISOR ? 3.5 : 0;
                    c.semantics = (onepass_semantics)((form + k) % 2);
                    c.data = (kl_data)test_random_below(random, KL_DATA_KINDS);
                    c.present = outputs[k] | (unsigned)test_random_below(random, 8) << KL_WEIGHTS;
                    if (k == 3)
                        c.layout[KL_TARGETS] = (case_layout)test_random_below(random, CASE_LAYOUTS);
                    run(&c);
                }
}

/* Both sides of every chunk size a kernel might have, one row and many, few columns and many. */
static void test_shapes(test_random *random)
{
    static const int64_t shapes[][2] = {
        {1, 2047},  {1, 2048},    {1, 2049},   {1, 4095},   {1, 4097},    {1, 8191},   {1, 8192},
        {1, 8193},  {2, 8192},    {3, 8195},   {1, 16383},  {1, 16384},   {1, 16385},  {7, 16384},
        {1, 32768}, {5, 32769},   {8192, 1},   {8193, 1},   {16385, 3},   {4099, 17},  {256, 256},
        {257, 255}, {1000, 1000}, {33, 65537}, {3, 999983}, {1, 2200001}, {70001, 31},
    };
    enum { SHAPES = sizeof shapes / sizeof shapes[0] };
    for (int i = 0; i < SHAPES; i++) {
        int64_t count = shapes[i][0] * shapes[i][1];
        int kinds = count > 300000 ? 2 : test_quick() ? 1 : 6;
        if (test_quick() && count > 20000)
            continue;
        for (int k = 0; k < kinds; k++) {
            kl_case c = kl_case_plain((onep_kl_form)test_random_below(random, ONEP_KL_FORMS),
                                      (onep_type)((i + k) % ONEP_FLOAT_TYPES), shapes[i][0], shapes[i][1]);
            c.reduction = (onepass_reduction)test_random_below(random, REDUCTIONS - 1);
            c.data = (kl_data)test_random_below(random, KL_DATA_KINDS);
            if (k % 2)
                c.present = KL_BIT(KL_VALUE);
            else
                c.present |= (unsigned)test_random_below(random, 8) << KL_WEIGHTS;
            run(&c);
        }
    }
}

/* The harness turns bytes off the alignment into elements: 1 to 7 of them, for each tensor apart. */
static void test_misaligned(test_random *random)
{
    static const int movable[] = {KL_PREDICTIONS, KL_TARGETS, KL_GRAD_PREDICTIONS, KL_GRAD_TARGETS};
    for (int type = 0; type < ONEP_FLOAT_TYPES; type++)
        for (int which = 0; which < 5; which++)
            for (size_t shift = 1; shift < 8; shift += test_quick() ? 3 : 1) {
                kl_case c = kl_case_plain((onep_kl_form)test_random_below(random, ONEP_KL_FORMS), (onep_type)type, 3,
                                          test_quick() ? 2050 : 20011);
                c.reduction = (onepass_reduction)test_random_below(random, REDUCTIONS - 1);
                for (int k = 0; k < 4; k++) /* one of them, or all alike, then all the same vector path is open */
                    if (which == k || which == 4)
                        c.shift[movable[k]] = shift;
                run(&c);
            }
}

/*
 * What chooses among the kernels for rows: how wide and how many they are, whether addresses are multiples of 16,
 * whether rows follow each other, and whether the targets are transposed.
 */
static void test_rows(test_random *random)
{
    static const struct {
        int64_t rows, columns;
        case_layout targets;
    } cases[] = {
        {1200, 1, CASE_COMPACT},   {700, 3, CASE_COMPACT},     {301, 10, CASE_COMPACT},    {40, 64, CASE_COMPACT},
        {9, 127, CASE_COMPACT},    {17, 128, CASE_COMPACT},    {17, 128, CASE_PADDED},     {33, 21, CASE_FORTRAN},
        {3, 1024, CASE_FORTRAN},   {9, 129, CASE_COMPACT},     {11, 256, CASE_COMPACT},    {6, 516, CASE_PADDED},
        {5, 1000, CASE_COMPACT},   {4, 2052, CASE_COMPACT},    {2, 4096, CASE_COMPACT},    {3, 9001, CASE_COMPACT},
        {2, 12288, CASE_COMPACT},  {1, 20011, CASE_COMPACT},   {64, 64, CASE_FORTRAN},     {32, 200, CASE_FORTRAN},
        {65, 129, CASE_FORTRAN},   {150, 33, CASE_FORTRAN},    {1030, 32, CASE_FORTRAN},   {1100, 132, CASE_COMPACT},
        {1025, 516, CASE_COMPACT}, {1024, 2060, CASE_COMPACT}, {33000, 129, CASE_COMPACT}, {90001, 100, CASE_COMPACT},
    };
    static const unsigned outputs[] = {
        KL_BIT(KL_VALUE),
        KL_BIT(KL_GRAD_PREDICTIONS),
        KL_BIT(KL_VALUE) | KL_BIT(KL_GRAD_PREDICTIONS),
        KL_BIT(KL_VALUE) | KL_BIT(KL_GRAD_PREDICTIONS) | KL_BIT(KL_GRAD_TARGETS),
    };
    static const int movable[] = {KL_PREDICTIONS, KL_TARGETS, KL_GRAD_PREDICTIONS, KL_GRAD_TARGETS};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t count = cases[i].rows * cases[i].columns;
        if (test_quick() && count > 100000)
            continue;
        int kinds = count > 300000 ? 2 : test_quick() ? 8 : 64;
        for (int k = 0; k < kinds; k++) {
            kl_case c =
                kl_case_plain((onep_kl_form)test_random_below(random, ONEP_KL_FORMS),
                              (onep_type)test_random_below(random, ONEP_FLOAT_TYPES), cases[i].rows, cases[i].columns);
            c.reduction = (onepass_reduction)test_random_below(random, REDUCTIONS - 1);
            c.semantics = (onepass_semantics)test_random_below(random, 2);
            c.data = (kl_data)test_random_below(random, KL_DATA_KINDS + 1);
            c.present = outputs[test_random_below(random, 4)];
            if (k % 2) /* half of them with any of upstream gradient, weights and mask */
                c.present |= (unsigned)test_random_below(random, 8) << KL_WEIGHTS;
            c.layout[KL_TARGETS] = c.layout[KL_GRAD_TARGETS] = cases[i].targets;
            for (int m = 0; m < 4 && k % 4 >= 2; m++)
                c.shift[movable[m]] = k % 8 >= 4 ? (size_t)test_random_below(random, 8) : (size_t)(1 + k % 7);
            run(&c);
        }
    }
}

/* ---- gradients that may be there already ------------------------------------------------------------------------- */

static void made_for_case(onep_type type, onep_kl_form form)
{
    enum { ROWS = 21, COLUMNS = 1031, COUNT = ROWS * COLUMNS };
    onepass_handle *handle = cuda_handle(cuda_stream());
    resident r = {.form = form, .type = type, .shape = {ROWS, COLUMNS}, .reduction = ONEPASS_SUM};
    resident_make(&r, handle);
    resident_load(&r, ++cuda_streams);
    size_t size = onep_type_size(type);
    char *made_for = cuda_claim(size), *upstream = cuda_claim(size);
    char *before = malloc(2 * r.bytes), *after = malloc(2 * r.bytes);
    if (!before || !after)
        exit(2);

    /* What is in memory was made for, what is asked for, and whether the gradients must stay as they are. */
    static const struct {
        double made, asked;
        int kept;
    } calls[] = {{1, 1, 1},  {1, 2.5, 0}, {2.5, 2.5, 1},       {2.5, -0.5, 0},          {-0.5, 1, 0},    {0, 0, 1},
                 {-1, 0, 0}, {1, NAN, 0}, {(double)NAN, 1, 0}, {0x1p-130, 0x1p-130, 1}, {INFINITY, 1, 0}};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        char asked[8], made_word[8], word_after[8];
        onep_store(type, asked, calls[i].asked);
        onep_store(type, made_word, calls[i].made);
        cuda_upload(upstream, asked, size);
        cuda_upload(made_for, made_word, size);
        resident_poison(&r, 0x3b);
        onepass_tensor p = cuda_tensor(type, r.predictions, 2, r.shape), t = cuda_tensor(type, r.targets, 2, r.shape);
        onepass_tensor gp = cuda_tensor(type, r.grad_predictions, 2, r.shape);
        onepass_tensor gt = cuda_tensor(type, r.grad_targets, 2, r.shape);
        onepass_tensor up = cuda_tensor(type, upstream, 0, NULL), made = cuda_tensor(type, made_for, 0, NULL);
        onepass_kl_options options = {.size = sizeof options,
                                      .reduction = ONEPASS_SUM,
                                      .grad_value = &up,
                                      .grad_made_for = &made,
                                      .workspace = r.workspace,
                                      .workspace_size = r.workspace_bytes};
        test_context("%s, %s, gradients made for %g, asked for %g", kl_form_name(form), onep_type_name(type),
                     calls[i].made, calls[i].asked);
        for (int again = 0; again < 2; again++) {
            CHECK(cuda_entry_of(form)(handle, &p, &t, &options, NULL, &gp, &gt) == ONEPASS_OK, "%s",
                  onepass_last_error());
            cuda_download(word_after, made_for, size);
            CHECK(memcmp(word_after, made_word, size) == 0, "call %d changed the word", again);
            cuda_download(again ? after : before, r.grad_predictions, r.bytes);
            cuda_download((again ? after : before) + r.bytes, r.grad_targets, r.bytes);
        }
        CHECK(memcmp(before, after, 2 * r.bytes) == 0, "a second call changed the gradients");
        size_t untouched = 0;
        for (size_t at = 0; at < 2 * r.bytes; at++)
            untouched += before[at] == 0x3b;
        CHECK(calls[i].kept ? untouched == 2 * r.bytes : untouched < r.bytes, "%zu of %zu bytes are as they were",
              untouched, 2 * r.bytes);
        if (calls[i].kept)
            continue;
        /* The same gradients, asked for without the word. */
        options.grad_made_for = NULL;
        resident_poison(&r, 0x3b);
        CHECK(cuda_entry_of(form)(handle, &p, &t, &options, NULL, &gp, &gt) == ONEPASS_OK, "%s", onepass_last_error());
        cuda_download(after, r.grad_predictions, r.bytes);
        cuda_download(after + r.bytes, r.grad_targets, r.bytes);
        CHECK(memcmp(before, after, 2 * r.bytes) == 0, "the gradients differ from those made without the word");
    }
    free(before);
    free(after);
    cuda_release(made_for);
    cuda_release(upstream);
    CHECK(cuda_tickets_are_zero(handle), "a ticket is not 0");
    onepass_destroy(handle);
    resident_free(&r);
}

static void test_made_for(void)
{
    for (int type = 0; type < ONEP_FLOAT_TYPES; type++)
        for (int form = 0; form < ONEP_KL_FORMS; form++)
            if (!test_quick() || type == form)
                made_for_case((onep_type)type, (onep_kl_form)form);
}

/* ---- more than 2^31 elements ------------------------------------------------------------------------------------- */

/*
 * Log-probabilities of 0 everywhere are worth nothing; a marked prediction of -1 is worth exactly 1. Every gradient to
 * the predictions is -exp(0) = -1. One element that is lost, doubled or taken from a wrapped offset shows.
 */
static void large_case(onep_type type, int64_t rows, int64_t columns, onepass_reduction reduction)
{
    static const uint16_t minus_one[ONEP_FLOAT_TYPES] = {[ONEP_F16] = 0xbc00, [ONEP_BF16] = 0xbf80};
    const onep_driver *driver = cuda_driver();
    int64_t shape[] = {rows, columns}, count = rows * columns;
    size_t bytes = (size_t)count * 2;
    size_t available, total;
    MUST(driver->cuMemGetInfo(&available, &total));
    test_context("%" PRId64 " x %" PRId64 ", %s, %s", rows, columns, onep_type_name(type),
                 kl_reduction_name(reduction));
    if (available < 3 * bytes + ((size_t)1 << 30)) {
        test_left_out("%" PRId64 " x %" PRId64 ": the device has %zu MiB left", rows, columns, available >> 20);
        return;
    }
    uint16_t *p = cuda_claim(bytes), *t = cuda_claim(bytes), *g = cuda_claim(bytes);
    double *value = cuda_claim((size_t)rows * sizeof(double));
    onepass_handle *handle = cuda_handle(NULL);
    MUST(driver->cuMemsetD8Async(cuda_address(p), 0, bytes, NULL));
    MUST(driver->cuMemsetD8Async(cuda_address(t), 0, bytes, NULL));
    MUST(driver->cuMemsetD8Async(cuda_address(g), 0x55, bytes, NULL));
    int marks = 0;
    double *expected = calloc((size_t)rows, sizeof *expected);
    if (!expected)
        exit(2);
    int64_t last = -1;
    for (int64_t power = 1; power <= 2 * count; power *= 2) /* before, at and after each power of two, and the end */
        for (int64_t at = power - 1; at <= power + 1; at++) {
            int64_t index = at < count ? at : count - 1;
            if (index <= last)
                continue;
            cuda_upload(p + index, &minus_one[type], 2);
            expected[reduction == ONEPASS_ROWS ? index / columns : 0]++;
            last = index;
            marks++;
        }
    onepass_tensor predictions = cuda_tensor(type, p, 2, shape), targets = cuda_tensor(type, t, 2, shape);
    onepass_tensor gradient = cuda_tensor(type, g, 2, shape);
    onepass_tensor result = cuda_tensor(ONEP_F64, value, reduction == ONEPASS_ROWS, shape);
    onepass_kl_options options = {.size = sizeof options, .reduction = reduction};
    CHECK(cuda_workspace_size(handle, &predictions, &options, &options.workspace_size) == ONEPASS_OK, "%s",
          onepass_last_error());
    options.workspace = options.workspace_size ? cuda_claim(options.workspace_size) : NULL;
    CHECK(options.workspace_size < bytes / 100 + 65537, "%zu bytes of workspace", options.workspace_size);
    for (int with_gradient = 0; with_gradient < 2; with_gradient++) {
        onepass_status status = cuda_entry_of(ONEP_KL_LOG_PROBS_LOG_PROBS)(
            handle, &predictions, &targets, &options, &result, with_gradient ? &gradient : NULL, NULL);
        CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
        double *got = malloc((size_t)rows * sizeof *got);
        if (!got)
            exit(2);
        int64_t values = reduction == ONEPASS_ROWS ? rows : 1;
        cuda_download(got, value, (size_t)values * sizeof *got);
        int64_t wrong = 0;
        for (int64_t i = 0; i < values; i++)
            wrong += got[i] != expected[i];
        CHECK(wrong == 0, "%" PRId64 " of %" PRId64 " values are wrong; the first is %.17g, expected %g", wrong, values,
              got[0], expected[0]);
        free(got);
    }
    enum { PIECE = 32 << 20 };
    uint16_t *piece = malloc((size_t)PIECE * 2);
    int64_t wrong = 0;
    for (int64_t from = 0; piece && from < count; from += PIECE) {
        int64_t length = count - from < PIECE ? count - from : PIECE;
        cuda_download(piece, g + from, (size_t)length * 2);
        for (int64_t i = 0; i < length; i++)
            wrong += piece[i] != minus_one[type];
    }
    CHECK(piece && wrong == 0, "%" PRId64 " elements of the gradient are not -1", wrong);
    printf("test_cuda: %" PRId64 " x %" PRId64 " %s, %d marks found\n", rows, columns, onep_type_name(type), marks);
    free(piece);
    free(expected);
    onepass_destroy(handle);
    cuda_release(p);
    cuda_release(t);
    cuda_release(g);
    cuda_release(value);
    cuda_release(options.workspace);
}

static void test_large(void)
{
    if (test_quick()) {
        large_case(ONEP_F16, 3, 70001, ONEPASS_ROWS);
        return;
    }
    large_case(ONEP_F16, 1, INT64_C(2147483648) + 12347, ONEPASS_SUM);
    large_case(ONEP_BF16, 70003, 30689, ONEPASS_ROWS);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void refuse(const char *what, onepass_status status, onepass_status expected, const char *part)
{
    test_context("%s", what);
    CHECK(status == expected, "got %s: %s", onepass_status_name(status), onepass_last_error());
    CHECK(strstr(onepass_last_error(), part) != NULL, "\"%s\" does not say \"%s\"", onepass_last_error(), part);
}

static void refuse_config(const char *what, onepass_config config, onepass_status expected, const char *part)
{
    onepass_handle *handle = NULL;
    config.size = sizeof config;
    config.device.type = ONEPASS_CUDA;
    onepass_status status = onepass_create(&config, &handle);
    refuse(what, status, expected, part);
    CHECK(!handle, "there is a handle");
    onepass_destroy(handle);
}

static void no_progress(void *context, double done)
{
    (void)context, (void)done;
}

static void test_configurations(void)
{
    refuse_config("a device that is not there", (onepass_config){.device = {0, 99}}, ONEPASS_NO_DEVICE, "cuda:99");
    refuse_config("a negative device", (onepass_config){.device = {0, -1}}, ONEPASS_INVALID_ARGUMENT, "cuda:-1");
    refuse_config("threads", (onepass_config){.threads = 2}, ONEPASS_INVALID_ARGUMENT, "config.threads: 2");
    refuse_config("a level", (onepass_config){.isa = "avx2"}, ONEPASS_INVALID_ARGUMENT, "config.isa: \"avx2\"");
    refuse_config("progress", (onepass_config){.progress = no_progress}, ONEPASS_INVALID_ARGUMENT, "config.progress");
    onepass_handle *handle = cuda_handle(NULL);
    test_context("a CUDA handle");
    CHECK(strcmp(onepass_isa(handle), "cuda") == 0, "isa \"%s\"", onepass_isa(handle));
    CHECK(onepass_threads(handle) == 0, "%d threads", (int)onepass_threads(handle));
    CHECK(onep_cuda_multiprocessors(onep_cuda_of(handle)) > 0 && onep_cuda_capability(onep_cuda_of(handle)) >= 80 &&
              onep_cuda_l2_bytes(onep_cuda_of(handle)) > 0,
          "the device is not described");
    CHECK(cuda_tickets_are_zero(handle), "new tickets are not 0");
    onepass_destroy(handle);
    size_t before = 0, after = 0, total;
    int kept = 1;
    for (int i = 0; i < 100; i++)
        onepass_destroy(cuda_handle(NULL));
    /* what is free is also what other programs leave free: handles that keep memory do so every time */
    for (int attempt = 0; kept && attempt < 20; attempt++) {
        MUST(cuda_driver()->cuMemGetInfo(&before, &total));
        for (int i = 0; i < 1000; i++)
            onepass_destroy(cuda_handle(NULL));
        MUST(cuda_driver()->cuMemGetInfo(&after, &total));
        kept = after + (1u << 20) < before;
    }
    CHECK(!kept, "a thousand handles kept %zu bytes", before - after);
}

static void test_refusals(void)
{
    test_configurations();
    onepass_handle *handle = cuda_handle(NULL);
    resident r = {.form = ONEP_KL_PROBS_PROBS, .type = ONEP_F32, .shape = {500, 4000}};
    resident_make(&r, handle);
    resident_load(&r, ++cuda_streams);
    float *host = calloc((size_t)(r.shape[0] * r.shape[1]), sizeof *host);
    if (!host)
        exit(2);
    onepass_tensor p = cuda_tensor(ONEP_F32, r.predictions, 2, r.shape);
    onepass_tensor t = cuda_tensor(ONEP_F32, r.targets, 2, r.shape);
    onepass_tensor v = cuda_tensor(ONEP_F32, r.value, 0, NULL),
                   g = cuda_tensor(ONEP_F32, r.grad_predictions, 2, r.shape);
    onepass_tensor foreign = cuda_tensor(ONEP_F32, host, 2, r.shape),
                   foreign_value = cuda_tensor(ONEP_F32, host, 0, NULL);
    onepass_tensor on_cpu = kl_tensor(ONEP_F32, host, 2, r.shape);
    onepass_tensor odd = cuda_tensor(ONEP_F32, r.targets + 2, 2, (int64_t[]){499, 4000});
    onepass_tensor odd_p = cuda_tensor(ONEP_F32, r.predictions, 2, odd.shape);
    onepass_tensor elsewhere = t;
    elsewhere.device.id = 1;
    onepass_kl_options good = {.size = sizeof good, .workspace = r.workspace, .workspace_size = r.workspace_bytes};
    kl_entry *entry = cuda_entry_of(ONEP_KL_PROBS_PROBS);
    resident_poison(&r, 0x3b);

    refuse("a host pointer", entry(handle, &p, &foreign, &good, &v, NULL, NULL), ONEPASS_INVALID_ARGUMENT, "targets");
    refuse("a host value", entry(handle, &p, &t, &good, &foreign_value, NULL, NULL), ONEPASS_INVALID_ARGUMENT, "value");
    refuse("a host gradient", entry(handle, &p, &t, &good, NULL, &foreign, NULL), ONEPASS_INVALID_ARGUMENT,
           "grad_predictions");
    refuse("a tensor of the CPU", entry(handle, &on_cpu, &t, &good, &v, NULL, NULL), ONEPASS_INVALID_ARGUMENT,
           "predictions");
    refuse("a tensor of another device", entry(handle, &p, &elsewhere, &good, &v, NULL, NULL), ONEPASS_INVALID_ARGUMENT,
           "targets");
    refuse("half an element off", entry(handle, &odd_p, &odd, &good, &v, NULL, NULL), ONEPASS_UNSUPPORTED, "targets");
    if (r.workspace_bytes) {
        onepass_kl_options bad = good;
        bad.workspace_size = r.workspace_bytes - 1;
        char needed[40];
        snprintf(needed, sizeof needed, "needs %zu", r.workspace_bytes);
        refuse("a workspace too small", entry(handle, &p, &t, &bad, &v, &g, NULL), ONEPASS_WORKSPACE, needed);
        bad = good;
        bad.workspace = NULL;
        refuse("no workspace", entry(handle, &p, &t, &bad, &v, NULL, NULL), ONEPASS_WORKSPACE, needed);
        bad.workspace = host;
        bad.workspace = (char *)host + (256 - (uintptr_t)host % 256);
        refuse("a host workspace", entry(handle, &p, &t, &bad, &v, NULL, NULL), ONEPASS_INVALID_ARGUMENT,
               "options.workspace");
        bad = good;
        bad.workspace = r.grad_predictions;
        refuse("a workspace over a gradient", entry(handle, &p, &t, &bad, &v, &g, NULL), ONEPASS_INVALID_ARGUMENT,
               "overlaps");
    }
    size_t bytes = resident_bytes(&r, 1), changed = 0;
    char *results = malloc(bytes);
    if (!results)
        exit(2);
    resident_fetch(&r, NULL, 1, results);
    for (size_t i = 0; i < bytes; i++)
        changed += results[i] != 0x3b;
    test_context("after the refusals");
    CHECK(changed == 0, "%zu bytes were written", changed);
    if (good.workspace_size > 0) {
        test_context("a workspace at any address");
        onepass_kl_options anywhere = good;
        anywhere.workspace = r.grad_predictions + 8;
        CHECK(entry(handle, &p, &t, &anywhere, &v, NULL, NULL) == ONEPASS_OK, "%s", onepass_last_error());
    }
    CHECK(resident_call(&r, handle, 1) == ONEPASS_OK, "%s", onepass_last_error());
    resident_fetch(&r, NULL, 1, results);
    free(results);
    free(host);
    resident_free(&r);
    onepass_destroy(handle);
}

int main(void)
{
    test_begin("test_cuda");
    test_print_levels();
    test_random random = test_random_stream(2);
    test_refusals();
    test_combinations(&random);
    test_shapes(&random);
    test_misaligned(&random);
    test_rows(&random);
    test_made_for();
    cuda_test_graphs();
    cuda_test_threads();
    cuda_test_determinism();
    test_large();
    kl_print_worst();
    return test_end();
}
