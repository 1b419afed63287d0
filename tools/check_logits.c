/* See check_logits.h. */
#include "check_logits.h"

#include "cases/logits.h"

const char *const check_loss_names[CHECK_LOSSES] = {
    "divergence", "cross-entropy", "token", "linear-cross-entropy", "linear-divergence", "linear-token", "shards"};

static const char *const operators[CHECK_LOSSES][8] = {
    {"divergence_logits_logits", "divergence_logits_probs", "divergence_logits_log_probs", "divergence_logits_top_k",
     NULL},
    {"cross_entropy_logits_labels", NULL},
    {"token_log_probs", "token_log_probs_backward", NULL},
    {"linear_cross_entropy", NULL},
    {"linear_divergence", NULL},
    {"linear_token_log_probs", "linear_token_log_probs_backward", NULL},
    {"shard_states", "shard_merge", "shard_sums", "shard_merge_sums", "shard_loss", "shard_token_log_probs",
     "shard_token_log_probs_backward", NULL},
};

/* Each shape with its reason; --quick takes the first ones. */
static const int64_t shapes[][2] = {
    {5, 37},    /* a tail at every vector width */
    {3, 1},     /* one column */
    {17, 64},   /* whole vectors only */
    {40, 64},   /* more rows than are taken at a time */
    {2, 1025},  /* one more than a run of sums */
    {1, 17000}, /* several slices */
};

enum { SHAPES = sizeof shapes / sizeof shapes[0], QUICK_SHAPES = 3 };

static bool has_kernels(onepass_handle *handle, const op_case *c)
{
    size_t bytes;
    onepass_tensor there[CASE_MAX_ARGUMENTS];
    const onepass_tensor *tensors[CASE_MAX_ARGUMENTS] = {NULL};
    for (int i = 0; i < c->arguments; i++)
        if (c->argument[i].given) {
            there[i] = c->argument[i].tensor;
            there[i].device = onepass_device_of(handle);
            tensors[i] = &there[i];
        }
    return onepass_call_workspace_size(handle, c->op, tensors, c->options, &bytes) != ONEPASS_UNSUPPORTED;
}

/* Every argument at random, in one type; layouts too. */
static void choose(op_case *c, onepass_dtype type, const int64_t shape[2], case_random *random)
{
    c->leading[0] = shape[0];
    c->extents['C' - 'A'] = shape[1];
    c->extents['K' - 'A'] = 1 + case_random_below(random, shape[1] < 60 ? shape[1] : 60);
    c->extents['L' - 'A'] = 1 + case_random_below(random, 40); /* a teacher's */
    c->extents['D' - 'A'] = 1 + case_random_below(random, 60); /* of hidden states beside K indices */
    c->amount = case_random_below(random, 3) ? 50 : 0;         /* with options, or without */
    c->seed = case_random_bits(random);
    case_shuffle(c, random);
    for (int i = 0; i < c->arguments; i++) {
        c->argument[i].given = c->argument[i].info->is_required || case_random_below(random, 3) > 0;
        if (case_is_float(c->argument[i].dtype))
            c->argument[i].dtype = type;
        c->argument[i].shift = 0;
    }
    for (int i = 0; i < c->option_count; i++) {
        int32_t choices = onepass_operator_option(c->op, i)->choices;
        if (choices)
            c->options[i] = (double)case_random_below(random, choices);
    }
    case_settle(c);
}

onepass_status check_loss(check_line lines[], onepass_handle *const handles[], int levels, int loss, uint64_t seed,
                          bool quick)
{
    static op_case c;
    onepass_dtype type = element_infos[lines[0].types[0]].dtype;
    case_random random = case_random_stream(seed, (uint64_t)(loss + 1) * 100 + lines[0].types[0]);
    onepass_status status = ONEPASS_OK;
    for (const char *const *name = operators[loss]; *name; name++)
        for (int i = 0; i < (quick ? QUICK_SHAPES : SHAPES); i++)
            for (int round = 0; round < (quick ? 2 : 6) * (LOGITS_SPECIAL + 1); round++) {
                if (i >= QUICK_SHAPES && round % 5 != i % 5)
                    continue; /* large ones take turns */
                case_begin(&c, *name);
                c.family = round % c.definition->families;
                choose(&c, type, shapes[i], &random);
                if (!case_make(&c))
                    return ONEPASS_OUT_OF_MEMORY;
                for (int level = 0; level < levels && status == ONEPASS_OK; level++)
                    if (handles[level] && has_kernels(handles[level], &c))
                        status = check_one(&lines[level], &c, handles[level]);
                if (status != ONEPASS_OK)
                    return status;
            }
    return ONEPASS_OK;
}
