/* The option table and its parser. See options.h. */
#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "message.h"

const command_spec command_specs[COMMANDS] = {
    [COMMAND_KL] =
        {"kl", "KL divergence of two .npy files",
         "Computes KL(targets || predictions), the sum of t (log t - log p), over the last dimension of two arrays "
         "of the same shape; with --pred logits also other divergences. A scalar is printed; an array goes to -o. Gradients are written on request, in the "
         "same pass over the inputs. An existing file is replaced only when everything has succeeded."},
    [COMMAND_XENT] =
        {"xent", "cross-entropy of logits and labels in .npy files",
         "Computes the mean of log(sum of exp(x)) - x[label] over the rows of an array of logits whose label is not "
         "ignored. A scalar is printed; an array goes to -o. The gradient is written on request, in the same pass. An "
         "existing file is replaced only when everything has succeeded."},
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
        {"info", "version, vector levels, cores, GEMM libraries, devices",
         "Prints what this build holds and what this machine can run of it; with --device cuda, whether that GPU "
         "can be used. Matrices are multiplied by a BLAS on the CPU and by cuBLASLt on a GPU, or by the library itself "
         "where there is none, or where ONEPASS_BLAS or ONEPASS_CUBLASLT is none."},
    [COMMAND_CHECK] =
        {"check", "every kernel against exact results, on this machine",
         "Runs every vector level this machine has, or a GPU, against exact results: KL divergence over types, "
         "forms, reductions, semantics, gradients, tails, strides and special values; losses from logits; linear and "
         "head in both modes, with gradients. Prints one line for each level and type. Exits with 1 if a result is "
         "too far away."},
    [COMMAND_BENCH] =
        {"bench", "time and share of the memory bandwidth",
         "Measures an operator and, in turn with it, a plain read of the same bytes (and, beside the gradient, "
         "a read of the inputs with one write): kl is a divergence, with --pred logits that of logits; xent is "
         "cross-entropy of logits and labels; token is log-probability and entropy of logits, whose gradient is a "
         "second call that reads them again. For linear and head it is the matrix product alone, by BLAS with as many "
         "threads (on a GPU: by cuBLASLt) if there is one. Prints median, 20% and 80% quantiles in milliseconds, GB/s "
         "(GFLOP/s), the share of the plain loop's speed, and the error against the reference (for linear and head: "
         "against the same in f64). On a GPU the arrays lie there, 256 MB are written before each run to empty its "
         "cache, and the plain loop only reads. onepass bench sweep walks many shapes."},
    [COMMAND_SWEEP] =
        {"bench sweep", "every operator over shapes, types and layouts, beside its floor",
         "Walks operators, types, reductions, layouts and gradients over every pair of rows and columns that fits into "
         "the memory, in an order that --seed draws, until the time is over. Each point is measured in "
         "turn with its floor: a plain loop over the same bytes, as bench has it; of linear and head the longer of a "
         "plain read of the matrices and the operations at the rate of a 512 x 512 x 512 product (on a GPU: the "
         "product alone). To that 1 us for a call is added. share is floor / time. Prints the points with the smallest shares, "
         "and what the library refused with its message."},
    [COMMAND_DEMO] =
        {"demo", "the main job from end to end, checked",
         "Makes 4096 x 4096 fp32 predictions and targets, computes divergence and gradient, compares both with "
         "the exact values, and shows time, share of the read bandwidth and memory."},
    [COMMAND_COMPLETION] = {"completion", "a completion script for a shell",
                            "Prints the script. For bash: source <(onepass completion bash)."},
    [COMMAND_MAN] = {"man", "the manual page, in mdoc", "Prints the page. To read it: onepass man | man -l -."},
};

#define KL         (1u << COMMAND_KL)
#define XENT       (1u << COMMAND_XENT)
#define HEAD       (1u << COMMAND_HEAD)
#define LINEAR     (1u << COMMAND_LINEAR)
#define INFO       (1u << COMMAND_INFO)
#define CHECK      (1u << COMMAND_CHECK)
#define BENCH      (1u << COMMAND_BENCH)
#define SWEEP      (1u << COMMAND_SWEEP)
#define DEMO       (1u << COMMAND_DEMO)
#define COMPLETION (1u << COMMAND_COMPLETION)
#define EVERY      ((1u << COMMANDS) - 1)

const option_spec option_specs[] = {
    {KL, "PRED.npy", "Predictions: f2, f4, f8 or bf16 (V2); - is stdin.", .kind = OPTION_FILE, .positional = true},
    {KL, "TARGET.npy", "Targets, of the same shape; - is stdin.", .kind = OPTION_FILE, .positional = true},
    {XENT, "LOGITS.npy", "Logits, (..., C): f2, f4, f8 or bf16 (V2); - is stdin.", .kind = OPTION_FILE,
     .positional = true},
    {XENT, "LABELS.npy", "Labels, one a row: i4 or i8, of the shape without its last dimension; - is stdin.",
     .kind = OPTION_FILE, .positional = true},
    {HEAD | LINEAR, "X.npy", "Inputs, (B, K): f2, f4, f8 or bf16 (V2); linear takes (..., K); - is stdin.",
     .kind = OPTION_FILE, .positional = true},
    {LINEAR, "W.npy", "Weights, (N, K); - is stdin.", .kind = OPTION_FILE, .positional = true},
    {BENCH, "OPERATOR", "What to measure.", .kind = OPTION_CHOICE, .positional = true,
     .choices = "kl|xent|token|head|linear"},
    {COMPLETION, "SHELL", "Which shell the script is for.", .kind = OPTION_CHOICE, .positional = true,
     .choices = "bash|zsh|fish"},

    {KL | BENCH, "pred", "What the predictions are.", .kind = OPTION_CHOICE, .choices = "probs|log-probs|logits",
     .fallback = "probs"},
    {KL | BENCH, "target", "What the targets are; logits only beside logits.", .kind = OPTION_CHOICE,
     .choices = "probs|log-probs|logits", .fallback = "probs"},
    {KL | BENCH, "divergence", "Of logits: which divergence of predictions S from targets T.", .kind = OPTION_CHOICE,
     .choices = "kl|reverse-kl|js|skew-kl|skew-reverse-kl|tv", .fallback = "kl"},
    {KL, "top-k",
     "Of logits: the targets are the values of K columns a row, (..., K), and these, i4 or i8, are their columns; below 0 "
     "is padding.",
     .kind = OPTION_FILE, .argument = "I.npy"},
    {KL, "outside",
     "With --top-k: targets elsewhere are one more category, with what is left of 1; 0; 0, and the rest is divided by its "
     "sum; or only these columns take part.",
     .kind = OPTION_CHOICE, .choices = "tail|zero|renormalised|subset", .fallback = "tail"},
    {KL | BENCH, "mixture", "The share of js and the skew ones, between 0 and 1; bench takes 0.5 otherwise.",
     .kind = OPTION_REAL, .argument = "X", .low = 0, .high = 1},
    {KL, "weight", "Of logits: multiplies the divergence; the temperature squared, say.", .kind = OPTION_REAL,
     .argument = "X", .low = -HUGE_VAL, .high = HUGE_VAL},
    {KL | XENT | BENCH, "temperature", "Logits are divided by it.", .kind = OPTION_REAL, .argument = "X", .low = 0,
     .high = HUGE_VAL},
    {KL, "target-temperature", "That of the targets; otherwise the same.", .kind = OPTION_REAL, .argument = "X",
     .low = 0, .high = HUGE_VAL},
    {KL | XENT, "softcap", "Logits x become X tanh(x / X) first.", .kind = OPTION_REAL, .argument = "X", .low = 0,
     .high = HUGE_VAL},
    {KL | XENT, "columns", "Only the first N columns of logits count.", .kind = OPTION_INTEGER, .argument = "N",
     .low = 1, .high = 9007199254740991},
    {KL, "labels", "Of logits: labels, i4 or i8, for the label terms and for rows to be ignored.", .kind = OPTION_FILE,
     .argument = "L.npy"},
    {KL | XENT, "label-weight", "Weight of the cross-entropy; otherwise 1, beside a divergence 0.", .kind = OPTION_REAL,
     .argument = "X", .low = -HUGE_VAL, .high = HUGE_VAL},
    {KL | XENT, "label-smoothing", "Share of the cross-entropy that is spread over all columns.", .kind = OPTION_REAL,
     .argument = "X", .low = 0, .high = 1},
    {KL | XENT, "ignore-index", "Rows with this label take no part; otherwise -100.", .kind = OPTION_INTEGER,
     .argument = "N", .low = -9007199254740991, .high = 9007199254740991},
    {KL | XENT, "z-loss", "Adds X times the square of log(sum of exp(x)).", .kind = OPTION_REAL, .argument = "X",
     .low = -HUGE_VAL, .high = HUGE_VAL},
    {XENT, "class-weights", "A weight a class: f2, f4, f8 or bf16, (C,).", .kind = OPTION_FILE, .argument = "W.npy"},
    {KL, "reduction",
     "batchmean divides the sum by the first dimension, mean by the number of elements, valid (of logits) by the number "
     "of rows that take part; rows gives one value a row, none one an element.",
     .kind = OPTION_CHOICE, .choices = "batchmean|mean|sum|rows|none|valid", .fallback = "batchmean"},
    {XENT, "reduction",
     "mean divides the sum by the number (or class weights) of the rows that take part; rows gives one value a row.",
     .kind = OPTION_CHOICE, .choices = "mean|sum|rows", .fallback = "mean"},
    {KL | XENT, "divisor", "Divides the sum by X (finite, not 0); alone or with --reduction sum.", .kind = OPTION_REAL,
     .argument = "X", .low = -HUGE_VAL, .high = HUGE_VAL},
    {KL | XENT, "semantics", "strict: special values as in PyTorch, 0 log 0 is NaN; finite: the limits, 0 log 0 is 0.",
     .kind = OPTION_CHOICE, .choices = "strict|finite", .fallback = "strict"},
    {KL | XENT, "weights", "A weight a row: f2, f4, f8 or bf16, of the shape without its last dimension.",
     .kind = OPTION_FILE, .argument = "W.npy"},
    {KL | XENT, "mask",
     "Rows that take part: b1, u1 or i1, of the shape without its last dimension; 0 leaves a row out.",
     .kind = OPTION_FILE, .argument = "M.npy"},
    {KL | XENT, "grad-pred", "Writes the gradient to the predictions, in their type.", .kind = OPTION_FILE,
     .argument = "G.npy"},
    {KL, "grad-target", "Writes the gradient to the targets, in their type.", .kind = OPTION_FILE, .argument = "H.npy"},
    {KL | XENT, "output", "Writes the value: f4, or f8 if an input is f8. Required with rows and none; - is stdout.",
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
    {BENCH, "label-type", "Type of the labels of xent and of the indices of token.", .kind = OPTION_CHOICE,
     .choices = "i32|i64", .fallback = "i64"},
    {BENCH, "indices", "Indices a row of token.", .kind = OPTION_INTEGER, .argument = "N", .fallback = "1", .low = 1,
     .high = 1099511627776},
    {BENCH, "grad", "Only forward with gradient to the predictions; otherwise that and forward alone.",
     .kind = OPTION_FLAG},
    {BENCH, "isa", "Vector level.", .kind = OPTION_CHOICE, .choices = "ref|scalar|avx2|avx512|neon"},
    {BENCH, "seconds", "Measures for at least S seconds (and 15 rounds).", .kind = OPTION_REAL, .argument = "S",
     .fallback = "1", .low = 0.001, .high = 3600},

    {SWEEP, "operators", "Which, separated by commas; kl-logits is kl of logits, head is in training.",
     .kind = OPTION_CHOICE, .choices = "kl|kl-logits|xent|token|linear|head|head-eval", .is_list = true,
     .fallback = "kl,kl-logits,xent,token,linear,head,head-eval"},
    {SWEEP, "dtype", "Types.", .kind = OPTION_CHOICE, .choices = "f16|bf16|f32|f64", .is_list = true,
     .fallback = "f16,bf16,f32,f64"},
    {SWEEP, "reductions", "Of losses; token, linear and head have none.", .kind = OPTION_CHOICE,
     .choices = "batchmean|mean|sum|rows|none|valid", .is_list = true, .fallback = "batchmean,rows,none"},
    {SWEEP, "layouts",
     "padded: a gap after each row; shifted: one element off alignment; transposed: columns are contiguous; mixed: "
     "those of the targets alone; broadcast: targets are one row. linear and head have the first and transposed, "
     "losses of one input none of the last two.",
     .kind = OPTION_CHOICE, .choices = "contiguous|padded|shifted|transposed|mixed|broadcast", .is_list = true,
     .fallback = "contiguous,padded,shifted,transposed,mixed,broadcast"},
    {SWEEP, "gradients", "The value alone, with the gradient to the predictions, or both.", .kind = OPTION_CHOICE,
     .choices = "value|gradient", .is_list = true, .fallback = "value,gradient"},
    {SWEEP, "rows", "Rows, separated by commas.", .kind = OPTION_INTEGER, .argument = "LIST", .is_list = true,
     .fallback = "1,10,100,1000,10000,100000,1000000,10000000", .low = 1, .high = 1099511627776},
    {SWEEP, "cols", "Columns.", .kind = OPTION_INTEGER, .argument = "LIST", .is_list = true,
     .fallback = "1,10,100,1000,10000,100000,1000000,10000000,100000000", .low = 1, .high = 1099511627776},
    {SWEEP, "depth", "Columns of the inputs of linear and head.", .kind = OPTION_INTEGER, .argument = "K",
     .fallback = "64", .low = 1, .high = 1099511627776},
    {SWEEP, "memory", "GiB that the arrays of a point may take; otherwise a quarter of what is free, 2 at most.",
     .kind = OPTION_REAL, .argument = "G", .low = 0.00001, .high = 1048576},
    {SWEEP, "seconds", "Begins no point after so many; what is left is listed as not reached.", .kind = OPTION_REAL,
     .argument = "S", .fallback = "600", .low = 0.001, .high = 1000000},
    {SWEEP, "worst", "How many points the table has.", .kind = OPTION_INTEGER, .argument = "N", .fallback = "20",
     .low = 0, .high = 1000000},
    {SWEEP, "isa", "Vector level.", .kind = OPTION_CHOICE, .choices = "ref|scalar|avx2|avx512|neon"},
    {SWEEP, "html", "Writes a page with a map of rows and columns for each operator; - is stdout.", .kind = OPTION_FILE,
     .argument = "FILE"},
    {SWEEP, "json", "Writes every point as one JSON object; - is stdout, instead of the table.", .kind = OPTION_FILE,
     .argument = "FILE"},
    {SWEEP, "quick", "Few rows, columns and types, shorter samples: under 20 s on two cores.", .kind = OPTION_FLAG},

    {CHECK, "quick", "Fewer shapes.", .kind = OPTION_FLAG},
    {CHECK | BENCH | SWEEP | DEMO, "seed", "Seed of the random inputs; otherwise taken from the clock.",
     .kind = OPTION_INTEGER, .argument = "N", .low = 0, .high = 9007199254740991},
    {KL | XENT | HEAD | LINEAR | BENCH | SWEEP | DEMO, "threads",
     "Threads; otherwise every core the process may use. Results do not depend on it.", .kind = OPTION_INTEGER,
     .argument = "N", .low = 1, .high = 4096},

    {HEAD | LINEAR | BENCH | SWEEP, "fp32-products",
     "With --device cuda, products of f32 matrices: full has the accuracy of fp32, tf32 cuts operands to 11 bits for "
     "the tensor cores, split makes two fp16 of each, vendor is cuBLAS's fp32; full is the faster of the last two. "
     "bench: for head and linear.",
     .kind = OPTION_CHOICE, .choices = "full|tf32|split|vendor", .fallback = "full"},
    {KL | XENT | HEAD | LINEAR | INFO | CHECK | BENCH | SWEEP, "device",
     "The CPU, or the GPU of that number; exit code 4 if it is not there.", .kind = OPTION_TEXT,
     .argument = "cpu|cuda[:N]", .fallback = "cpu"},

    {EVERY & ~SWEEP, "json", "Prints one JSON object instead.", .kind = OPTION_FLAG},
    {EVERY, "quiet", "No progress bar.", .kind = OPTION_FLAG, .letter = 'q'},
    {EVERY, "help", "Shows this.", .kind = OPTION_FLAG, .letter = 'h'},
};

const size_t option_count = sizeof option_specs / sizeof option_specs[0];
_Static_assert(sizeof option_specs / sizeof option_specs[0] <= OPTIONS, "the table must fit parsed_options");

/* ---- looking up -------------------------------------------------------------------------------------------------- */

/* Whether the words of a name are the first of the given ones; how many they are, or 0. */
static int words_of(const char *name, int count, char *const words[])
{
    int used = 0;
    for (; *name; used++) {
        size_t length = strcspn(name, " ");
        if (used == count || strlen(words[used]) != length || memcmp(words[used], name, length) != 0)
            return 0;
        name += length + (name[length] == ' ');
    }
    return used;
}

command_id command_named(int count, char *const words[], int *used)
{
    int found = COMMANDS;
    *used = 0;
    for (int id = 0; id < COMMANDS; id++) {
        int length = words_of(command_specs[id].name, count, words);
        if (length > *used) {
            *used = length;
            found = id;
        }
    }
    return (command_id)found;
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

/* The place of the first `length` characters of `text` among "a|b|c"; -1 if they are not there. */
static int choice_index(const char *choices, const char *text, size_t length)
{
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
    const char *text = options_text(parsed, name);
    return choice_index(option_specs[row].choices, text, strlen(text));
}

int64_t options_integer(const parsed_options *parsed, const char *name)
{
    const char *text = options_text(parsed, name);
    return text ? strtoll(text, NULL, 10) : 0;
}

/* The next item of "a,b,c", and its length; NULL past the last one. */
static const char *next_item(const char **rest, size_t *length)
{
    const char *item = *rest;
    if (!item)
        return NULL;
    *length = strcspn(item, ",");
    *rest = item[*length] ? item + *length + 1 : NULL;
    return item;
}

int options_choices(const parsed_options *parsed, const char *name, const char *text, int items[LIST_MOST])
{
    const char *rest = text ? text : options_text(parsed, name), *item;
    const char *choices = option_specs[find_option(parsed->command, name, strlen(name))].choices;
    int count = 0;
    size_t length;
    while ((item = next_item(&rest, &length)) && count < LIST_MOST) {
        int known = 0;
        items[count] = choice_index(choices, item, length);
        while (items[known] != items[count])
            known++;
        count += known == count;
    }
    return count;
}

int options_integers(const parsed_options *parsed, const char *name, const char *text, int64_t items[LIST_MOST])
{
    const char *rest = text ? text : options_text(parsed, name), *item;
    int count = 0;
    size_t length;
    while ((item = next_item(&rest, &length)) && count < LIST_MOST) {
        int known = 0;
        items[count] = strtoll(item, NULL, 10);
        while (items[known] != items[count])
            known++;
        count += known == count;
    }
    return count;
}

double options_real(const parsed_options *parsed, const char *name)
{
    const char *text = options_text(parsed, name);
    return text ? strtod(text, NULL) : 0;
}

/* ---- parsing ----------------------------------------------------------------------------------------------------- */

bool options_looks_real(const char *text)
{
    char *end;
    strtod(text, &end);
    return end != text && !*end;
}

int options_check_real(const char *name, const char *text, double low, double high, const char *others, double *value)
{
    const char *digits = *text == '-' ? text + 1 : text;
    *value = strtod(text, NULL);
    if (options_looks_real(text) && !isfinite(*value))
        return message_error(EXIT_USAGE, "%s: \"%s\" is not a finite number%s", name, text, others);
    if (!options_looks_real(text) || !strchr("0123456789.", *digits))
        return message_error(EXIT_USAGE, "%s: \"%s\" is not a number%s", name, text, others);
    if (*value >= low && *value <= high)
        return 0;
    if (isinf(high))
        return message_error(EXIT_USAGE, "%s: %s; it must be at least %.16g", name, text, low);
    return message_error(EXIT_USAGE, "%s: %s; it must be from %.16g to %.16g", name, text, low, high);
}

/* Decimal digits only, without anything around them. */
static int check_integer(const char *name, const char *text, double low, double high)
{
    const char *digits = *text == '-' ? text + 1 : text;
    if (!*digits || digits[strspn(digits, "0123456789")])
        return message_error(EXIT_USAGE, "%s: \"%s\" is not an integer", name, text);
    errno = 0;
    double value = (double)strtoll(text, NULL, 10);
    if (errno == 0 && value >= low && value <= high)
        return 0;
    return message_error(EXIT_USAGE, "%s: %s; it must be from %.16g to %.16g", name, text, low, high);
}

static int check_value(const option_spec *spec, const char *text);

/* Each item as if it were the value. */
static int check_list(const option_spec *spec, const char *text)
{
    option_spec single = *spec;
    single.is_list = false;
    const char *rest = text, *item;
    size_t length;
    int code = 0;
    for (int count = 0; code == 0 && (item = next_item(&rest, &length)); count++) {
        char value[64];
        if (count == LIST_MOST)
            return message_error(EXIT_USAGE, "--%s: a list of more than %d", spec->name, LIST_MOST);
        snprintf(value, sizeof value, "%.*s", (int)length, item);
        code = check_value(&single, value);
    }
    return code;
}

static int check_value(const option_spec *spec, const char *text)
{
    if (spec->is_list)
        return check_list(spec, text);
    const char *dashes = spec->positional ? "" : "--";
    char name[64];
    snprintf(name, sizeof name, "%s%s", dashes, spec->name);
    if (spec->choices && choice_index(spec->choices, text, strlen(text)) < 0)
        return message_error(EXIT_USAGE, "%s: \"%s\" is not one of %s", name, text, spec->choices);
    if (spec->kind == OPTION_INTEGER)
        return check_integer(name, text, spec->low, spec->high);
    double value;
    if (spec->kind == OPTION_REAL)
        return options_check_real(name, text, spec->low, spec->high, "", &value);
    if (spec->kind == OPTION_FILE && !*text)
        return message_error(EXIT_USAGE, "%s: \"\" is not the name of a file", name);
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
