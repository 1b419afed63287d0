/* The kernels that the stand-in for the driver has: the library's own sources, compiled as C++ and run on the CPU. */
#ifndef ONEPASS_TEST_EMULATED_STANDIN_H
#define ONEPASS_TEST_EMULATED_STANDIN_H

#include <stddef.h>

/* What a launch asks for, one at a time; bytes of shared memory beside what the kernel declares. */
typedef struct emulated_shape {
    unsigned grid, block, shared_bytes;
} emulated_shape;

typedef struct emulated_kernel {
    const char *name;
    size_t args_size;
    void (*run)(const emulated_shape *shape, const void *args);
    struct emulated_kernel *next;
} emulated_kernel;

enum { EMULATED_MOST_SHARED = 227 << 10 };

/* Before anything is launched, by the kernel's own file. */
void emulated_register(emulated_kernel *kernel);

#endif
