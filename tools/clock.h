/* Seconds on the monotonic clock. The including file asks for POSIX 2008 before its first include. */
#ifndef TOOL_CLOCK_H
#define TOOL_CLOCK_H

#include <time.h>

static inline double clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
