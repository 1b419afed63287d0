/*
 * The compiled kernels inside this library: one image for each .cu file, and the kernels found in them, in the order of
 * onep_kernel_id. The build writes both lists (cmake/fatbin.cmake); nothing is typed twice.
 */
#ifndef ONEP_FATBIN_H
#define ONEP_FATBIN_H

typedef struct onep_fatbin_kernel {
    const char *name;
    int image; /* index into onep_fatbin_images */
} onep_fatbin_kernel;

extern const unsigned char *const onep_fatbin_images[];
extern const int onep_fatbin_image_count;
extern const onep_fatbin_kernel onep_fatbin_kernels[];

/* The CUDA release that compiled them: "13.0". */
extern const char onep_fatbin_cuda[];

#endif
