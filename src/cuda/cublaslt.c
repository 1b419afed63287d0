/* See cublaslt.h. */
#include "cuda/cublaslt.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cancel.h"
#include "core/loading.h"

/* Numbers of cuBLAS's enumerations, the same in versions 11, 12 and 13. */
enum {
    LT_R_32F = 0, /* types */
    LT_R_64F = 1,
    LT_R_16F = 2,
    LT_R_16BF = 14,
    LT_COMPUTE_32F = 68,
    LT_COMPUTE_32F_PEDANTIC = 69,
    LT_COMPUTE_64F = 70,
    LT_COMPUTE_32F_FAST_TF32 = 77,
    LT_DESC_TRANSA = 3, /* attributes of an operation */
    LT_DESC_TRANSB = 4,
    LT_DESC_EPILOGUE = 7,
    LT_DESC_BIAS_POINTER = 8,
    LT_EPILOGUE_BIAS = 4,
    LT_PREF_MAX_WORKSPACE = 1, /* attributes of a preference */
    LT_PREF_REDUCTION_MASK = 3,
    LT_PREF_ALIGNMENT_A = 5,
    LT_PREF_ALIGNMENT_B = 6,
    LT_PREF_ALIGNMENT_C = 7,
    LT_PREF_ALIGNMENT_D = 8,
    LT_REDUCTION_COMPUTE_TYPE = 2, /* parts of k meet in the type summed in: not in D's, which may be a half */
};

typedef struct lt_algorithm {
    uint64_t data[8];
} lt_algorithm;

typedef struct lt_heuristic {
    lt_algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} lt_heuristic;
_Static_assert(sizeof(lt_algorithm) == 64 && sizeof(lt_heuristic) == 96, "cuBLASLt's own sizes");

typedef struct lt_handle lt_handle;
typedef struct lt_desc lt_desc;
typedef struct lt_layout lt_layout;
typedef struct lt_preference lt_preference;

/* FUNCTION(member, symbol, parameters): all return a status that is 0 on success. */
#define LT_FUNCTIONS(FUNCTION)                                                                                         \
    FUNCTION(create, "cublasLtCreate", (lt_handle * *handle))                                                          \
    FUNCTION(destroy, "cublasLtDestroy", (lt_handle * handle))                                                         \
    FUNCTION(desc_create, "cublasLtMatmulDescCreate", (lt_desc * *desc, int compute_type, int scale_type))             \
    FUNCTION(desc_destroy, "cublasLtMatmulDescDestroy", (lt_desc * desc))                                              \
    FUNCTION(desc_set, "cublasLtMatmulDescSetAttribute",                                                               \
             (lt_desc * desc, int attribute, const void *value, size_t size))                                          \
    FUNCTION(layout_create, "cublasLtMatrixLayoutCreate",                                                              \
             (lt_layout * *layout, int type, uint64_t rows, uint64_t columns, int64_t ld))                             \
    FUNCTION(layout_destroy, "cublasLtMatrixLayoutDestroy", (lt_layout * layout))                                      \
    FUNCTION(preference_create, "cublasLtMatmulPreferenceCreate", (lt_preference * *preference))                       \
    FUNCTION(preference_destroy, "cublasLtMatmulPreferenceDestroy", (lt_preference * preference))                      \
    FUNCTION(preference_set, "cublasLtMatmulPreferenceSetAttribute",                                                   \
             (lt_preference * preference, int attribute, const void *value, size_t size))                              \
    FUNCTION(heuristic, "cublasLtMatmulAlgoGetHeuristic",                                                              \
             (lt_handle * handle, lt_desc * desc, lt_layout * a, lt_layout * b, lt_layout * c, lt_layout * d,          \
              lt_preference * preference, int wanted, lt_heuristic *results, int *found))                              \
    FUNCTION(check, "cublasLtMatmulAlgoCheck",                                                                         \
             (lt_handle * handle, lt_desc * desc, lt_layout * a, lt_layout * b, lt_layout * c, lt_layout * d,          \
              const lt_algorithm *algorithm, lt_heuristic *result))                                                    \
    FUNCTION(matmul, "cublasLtMatmul",                                                                                 \
             (lt_handle * handle, lt_desc * desc, const void *alpha, const void *a, lt_layout *a_layout,               \
              const void *b, lt_layout *b_layout, const void *beta, const void *c, lt_layout *c_layout, void *d,       \
              lt_layout *d_layout, const lt_algorithm *algorithm, void *workspace, size_t workspace_size,              \
              void *stream))

static struct {
#define FUNCTION(member, symbol, parameters) int(*member) parameters;
    LT_FUNCTIONS(FUNCTION)
#undef FUNCTION
    size_t (*version)(void);
    const char *(*status_text)(int status); /* since 11.4; NULL before */
} lt_api;

static char lt_name[300], lt_missing[400];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t failing = PTHREAD_MUTEX_INITIALIZER;
static void *library;

/* A remembered shape. The descriptors live as long as it does. */
struct onep_lt_plan {
    onep_lt_shape shape;
    int refused;
    unsigned long used; /* when, for giving the oldest up */
    lt_desc *desc;
    lt_layout *a, *b, *d;
    lt_algorithm algorithm;
    size_t workspace;
};

enum { REMEMBERED = 64 };

struct onep_cublaslt {
    lt_handle *handle;
    unsigned long uses;
    onep_lt_plan plans[REMEMBERED];
    int count;
};

/* ---- the library ------------------------------------------------------------------------------------------------- */

static int find(void *from, const char *file, const char *symbol, void *function, size_t size)
{
    void *address = dlsym(from, symbol);
    memcpy(function, &address, size);
    if (!address)
        snprintf(lt_missing, sizeof lt_missing, "%s has no %s", file, symbol);
    return address != NULL;
}

/* True if the file is there and has everything. */
static int take(const char *file, int flags)
{
    dlerror();
    void *opened = onep_open_library(file, RTLD_NOW | RTLD_LOCAL | flags);
    if (!opened) {
        const char *why = dlerror();
        if (!(flags & RTLD_NOLOAD) && !lt_missing[0])
            snprintf(lt_missing, sizeof lt_missing, "%s", why ? why : file);
        return 0;
    }
#define FUNCTION(member, symbol, parameters)                                                                           \
    if (!find(opened, file, symbol, &lt_api.member, sizeof lt_api.member))                                             \
        return 0; /* not closed: others in the process may have it open */
    LT_FUNCTIONS(FUNCTION)
#undef FUNCTION
    if (!find(opened, file, "cublasLtGetVersion", &lt_api.version, sizeof lt_api.version))
        return 0;
    void *text = dlsym(opened, "cublasLtGetStatusString");
    memcpy(&lt_api.status_text, &text, sizeof text);
    library = opened;
    size_t version = lt_api.version();
    size_t unit = version < 100000 ? 1000 : 10000; /* 11805 is 11.8.5, 120304 is 12.3.4 */
    snprintf(lt_name, sizeof lt_name, "%s, %zu.%zu.%zu", file, version / unit, version % unit / 100, version % 100);
    lt_missing[0] = 0;
    return 1;
}

static void load(void)
{
    const char *forced = getenv("ONEPASS_CUBLASLT");
    if (forced && strcmp(forced, "none") == 0) {
        snprintf(lt_missing, sizeof lt_missing, "$ONEPASS_CUBLASLT is \"none\"");
        return;
    }
    if (forced && *forced) {
        take(forced, 0);
        return;
    }
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"};
    for (int i = 0; i < 3; i++) /* the one PyTorch has loaded fits the driver */
        if (take(names[i], RTLD_NOLOAD))
            return;
    for (int i = 0; i < 3; i++)
        if (take(names[i], 0))
            return;
    for (int i = 0; i < 3; i++) {
        char path[64];
        snprintf(path, sizeof path, "/usr/local/cuda/lib64/%s", names[i]);
        if (take(path, 0))
            return;
    }
}

const char *onep_cublaslt_name(void)
{
    onep_load_once(&once, load);
    return library ? lt_name : "";
}

const char *onep_cublaslt_missing(void)
{
    onep_load_once(&once, load);
    return lt_missing;
}

void onep_cublaslt_text(int error, char *text, size_t size)
{
    if (lt_api.status_text)
        snprintf(text, size, "%s", lt_api.status_text(error));
    else
        snprintf(text, size, "cuBLAS status %d", error);
}

onep_cublaslt *onep_cublaslt_create(void)
{
    onep_load_once(&once, load);
    if (!library)
        return NULL;
    onep_cublaslt *lt = (onep_cublaslt *)calloc(1, sizeof *lt);
    if (!lt)
        return NULL;
    int error = lt_api.create(&lt->handle);
    if (error != 0) {
        char text[100];
        onep_cublaslt_text(error, text, sizeof text);
        pthread_mutex_lock(&failing);
        snprintf(lt_missing, sizeof lt_missing, "%.200s does not start on this device: %s", lt_name, text);
        pthread_mutex_unlock(&failing);
        free(lt);
        return NULL;
    }
    return lt;
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

static void forget(onep_lt_plan *plan)
{
    if (plan->desc)
        lt_api.desc_destroy(plan->desc);
    lt_layout *layouts[] = {plan->a, plan->b, plan->d};
    for (int i = 0; i < 3; i++)
        if (layouts[i])
            lt_api.layout_destroy(layouts[i]);
    memset(plan, 0, sizeof *plan);
}

void onep_cublaslt_destroy(onep_cublaslt *lt)
{
    if (!lt)
        return;
    for (int i = 0; i < lt->count; i++)
        forget(&lt->plans[i]);
    lt_api.destroy(lt->handle);
    free(lt);
}

static int type_number(int type)
{
    static const int numbers[ONEP_FLOAT_TYPES] = {
        [ONEP_F16] = LT_R_16F, [ONEP_BF16] = LT_R_16BF, [ONEP_F32] = LT_R_32F, [ONEP_F64] = LT_R_64F};
    return numbers[type];
}

static int make_desc(onep_lt_plan *plan)
{
    const onep_lt_shape *s = &plan->shape;
    int compute = LT_COMPUTE_32F, scale = LT_R_32F;
    if (s->type == ONEP_F64) {
        compute = LT_COMPUTE_64F;
        scale = LT_R_64F;
    } else if (s->type == ONEP_F32) {
        compute = s->math == ONEP_MATH_TF32 ? LT_COMPUTE_32F_FAST_TF32 : LT_COMPUTE_32F_PEDANTIC;
    }
    int transposed_a = s->a_transposed, transposed_b = s->b_transposed, epilogue = LT_EPILOGUE_BIAS;
    int error = lt_api.desc_create(&plan->desc, compute, scale);
    if (error == 0)
        error = lt_api.desc_set(plan->desc, LT_DESC_TRANSA, &transposed_a, sizeof transposed_a);
    if (error == 0)
        error = lt_api.desc_set(plan->desc, LT_DESC_TRANSB, &transposed_b, sizeof transposed_b);
    if (error == 0 && s->bias)
        error = lt_api.desc_set(plan->desc, LT_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    return error;
}

/* B and D of so many columns. */
static int make_right_layouts(const onep_lt_shape *s, int64_t columns, lt_layout **b, lt_layout **d)
{
    uint64_t n = (uint64_t)columns, k = (uint64_t)s->k;
    int error = lt_api.layout_create(b, type_number(s->type), s->b_transposed ? n : k, s->b_transposed ? k : n, s->ldb);
    return error == 0 ? lt_api.layout_create(d, type_number(s->d_type), (uint64_t)s->m, n, s->ldd) : error;
}

static int make_layouts(onep_lt_plan *plan)
{
    const onep_lt_shape *s = &plan->shape;
    uint64_t m = (uint64_t)s->m, k = (uint64_t)s->k;
    int error =
        lt_api.layout_create(&plan->a, type_number(s->type), s->a_transposed ? k : m, s->a_transposed ? m : k, s->lda);
    return error == 0 ? make_right_layouts(s, s->n, &plan->b, &plan->d) : error;
}

/* What cuBLASLt holds for the best, for B and D of these layouts. */
static int ask(onep_cublaslt *lt, const onep_lt_plan *plan, lt_preference *preference, lt_layout *b, lt_layout *d,
               lt_heuristic *best)
{
    int found = 0;
    *best = (lt_heuristic){.state = -1};
    int error = lt_api.heuristic(lt->handle, plan->desc, plan->a, b, d, d, preference, 1, best, &found);
    return error != 0 ? error : found < 1 || best->state != 0 ? -1 : 0;
}

/* The same for another number of columns; an error also where its algorithm does not take that of the shape. */
static int ask_for_chosen(onep_cublaslt *lt, const onep_lt_plan *plan, lt_preference *preference, lt_heuristic *best)
{
    lt_layout *b = NULL, *d = NULL;
    lt_heuristic checked = {.state = -1};
    int error = make_right_layouts(&plan->shape, plan->shape.chosen_n, &b, &d);
    if (error == 0)
        error = ask(lt, plan, preference, b, d, best);
    if (error == 0)
        error = lt_api.check(lt->handle, plan->desc, plan->a, plan->b, plan->d, plan->d, &best->algorithm, &checked);
    if (error == 0)
        error = checked.workspace <= (size_t)plan->shape.workspace ? checked.state : -1;
    best->workspace = checked.workspace;
    if (b)
        lt_api.layout_destroy(b);
    if (d)
        lt_api.layout_destroy(d);
    return error;
}

/* The algorithm: that for as many columns as the shape says it is chosen for, or else that for its own. */
static int choose(onep_cublaslt *lt, onep_lt_plan *plan)
{
    const onep_lt_shape *s = &plan->shape;
    lt_preference *preference;
    int error = lt_api.preference_create(&preference);
    if (error != 0)
        return error;
    const struct {
        int attribute;
        uint32_t value;
    } settings[] = {{LT_PREF_REDUCTION_MASK, LT_REDUCTION_COMPUTE_TYPE},
                    {LT_PREF_ALIGNMENT_A, (uint32_t)s->a_alignment},
                    {LT_PREF_ALIGNMENT_B, (uint32_t)s->b_alignment},
                    {LT_PREF_ALIGNMENT_C, (uint32_t)s->d_alignment},
                    {LT_PREF_ALIGNMENT_D, (uint32_t)s->d_alignment}};
    uint64_t workspace = (uint64_t)s->workspace;
    error = lt_api.preference_set(preference, LT_PREF_MAX_WORKSPACE, &workspace, sizeof workspace);
    for (int i = 0; i < 5 && error == 0; i++)
        error = lt_api.preference_set(preference, settings[i].attribute, &settings[i].value, sizeof settings[i].value);
    lt_heuristic best = {.state = -1};
    int is_chosen =
        error == 0 && s->chosen_n > 0 && s->chosen_n != s->n && ask_for_chosen(lt, plan, preference, &best) == 0;
    if (error == 0 && !is_chosen)
        error = ask(lt, plan, preference, plan->b, plan->d, &best);
    lt_api.preference_destroy(preference);
    plan->algorithm = best.algorithm;
    plan->workspace = best.workspace;
    return error;
}

int onep_cublaslt_recall(onep_cublaslt *lt, const onep_lt_shape *shape, const onep_lt_plan **plan)
{
    for (int i = 0; i < lt->count; i++) {
        onep_lt_plan *known = &lt->plans[i];
        if (memcmp(&known->shape, shape, sizeof *shape) == 0) {
            known->used = ++lt->uses;
            *plan = known->refused ? NULL : known;
            return 1;
        }
    }
    return 0;
}

const onep_lt_plan *onep_cublaslt_plan(onep_cublaslt *lt, const onep_lt_shape *shape)
{
    const onep_lt_plan *known;
    if (onep_cublaslt_recall(lt, shape, &known))
        return known;
    onep_lt_plan *plan = &lt->plans[0];
    for (int i = 1; i < lt->count; i++)
        if (lt->plans[i].used < plan->used)
            plan = &lt->plans[i];
    if (lt->count < REMEMBERED)
        plan = &lt->plans[lt->count++];
    forget(plan);
    plan->shape = *shape;
    plan->used = ++lt->uses;
    plan->refused = make_desc(plan) != 0 || make_layouts(plan) != 0 || choose(lt, plan) != 0;
    return plan->refused ? NULL : plan;
}

size_t onep_cublaslt_workspace(const onep_lt_plan *plan)
{
    return plan->workspace;
}

int onep_cublaslt_run(onep_cublaslt *lt, const onep_lt_plan *plan, const void *a, const void *b, void *d,
                      const void *bias, void *workspace, void *stream)
{
    static const float one = 1, zero = 0;
    static const double one64 = 1, zero64 = 0;
    int is_double = plan->shape.type == ONEP_F64;
    const void *alpha = is_double ? (const void *)&one64 : &one;
    const void *beta = plan->shape.accumulates ? alpha : is_double ? (const void *)&zero64 : &zero;
    if (plan->shape.bias) {
        int error = lt_api.desc_set(plan->desc, LT_DESC_BIAS_POINTER, &bias, sizeof bias);
        if (error != 0)
            return error;
    }
    return lt_api.matmul(lt->handle, plan->desc, alpha, a, plan->a, b, plan->b, beta, d, plan->d, d, plan->d,
                         &plan->algorithm, workspace, plan->workspace, stream);
}
