/* Libraries that are looked for at run time: a BLAS, the CUDA driver, cuBLASLt. */
#ifndef ONEP_LOADING_H
#define ONEP_LOADING_H

/*
 * 0 in a fully static program. dlopen may succeed there, but brings a second C library along, whose threads and memory
 * know nothing of the first: OpenBLAS crashes at its first product. Nothing may be loaded then.
 */
int onep_can_load_libraries(void);

/* dlopen, or NULL in a fully static program. */
void *onep_open_library(const char *file, int flags);

#endif
