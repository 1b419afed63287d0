/* Which points there are. See sweep_plan.h. */
#include "sweep_plan.h"

#include <stdlib.h>

#include "head_case.h"
#include "room.h"

const char *const sweep_operator_names[SWEEP_OPERATORS] = {"kl",     "kl-logits", "xent",     "token",
                                                           "linear", "head",      "head-eval"};
const char *const sweep_layout_names[LOSS_LAYOUTS] = {"contiguous", "padded", "shifted",
                                                      "transposed", "mixed",  "broadcast"};
const char *const sweep_state_names[SWEEP_STATES] = {"not reached", "measured", "refused", "over memory"};

/* Of --reductions, in the order of its choices. */
static const struct {
    const char *name;
    int reduction;
} reductions[] = {{"batchmean", ONEPASS_BATCHMEAN}, {"mean", ONEPASS_MEAN}, {"sum", ONEPASS_SUM},
                  {"rows", ONEPASS_ROWS},           {"none", ONEPASS_NONE}, {"valid", ONEPASS_VALID}};

const char *sweep_reduction_name(const sweep_point *point)
{
    for (size_t i = 0; i < sizeof reductions / sizeof reductions[0]; i++)
        if (reductions[i].reduction == point->reduction)
            return reductions[i].name;
    return "-";
}

double sweep_share(const sweep_point *point)
{
    return point->floor / point->seconds;
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

loss_case sweep_loss_case(const sweep_plan *plan, const sweep_point *point)
{
    static const loss_kind kinds[SWEEP_LOSSES] = {LOSS_KL, LOSS_KL, LOSS_XENT, LOSS_TOKEN};
    int form = point->operator_id == SWEEP_KL ? FORM_PROBS : FORM_LOGITS;
    element_type computed = point->type == ELEMENT_F64 ? ELEMENT_F64 : ELEMENT_F32;
    return (loss_case){
        .kind = kinds[point->operator_id],
        .shape = {point->rows, point->columns},
        .type = point->type,
        .value_type = point->reduction == ONEPASS_NONE ? point->type : computed,
        .label_type = ELEMENT_I64,
        .forms = {form, form},
        .indices = 1,
        .temperature = 1,
        .reduction = point->reduction == SWEEP_NO_REDUCTION ? ONEPASS_BATCHMEAN : point->reduction,
        .layout = point->layout,
        .distinct = 1 << 20,
        .seed = plan->seed,
    };
}

static uint64_t room_of(const sweep_plan *plan, const sweep_point *point)
{
    if (point->operator_id < SWEEP_LOSSES) {
        loss_case problem = sweep_loss_case(plan, point);
        return loss_case_room(&problem);
    }
    head_case problem = {.rows = point->rows, .depth = plan->depth, .columns = point->columns, .type = point->type};
    uint64_t total = head_case_room(&problem); /* and what the plain read goes over */
    room_add(&total, 1, head_case_matrices(&problem));
    return total;
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

typedef struct choice_list {
    int items[LIST_MOST], count;
} choice_list;

typedef struct sweep_lists {
    choice_list operators, types, reductions, layouts, gradients;
} sweep_lists;

/* The option's value, or with --quick a shorter list than its default. */
static const char *shorter(const parsed_options *options, const char *name, const char *quick)
{
    return options_given(options, "quick") && !options_given(options, name) ? quick : NULL;
}

static choice_list choices_of(const parsed_options *options, const char *name, const char *quick)
{
    choice_list list;
    list.count = options_choices(options, name, shorter(options, name, quick), list.items);
    return list;
}

static int compare(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

static bool has_layout(sweep_operator id, loss_layout layout)
{
    if (id >= SWEEP_LOSSES)
        return layout == LAYOUT_CONTIGUOUS || layout == LAYOUT_TRANSPOSED;
    return id == SWEEP_KL || id == SWEEP_KL_LOGITS || (layout != LAYOUT_MIXED && layout != LAYOUT_BROADCAST);
}

/* Adds a point, or only counts it while there is no room yet. */
static void add_point(sweep_plan *plan, sweep_point point)
{
    if (plan->points) {
        point.memory = room_of(plan, &point);
        point.state = point.memory > plan->memory ? SWEEP_OVER_MEMORY : SWEEP_NOT_REACHED;
        plan->points[plan->count] = point;
    }
    plan->count++;
}

/* Inference has no gradient here. */
static bool has_gradient(const choice_list *gradients, sweep_operator id, int gradient)
{
    bool asked = false;
    for (int i = 0; i < gradients->count; i++)
        asked = asked || gradients->items[i] == gradient;
    return asked && !(gradient && id == SWEEP_HEAD_EVAL);
}

/* The points of one operator, type, reduction and layout: of each shape a group, the value before the gradient. */
static void add_shapes(sweep_plan *plan, const choice_list *gradients, sweep_point point)
{
    for (int r = 0; r < plan->row_count; r++)
        for (int c = 0; c < plan->column_count; c++) {
            size_t begun = plan->count;
            point.rows = plan->rows[r];
            point.columns = plan->columns[c];
            for (int gradient = 0; gradient < 2; gradient++) {
                point.gradient = gradient;
                if (has_gradient(gradients, point.operator_id, gradient))
                    add_point(plan, point);
            }
            if (plan->count == begun)
                continue;
            if (plan->groups)
                plan->groups[plan->group_count] = begun;
            plan->group_count++;
        }
}

static void add_points(sweep_plan *plan, const sweep_lists *lists)
{
    plan->count = plan->group_count = 0;
    for (int o = 0; o < lists->operators.count; o++)
        for (int t = 0; t < lists->types.count; t++) {
            sweep_point point = {.operator_id = (sweep_operator)lists->operators.items[o],
                                 .type = (element_type)lists->types.items[t]};
            bool reduces = point.operator_id < SWEEP_TOKEN;
            for (int r = 0; r < (reduces ? lists->reductions.count : 1); r++)
                for (int l = 0; l < lists->layouts.count; l++) {
                    point.reduction = reduces ? reductions[lists->reductions.items[r]].reduction : SWEEP_NO_REDUCTION;
                    point.layout = (loss_layout)lists->layouts.items[l];
                    if (has_layout(point.operator_id, point.layout))
                        add_shapes(plan, &lists->gradients, point);
                }
        }
}

/* A sweep that ends early has then seen some of everything, and another seed sees others. */
static void shuffle(sweep_plan *plan)
{
    for (size_t i = plan->group_count; i > 1; i--) {
        size_t other = (size_t)((double)i * random_unit(plan->seed, i)), kept = plan->groups[i - 1];
        plan->groups[i - 1] = plan->groups[other];
        plan->groups[other] = kept;
    }
}

/* A quarter of what is free, up to 2 GiB: halved until it is there. */
static uint64_t default_memory(void)
{
    uint64_t bytes = (uint64_t)2 << 30;
    while (bytes > 1 << 20 && !room_for(4 * bytes))
        bytes /= 2;
    return bytes;
}

bool sweep_plan_make(sweep_plan *plan, const parsed_options *options)
{
    const sweep_lists lists = {
        .operators = choices_of(options, "operators", NULL),
        .types = choices_of(options, "dtype", "bf16,f32"),
        .reductions = choices_of(options, "reductions", NULL),
        .layouts = choices_of(options, "layouts", NULL),
        .gradients = choices_of(options, "gradients", NULL),
    };
    *plan = (sweep_plan){.depth = options_integer(options, "depth"), .seed = random_seed(options)};
    plan->memory =
        options_given(options, "memory") ? (uint64_t)(0x1p30 * options_real(options, "memory")) : default_memory();
    plan->row_count = options_integers(options, "rows", shorter(options, "rows", "1,300"), plan->rows);
    plan->column_count = options_integers(options, "cols", shorter(options, "cols", "1,1000"), plan->columns);
    qsort(plan->rows, (size_t)plan->row_count, sizeof plan->rows[0], compare);
    qsort(plan->columns, (size_t)plan->column_count, sizeof plan->columns[0], compare);
    add_points(plan, &lists); /* counts them */
    plan->points = calloc(plan->count + 1, sizeof *plan->points);
    plan->groups = calloc(plan->group_count + 1, sizeof *plan->groups);
    if (!plan->points || !plan->groups)
        return false;
    add_points(plan, &lists);
    shuffle(plan);
    return true;
}

void sweep_plan_free(sweep_plan *plan)
{
    for (size_t i = 0; plan->points && i < plan->count; i++)
        free(plan->points[i].message);
    free(plan->points);
    free(plan->groups);
    *plan = (sweep_plan){0};
}

int sweep_group_size(const sweep_plan *plan, size_t first)
{
    bool has_next = first + 1 < plan->count;
    return has_next && !plan->points[first].gradient && plan->points[first + 1].gradient ? 2 : 1;
}
