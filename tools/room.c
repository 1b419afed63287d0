/* See room.h. */
#define _POSIX_C_SOURCE 200809L
#include "room.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The number after `key` at the start of a line of a file, or of its first line if the key is "". */
static bool read_number(const char *path, const char *key, uint64_t *number)
{
    FILE *file = fopen(path, "re");
    char line[256];
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file))
        found =
            strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%" SCNu64, number) == 1; /* not "max" */
    if (file)
        fclose(file);
    return found;
}

/* What a control group may still use: its limit, less what is in use and is no file that can be dropped. */
static uint64_t left_in_group(const char *directory, const char *limit_name, const char *use_name, const char *file_key)
{
    char path[1200];
    uint64_t limit, use = 0, files = 0;
    snprintf(path, sizeof path, "%s/%s", directory, limit_name);
    if (!read_number(path, "", &limit))
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s/%s", directory, use_name);
    read_number(path, "", &use);
    snprintf(path, sizeof path, "%s/memory.stat", directory);
    read_number(path, file_key, &files);
    use -= files < use ? files : use;
    return limit > use ? limit - use : 0;
}

/*
 * The least that is left in the process's group and those around it. A container may see its own group at the top,
 * whatever path it is told: paths that are not there are passed over.
 */
static uint64_t left_in_groups(void)
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    char line[1024];
    uint64_t least = UINT64_MAX;
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *first = strchr(line, ':'), *path = first ? strchr(first + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        bool unified = !first[1], memory = strcmp(first + 1, "memory") == 0;
        for (char *end = path + strlen(path); (unified || memory) && end; end = strrchr(path, '/')) {
            *end = 0;
            char directory[1100];
            snprintf(directory, sizeof directory, "/sys/fs/cgroup%s%s", unified ? "" : "/memory", path);
            uint64_t left = unified ? left_in_group(directory, "memory.max", "memory.current", "inactive_file ")
                                    : left_in_group(directory, "memory.limit_in_bytes", "memory.usage_in_bytes",
                                                    "total_inactive_file ");
            least = left < least ? left : least;
        }
    }
    if (file)
        fclose(file);
    return least;
}

bool room_for(uint64_t bytes)
{
    uint64_t kilobytes;
    if (read_number("/proc/meminfo", "MemAvailable:", &kilobytes) && bytes > kilobytes * 1024)
        return false;
    return bytes <= left_in_groups();
}

bool room_add(uint64_t *total, uint64_t count, uint64_t size)
{
    uint64_t product;
    if (!__builtin_mul_overflow(count, size, &product) && !__builtin_add_overflow(*total, product, total))
        return true;
    *total = UINT64_MAX;
    return false;
}
