/* Fills the kernel tables from kernels.def, once; answers questions about levels. See kernels.h. */
#include "kernels.h"

#include <pthread.h>
#include <string.h>

#include "device.h"

/* One line of the list with its function; each operator has a member of its own kernel type. */
typedef struct entry {
    onep_kernel_line line;
    onep_kl_kernel *kl;
    onep_linear_kernel *linear;
    onep_linear_backward_kernel *linear_backward;
    onep_head_kernel *head;
    onep_head_backward_kernel *head_backward;
} entry;

static const entry entries[] = {
#define KERNEL(operator_name, type, level, function)                                                                   \
    {.line = {#operator_name, ONEP_##type, ONEP_##level, #function}, .operator_name = function},
#include "kernels.def"
#undef KERNEL
};

enum { ENTRIES = sizeof entries / sizeof entries[0] };

static const char *const level_names[ONEP_CUDA + 1] = {
    [ONEP_REF] = "ref",   [ONEP_SCALAR] = "scalar", [ONEP_AVX2] = "avx2", [ONEP_AVX512] = "avx512",
    [ONEP_NEON] = "neon", [ONEP_LEVELS] = "",       [ONEP_CUDA] = "cuda",
};

static onep_kernels tables[ONEP_CUDA + 1];
static onep_kernel_line lines[ENTRIES];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill_tables(void)
{
    for (int i = 0; i < ENTRIES; i++) {
        const entry *e = &entries[i];
        lines[i] = e->line;
        int first = (int)e->line.level;
        int last = first < ONEP_LEVELS ? ONEP_LEVELS - 1 : first;
        for (int level = first; level <= last; level++) {
            if (e->kl)
                tables[level].kl[e->line.type] = e->kl;
            if (e->linear)
                tables[level].linear[e->line.type] = e->linear;
            if (e->linear_backward)
                tables[level].linear_backward[e->line.type] = e->linear_backward;
            if (e->head)
                tables[level].head[e->line.type] = e->head;
            if (e->head_backward)
                tables[level].head_backward[e->line.type] = e->head_backward;
        }
    }
}

const onep_kernels *onep_kernels_of(onep_level level)
{
    pthread_once(&once, fill_tables);
    return &tables[level];
}

const onep_kernel_line *onep_kernel_list(size_t *count)
{
    pthread_once(&once, fill_tables);
    *count = ENTRIES;
    return lines;
}

const char *onep_level_name(onep_level level)
{
    return level_names[level];
}

onep_level onep_level_named(const char *name)
{
    int level = 0;
    while (level < ONEP_LEVELS && strcmp(level_names[level], name) != 0)
        level++;
    return (onep_level)level;
}

int onep_level_built(onep_level level)
{
    for (int i = 0; i < ENTRIES; i++)
        if (entries[i].line.level == level)
            return 1;
    return 0;
}

int onep_level_runs(onep_level level)
{
    if (!onep_level_built(level))
        return 0;
    return level == ONEP_CUDA ? onep_cuda_devices(NULL) > 0 : onep_cpu_has(level);
}

onep_level onep_best_level(void)
{
    int level = ONEP_LEVELS - 1;
    while (!onep_level_runs((onep_level)level))
        level--;
    return (onep_level)level;
}
