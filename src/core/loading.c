/* See loading.h. */
#define _GNU_SOURCE /* dl_iterate_phdr */
#include "core/loading.h"

#include <dlfcn.h>
#include <link.h>
#include <stddef.h>

/* The first object is the program itself. One that needs no dynamic linker names none, position-independent or not. */
static int names_linker(struct dl_phdr_info *object, size_t size, void *found)
{
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_INTERP)
            *(int *)found = 1;
    return 1; /* no further object */
}

int onep_can_load_libraries(void)
{
    int found = 0;
    dl_iterate_phdr(names_linker, &found);
    return found;
}

void *onep_open_library(const char *file, int flags)
{
    return onep_can_load_libraries() ? dlopen(file, flags) : NULL;
}
