/*
 * onepass kl and onepass xent: from .npy files to a loss and its gradients. Everything about the files and options is
 * checked before an output is touched; the arrays themselves go from file to library to file without a copy.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "call.h"
#include "clock.h"
#include "commands.h"
#include "device.h"
#include "files.h"
#include "json.h"
#include "kl_forms.h"
#include "message.h"
#include "progress.h"

enum { PREDICTIONS, TARGETS, TOP_INDICES, LABELS, WEIGHTS, MASK, CLASS_WEIGHTS, INPUTS };
enum { VALUE, GRAD_PREDICTIONS, GRAD_TARGETS, OUTPUTS };

/* What the command calls an input, what an error calls it, and what the operators do. */
static const struct {
    const char *word, *role, *name;
} input_words[INPUTS] = {
    [PREDICTIONS] = {"predictions", "predictions", "predictions"},
    [TARGETS] = {"targets", "targets", "targets"},
    [TOP_INDICES] = {"top_k", "indices", "top_indices"},
    [LABELS] = {"labels", "labels", "labels"},
    [WEIGHTS] = {"weights", "weights", "row_weights"},
    [MASK] = {"mask", "a mask", "row_mask"},
    [CLASS_WEIGHTS] = {"class_weights", "class weights", "class_weights"},
};

typedef struct loss_job {
    const parsed_options *options;
    const char *operator_name;
    bool from_logits;
    const char *input_paths[INPUTS], *output_paths[OUTPUTS]; /* NULL: not given */
    input_file inputs[INPUTS];
    output_file outputs[OUTPUTS];
    onepass_device device;
    onepass_handle *handle;
    onepass_reduction reduction;
    element_type type; /* of the value */
    double value, seconds;
} loss_job;

static bool is_scalar(const loss_job *job)
{
    return job->reduction != ONEPASS_ROWS && job->reduction != ONEPASS_NONE;
}

/* The targets are the values of k columns a row. */
static bool is_top_k(const loss_job *job)
{
    return job->input_paths[TOP_INDICES] != NULL;
}

static bool uses_stdout(const loss_job *job)
{
    return files_have_dash(job->output_paths, OUTPUTS);
}

/* ---- rules that need no file ------------------------------------------------------------------------------------- */

static int check_divisor(loss_job *job)
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

/* What only losses from logits have; kl refuses it for other predictions. */
static const struct {
    const char *option, *name;
} logits_numbers[] = {
    {"temperature", "options.temperature"},
    {"softcap", "options.softcap"},
    {"columns", "options.columns"},
    {"ignore-index", "options.ignore_index"},
    {"label-weight", "options.label_weight"},
    {"label-smoothing", "options.label_smoothing"},
    {"z-loss", "options.z_loss"},
    {"mixture", "options.mixture"},
    {"target-temperature", "options.target_temperature"},
    {"weight", "options.divergence_weight"},
};
enum { LOGITS_NUMBERS = sizeof logits_numbers / sizeof logits_numbers[0] };

static int check_top_k(const loss_job *job)
{
    const parsed_options *options = job->options;
    if (options->command != COMMAND_KL)
        return 0;
    if (!is_top_k(job))
        return options_given(options, "outside") ? message_error(EXIT_USAGE, "--outside needs --top-k") : 0;
    if (!job->from_logits)
        return message_error(EXIT_USAGE, "--top-k needs --pred logits");
    if (options_choice(options, "divergence") > ONEPASS_REVERSE_KL)
        return message_error(EXIT_USAGE, "--divergence %s with --top-k; it has kl and reverse-kl",
                             options_text(options, "divergence"));
    if (job->output_paths[GRAD_TARGETS])
        return message_error(EXIT_USAGE, "--grad-target with --top-k; there is no gradient to such targets");
    return 0;
}

static int check_logits(const loss_job *job)
{
    const parsed_options *options = job->options;
    if (job->from_logits && job->reduction == ONEPASS_NONE)
        return message_error(EXIT_USAGE,
                             "--reduction none with logits; there is one value a row at most, --reduction rows");
    if (job->from_logits)
        return 0;
    if (job->reduction == ONEPASS_VALID)
        return message_error(EXIT_USAGE, "--reduction valid needs --pred logits");
    if (options_choice(options, "target") == FORM_LOGITS)
        return message_error(EXIT_USAGE, "--target logits needs --pred logits");
    if (options_given(options, "divergence"))
        return message_error(EXIT_USAGE, "--divergence needs --pred logits");
    if (options_given(options, "labels"))
        return message_error(EXIT_USAGE, "--labels needs --pred logits");
    for (int i = 0; i < LOGITS_NUMBERS; i++)
        if (options_given(options, logits_numbers[i].option))
            return message_error(EXIT_USAGE, "--%s needs --pred logits", logits_numbers[i].option);
    return 0;
}

static int check_options(loss_job *job)
{
    const parsed_options *options = job->options;
    int code = device_option(options, &job->device);
    if (code == 0)
        code = check_top_k(job);
    if (code == 0)
        code = check_logits(job);
    if (code == 0)
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

static int check_type(const loss_job *job, int which)
{
    const input_file *file = &job->inputs[which];
    element_type type = file->header.type;
    bool is_byte = type == ELEMENT_BOOL || type == ELEMENT_U8, is_index = type == ELEMENT_I32 || type == ELEMENT_I64;
    bool wants_index = which == LABELS || which == TOP_INDICES;
    if (which == MASK ? is_byte : wants_index ? is_index : type < ELEMENT_FLOATS)
        return 0;
    return message_error(EXIT_INPUT, "%s: header says dtype %s; %s must be %s", input_name(file),
                         element_infos[type].name, input_words[which].role,
                         which == MASK ? "b1, u1 or i1"
                         : wants_index ? "i4 or i8"
                                       : "f2, f4, f8 or bf16 (V2)");
}

/* Values of k columns have the predictions' shape but for the last dimension, their indices the values' shape. */
static int check_top_k_shape(const loss_job *job, int which)
{
    const input_file *like = &job->inputs[which == TARGETS ? PREDICTIONS : TARGETS];
    const npy_header *of = &like->header, *header = &job->inputs[which].header;
    int same = which == TARGETS && of->rank > 0 ? of->rank - 1 : of->rank;
    if (header->rank == of->rank && memcmp(header->shape, of->shape, (size_t)same * sizeof of->shape[0]) == 0)
        return 0;
    char text[NPY_MAX_SHAPE_TEXT], wanted[NPY_MAX_SHAPE_TEXT];
    return message_error(EXIT_INPUT, "%s: header says shape %s; it must be %s, the shape of %s%s",
                         input_name(&job->inputs[which]), npy_shape_text(text, header->rank, header->shape),
                         npy_shape_text(wanted, of->rank, of->shape), input_name(like),
                         which == TARGETS ? ", but for the last dimension" : "");
}

static int check_shape(const loss_job *job, int which)
{
    if (which == TOP_INDICES || (which == TARGETS && is_top_k(job)))
        return check_top_k_shape(job, which);
    const npy_header *of = &job->inputs[PREDICTIONS].header, *header = &job->inputs[which].header;
    int rank = which == TARGETS || of->rank == 0 ? of->rank : of->rank - 1;
    const int64_t *shape = of->shape;
    if (which == CLASS_WEIGHTS && of->rank > 0) {
        shape += rank;
        rank = 1;
    }
    if (header->rank == rank && memcmp(header->shape, shape, (size_t)rank * sizeof shape[0]) == 0)
        return 0;
    char text[NPY_MAX_SHAPE_TEXT], wanted[NPY_MAX_SHAPE_TEXT];
    return message_error(EXIT_INPUT, "%s: header says shape %s; it must be %s, %s of %s",
                         input_name(&job->inputs[which]), npy_shape_text(text, header->rank, header->shape),
                         npy_shape_text(wanted, rank, shape),
                         which == TARGETS         ? "the shape"
                         : which == CLASS_WEIGHTS ? "the last dimension"
                                                  : "the shape without its last dimension",
                         input_name(&job->inputs[PREDICTIONS]));
}

static int open_inputs(loss_job *job)
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

static int open_outputs(loss_job *job)
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

static int create_handle(loss_job *job)
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

static int compute(loss_job *job)
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
    static const char *const out_names[OUTPUTS] = {"value", "grad_predictions", "grad_targets"};
    tool_call call = call_of(job->operator_name);
    for (int i = 0; i < INPUTS; i++)
        if (job->input_paths[i])
            call_tensor(&call, i == TARGETS && is_top_k(job) ? "top_values" : input_words[i].name, &in[i]);
    for (int i = 0; i < OUTPUTS; i++)
        if (i == VALUE || job->output_paths[i])
            call_tensor(&call, out_names[i], &out[i]);
    call_option(&call, "options.reduction", (int)job->reduction);
    call_option(&call, "options.semantics",
                options_choice(job->options, "semantics") ? ONEPASS_FINITE : ONEPASS_STRICT);
    call_option(&call, "options.divisor",
                job->reduction == ONEPASS_DIVISOR ? options_real(job->options, "divisor") : 0);
    for (int i = 0; i < LOGITS_NUMBERS; i++)
        if (options_given(job->options, logits_numbers[i].option))
            call_option(&call, logits_numbers[i].name, options_real(job->options, logits_numbers[i].option));
    if (options_given(job->options, "ignore-index"))
        call_option(&call, "options.has_ignore_index", 1);
    if (options_given(job->options, "divergence"))
        call_option(&call, "options.divergence", options_choice(job->options, "divergence"));
    if (is_top_k(job)) {
        static const onepass_top_values forms[] = {ONEPASS_TOP_PROBS, ONEPASS_TOP_LOG_PROBS, ONEPASS_TOP_LOGITS};
        call_option(&call, "options.top_values", forms[options_choice(job->options, "target")]);
        call_option(&call, "options.outside", options_choice(job->options, "outside"));
    }
    progress_begin(job->options->command == COMMAND_KL ? "kl" : "xent", options_given(job->options, "quiet"));
    double begun = clock_seconds();
    onepass_status status = call_run(&call, job->handle);
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

static void print_json(const loss_job *job)
{
    bool is_kl = job->options->command == COMMAND_KL;
    json_writer json = json_begin(stdout, is_kl ? "kl" : "xent");
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
    if (is_kl) {
        json_string(&json, "pred", options_text(job->options, "pred"));
        json_string(&json, "target", options_text(job->options, "target"));
    }
    if (is_kl && job->from_logits)
        json_string(&json, "divergence", options_text(job->options, "divergence"));
    if (is_top_k(job))
        json_string(&json, "outside", options_text(job->options, "outside"));
    json_string(&json, "dtype", element_infos[job->type].name);
    for (int i = 0; i < INPUTS; i++)
        if (job->input_paths[i])
            print_input(&json, input_words[i].word, &job->inputs[i]);
    json_string(&json, "device", options_text(job->options, "device"));
    json_string(&json, "isa", onepass_isa(job->handle));
    json_integer(&json, "threads", onepass_threads(job->handle));
    json_number(&json, "seconds", job->seconds);
    json_strings(&json, "written", OUTPUTS, job->output_paths);
    json_end(&json);
}

static void print_value(const loss_job *job)
{
    if (isnan(job->value))
        puts("nan"); /* printf may say "-nan" */
    else
        printf("%.*g\n", job->type == ELEMENT_F64 ? 17 : 9, job->value);
}

static int deliver(loss_job *job)
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

static int run(loss_job *job)
{
    int code = check_options(job);
    if (code == 0)
        code = open_inputs(job);
    if (code)
        return code;
    bool wide = job->inputs[PREDICTIONS].header.type == ELEMENT_F64 ||
                (job->input_paths[TARGETS] && job->inputs[TARGETS].header.type == ELEMENT_F64);
    job->type = wide ? ELEMENT_F64 : ELEMENT_F32;
    code = create_handle(job);
    if (code == 0)
        code = open_outputs(job);
    if (code == 0)
        code = compute(job);
    return code ? code : deliver(job);
}

static int finish(loss_job *job)
{
    int code = run(job);
    outputs_close(job->outputs, OUTPUTS);
    inputs_close(job->inputs, INPUTS);
    onepass_destroy(job->handle);
    return code;
}

int command_kl(const parsed_options *options)
{
    static const onepass_reduction reductions[] = {ONEPASS_BATCHMEAN, ONEPASS_MEAN, ONEPASS_SUM,
                                                   ONEPASS_ROWS,      ONEPASS_NONE, ONEPASS_VALID};
    loss_job job = {
        .options = options,
        .operator_name = options_given(options, "top-k")
                             ? "divergence_logits_top_k"
                             : kl_operator(options_choice(options, "pred"), options_choice(options, "target")),
        .from_logits = options_choice(options, "pred") == FORM_LOGITS,
        .input_paths = {[PREDICTIONS] = options_text(options, "PRED.npy"),
                        [TARGETS] = options_text(options, "TARGET.npy"),
                        [TOP_INDICES] = options_text(options, "top-k"),
                        [LABELS] = options_text(options, "labels"),
                        [WEIGHTS] = options_text(options, "weights"),
                        [MASK] = options_text(options, "mask")},
        .output_paths = {options_text(options, "output"), options_text(options, "grad-pred"),
                         options_text(options, "grad-target")},
        .reduction = reductions[options_choice(options, "reduction")],
    };
    return finish(&job);
}

int command_xent(const parsed_options *options)
{
    static const onepass_reduction reductions[] = {ONEPASS_VALID, ONEPASS_SUM, ONEPASS_ROWS};
    loss_job job = {
        .options = options,
        .operator_name = "cross_entropy_logits_labels",
        .from_logits = true,
        .input_paths = {[PREDICTIONS] = options_text(options, "LOGITS.npy"),
                        [LABELS] = options_text(options, "LABELS.npy"),
                        [WEIGHTS] = options_text(options, "weights"),
                        [MASK] = options_text(options, "mask"),
                        [CLASS_WEIGHTS] = options_text(options, "class-weights")},
        .output_paths = {options_text(options, "output"), options_text(options, "grad-pred")},
        .reduction = reductions[options_choice(options, "reduction")],
    };
    return finish(&job);
}
