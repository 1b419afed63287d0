/* A pure read of memory, for benchmarks: what no kernel can beat. */
#ifndef ONEP_PROBE_H
#define ONEP_PROBE_H

typedef struct onep_read_args {
    const void *data;
    unsigned long long bytes; /* a multiple of 16 */
    void *sink;               /* 4 bytes, written only if the data's words add up to one certain number */
} onep_read_args;

#endif
