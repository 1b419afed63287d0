/* Names of levels. See level.h. */
#include "core/level.h"

#include <string.h>

static const char *const names[ONEP_ALL_LEVELS] = {
    [ONEP_REF] = "ref",       [ONEP_SCALAR] = "scalar", [ONEP_AVX2] = "avx2",
    [ONEP_AVX512] = "avx512", [ONEP_NEON] = "neon",     [ONEP_CUDA] = "cuda",
};

const char *onep_level_name(onep_level level)
{
    return names[level];
}

onep_level onep_level_named(const char *name)
{
    int level = 0;
    while (level < ONEP_LEVELS && strcmp(names[level], name) != 0)
        level++;
    return (onep_level)level;
}
