/* Reads and writes public structures of any age. See versioned.h. */
#include "core/versioned.h"

#include <string.h>

#include "core/status.h"

static onepass_status read_size(const char *operator_name, const char *argument, const void *structure,
                                size_t first_size, size_t known_size, size_t *size)
{
    memcpy(size, structure, sizeof *size);
    if (*size >= first_size && *size <= 65536)
        return ONEPASS_OK;
    return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s.size: %zu; it must be the sizeof of the structure, %zu here",
                     operator_name, argument, *size, known_size);
}

onepass_status onep_read_versioned(const char *operator_name, const char *argument, const void *from, size_t first_size,
                                   void *to, size_t to_size)
{
    size_t size;
    onepass_status status = read_size(operator_name, argument, from, first_size, to_size, &size);
    if (status != ONEPASS_OK)
        return status;
    memset(to, 0, to_size);
    memcpy(to, from, size < to_size ? size : to_size);
    for (size_t i = to_size; i < size; i++)
        if (((const char *)from)[i] != 0)
            return onep_fail(
                ONEPASS_UNSUPPORTED,
                "%s: %s: byte %zu of %zu is set, beyond the %zu this library (%s) knows; use a newer library",
                operator_name, argument, i, size, to_size, onepass_version());
    return ONEPASS_OK;
}

onepass_status onep_write_versioned(const char *operator_name, const char *argument, const void *from, size_t from_size,
                                    size_t first_size, void *to)
{
    size_t size;
    onepass_status status = read_size(operator_name, argument, to, first_size, from_size, &size);
    if (status != ONEPASS_OK)
        return status;
    memset(to, 0, size);
    memcpy(to, from, size < from_size ? size : from_size);
    memcpy(to, &size, sizeof size);
    return ONEPASS_OK;
}
