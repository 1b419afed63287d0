/*
 * An operator as constant data: its tensors and options with the rules they keep, and its kernels, level by level. From
 * this one description come the checks of a call, the generic entry point, the bindings, the copies to a device and the
 * tests' poison, guard bands, overlaps and refusals.
 *
 * A call runs through onep_call_run: everything the description says is checked, then the operator's own `solve` makes
 * the problem its kernels compute and hands it to onep_execute, which plans once, checks the workspace and runs. With
 * `bytes` set it stops after the plan: the size of the workspace is the plan's. Nothing is written to any output unless
 * every check has passed; below `solve` no argument is wrong.
 */
#ifndef ONEP_OPERATOR_H
#define ONEP_OPERATOR_H

#include "core/handle.h"
#include "core/tensor.h"

/* ---- the description --------------------------------------------------------------------------------------------- */

/* The dtype a tensor must have. */
typedef enum onep_type_rule {
    ONEP_ANY_FLOAT,      /* any of the four floating-point types */
    ONEP_ONLY_F32,       /* float32 */
    ONEP_ONLY_F64,       /* float64 */
    ONEP_LIKE,           /* that of argument `like`; any floating-point type if that one is absent */
    ONEP_HOLDS_PROMOTED, /* the type the promoting arguments promote to, or one that holds it */
    ONEP_IS_COMPUTED,    /* the type they are computed in: float64 if one of them is, float32 otherwise */
    ONEP_HOLDS_COMPUTED,
    ONEP_MASK,    /* bool or uint8 */
    ONEP_COUNTER, /* int64 */
    ONEP_INDEX,   /* int32 or int64 */
    ONEP_OPAQUE,  /* bytes of the library's own making, at a multiple of ONEP_WORKSPACE_ALIGNMENT */
} onep_type_rule;

/* Flags of an argument. */
enum {
    ONEP_SIZES = 1,     /* a question for the workspace size needs it */
    ONEP_PROMOTES = 2,  /* its dtype takes part in choosing the kernel */
    ONEP_OR_SCALAR = 4, /* no dimensions at all is a row of one column */
    ONEP_OR_ONE = 8,    /* one element, whatever its shape, stands for all */
    ONEP_IN_PLACE = 16, /* as output: may be exactly the same view as an input of the problem's full shape */
    ONEP_READ_BY = 32,  /* updated, but only read where option `by` is not 0 */
};

/*
 * One tensor: the public part says name, shape, role and whether it is required. A letter of a shape stands for the
 * extent that the first argument with it has. Where the shape depends on an option, `shapes` has one per value of
 * option `by`, and the public shape is NULL.
 */
typedef struct onep_argument {
    onepass_argument_info info;
    onep_type_rule type;
    int like; /* ONEP_LIKE: index of the argument */
    unsigned flags;
    const char *const *shapes;
    int by;
} onep_argument;

typedef struct onep_option {
    onepass_option_info info;
    const char *rule; /* of a choice: "one of onepass_reduction" */
} onep_option;

enum { ONEP_MAX_ARGUMENTS = 24, ONEP_MAX_OPTIONS = 24, ONEP_LETTERS = 26 };

/*
 * What a kernel knows of a call before it runs: places in the workspace, grids, functions. Each backend has its own
 * structure and asserts that it fits. It lies on the caller's stack, of which the processor's kernels take more
 * themselves, so theirs is the smaller one (an onep_cpu_plan by another name).
 */
typedef struct onep_plan {
    _Alignas(64) unsigned char memory[14 * 1024];
} onep_plan;

typedef struct onep_cpu_plan {
    _Alignas(64) unsigned char memory[6 * 1024];
} onep_cpu_plan;

/*
 * One kernel: computes a whole, checked problem on the handle's device. `plan` fills in the plan for a workspace at
 * that address (a multiple of ONEP_WORKSPACE_ALIGNMENT, or NULL: only sizes matter) and says how many bytes of it are
 * needed; NULL: there is nothing to plan. `run` may return device errors, never argument errors.
 */
typedef struct onep_kernel {
    onepass_status (*plan)(const onepass_handle *handle, const void *problem, char *workspace, onep_plan *plan,
                           size_t *bytes);
    onepass_status (*run)(const onepass_handle *handle, const void *problem, onep_plan *plan);
} onep_kernel;

typedef struct onep_call onep_call;

struct onepass_operator {
    const char *name; /* "kl_probs_probs": the entry point without its prefix */
    const onep_argument *arguments;
    int argument_count;
    const onep_option *options;
    int option_count;
    const char *workspace; /* what messages call it: "options.workspace" */
    int workspace_is_kept; /* the caller keeps it: it must lie at a multiple of ONEP_WORKSPACE_ALIGNMENT */
    int variant;           /* what tells operators that share a description apart */
    onepass_status (*solve)(onep_call *call);
    const onep_kernel *kernels[ONEP_ALL_LEVELS]; /* one per floating-point type; NULL: the level has none */
};
typedef struct onepass_operator onep_operator;

/* The kernels of every level that is built: name_ref, name_scalar, ..., each an array of ONEP_FLOAT_TYPES; those of the
 * processor's levels alone are for an operator that no device has. */
#define ONEP_DECLARE_KERNELS(name)                                                                                     \
    extern const onep_kernel name##_ref[], name##_scalar[], name##_avx2[], name##_avx512[], name##_neon[], name##_cuda[]
#define ONEP_KERNELS(name)                                                                                             \
    {                                                                                                                  \
        ONEP_EACH_CPU_KERNEL(name) ONEP_CUDA_KERNELS(name)                                                             \
    }
#define ONEP_CPU_KERNELS(name)                                                                                         \
    {                                                                                                                  \
        ONEP_EACH_CPU_KERNEL(name)                                                                                     \
    }
#define ONEP_EACH_CPU_KERNEL(name)                                                                                     \
    [ONEP_REF] = name##_ref, [ONEP_SCALAR] = name##_scalar,                                                            \
    ONEP_AVX2_KERNELS(name) ONEP_AVX512_KERNELS(name) ONEP_NEON_KERNELS(name)
#if defined(ONEPASS_HAVE_AVX2)
#define ONEP_AVX2_KERNELS(name) [ONEP_AVX2] = name##_avx2,
#else
#define ONEP_AVX2_KERNELS(name)
#endif
#if defined(ONEPASS_HAVE_AVX512)
#define ONEP_AVX512_KERNELS(name) [ONEP_AVX512] = name##_avx512,
#else
#define ONEP_AVX512_KERNELS(name)
#endif
#if defined(ONEPASS_HAVE_NEON)
#define ONEP_NEON_KERNELS(name) [ONEP_NEON] = name##_neon,
#else
#define ONEP_NEON_KERNELS(name)
#endif
#if defined(ONEPASS_HAVE_CUDA)
#define ONEP_CUDA_KERNELS(name) [ONEP_CUDA] = name##_cuda,
#else
#define ONEP_CUDA_KERNELS(name)
#endif

/* ---- a call ------------------------------------------------------------------------------------------------------ */

struct onep_call {
    const onep_operator *op;
    const char *name; /* what messages call it; NULL: the operator's name */
    onepass_handle *handle;
    const onepass_tensor *tensors[ONEP_MAX_ARGUMENTS]; /* in the description's order; NULL: not given */
    double options[ONEP_MAX_OPTIONS];
    void *workspace;
    size_t workspace_size;
    size_t *bytes; /* set: the call only asks how large a workspace it would need */

    /* What the checks find out. */
    int64_t extents[ONEP_LETTERS]; /* by letter; -1: no tensor given has it */
    const onepass_tensor *leading; /* whose leading dimensions '*' stands for; NULL: none yet */
    int is_scalar;                 /* the problem's tensors have no dimensions */
    onep_type promoted, computed;
};

enum { ONEP_WORKSPACE_ALIGNMENT = 256 };

/* Checks the call against its operator's description, then solves it. */
onepass_status onep_call_run(onep_call *call);

/* Plans the problem, checks the workspace, runs; or answers what the call asks, if that is the size. */
onepass_status onep_execute(onep_call *call, const void *problem);

/* The kernel a call of these types runs on this level; NULL: there is none. */
const onep_kernel *onep_kernel_of(const onep_operator *op, onep_level level, onep_type promoted);

/* The extent a letter stands for in this call. */
static inline int64_t onep_extent(const onep_call *call, char letter)
{
    return call->extents[letter - 'A'];
}

/* The operand of an argument: rows are the dimensions before the last one, or none of them has columns. */
onep_operand onep_call_operand(const onep_call *call, int argument);

/* The role of an argument in a call with these options: what is updated may be only read. */
onepass_role onep_argument_role(const onep_operator *op, int argument, const double *options);

/* A refusal: "operator: argument: NULL; it is required". */
onepass_status onep_missing(const char *operator_name, const char *argument);

/* The same of an option: "operator: option: value; it must be rule". */
onepass_status onep_refuse_option(const onep_call *call, int option, const char *rule);

/* The shape an argument must have in this call. */
const char *onep_argument_shape(const onep_call *call, int argument);

/* float64 if promoted is, float32 otherwise. */
onep_type onep_computed(onep_type promoted);

#endif
