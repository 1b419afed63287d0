/*
 * What the two halves of the CUDA part know of each other: kernels.cu holds the kernels and is compiled by nvcc, the
 * rest by the C++ compiler. Errors are numbers of cudaError_t; 0 is success.
 */
#ifndef ONEPASS_EXPORT_CUDA_WORDS_H
#define ONEPASS_EXPORT_CUDA_WORDS_H

enum { ONEPASS_EXPORT_TICKETS = 16384 };

/* Memory of a device that belongs to the kernels' module, there as long as the process; and what the device can do. */
typedef struct onepass_export_words {
    unsigned *tickets; /* ONEPASS_EXPORT_TICKETS words for kernels to count in, all 0 at first */
    const float *one;  /* 1 */
    int early;         /* kernels may be launched before the one in front of them has ended */
    int hopper;        /* kernels for devices of capability 9.0 alone are in the file, and this is one */
} onepass_export_words;

#define ONEPASS_EXPORT_HIDDEN extern "C" __attribute__((visibility("hidden")))

/* Loads every kernel on the current device, so that nothing is left to load within a stream capture. */
ONEPASS_EXPORT_HIDDEN int onepass_export_load(onepass_export_words *words);

/* A kernel as the runtime wants it, by its name; NULL if it is not in the file. */
ONEPASS_EXPORT_HIDDEN const void *onepass_export_kernel(const char *kernel);

/* Puts a kernel on a stream of the current device; its only argument is a structure at `args`. */
ONEPASS_EXPORT_HIDDEN int onepass_export_launch(const char *kernel, unsigned grid, unsigned block,
                                                unsigned shared_bytes, const void *args, void *stream, int early);

#endif
