/*
 * onepass kl: from .npy files to a divergence and its gradients. Everything about the files and options is checked
 * before an output is touched; the arrays themselves go from file to library to file without a copy.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "commands.h"
#include "device_memory.h"
#include "files.h"
#include "json.h"
#include "kl_call.h"
#include "message.h"
#include "progress.h"

enum { PREDICTIONS, TARGETS, WEIGHTS, MASK, INPUTS };
enum { VALUE, GRAD_PREDICTIONS, GRAD_TARGETS, OUTPUTS };

typedef struct kl_job {
    const parsed_options *options;
    const char *input_paths[INPUTS], *output_paths[OUTPUTS]; /* NULL: not given */
    input_file inputs[INPUTS];
    output_file outputs[OUTPUTS];
    onepass_device device;
    onepass_handle *handle;
    onepass_reduction reduction;
    kl_forms forms;
    element_type type; /* of the value */
    double value, seconds;
} kl_job;

static bool is_scalar(const kl_job *job)
{
    return job->reduction != ONEPASS_ROWS && job->reduction != ONEPASS_NONE;
}

static bool uses_stdout(const kl_job *job)
{
    return files_have_dash(job->output_paths, OUTPUTS);
}

/* ---- rules that need no file ------------------------------------------------------------------------------------- */

static int check_divisor(kl_job *job)
{
    if (!options_given(job->options, "divisor"))
        return 0;
    if (options_given(job->options, "reduction") && job->reduction != ONEPASS_SUM)
        return message_error(EXIT_USAGE,
                             "--divisor with --reduction %s; it divides the sum, so leave it alone or use sum",
                             options_text(job->options, "reduction"));
    if (options_real(job->options, "divisor") == 0)
        return message_error(EXIT_USAGE, "--divisor: %s; it must not be 0", options_text(job->options, "divisor"));
    job->reduction = ONEPASS_DIVISOR;
    return 0;
}

static int check_options(kl_job *job)
{
    const parsed_options *options = job->options;
    int code = device_option(options, &job->device);
    if (code)
        return code;
    code = check_divisor(job);
    if (code)
        return code;
    if (!is_scalar(job) && !job->output_paths[VALUE])
        return message_error(EXIT_USAGE, "--reduction %s gives an array; say where to write it with -o OUT.npy",
                             options_text(options, "reduction"));
    if (uses_stdout(job) && options_given(options, "json"))
        return message_error(EXIT_USAGE, "--json and an output named - would both go to stdout; name a file");
    return 0;
}

/* ---- rules about the inputs -------------------------------------------------------------------------------------- */

static int check_type(const kl_job *job, int which)
{
    const input_file *file = &job->inputs[which];
    bool is_float = file->header.type < ELEMENT_FLOATS;
    if (which == MASK ? !is_float : is_float)
        return 0;
    static const char *const roles[INPUTS] = {"predictions", "targets", "weights", "a mask"};
    return message_error(EXIT_INPUT, "%s: header says dtype %s; %s must be %s", input_name(file),
                         element_infos[file->header.type].name, roles[which],
                         which == MASK ? "b1, u1 or i1" : "f2, f4, f8 or bf16 (V2)");
}

static int check_shape(const kl_job *job, int which)
{
    const npy_header *of = &job->inputs[PREDICTIONS].header, *header = &job->inputs[which].header;
    int rank = which == TARGETS || of->rank == 0 ? of->rank : of->rank - 1;
    if (header->rank == rank && memcmp(header->shape, of->shape, (size_t)rank * sizeof of->shape[0]) == 0)
        return 0;
    char text[NPY_MAX_SHAPE_TEXT], wanted[NPY_MAX_SHAPE_TEXT];
    return message_error(
        EXIT_INPUT, "%s: header says shape %s; it must be %s, %s of %s", input_name(&job->inputs[which]),
        npy_shape_text(text, header->rank, header->shape), npy_shape_text(wanted, rank, of->shape),
        which == TARGETS ? "the shape" : "the shape without its last dimension", input_name(&job->inputs[PREDICTIONS]));
}

static int open_inputs(kl_job *job)
{
    int code = inputs_open(job->inputs, job->input_paths, INPUTS);
    for (int i = 0; i < INPUTS && code == 0; i++)
        if (job->input_paths[i])
            code = check_type(job, i);
    for (int i = TARGETS; i < INPUTS && code == 0; i++)
        if (job->input_paths[i])
            code = check_shape(job, i);
    return code;
}

/* ---- the work ---------------------------------------------------------------------------------------------------- */

static int open_outputs(kl_job *job)
{
    const npy_header *of = &job->inputs[PREDICTIONS].header;
    int code = output_check(job->output_paths, OUTPUTS, job->inputs, INPUTS);
    for (int i = 0; i < OUTPUTS && code == 0; i++) {
        if (!job->output_paths[i])
            continue;
        int rank = of->rank;
        element_type type = job->type;
        if (i == VALUE)
            rank = is_scalar(job) || rank == 0 ? 0 : job->reduction == ONEPASS_ROWS ? rank - 1 : rank;
        else
            type = job->inputs[i == GRAD_PREDICTIONS ? PREDICTIONS : TARGETS].header.type;
        code = output_open(&job->outputs[i], job->output_paths[i], type, rank, of->shape);
    }
    return code;
}

static int create_handle(kl_job *job)
{
    onepass_config config = {
        .size = sizeof config,
        .device = job->device,
        .threads = (int32_t)options_integer(job->options, "threads"),
        .progress = job->device.type == ONEPASS_CPU ? progress_update : NULL,
    };
    onepass_status status = onepass_create(&config, &job->handle);
    return status == ONEPASS_OK ? 0 : message_library_error(status);
}

static int compute(kl_job *job)
{
    onepass_tensor in[INPUTS], out[OUTPUTS];
    unsigned char scalar[8];
    for (int i = 0; i < INPUTS; i++)
        in[i] = input_tensor(&job->inputs[i]);
    for (int i = 0; i < OUTPUTS; i++)
        out[i] = output_tensor(&job->outputs[i]);
    if (!job->output_paths[VALUE])
        out[VALUE] =
            (onepass_tensor){.data = scalar, .device = {ONEPASS_CPU, 0}, .dtype = element_infos[job->type].dtype};
    onepass_kl_options options = {
        .size = sizeof options,
        .reduction = job->reduction,
        .semantics = options_choice(job->options, "semantics") ? ONEPASS_FINITE : ONEPASS_STRICT,
        .divisor = job->reduction == ONEPASS_DIVISOR ? options_real(job->options, "divisor") : 0,
        .row_weights = job->input_paths[WEIGHTS] ? &in[WEIGHTS] : NULL,
        .row_mask = job->input_paths[MASK] ? &in[MASK] : NULL,
    };
    progress_begin("kl", options_given(job->options, "quiet"));
    double begun = clock_seconds();
    onepass_status status = kl_call(job->forms, job->handle, &in[PREDICTIONS], &in[TARGETS], &options, &out[VALUE],
                                    job->output_paths[GRAD_PREDICTIONS] ? &out[GRAD_PREDICTIONS] : NULL,
                                    job->output_paths[GRAD_TARGETS] ? &out[GRAD_TARGETS] : NULL);
    job->seconds = clock_seconds() - begun;
    progress_clear();
    if (status != ONEPASS_OK)
        return message_library_error(status);
    if (is_scalar(job))
        job->value = element_load(job->type, (unsigned char *)out[VALUE].data + out[VALUE].byte_offset, 0);
    return 0;
}

/* ---- the result -------------------------------------------------------------------------------------------------- */

static void print_input(json_writer *json, const char *name, const input_file *file)
{
    json_open(json, name, '{');
    json_string(json, "file", file->path);
    json_string(json, "dtype", element_infos[file->header.type].name);
    json_shape(json, "shape", file->header.rank, file->header.shape);
    json_boolean(json, "fortran_order", file->header.fortran_order);
    json_close(json, '}');
}

static void print_json(const kl_job *job)
{
    static const char *const names[INPUTS] = {"predictions", "targets", "weights", "mask"};
    json_writer json = json_begin(stdout, "kl");
    if (is_scalar(job)) {
        json_number(&json, "value", job->value);
    } else {
        json_null(&json, "value");
        json_string(&json, "value_text", "array");
    }
    json_string(&json, "reduction",
                job->reduction == ONEPASS_DIVISOR ? "divisor" : options_text(job->options, "reduction"));
    if (job->reduction == ONEPASS_DIVISOR)
        json_number(&json, "divisor", options_real(job->options, "divisor"));
    json_string(&json, "semantics", options_text(job->options, "semantics"));
    json_string(&json, "pred", options_text(job->options, "pred"));
    json_string(&json, "target", options_text(job->options, "target"));
    json_string(&json, "dtype", element_infos[job->type].name);
    for (int i = 0; i < INPUTS; i++)
        if (job->input_paths[i])
            print_input(&json, names[i], &job->inputs[i]);
    json_string(&json, "device", options_text(job->options, "device"));
    json_string(&json, "isa", onepass_isa(job->handle));
    json_integer(&json, "threads", onepass_threads(job->handle));
    json_number(&json, "seconds", job->seconds);
    json_strings(&json, "written", OUTPUTS, job->output_paths);
    json_end(&json);
}

static void print_value(const kl_job *job)
{
    if (isnan(job->value))
        puts("nan"); /* printf may say "-nan" */
    else
        printf("%.*g\n", job->type == ELEMENT_F64 ? 17 : 9, job->value);
}

static int deliver(kl_job *job)
{
    int code = outputs_seal(job->outputs, OUTPUTS);
    if (code)
        return code;
    if (options_given(job->options, "json"))
        print_json(job);
    else if (is_scalar(job) && !uses_stdout(job))
        print_value(job);
    return outputs_publish(job->outputs, OUTPUTS);
}

static int run(kl_job *job)
{
    int code = check_options(job);
    if (code == 0)
        code = open_inputs(job);
    if (code)
        return code;
    bool wide = job->inputs[PREDICTIONS].header.type == ELEMENT_F64 || job->inputs[TARGETS].header.type == ELEMENT_F64;
    job->type = wide ? ELEMENT_F64 : ELEMENT_F32;
    code = create_handle(job);
    if (code == 0)
        code = open_outputs(job);
    if (code == 0)
        code = compute(job);
    return code ? code : deliver(job);
}

int command_kl(const parsed_options *options)
{
    static const onepass_reduction reductions[] = {ONEPASS_BATCHMEAN, ONEPASS_MEAN, ONEPASS_SUM, ONEPASS_ROWS,
                                                   ONEPASS_NONE};
    kl_job job = {
        .options = options,
        .input_paths = {options_text(options, "PRED.npy"), options_text(options, "TARGET.npy"),
                        options_text(options, "weights"), options_text(options, "mask")},
        .output_paths = {options_text(options, "output"), options_text(options, "grad-pred"),
                         options_text(options, "grad-target")},
        .reduction = reductions[options_choice(options, "reduction")],
        .forms = {options_choice(options, "pred") == 1, options_choice(options, "target") == 1},
    };
    int code = run(&job);
    outputs_close(job.outputs, OUTPUTS);
    inputs_close(job.inputs, INPUTS);
    onepass_destroy(job.handle);
    return code;
}
