/*
 * onepass head and onepass linear: from .npy files to a layer's output, and with --train to the running statistics
 * after the batch. Everything about the files and options is checked before an output is touched; the arrays go from
 * file to library to file without a copy (but for a GPU, where they are copied to and from), and the library's
 * workspace is the only memory that is allocated.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "clock.h"
#include "commands.h"
#include "device.h"
#include "files.h"
#include "json.h"
#include "message.h"
#include "progress.h"
#include "room.h"

enum { INPUT, WEIGHT, BIAS, GAMMA, BETA, SCALE, RUNNING_MEAN, RUNNING_VAR, INPUTS };
enum { OUTPUT, MEAN_OUT, VAR_OUT, OUTPUTS };

typedef struct layer_job {
    const parsed_options *options;
    bool head; /* otherwise linear */
    bool train;
    const char *input_paths[INPUTS], *output_paths[OUTPUTS]; /* NULL: not given */
    input_file inputs[INPUTS];
    output_file outputs[OUTPUTS];
    onepass_device device;
    onepass_handle *handle;
    element_type type; /* of the output */
    bool one_scale;    /* --scale is a number */
    double scale, momentum;
    int64_t batches;
    double seconds;
} layer_job;

static const char *const input_options[INPUTS] = {NULL,   NULL,    "bias",         "gamma",
                                                  "beta", "scale", "running-mean", "running-var"};
static const char *const output_options[OUTPUTS] = {"output", "running-mean-out", "running-var-out"};

/* ---- rules that need no file ------------------------------------------------------------------------------------- */

static bool is_cumulative(const layer_job *job)
{
    return job->head && strcmp(options_text(job->options, "momentum"), "none") == 0;
}

static int check_momentum(layer_job *job)
{
    const parsed_options *options = job->options;
    int code = 0;
    if (!is_cumulative(job))
        code = options_check_real("--momentum", options_text(options, "momentum"), -HUGE_VAL, HUGE_VAL, ", or none",
                                  &job->momentum);
    if (code)
        return code;
    if (options_given(options, "batches") && !is_cumulative(job))
        return message_error(EXIT_USAGE, "--batches: %s; it goes with --momentum none",
                             options_text(options, "batches"));
    job->batches = options_integer(options, "batches");
    return 0;
}

/* Running statistics are read without --train; with it they are updated, or not there. */
static int check_statistics(const layer_job *job)
{
    static const char *const trained[] = {"momentum", "batches", "running-mean-out", "running-var-out"};
    bool mean = job->input_paths[RUNNING_MEAN], var = job->input_paths[RUNNING_VAR];
    bool mean_out = job->output_paths[MEAN_OUT], var_out = job->output_paths[VAR_OUT];
    if (mean != var)
        return message_error(EXIT_USAGE, "--running-%s is missing; mean and var go together", mean ? "var" : "mean");
    if (mean_out != var_out)
        return message_error(EXIT_USAGE, "--running-%s-out is missing; mean and var go together",
                             mean_out ? "var" : "mean");
    if (!job->train && !mean)
        return message_error(EXIT_USAGE, "--running-mean and --running-var are missing; without --train they are used");
    for (size_t i = 0; i < sizeof trained / sizeof trained[0] && !job->train; i++)
        if (options_given(job->options, trained[i]))
            return message_error(EXIT_USAGE, "--%s: without --train nothing is updated", trained[i]);
    if (job->train && mean && !mean_out)
        return message_error(EXIT_USAGE, "--running-mean: with --train it is only updated; say where to write it with "
                                         "--running-mean-out and --running-var-out");
    return 0;
}

static int check_options(layer_job *job)
{
    int code = device_option(job->options, &job->device);
    if (code)
        return code;
    if (!job->input_paths[WEIGHT])
        return message_error(EXIT_USAGE, "--weight is missing; see onepass head --help");
    if (!job->output_paths[OUTPUT])
        return message_error(EXIT_USAGE, "-o OUT.npy is missing; the result is an array");
    code = job->head ? check_momentum(job) : 0;
    if (code == 0 && job->one_scale)
        code = options_check_real("--scale", options_text(job->options, "scale"), -HUGE_VAL, HUGE_VAL, ", or a file",
                                  &job->scale);
    if (code == 0 && job->head)
        code = check_statistics(job);
    if (code)
        return code;
    if (files_have_dash(job->output_paths, OUTPUTS) && options_given(job->options, "json"))
        return message_error(EXIT_USAGE, "--json and an output named - would both go to stdout; name a file");
    return 0;
}

/* ---- rules about the inputs -------------------------------------------------------------------------------------- */

static int check_shape(const layer_job *job, int which)
{
    const npy_header *header = &job->inputs[which].header, *input = &job->inputs[INPUT].header;
    const npy_header *weight = &job->inputs[WEIGHT].header;
    char text[NPY_MAX_SHAPE_TEXT], other[NPY_MAX_SHAPE_TEXT];
    const char *name = input_name(&job->inputs[which]);
    npy_shape_text(text, header->rank, header->shape);
    if (which == INPUT && (job->head ? header->rank != 2 : header->rank < 1))
        return message_error(EXIT_INPUT, "%s: header says shape %s; it must be %s", name, text,
                             job->head ? "(B, K)" : "(..., K)");
    if (which == WEIGHT && (header->rank != 2 || header->shape[1] != input->shape[input->rank - 1]))
        return message_error(EXIT_INPUT, "%s: header says shape %s; it must be (N, K) with the K of %s, %s", name, text,
                             input_name(&job->inputs[INPUT]), npy_shape_text(other, input->rank, input->shape));
    if (which < BIAS)
        return 0;
    bool one = which == SCALE && (header->rank == 0 || (header->rank == 1 && header->shape[0] == 1));
    if (!one && (header->rank != 1 || header->shape[0] != weight->shape[0]))
        return message_error(EXIT_INPUT, "%s: header says shape %s; it must be (%lld,), the features of %s%s", name,
                             text, (long long)weight->shape[0], input_name(&job->inputs[WEIGHT]),
                             which == SCALE ? ", or one number" : "");
    return 0;
}

static int open_inputs(layer_job *job)
{
    int code = inputs_open(job->inputs, job->input_paths, INPUTS);
    for (int i = 0; i < INPUTS && code == 0; i++)
        if (job->input_paths[i] && job->inputs[i].header.type >= ELEMENT_FLOATS)
            code = message_error(EXIT_INPUT, "%s: header says dtype %s; it must be f2, f4, f8 or bf16 (V2)",
                                 input_name(&job->inputs[i]), element_infos[job->inputs[i].header.type].name);
    for (int i = 0; i < INPUTS && code == 0; i++)
        if (job->input_paths[i])
            code = check_shape(job, i);
    return code;
}

/* The promoted type of input and weight, or what --dtype says if it holds that. */
static int choose_type(layer_job *job)
{
    element_type a = job->inputs[INPUT].header.type, b = job->inputs[WEIGHT].header.type;
    element_type promoted = a == b ? a : a == ELEMENT_F64 || b == ELEMENT_F64 ? ELEMENT_F64 : ELEMENT_F32;
    job->type = promoted;
    if (!options_given(job->options, "dtype"))
        return 0;
    job->type = (element_type)options_choice(job->options, "dtype");
    if (job->type == promoted || (job->type > promoted && job->type >= ELEMENT_F32))
        return 0;
    return message_error(EXIT_USAGE, "--dtype: %s; it must hold %s, the type of %s and %s",
                         options_text(job->options, "dtype"), element_infos[promoted].name,
                         input_name(&job->inputs[INPUT]), input_name(&job->inputs[WEIGHT]));
}

/* ---- the work ---------------------------------------------------------------------------------------------------- */

/* Statistics that are updated are copied into their new files first; a new layer begins with 0 and 1. */
static int open_statistics(layer_job *job, int which)
{
    const input_file *from = &job->inputs[which == MEAN_OUT ? RUNNING_MEAN : RUNNING_VAR];
    element_type type = from->path ? from->header.type : job->type == ELEMENT_F64 ? ELEMENT_F64 : ELEMENT_F32;
    int64_t features = job->inputs[WEIGHT].header.shape[0];
    int code = output_open(&job->outputs[which], job->output_paths[which], type, 1, &features);
    if (code)
        return code;
    onepass_tensor to = output_tensor(&job->outputs[which]);
    unsigned char *bytes = (unsigned char *)to.data + to.byte_offset;
    if (from->path)
        memcpy(bytes, from->bytes + from->header.data_offset, (size_t)from->header.data_bytes);
    for (int64_t j = 0; j < features && !from->path; j++)
        element_store(type, bytes, (size_t)j, which == VAR_OUT);
    return 0;
}

static int open_outputs(layer_job *job)
{
    const npy_header *input = &job->inputs[INPUT].header;
    int code = output_check(job->output_paths, OUTPUTS, job->inputs, INPUTS);
    if (code)
        return code;
    int64_t shape[NPY_MAX_RANK];
    memcpy(shape, input->shape, sizeof shape);
    shape[input->rank - 1] = job->inputs[WEIGHT].header.shape[0];
    code = output_open(&job->outputs[OUTPUT], job->output_paths[OUTPUT], job->type, input->rank, shape);
    for (int i = MEAN_OUT; i < OUTPUTS && code == 0; i++)
        if (job->output_paths[i])
            code = open_statistics(job, i);
    return code;
}

static int create_handle(layer_job *job)
{
    onepass_config config = {
        .size = sizeof config,
        .device = job->device,
        .threads = (int32_t)options_integer(job->options, "threads"),
        .progress = job->device.type == ONEPASS_CPU ? progress_update : NULL,
        .fp32_products = options_choice(job->options, "fp32-products"),
    };
    onepass_status status = onepass_create(&config, &job->handle);
    return status == ONEPASS_OK ? 0 : message_library_error(status);
}

static const onepass_tensor *given(const layer_job *job, const onepass_tensor *in, int which)
{
    return job->input_paths[which] ? &in[which] : NULL;
}

static tool_call linear_call(const layer_job *job, const onepass_tensor *in, const onepass_tensor *out)
{
    tool_call call = call_of("linear");
    call_tensor(&call, "input", &in[INPUT]);
    call_tensor(&call, "weight", &in[WEIGHT]);
    call_tensor(&call, "bias", given(job, in, BIAS));
    call_tensor(&call, "output", &out[OUTPUT]);
    return call;
}

/* The running statistics are read without --train; with it they are updated in their new files, or not there. */
static tool_call head_call(const layer_job *job, const onepass_tensor *in, const onepass_tensor *out,
                           const onepass_tensor *scale, const onepass_tensor *counter)
{
    bool updates = job->train && job->output_paths[MEAN_OUT], cumulative = job->train && is_cumulative(job);
    tool_call call = call_of("head");
    call_tensor(&call, "input", &in[INPUT]);
    call_tensor(&call, "weight", &in[WEIGHT]);
    call_tensor(&call, "options.bias", given(job, in, BIAS));
    call_tensor(&call, "options.gamma", given(job, in, GAMMA));
    call_tensor(&call, "options.beta", given(job, in, BETA));
    call_tensor(&call, "options.scale", job->one_scale ? scale : given(job, in, SCALE));
    if (!job->train || updates) {
        call_tensor(&call, "options.running_mean", updates ? &out[MEAN_OUT] : &in[RUNNING_MEAN]);
        call_tensor(&call, "options.running_var", updates ? &out[VAR_OUT] : &in[RUNNING_VAR]);
    }
    call_tensor(&call, "options.batches_tracked", cumulative ? counter : NULL);
    call_tensor(&call, "output", &out[OUTPUT]);
    call_option(&call, "options.statistics", job->train ? ONEPASS_BATCH_STATISTICS : ONEPASS_RUNNING_STATISTICS);
    call_option(&call, "options.cumulative", cumulative);
    call_option(&call, "options.eps", options_real(job->options, "eps"));
    call_option(&call, "options.momentum", job->train && !cumulative ? job->momentum : 0);
    return call;
}

/* On the CPU the workspace must be there to be filled; a device says so itself. */
static int check_room(const layer_job *job, const tool_call *call)
{
    size_t bytes = 0;
    if (job->device.type != ONEPASS_CPU)
        return 0;
    onepass_status status = call_workspace_size(call, job->handle, &bytes);
    if (status != ONEPASS_OK)
        return message_library_error(status);
    return room_for(bytes) ? 0 : message_error(EXIT_INPUT, "no memory for a workspace of %zu bytes", bytes);
}

static int compute(layer_job *job)
{
    onepass_tensor in[INPUTS], out[OUTPUTS];
    for (int i = 0; i < INPUTS; i++)
        in[i] = input_tensor(&job->inputs[i]);
    for (int i = 0; i < OUTPUTS; i++)
        out[i] = output_tensor(&job->outputs[i]);
    const onepass_tensor scale = {.data = &job->scale, .device = {ONEPASS_CPU, 0}, .dtype = ONEPASS_F64};
    const onepass_tensor counter = {.data = &job->batches, .device = {ONEPASS_CPU, 0}, .dtype = ONEPASS_I64};
    tool_call call = job->head ? head_call(job, in, out, &scale, &counter) : linear_call(job, in, out);
    int code = check_room(job, &call);
    if (code)
        return code;
    progress_begin(job->head ? "head" : "linear", options_given(job->options, "quiet"));
    double begun = clock_seconds();
    onepass_status status = call_run(&call, job->handle);
    job->seconds = clock_seconds() - begun;
    progress_clear();
    return status == ONEPASS_OK ? 0 : message_library_error(status);
}

/* ---- the result -------------------------------------------------------------------------------------------------- */

static void print_json(const layer_job *job)
{
    json_writer json = json_begin(stdout, job->head ? "head" : "linear");
    const npy_header *output = &job->outputs[OUTPUT].header;
    json_shape(&json, "shape", output->rank, output->shape);
    json_string(&json, "dtype", element_infos[job->type].name);
    if (job->head) {
        json_boolean(&json, "train", job->train);
        json_number(&json, "eps", options_real(job->options, "eps"));
        if (is_cumulative(job) && job->train)
            json_integer(&json, "batches", job->batches);
    }
    device_print_json(&json, job->handle, job->options);
    json_number(&json, "seconds", job->seconds);
    json_strings(&json, "written", OUTPUTS, job->output_paths);
    json_end(&json);
}

static int deliver(layer_job *job)
{
    int code = outputs_seal(job->outputs, OUTPUTS);
    if (code)
        return code;
    if (options_given(job->options, "json"))
        print_json(job);
    return outputs_publish(job->outputs, OUTPUTS);
}

static int run(layer_job *job)
{
    int code = check_options(job);
    if (code == 0)
        code = open_inputs(job);
    if (code == 0)
        code = choose_type(job);
    if (code == 0 && job->train && job->inputs[INPUT].header.shape[0] == 1)
        code = message_error(EXIT_INPUT, "%s: a batch of 1; --train needs at least 2 rows",
                             input_name(&job->inputs[INPUT]));
    if (code == 0)
        code = create_handle(job);
    if (code == 0)
        code = open_outputs(job);
    if (code == 0)
        code = compute(job);
    return code ? code : deliver(job);
}

static int finish(layer_job *job)
{
    int code = run(job);
    outputs_close(job->outputs, OUTPUTS);
    inputs_close(job->inputs, INPUTS);
    onepass_destroy(job->handle);
    return code;
}

int command_head(const parsed_options *options)
{
    layer_job job = {.options = options, .head = true, .train = options_given(options, "train")};
    job.input_paths[INPUT] = options_text(options, "X.npy");
    job.input_paths[WEIGHT] = options_text(options, "weight");
    for (int i = BIAS; i < INPUTS; i++)
        job.input_paths[i] = options_text(options, input_options[i]);
    for (int i = 0; i < OUTPUTS; i++)
        job.output_paths[i] = options_text(options, output_options[i]);
    job.one_scale = job.input_paths[SCALE] && options_looks_real(job.input_paths[SCALE]); /* otherwise a file's name */
    if (job.one_scale)
        job.input_paths[SCALE] = NULL;
    return finish(&job);
}

int command_linear(const parsed_options *options)
{
    layer_job job = {.options = options};
    job.input_paths[INPUT] = options_text(options, "X.npy");
    job.input_paths[WEIGHT] = options_text(options, "W.npy");
    job.input_paths[BIAS] = options_text(options, "bias");
    job.output_paths[OUTPUT] = options_text(options, "output");
    return finish(&job);
}
