/* One group of points. See sweep_point.h. */
#define _POSIX_C_SOURCE 200809L
#include "sweep_point.h"

#include <stdlib.h>
#include <string.h>

#include "bench_cuda.h"
#include "bench_head.h"

/* What a call may cost beside its bytes or operations. */
static const double call_seconds = 1e-6;

static void take(sweep_point *point, const timed_work *work, double floor_seconds, const char *floor_name,
                 double amount, size_t workspace)
{
    point->state = SWEEP_MEASURED;
    point->seconds = measure_quantile(work, 0.5);
    point->floor = floor_seconds + call_seconds;
    point->amount = amount;
    point->floor_name = floor_name;
    point->workspace = workspace;
    point->rounds = work->rounds;
}

/* amount / speed of the plain work */
static double seconds_at(const timed_work *floor_work, double amount)
{
    return amount * measure_quantile(floor_work, 0.5) / floor_work->bytes;
}

/* What a single point that was not measured is; ONEPASS_OK: there was no memory for the samples. */
static void refuse(sweep_point *point, onepass_status status)
{
    point->state = status == ONEPASS_OK ? SWEEP_OVER_MEMORY : SWEEP_REFUSED;
    if (status != ONEPASS_OK)
        point->message = strdup(onepass_last_error());
}

static bool is_gone(onepass_status status)
{
    return status == ONEPASS_NO_DEVICE || status == ONEPASS_DEVICE_ERROR;
}

/* ---- losses ------------------------------------------------------------------------------------------------------ */

/* Of the arrays that are no large ones: those of the gradient are the last. */
static double small_bytes(const loss_case *it, bool gradient)
{
    double bytes = 0;
    for (int array = 0; array < LOSS_ARRAYS; array++)
        if (it->arrays[array] && !loss_case_is_large(it, array) && (gradient || array < LOSS_GRAD_LOG_PROB))
            bytes += (double)loss_case_count(it, array) * (it->tensors[array].dtype.bits / 8);
    if (it->arrays[LOSS_TARGETS] && !loss_case_is_large(it, LOSS_TARGETS)) /* one row, not as many as it stands for */
        bytes -= (double)(it->shape[0] - 1) * (double)it->shape[1] * (it->tensors[LOSS_TARGETS].dtype.bits / 8);
    return bytes;
}

static onepass_status measure_works(const sweep_bench *bench, const loss_case *problem, bench_result *result, int first,
                                    int last)
{
    if (onepass_device_of(bench->handle).type == ONEPASS_CUDA)
        return bench_cuda(bench->handle, problem, result, first, last, &bench->rule);
    return bench_loss(bench->handle, problem, bench->members, result, first, last, &bench->rule);
}

static onepass_status measure_losses(const sweep_bench *bench, const loss_case *problem, sweep_point *points, int count)
{
    bench_result result = {0};
    int first = points[0].gradient ? BENCH_FLOOR_WRITE : BENCH_FLOOR_READ;
    int last = points[count - 1].gradient ? BENCH_WORKS : BENCH_FLOOR_WRITE;
    onepass_status status = measure_works(bench, problem, &result, first, last);
    if (status == ONEPASS_OK && result.works[first].samples) {
        for (int i = 0; i < count; i++) {
            bool gradient = points[i].gradient;
            int work = gradient ? BENCH_GRADIENT : BENCH_FORWARD;
            double bytes = bench_bytes(problem, work) + small_bytes(problem, gradient);
            const timed_work *floor_work = &result.works[work - 1];
            take(&points[i], &result.works[work], seconds_at(floor_work, bytes), floor_work->name, bytes,
                 result.workspace[gradient]);
        }
    } else if (!is_gone(status) && count == 1) {
        refuse(&points[0], status);
    }
    measure_release(result.works, BENCH_WORKS);
    return is_gone(status) ? status : ONEPASS_OK;
}

static onepass_status measure_loss(const sweep_bench *bench, const sweep_plan *plan, sweep_point *points, int count)
{
    loss_case problem = sweep_loss_case(plan, &points[0]);
    if (!loss_case_create(&problem, bench->members)) {
        for (int i = 0; i < count; i++)
            points[i].state = SWEEP_OVER_MEMORY;
        return ONEPASS_OK;
    }
    onepass_status status = measure_losses(bench, &problem, points, count);
    /* One of two was refused, or both: each alone says so. */
    for (int i = 0; i < count && status == ONEPASS_OK && count > 1; i++)
        if (points[i].state == SWEEP_NOT_REACHED)
            status = measure_losses(bench, &problem, &points[i], 1);
    loss_case_destroy(&problem);
    return status;
}

/* ---- linear and head --------------------------------------------------------------------------------------------- */

static int kind_of(const sweep_point *point)
{
    return point->gradient ? HEAD_BACKWARD : point->operator_id == SWEEP_HEAD_EVAL ? HEAD_EVAL : HEAD_FORWARD;
}

/* Of a product that is large enough to show it; of halves, which are computed in f32, that of f32. */
static onepass_status find_rate(sweep_bench *bench, element_type type, double *rate)
{
    element_type computed = type == ELEMENT_F64 ? ELEMENT_F64 : ELEMENT_F32;
    head_bench layer = {.handle = bench->handle};
    layer.problem = (head_case){.rows = 512, .depth = 512, .columns = 512, .type = computed};
    onepass_status status = ONEPASS_OK;
    if (bench->rates[computed] == 0 && head_bench_open(&layer)) {
        status = head_bench_measure(&layer, 0, &bench->rule);
        if (status == ONEPASS_OK && layer.works[0].samples)
            bench->rates[computed] = layer.works[0].bytes / measure_quantile(&layer.works[0], 0.2);
    }
    head_bench_close(&layer);
    *rate = bench->rates[computed];
    return status;
}

/* Seconds of a plain read of the bytes of input, weight and output; 0 without memory for them. */
static double read_seconds(const sweep_bench *bench, const head_case *problem)
{
    enum { LINE = 64 };
    size_t bytes = (size_t)(head_case_matrices(problem) + LINE - 1) / LINE * LINE;
    void *data = aligned_alloc(LINE, bytes);
    double seconds = 0;
    if (data) {
        memset(data, 1, bytes);
        memory_set set = {.members = bench->members, .inputs = {data}, .input_bytes = bytes};
        timed_work read = measure_floor(&set, false);
        if (measure_in_turn(&read, 1, &bench->rule))
            seconds = measure_quantile(&read, 0.5);
        measure_release(&read, 1);
    }
    free(data);
    return seconds;
}

/* The floor of one product. */
typedef struct layer_floor {
    double seconds;
    const char *name;
} layer_floor;

static onepass_status find_floor(sweep_bench *bench, const head_case *problem, layer_floor *found)
{
    double rate, flops = 2 * (double)problem->rows * (double)problem->depth * (double)problem->columns;
    onepass_status status = find_rate(bench, problem->type, &rate);
    double read = read_seconds(bench, problem), multiplied = rate > 0 ? flops / rate : 0;
    bool is_read = read > multiplied;
    *found = (layer_floor){is_read ? read : multiplied, is_read ? "plain read" : "rate of 512 x 512 x 512"};
    return status;
}

static onepass_status measure_layers(const sweep_bench *bench, head_bench *layer, const layer_floor *one_product,
                                     sweep_point *points, int count)
{
    unsigned kinds = 0;
    for (int i = 0; i < count; i++)
        kinds |= 1u << kind_of(&points[i]);
    onepass_status status = head_bench_measure(layer, kinds, &bench->rule);
    const timed_work *product = &layer->works[0];
    if (status == ONEPASS_OK && product->samples) {
        for (int i = 0; i < count; i++) {
            int place = 0;
            while (layer->kinds[place] != kind_of(&points[i]))
                place++;
            const timed_work *work = &layer->works[place];
            double floor_seconds = one_product->name ? one_product->seconds * (work->bytes / product->bytes)
                                                     : seconds_at(product, work->bytes);
            take(&points[i], work, floor_seconds, one_product->name ? one_product->name : product->name, work->bytes,
                 layer->workspaces[place]);
        }
    } else if (!is_gone(status) && count == 1) {
        refuse(&points[0], status);
    }
    return is_gone(status) ? status : ONEPASS_OK;
}

static onepass_status measure_layer(sweep_bench *bench, const sweep_plan *plan, sweep_point *points, int count)
{
    head_bench layer = {.head = points[0].operator_id != SWEEP_LINEAR, .handle = bench->handle};
    layer.problem = (head_case){
        .rows = points[0].rows,
        .depth = plan->depth,
        .columns = points[0].columns,
        .type = points[0].type,
        .seed = plan->seed,
        .transposed = points[0].layout == LAYOUT_TRANSPOSED,
    };
    onepass_status status = ONEPASS_OK;
    layer_floor one_product = {0};
    if (head_bench_open(&layer)) {
        if (onepass_device_of(bench->handle).type == ONEPASS_CPU)
            status = find_floor(bench, &layer.problem, &one_product);
        if (status == ONEPASS_OK)
            status = measure_layers(bench, &layer, &one_product, points, count);
        for (int i = 0; i < count && status == ONEPASS_OK && count > 1; i++)
            if (points[i].state == SWEEP_NOT_REACHED)
                status = measure_layers(bench, &layer, &one_product, &points[i], 1);
    } else {
        for (int i = 0; i < count; i++)
            points[i].state = SWEEP_OVER_MEMORY;
    }
    head_bench_close(&layer);
    return status;
}

onepass_status sweep_measure(sweep_bench *bench, const sweep_plan *plan, sweep_point *points, int count)
{
    return points[0].operator_id < SWEEP_LOSSES ? measure_loss(bench, plan, points, count)
                                                : measure_layer(bench, plan, points, count);
}
