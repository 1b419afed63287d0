/* The option table and its parser. See options.h. */
#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "message.h"

const command_spec command_specs[COMMANDS] = {
    [COMMAND_KL] =
        {"kl", "KL divergence of two .npy files",
         "Computes KL(targets || predictions), the sum of t (log t - log p), over the last dimension of two arrays "
         "of the same shape. A scalar is printed; an array goes to -o. Gradients are written on request, in the "
         "same pass over the inputs. An existing file is replaced only when everything has succeeded."},
    [COMMAND_HEAD] =
        {"head", "linear, batch normalisation, scale and softmax of .npy files",
         "Computes softmax(S (gamma (y - mean) / sqrt(var + eps) + beta)) over the last dimension, with y = X W^T + "
         "bias. Without --train mean and var are the running statistics; with it they are those of the batch, and "
         "the running statistics are updated as a PyTorch BatchNorm1d updates them. An existing file is replaced "
         "only when everything has succeeded."},
    [COMMAND_LINEAR] =
        {"linear", "X W^T + bias of .npy files",
         "Computes X W^T + bias over the last dimension of X. An existing file is replaced only when everything has "
         "succeeded."},
    [COMMAND_INFO] =
        {"info", "version, vector levels, cores, devices, who multiplies matrices",
         "Prints what this build holds and what this machine can run of it; with --device cuda, whether that GPU "
         "can be used. Matrices are multiplied by a BLAS on the CPU and by cuBLASLt on a GPU, or by the library itself "
         "where there is none, or where ONEPASS_BLAS or ONEPASS_CUBLASLT is none."},
    [COMMAND_CHECK] =
        {"check", "every kernel against the reference, on this machine",
         "Runs every vector level this machine has, or a GPU, against the plain C reference: KL divergence over types, "
         "forms, reductions, semantics, gradients, tails, strides and special values; linear and head in both modes, "
         "with gradients. Prints one line for each level and type. Exits with 1 if a result is too far "
         "away."},
    [COMMAND_BENCH] =
        {"bench", "time and share of the memory bandwidth",
         "Measures an operator and, in turn with it, a plain read of the same bytes (and, beside the gradient, "
         "a read of both inputs with one write); for linear and head, the matrix product alone, by BLAS with as many "
         "threads (on a GPU: by cuBLASLt) if there is one. Prints median, 20% and 80% quantiles in milliseconds, GB/s "
         "(GFLOP/s), the share of the plain loop's speed, and the error against the reference (for linear and head: "
         "against the same in f64). On a GPU the arrays lie there, 256 MB are written before each run to empty its "
         "cache, and the plain loop only reads."},
    [COMMAND_DEMO] =
        {"demo", "the main job from end to end, checked",
         "Makes 4096 x 4096 fp32 predictions and targets, computes divergence and gradient, compares both with "
         "the exact values, and shows time, share of the read bandwidth and memory."},
    [COMMAND_COMPLETION] = {"completion", "a completion script for a shell",
                            "Prints the script. For bash: source <(onepass completion bash)."},
    [COMMAND_MAN] = {"man", "the manual page, in mdoc", "Prints the page. To read it: onepass man | man -l -."},
};

#define KL         (1u << COMMAND_KL)
#define HEAD       (1u << COMMAND_HEAD)
#define LINEAR     (1u << COMMAND_LINEAR)
#define INFO       (1u << COMMAND_INFO)
#define CHECK      (1u << COMMAND_CHECK)
#define BENCH      (1u << COMMAND_BENCH)
#define DEMO       (1u << COMMAND_DEMO)
#define COMPLETION (1u << COMMAND_COMPLETION)
#define EVERY      ((1u << COMMANDS) - 1)

const option_spec option_specs[] = {
    {KL, "PRED.npy", "Predictions: f2, f4, f8 or bf16 (V2); - is stdin.", .kind = OPTION_FILE, .positional = true},
    {KL, "TARGET.npy", "Targets, of the same shape; - is stdin.", .kind = OPTION_FILE, .positional = true},
    {HEAD | LINEAR, "X.npy", "Inputs, (B, K): f2, f4, f8 or bf16 (V2); linear takes (..., K); - is stdin.",
     .kind = OPTION_FILE, .positional = true},
    {LINEAR, "W.npy", "Weights, (N, K); - is stdin.", .kind = OPTION_FILE, .positional = true},
    {BENCH, "OPERATOR", "What to measure.", .kind = OPTION_CHOICE, .positional = true, .choices = "kl|head|linear"},
    {COMPLETION, "SHELL", "Which shell the script is for.", .kind = OPTION_CHOICE, .positional = true,
     .choices = "bash|zsh|fish"},

    {KL | BENCH, "pred", "What the predictions are.", .kind = OPTION_CHOICE, .choices = "probs|log-probs",
     .fallback = "probs"},
    {KL | BENCH, "target", "What the targets are.", .kind = OPTION_CHOICE, .choices = "probs|log-probs",
     .fallback = "probs"},
    {KL, "reduction",
     "batchmean divides the sum by the first dimension, mean by the number of elements; rows gives one value a row, "
     "none one an element.",
     .kind = OPTION_CHOICE, .choices = "batchmean|mean|sum|rows|none", .fallback = "batchmean"},
    {KL, "divisor", "Divides the sum by X (finite, not 0); alone or with --reduction sum.", .kind = OPTION_REAL,
     .argument = "X", .low = -HUGE_VAL, .high = HUGE_VAL},
    {KL, "semantics", "strict: special values as in PyTorch, 0 log 0 is NaN; finite: the limits, 0 log 0 is 0.",
     .kind = OPTION_CHOICE, .choices = "strict|finite", .fallback = "strict"},
    {KL, "weights", "A weight a row: f2, f4, f8 or bf16, of the shape without its last dimension.", .kind = OPTION_FILE,
     .argument = "W.npy"},
    {KL, "mask", "Rows that take part: b1, u1 or i1, of the shape without its last dimension; 0 leaves a row out.",
     .kind = OPTION_FILE, .argument = "M.npy"},
    {KL, "grad-pred", "Writes the gradient to the predictions, in their type.", .kind = OPTION_FILE,
     .argument = "G.npy"},
    {KL, "grad-target", "Writes the gradient to the targets, in their type.", .kind = OPTION_FILE, .argument = "H.npy"},
    {KL, "output", "Writes the value: f4, or f8 if an input is f8. Required with rows and none; - is stdout.",
     .kind = OPTION_FILE, .letter = 'o', .argument = "OUT.npy"},

    {HEAD, "weight", "Weights, (N, K); required.", .kind = OPTION_FILE, .argument = "W.npy"},
    {HEAD | LINEAR, "bias", "Bias of the linear layer, (N,); otherwise 0.", .kind = OPTION_FILE, .argument = "B.npy"},
    {HEAD, "gamma", "Weight of the normalisation, (N,); otherwise 1.", .kind = OPTION_FILE, .argument = "G.npy"},
    {HEAD, "beta", "Bias of the normalisation, (N,); otherwise 0.", .kind = OPTION_FILE, .argument = "E.npy"},
    {HEAD, "scale", "A number, or an array of one or (N,); otherwise 1.", .kind = OPTION_FILE,
     .argument = "NUMBER|S.npy"},
    {HEAD, "running-mean", "Running mean, (N,); required without --train.", .kind = OPTION_FILE, .argument = "M.npy"},
    {HEAD, "running-var", "Running variance, (N,); required without --train.", .kind = OPTION_FILE,
     .argument = "V.npy"},
    {HEAD, "eps", "Added to the variance.", .kind = OPTION_REAL, .argument = "X", .fallback = "1e-5", .low = 0,
     .high = HUGE_VAL},
    {HEAD, "train", "Normalises with the batch's own mean and variance.", .kind = OPTION_FLAG},
    {HEAD, "momentum", "Weight of this batch in the running statistics; none: the average of all batches.",
     .kind = OPTION_TEXT, .argument = "X|none", .fallback = "0.1"},
    {HEAD, "batches", "With --momentum none: batches before this one.", .kind = OPTION_INTEGER, .argument = "N",
     .fallback = "0", .low = 0, .high = 9007199254740991},
    {HEAD, "running-mean-out",
     "With --train: writes the running mean after this batch; without --running-mean it began with 0.",
     .kind = OPTION_FILE, .argument = "M.npy"},
    {HEAD, "running-var-out",
     "With --train: writes the running variance after this batch; without --running-var it began with 1.",
     .kind = OPTION_FILE, .argument = "V.npy"},
    {HEAD | LINEAR, "dtype", "Type of the result; otherwise that of X and W, f32 if they differ and neither is f64.",
     .kind = OPTION_CHOICE, .choices = "f16|bf16|f32|f64"},
    {HEAD | LINEAR, "output", "Writes the result; required; - is stdout.", .kind = OPTION_FILE, .letter = 'o',
     .argument = "OUT.npy"},

    {BENCH, "rows", "Rows.", .kind = OPTION_INTEGER, .argument = "R", .fallback = "4096", .low = 1,
     .high = 1099511627776},
    {BENCH, "cols", "Columns.", .kind = OPTION_INTEGER, .argument = "C", .fallback = "4096", .low = 1,
     .high = 1099511627776},
    {BENCH, "depth", "Columns of the inputs of head and linear.", .kind = OPTION_INTEGER, .argument = "K",
     .fallback = "2048", .low = 1, .high = 1099511627776},
    {BENCH, "dtype", "Type of both inputs.", .kind = OPTION_CHOICE, .choices = "f16|bf16|f32|f64", .fallback = "f32"},
    {BENCH, "grad", "Only forward with gradient to the predictions; otherwise that and forward alone.",
     .kind = OPTION_FLAG},
    {BENCH, "isa", "Vector level.", .kind = OPTION_CHOICE, .choices = "ref|scalar|avx2|avx512|neon"},
    {BENCH, "seconds", "Measures for at least S seconds (and 15 rounds).", .kind = OPTION_REAL, .argument = "S",
     .fallback = "1", .low = 0.001, .high = 3600},

    {CHECK, "quick", "Fewer shapes.", .kind = OPTION_FLAG},
    {CHECK | BENCH | DEMO, "seed", "Seed of the random inputs; otherwise taken from the clock.", .kind = OPTION_INTEGER,
     .argument = "N", .low = 0, .high = 9007199254740991},
    {KL | HEAD | LINEAR | BENCH | DEMO, "threads",
     "Threads; otherwise every core the process may use. Results do not depend on it.", .kind = OPTION_INTEGER,
     .argument = "N", .low = 1, .high = 4096},

    {HEAD | LINEAR | BENCH, "fp32-products",
     "With --device cuda, products of f32 matrices: full has the accuracy of fp32, tf32 cuts operands to 11 bits for "
     "the tensor cores, split makes two fp16 of each, vendor is cuBLAS's fp32; full is the faster of the last two. "
     "bench: for head and linear.",
     .kind = OPTION_CHOICE, .choices = "full|tf32|split|vendor", .fallback = "full"},
    {KL | HEAD | LINEAR | INFO | CHECK | BENCH, "device",
     "The CPU, or the GPU of that number; exit code 4 if it is not there.", .kind = OPTION_TEXT,
     .argument = "cpu|cuda[:N]", .fallback = "cpu"},

    {EVERY, "json", "Prints one JSON object instead.", .kind = OPTION_FLAG},
    {EVERY, "quiet", "No progress bar.", .kind = OPTION_FLAG, .letter = 'q'},
    {EVERY, "help", "Shows this.", .kind = OPTION_FLAG, .letter = 'h'},
};

const size_t option_count = sizeof option_specs / sizeof option_specs[0];
_Static_assert(sizeof option_specs / sizeof option_specs[0] <= OPTIONS, "the table must fit parsed_options");

/* ---- looking up -------------------------------------------------------------------------------------------------- */

command_id command_named(const char *name)
{
    int id = 0;
    while (id < COMMANDS && strcmp(command_specs[id].name, name) != 0)
        id++;
    return (command_id)id;
}

/* The row of an option by its long name (of `length` characters); option_count if the command has none. */
static size_t find_option(command_id command, const char *name, size_t length)
{
    size_t row = 0;
    for (; row < option_count; row++) {
        const option_spec *spec = &option_specs[row];
        if (spec->commands >> command & 1 && strlen(spec->name) == length && memcmp(spec->name, name, length) == 0)
            break;
    }
    return row;
}

static size_t find_letter(command_id command, char letter)
{
    size_t row = 0;
    while (row < option_count &&
           !(option_specs[row].commands >> command & 1 && letter && option_specs[row].letter == letter))
        row++;
    return row;
}

const char *options_text(const parsed_options *parsed, const char *name)
{
    size_t row = find_option(parsed->command, name, strlen(name));
    if (row == option_count)
        return NULL;
    return parsed->texts[row] ? parsed->texts[row] : option_specs[row].fallback;
}

bool options_given(const parsed_options *parsed, const char *name)
{
    size_t row = find_option(parsed->command, name, strlen(name));
    return row < option_count && parsed->texts[row];
}

/* The place of `text` among "a|b|c"; -1 if it is not there. */
static int choice_index(const char *choices, const char *text)
{
    size_t length = strlen(text);
    for (int index = 0;; index++) {
        const char *end = strchr(choices, '|');
        size_t width = end ? (size_t)(end - choices) : strlen(choices);
        if (width == length && memcmp(choices, text, length) == 0)
            return index;
        if (!end)
            return -1;
        choices = end + 1;
    }
}

int options_choice(const parsed_options *parsed, const char *name)
{
    size_t row = find_option(parsed->command, name, strlen(name));
    return choice_index(option_specs[row].choices, options_text(parsed, name));
}

int64_t options_integer(const parsed_options *parsed, const char *name)
{
    const char *text = options_text(parsed, name);
    return text ? strtoll(text, NULL, 10) : 0;
}

double options_real(const parsed_options *parsed, const char *name)
{
    const char *text = options_text(parsed, name);
    return text ? strtod(text, NULL) : 0;
}

/* ---- parsing ----------------------------------------------------------------------------------------------------- */

/* The whole text must be the number: no space, no unit, and for integers decimal digits only. */
static bool is_number(const option_spec *spec, const char *text)
{
    const char *digits = *text == '-' ? text + 1 : text;
    char *end;
    double value;
    errno = 0;
    if (spec->kind == OPTION_INTEGER) {
        if (!*digits || digits[strspn(digits, "0123456789")])
            return false;
        value = (double)strtoll(text, &end, 10);
    } else {
        if (!strchr("0123456789.", *digits) || !*digits)
            return false;
        value = strtod(text, &end);
        if (errno == ERANGE && isfinite(value))
            errno = 0; /* underflow: the nearest number is fine */
    }
    return errno == 0 && !*end && isfinite(value) && value >= spec->low && value <= spec->high;
}

static int check_value(const option_spec *spec, const char *text)
{
    const char *dashes = spec->positional ? "" : "--";
    if (spec->choices && choice_index(spec->choices, text) < 0)
        return message_error(EXIT_USAGE, "%s%s: \"%s\" is not one of %s", dashes, spec->name, text, spec->choices);
    if ((spec->kind == OPTION_INTEGER || spec->kind == OPTION_REAL) && !is_number(spec, text)) {
        const char *what = spec->kind == OPTION_INTEGER ? "an integer" : "a finite number";
        if (isinf(spec->high))
            return message_error(EXIT_USAGE, "%s%s: \"%s\" is not %s", dashes, spec->name, text, what);
        return message_error(EXIT_USAGE, "%s%s: \"%s\" is not %s from %.16g to %.16g", dashes, spec->name, text, what,
                             spec->low, spec->high);
    }
    if (spec->kind == OPTION_FILE && !*text)
        return message_error(EXIT_USAGE, "%s%s: \"\" is not the name of a file", dashes, spec->name);
    return 0;
}

static int take_positional(parsed_options *parsed, const char *text)
{
    for (size_t row = 0; row < option_count; row++) {
        const option_spec *spec = &option_specs[row];
        if (!option_applies(spec, (int)parsed->command, true) || parsed->texts[row])
            continue;
        parsed->texts[row] = text;
        return check_value(spec, text);
    }
    return message_error(EXIT_USAGE, "\"%s\": one argument too many; see onepass %s --help", text,
                         command_specs[parsed->command].name);
}

/* One option at arguments[*index], and its value there or in the next argument. The last of several wins. */
static int take_option(parsed_options *parsed, int count, char *const arguments[], int *index)
{
    const char *text = arguments[*index], *value = NULL;
    size_t row;
    if (text[1] == '-') {
        value = strchr(text, '=');
        row = find_option(parsed->command, text + 2, value ? (size_t)(value - text) - 2 : strlen(text + 2));
        value = value ? value + 1 : NULL;
    } else {
        row = find_letter(parsed->command, text[1]);
        value = text[2] ? text + 2 : NULL;
    }
    if (row == option_count || option_specs[row].positional)
        return message_error(EXIT_USAGE, "%s: no such option; see onepass %s --help", text,
                             command_specs[parsed->command].name);
    const option_spec *spec = &option_specs[row];
    if (spec->kind == OPTION_FLAG) {
        if (value)
            return message_error(EXIT_USAGE, "%s: --%s takes no value", text, spec->name);
        parsed->texts[row] = "";
        return 0;
    }
    if (!value && ++*index == count)
        return message_error(EXIT_USAGE, "%s: a value must follow", text);
    parsed->texts[row] = value ? value : arguments[*index];
    return check_value(spec, parsed->texts[row]);
}

int options_parse(parsed_options *parsed, command_id command, int count, char *const arguments[])
{
    *parsed = (parsed_options){.command = command};
    bool options_end = false;
    for (int i = 0; i < count; i++) {
        const char *text = arguments[i];
        int code = 0;
        if (options_end || text[0] != '-' || !text[1])
            code = take_positional(parsed, text);
        else if (strcmp(text, "--") == 0)
            options_end = true;
        else
            code = take_option(parsed, count, arguments, &i);
        if (code)
            return code;
    }
    parsed->help = options_given(parsed, "help");
    for (size_t row = 0; row < option_count && !parsed->help; row++)
        if (option_applies(&option_specs[row], (int)command, true) && !parsed->texts[row])
            return message_error(EXIT_USAGE, "%s is missing; see onepass %s --help", option_specs[row].name,
                                 command_specs[command].name);
    return 0;
}
