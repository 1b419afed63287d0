/*
 * A stand-in for libcuda.so.1, for tests of what the tool does around a GPU on a machine that has none: which arrays it
 * copies there, which it brings back, what it releases, what it says when something fails. "Device memory" is host
 * memory between guard bands, poisoned with NaN; kernels are done by their definitions, in double or wider and at once;
 * the one that only benchmarks have is refused. It shows nothing about the kernels themselves.
 *
 * When the process ends, memory or contexts that were not given back, or a copy or a kernel that left its bounds, end
 * it with exit code 99. $ONEPASS_STANDIN_ALLOCATIONS: how many allocations succeed; all others find no memory.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"
#include "head_args.h"
#include "kl.h"
#include "kl_define.h"
#include "types.h"

enum {
    BAND = 256,
    MOST_POISON = 16 << 20,
    POISON = 0xff,
    GUARD = 0xa5,
    MOST_BLOCKS = 4096,
    INVALID_VALUE = 1,
    NOT_SUPPORTED = 801
};

#define EXPORTED __attribute__((visibility("default")))

/* The prototypes of driver.h, under the driver's own names. */
#define FUNCTION(member, symbol, parameters) EXPORTED int member parameters __asm__(symbol);
ONEP_DRIVER_FUNCTIONS(FUNCTION)
#undef FUNCTION

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static struct block {
    char *first; /* of the caller's bytes; NULL: not in use */
    size_t bytes;
} blocks[MOST_BLOCKS];

static long claims, contexts, wrongs;

static void complain(const char *what)
{
    fprintf(stderr, "stand-in for the driver: %s\n", what);
    wrongs++;
}

static struct block *block_of(onep_cu_address address, size_t bytes)
{
    for (int i = 0; i < MOST_BLOCKS; i++) {
        onep_cu_address first = (onep_cu_address)(uintptr_t)blocks[i].first;
        if (first && address >= first && address + bytes <= first + blocks[i].bytes)
            return &blocks[i];
    }
    return NULL;
}

int cuMemAlloc(onep_cu_address *address, size_t bytes)
{
    const char *most = getenv("ONEPASS_STANDIN_ALLOCATIONS");
    if (bytes == 0)
        return INVALID_VALUE;
    if (most && claims >= atol(most))
        return ONEP_CU_OUT_OF_MEMORY;
    int free_one = 0;
    while (free_one < MOST_BLOCKS && blocks[free_one].first)
        free_one++;
    size_t room = (bytes + BAND - 1) / BAND * BAND + 2 * BAND;
    char *memory = free_one < MOST_BLOCKS ? aligned_alloc(BAND, room) : NULL;
    if (!memory)
        return ONEP_CU_OUT_OF_MEMORY;
    memset(memory, GUARD, BAND);
    memset(memory + BAND, POISON, bytes < MOST_POISON ? bytes : MOST_POISON);
    memset(memory + BAND + bytes, GUARD, room - BAND - bytes);
    blocks[free_one] = (struct block){memory + BAND, bytes};
    *address = (onep_cu_address)(uintptr_t)blocks[free_one].first;
    claims++;
    return 0;
}

int cuMemFree(onep_cu_address address)
{
    struct block *block = block_of(address, 1);
    if (!block || (onep_cu_address)(uintptr_t)block->first != address) {
        complain("memory is freed that was not claimed");
        return INVALID_VALUE;
    }
    size_t end = (block->bytes + BAND - 1) / BAND * BAND + BAND, wrong = 0;
    for (size_t i = 0; i < BAND; i++)
        wrong += (unsigned char)block->first[(long)i - BAND] != GUARD;
    for (size_t i = block->bytes; i < end; i++)
        wrong += (unsigned char)block->first[i] != GUARD;
    if (wrong)
        complain("a guard band was written to");
    free(block->first - BAND);
    block->first = NULL;
    return 0;
}

int cuMemcpyHtoD(onep_cu_address to, const void *from, size_t bytes)
{
    if (!block_of(to, bytes)) {
        complain("a copy to memory that was not claimed");
        return INVALID_VALUE;
    }
    memcpy((void *)(uintptr_t)to, from, bytes);
    return 0;
}

int cuMemcpyDtoH(void *to, onep_cu_address from, size_t bytes)
{
    if (!block_of(from, bytes)) {
        complain("a copy from memory that was not claimed");
        return INVALID_VALUE;
    }
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return 0;
}

int cuMemsetD8Async(onep_cu_address to, unsigned char value, size_t count, onep_cu_stream *stream)
{
    (void)stream;
    if (!block_of(to, count))
        return INVALID_VALUE;
    memset((void *)(uintptr_t)to, value, count);
    return 0;
}

/* The tool only empties the cache with it: there is none. */
int cuMemsetD32Async(onep_cu_address to, unsigned value, size_t count, onep_cu_stream *stream)
{
    (void)value, (void)stream;
    return block_of(to, 4 * count) ? 0 : INVALID_VALUE;
}

int cuMemGetInfo(size_t *available, size_t *total)
{
    *available = *total = (size_t)1 << 30;
    return 0;
}

int cuPointerGetAttributes(unsigned count, int *attributes, void **data, onep_cu_address address)
{
    int inside = block_of(address, 1) != NULL;
    for (unsigned i = 0; i < count; i++)
        *(int *)data[i] = attributes[i] == ONEP_CU_MEMORY_TYPE && inside ? ONEP_CU_IN_DEVICE : 0;
    return 0;
}

__attribute__((destructor)) static void look_back(void)
{
    for (int i = 0; i < MOST_BLOCKS; i++)
        if (blocks[i].first)
            complain("memory was not released");
    if (contexts)
        complain("a context was left current");
    if (wrongs)
        _exit(99);
}

/* ---- linear and head --------------------------------------------------------------------------------------------- */

static char *place(const onep_head_matrix *m, long long i, long long j)
{
    return m->data + i * m->row_stride + j * m->col_stride;
}

static double get(const onep_head_matrix *m, long long i, long long j, double otherwise)
{
    return m->data ? onep_load((onep_type)m->type, place(m, i, j)) : otherwise;
}

static void put(const onep_head_matrix *m, long long i, long long j, double x)
{
    if (!m->data)
        return;
    if (!block_of((onep_cu_address)(uintptr_t)place(m, i, j), onep_type_size((onep_type)m->type)))
        complain("a kernel writes outside");
    else
        onep_store((onep_type)m->type, place(m, i, j), x);
}

/* Element (i, k), or with `swapped` (k, i), of an operand with rows of any rank. */
static char *side_place(const onep_product_side *side, long long i, long long k)
{
    long long row = side->swapped ? k : i, column = side->swapped ? i : k;
    char *at = side->data + column * side->col_stride;
    for (int d = side->rank - 1; d >= 0; d--) {
        at += row % side->extent[d] * side->row_stride[d];
        row /= side->extent[d];
    }
    return at;
}

static void multiply(const onep_product_args *a)
{
    for (long long i = 0; i < a->m; i++)
        for (long long j = 0; j < a->n; j++) {
            double sum = get(&a->bias, 0, j, 0);
            for (long long k = 0; k < a->k; k++)
                sum += onep_load((onep_type)a->a.type, side_place(&a->a, i, k)) *
                       onep_load((onep_type)a->b.type, side_place(&a->b, j, k));
            onep_store((onep_type)a->c.type, side_place(&a->c, i, j), sum);
        }
}

static void sum_columns(const onep_column_sums_args *a)
{
    for (long long j = 0; j < a->columns; j++) {
        double sum = 0;
        for (long long i = 0; i < a->rows; i++)
            sum += onep_load((onep_type)a->x.type, side_place(&a->x, i, j));
        put(&a->out, 0, j, sum);
    }
}

static void store_workspace(void *to, int type, long long j, double x)
{
    onep_store((onep_type)type, (char *)to + (size_t)j * onep_type_size((onep_type)type), x);
}

/* log2(e) z = slope y + offset, and what is remembered of the batch. */
static void take_statistics(const onep_head_stats_args *a)
{
    const onep_head_features *f = &a->features;
    int computed = a->y.type == ONEP_F64 ? ONEP_F64 : ONEP_F32;
    if (f->batches && !f->running)
        ++*f->batches;
    double factor = f->cumulative ? 1 / (double)*f->batches : f->momentum;
    for (long long j = 0; j < f->columns; j++) {
        double bias = get(&f->in[ONEP_HEAD_BIAS], 0, j, 0), mean = 0, m2 = 0;
        for (long long i = 0; i < f->rows && !f->running; i++)
            mean += get(&a->y, i, j, 0) * f->per_row;
        for (long long i = 0; i < f->rows && !f->running; i++)
            m2 += pow(get(&a->y, i, j, 0) - mean, 2);
        double var = m2 * f->per_row;
        if (f->running) {
            mean = get(&f->in[ONEP_HEAD_MEAN], 0, j, 0) - bias;
            var = get(&f->in[ONEP_HEAD_SPREAD], 0, j, 1);
        } else {
            put(&f->out[ONEP_HEAD_TO_RUNNING_MEAN], 0, j,
                (1 - factor) * get(&f->in[ONEP_HEAD_MEAN], 0, j, 0) + factor * (mean + bias));
            put(&f->out[ONEP_HEAD_TO_RUNNING_VAR], 0, j,
                (1 - factor) * get(&f->in[ONEP_HEAD_SPREAD], 0, j, 0) + factor * m2 * f->per_free_row);
        }
        double rstd = 1 / sqrt(var + f->eps), scale = get(&f->in[ONEP_HEAD_SCALE], 0, j, 1);
        double slope = scale * get(&f->in[ONEP_HEAD_GAMMA], 0, j, 1) * rstd, log2_e = 1 / log(2);
        put(&f->out[ONEP_HEAD_TO_MEAN], 0, j, mean);
        put(&f->out[ONEP_HEAD_TO_RSTD], 0, j, rstd);
        store_workspace(f->slope, computed, j, log2_e * slope);
        store_workspace(f->offset, computed, j, log2_e * (scale * get(&f->in[ONEP_HEAD_BETA], 0, j, 0) - slope * mean));
    }
}

static double exponent(const onep_head_softmax_args *a, long long i, long long j)
{
    onep_type computed = a->y.type == ONEP_F64 ? ONEP_F64 : ONEP_F32;
    size_t at = (size_t)j * onep_type_size(computed);
    return onep_load(computed, (const char *)a->slope + at) * get(&a->y, i, j, 0) +
           onep_load(computed, (const char *)a->offset + at);
}

/* y may lie where the output goes: a row is held apart until it is whole. */
static void take_softmax(const onep_head_softmax_args *a)
{
    double *row = malloc((size_t)a->columns * sizeof *row);
    for (long long i = 0; i < a->rows && row; i++) {
        double most = -INFINITY, sum = 0;
        for (long long j = 0; j < a->columns; j++)
            most = fmax(most, exponent(a, i, j));
        for (long long j = 0; j < a->columns; j++)
            sum += row[j] = exp2(exponent(a, i, j) - most);
        for (long long j = 0; j < a->columns; j++)
            put(&a->output, i, j, row[j] / sum);
    }
    free(row);
}

/* dz = P (g - sum over the row of g P) */
static double gradient_of_z(const onep_head_grad_args *a, long long i, long long j)
{
    double dot = 0;
    for (long long k = 0; k < a->columns; k++)
        dot += get(&a->grad_output, i, k, 0) * get(&a->output, i, k, 0);
    return get(&a->output, i, j, 0) * (get(&a->grad_output, i, j, 0) - dot);
}

/* Both passes of the backward call: the one over rows, which comes first, has nothing left to do. */
static void take_gradients(const onep_head_grad_args *a)
{
    double of_scale = 0;
    for (long long j = 0; j < a->columns; j++) {
        double mean = get(&a->in[ONEP_HEAD_MEAN], 0, j, 0), rstd = get(&a->in[ONEP_HEAD_SPREAD], 0, j, 1), s0 = 0;
        double gamma = get(&a->in[ONEP_HEAD_GAMMA], 0, j, 1), beta = get(&a->in[ONEP_HEAD_BETA], 0, j, 0), s1 = 0;
        double scale = get(&a->in[ONEP_HEAD_SCALE], 0, j, 1);
        for (long long i = 0; i < a->rows; i++) {
            s0 += gradient_of_z(a, i, j);
            s1 += gradient_of_z(a, i, j) * (get(&a->product, i, j, 0) - mean);
        }
        for (long long i = 0; i < a->rows; i++) {
            double of_batch = (s0 + (get(&a->product, i, j, 0) - mean) * rstd * rstd * s1) * a->per_row;
            double dz = gradient_of_z(a, i, j) - (a->running ? 0 : of_batch);
            put(&a->grad_product, i, j, scale * gamma * rstd * dz);
        }
        put(&a->out[ONEP_HEAD_TO_BIAS], 0, j, a->running ? scale * gamma * rstd * s0 : 0);
        put(&a->out[ONEP_HEAD_TO_GAMMA], 0, j, scale * rstd * s1);
        put(&a->out[ONEP_HEAD_TO_BETA], 0, j, scale * s0);
        put(&a->out[ONEP_HEAD_TO_SCALE], 0, j, gamma * rstd * s1 + beta * s0);
        of_scale += gamma * rstd * s1 + beta * s0;
    }
    put(&a->one_scale, 0, 0, of_scale);
}

/* ---- KL divergence ----------------------------------------------------------------------------------------------- */

static char *strided_place(const onep_kl_rows_args *a, const onep_kl_strided *s, long long row, long long column)
{
    char *at = s->data + column * s->col_stride;
    for (int d = a->rank - 1; d >= 0; d--) {
        at += row % a->extent[d] * s->row_stride[d];
        row /= a->extent[d];
    }
    return at;
}

static double strided_get(const onep_kl_rows_args *a, const onep_kl_strided *s, long long row, long long column)
{
    return s->data ? onep_load((onep_type)s->type, strided_place(a, s, row, column)) : 1;
}

static void strided_put(const onep_kl_rows_args *a, const onep_kl_strided *s, long long row, long long column, double x)
{
    if (s->data)
        onep_store((onep_type)s->type, strided_place(a, s, row, column), x);
}

static onep_kl_element element_of(const onep_kl_rows_args *a, int form, long long row, long long column)
{
    int in_double = a->predictions.type == ONEP_CUDA_F64 || a->targets.type == ONEP_CUDA_F64;
    return onep_kl_define_element(ONEP_KL_LOG_PREDICTIONS(form), ONEP_KL_LOG_TARGETS(form), a->common.finite,
                                  strided_get(a, &a->predictions, row, column),
                                  strided_get(a, &a->targets, row, column), in_double);
}

/* Any strides, types, weights and masks: value and gradients of every element, and the sums that were asked for. */
static void diverge(const onep_kl_rows_args *a, int form)
{
    const onep_kl_common *c = &a->common;
    double upstream_one = c->upstream_one ? onep_load((onep_type)c->upstream_one_type, c->upstream_one) : 1;
    long double all = 0;
    for (long long i = 0; i < a->rows; i++) {
        int taken = !a->mask.data || *strided_place(a, &a->mask, i, 0) != 0;
        double weight = taken ? strided_get(a, &a->weights, i, 0) : 0;
        long double sum = 0;
        for (long long j = 0; j < a->columns; j++) {
            onep_kl_element e = taken ? element_of(a, form, i, j) : (onep_kl_element){0, 0, 0};
            double scale = taken ? weight * c->grad_scale * upstream_one * strided_get(a, &a->upstream, i, j) : 0;
            strided_put(a, &a->grad_predictions, i, j, scale * e.d_prediction);
            strided_put(a, &a->grad_targets, i, j, scale * e.d_target);
            if (c->outputs & ONEP_CUDA_VALUE)
                strided_put(a, &a->value, i, j, weight * e.value);
            sum += e.value;
        }
        if (a->per_row)
            strided_put(a, &a->value, i, 0, (double)(weight * sum));
        all += weight * sum;
    }
    if (c->value)
        onep_store((onep_type)c->value_type, c->value, (double)(all * c->value_scale));
}

static onep_kl_strided line_of(const void *data, int type)
{
    return (onep_kl_strided){
        .data = (char *)(uintptr_t)data, .col_stride = (long long)onep_type_size((onep_type)type), .type = type};
}

/* All elements one after the other are one row. */
static void diverge_flat(const onep_kl_flat_args *a, int type, int form)
{
    int computed = type == ONEP_CUDA_F64 ? ONEP_CUDA_F64 : ONEP_CUDA_F32;
    onep_kl_rows_args row = {
        .common = a->common,
        .rows = 1,
        .columns = a->count,
        .predictions = line_of(a->predictions, type),
        .targets = line_of(a->targets, type),
        .value = line_of(a->value, computed),
        .grad_predictions = line_of(a->grad_predictions, type),
        .grad_targets = line_of(a->grad_targets, type),
        .upstream = line_of(a->upstream, computed),
    };
    diverge(&row, form);
}

/* onep_kl_flat_TYPE_FORM_KIND, onep_kl_rows_TYPE_FORM, onep_kl_lines_TYPE_FORM */
static int run_kl(const char *name, const void *args)
{
    static const char *const types[] = {"f16", "bf16", "f32", "f64"};
    char kind[8], word[8];
    int form, type = 0;
    if (((const onep_kl_common *)args)->made_for ||
        sscanf(name, "onep_kl_%7[a-z]_%7[a-z0-9]_%1d", kind, word, &form) != 3)
        return NOT_SUPPORTED;
    while (type < 3 && strcmp(word, types[type]) != 0)
        type++;
    if (strcmp(kind, "flat") == 0)
        diverge_flat(args, type, form);
    else
        diverge(args, form);
    return 0;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static int begins(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

/* A function is its name here. */
int cuLaunchKernel(onep_cu_function *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, onep_cu_stream *stream, void **parameters,
                   void **extra)
{
    const char *name = (const char *)function;
    const void *args = parameters[0];
    (void)grid_y, (void)grid_z, (void)block_y, (void)block_z, (void)shared_bytes, (void)stream, (void)extra;
    if (grid_x == 0 || block_x == 0 || block_x > 1024)
        return INVALID_VALUE;
    if (begins(name, "onep_product_any"))
        multiply(args);
    else if (begins(name, "onep_column_sums"))
        sum_columns(args);
    else if (begins(name, "onep_head_stats_") || begins(name, "onep_head_prepare_"))
        take_statistics(args);
    else if (begins(name, "onep_head_softmax_"))
        take_softmax(args);
    else if (begins(name, "onep_head_grad_columns_"))
        take_gradients(args);
    else if (begins(name, "onep_kl_"))
        return run_kl(name, args);
    else if (!begins(name, "onep_head_grad_rows_"))
        return NOT_SUPPORTED;
    return 0;
}

/* ---- the rest of a driver ---------------------------------------------------------------------------------------- */

static onep_cu_context *const context_here = (onep_cu_context *)(void *)blocks;

int cuInit(unsigned flags)
{
    return flags ? INVALID_VALUE : 0;
}

int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}

int cuGetErrorName(int error, const char **name)
{
    *name = error == ONEP_CU_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_NOT_SUPPORTED";
    return 0;
}

int cuGetErrorString(int error, const char **text)
{
    *text = error == ONEP_CU_OUT_OF_MEMORY ? "out of memory" : "the stand-in does not do this";
    return 0;
}

int cuDeviceGetCount(int *count)
{
    *count = 1;
    return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal == 0 ? 0 : INVALID_VALUE;
}

int cuDeviceGetName(char *name, int size, int device)
{
    (void)device;
    snprintf(name, (size_t)size, "stand-in");
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    *value = attribute == ONEP_CU_MAJOR ? 9 : attribute == ONEP_CU_MINOR ? 0 : 4;
    return 0;
}

int cuDeviceTotalMem(size_t *bytes, int device)
{
    (void)device;
    *bytes = (size_t)1 << 30;
    return 0;
}

int cuDevicePrimaryCtxRetain(onep_cu_context **context, int device)
{
    (void)device;
    *context = context_here;
    return 0;
}

int cuDevicePrimaryCtxRelease(int device)
{
    (void)device;
    return 0;
}

int cuCtxGetCurrent(onep_cu_context **context)
{
    *context = contexts ? context_here : NULL;
    return 0;
}

int cuCtxPushCurrent(onep_cu_context *context)
{
    contexts++;
    return context == context_here ? 0 : INVALID_VALUE;
}

int cuCtxPopCurrent(onep_cu_context **context)
{
    *context = context_here;
    if (contexts-- <= 0)
        complain("more contexts are popped than were pushed");
    return 0;
}

int cuCtxGetDevice(int *device)
{
    *device = 0;
    return 0;
}

int cuCtxSynchronize(void)
{
    return contexts > 0 ? 0 : INVALID_VALUE;
}

int cuModuleLoadData(onep_cu_module **module, const void *image)
{
    *module = (onep_cu_module *)(uintptr_t)image;
    return 0;
}

int cuModuleGetFunction(onep_cu_function **function, onep_cu_module *module, const char *name)
{
    (void)module;
    *function = (onep_cu_function *)(uintptr_t)name;
    return 0;
}

int cuFuncSetAttribute(onep_cu_function *function, int attribute, int value)
{
    (void)function, (void)attribute, (void)value;
    return 0;
}

int cuStreamCreate(onep_cu_stream **stream, unsigned flags)
{
    (void)flags;
    *stream = (onep_cu_stream *)(void *)blocks;
    return 0;
}

int cuStreamDestroy(onep_cu_stream *stream)
{
    (void)stream;
    return 0;
}

int cuStreamSynchronize(onep_cu_stream *stream)
{
    (void)stream;
    return 0;
}

int cuStreamGetCtx(onep_cu_stream *stream, onep_cu_context **context)
{
    (void)stream;
    *context = context_here;
    return 0;
}

int cuStreamIsCapturing(onep_cu_stream *stream, int *status)
{
    (void)stream;
    *status = 0;
    return 0;
}

int cuThreadExchangeStreamCaptureMode(int *mode)
{
    (void)mode;
    return 0;
}

int cuStreamBeginCapture(onep_cu_stream *stream, int mode)
{
    (void)stream, (void)mode;
    return NOT_SUPPORTED;
}

int cuStreamEndCapture(onep_cu_stream *stream, onep_cu_graph **graph)
{
    (void)stream, (void)graph;
    return NOT_SUPPORTED;
}

int cuGraphInstantiate(onep_cu_graph_exec **exec, onep_cu_graph *graph, void **error_node, char *log, size_t log_size)
{
    (void)exec, (void)graph, (void)error_node, (void)log, (void)log_size;
    return NOT_SUPPORTED;
}

int cuGraphLaunch(onep_cu_graph_exec *exec, onep_cu_stream *stream)
{
    (void)exec, (void)stream;
    return NOT_SUPPORTED;
}

int cuGraphExecDestroy(onep_cu_graph_exec *exec)
{
    (void)exec;
    return NOT_SUPPORTED;
}

int cuGraphDestroy(onep_cu_graph *graph)
{
    (void)graph;
    return NOT_SUPPORTED;
}

/* An event is the time at which it was recorded. */
int cuEventCreate(onep_cu_event **event, unsigned flags)
{
    (void)flags;
    *event = calloc(1, sizeof(double));
    return *event ? 0 : ONEP_CU_OUT_OF_MEMORY;
}

int cuEventDestroy(onep_cu_event *event)
{
    free(event);
    return 0;
}

int cuEventRecord(onep_cu_event *event, onep_cu_stream *stream)
{
    (void)stream;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *(double *)(void *)event = 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
    return 0;
}

int cuEventSynchronize(onep_cu_event *event)
{
    (void)event;
    return 0;
}

int cuEventElapsedTime(float *milliseconds, onep_cu_event *begin, onep_cu_event *end)
{
    *milliseconds = (float)(*(double *)(void *)end - *(double *)(void *)begin);
    return 0;
}
