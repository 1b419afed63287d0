/* Reads public structures of any age. See versioned.h. */
#include "versioned.h"

#include <string.h>

#include "status.h"

onepass_status onep_read_versioned(const char *operator_name, const char *argument, const void *from, size_t first_size,
                                   void *to, size_t to_size)
{
    size_t size;
    memcpy(&size, from, sizeof size);
    if (size < first_size || size > 65536)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s.size: %zu; it must be the sizeof of the structure, %zu here",
                         operator_name, argument, size, to_size);
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
