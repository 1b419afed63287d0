/* The compiled kernels, byte for byte as the CUDA compiler wrote them. See fatbin.h. */
#include "cuda/fatbin.h"

/* IMAGE(name, file) for each .cu file, KERNEL(name, image) for each kernel, in order. */
#define IMAGE(name, file)                                                                                              \
    extern const unsigned char onep_fatbin_##name[] __attribute__((visibility("hidden")));                             \
    __asm__(".pushsection .rodata\n"                                                                                   \
            ".balign 64\n"                                                                                             \
            ".globl onep_fatbin_" #name "\n"                                                                           \
            ".hidden onep_fatbin_" #name "\n"                                                                          \
            "onep_fatbin_" #name ":\n"                                                                                 \
            ".incbin \"" file "\"\n"                                                                                   \
            ".popsection\n");
#include "fatbin_images.inc"
#undef IMAGE

const unsigned char *const onep_fatbin_images[] = {
#define IMAGE(name, file) onep_fatbin_##name,
#include "fatbin_images.inc"
#undef IMAGE
};

const onep_fatbin_kernel onep_fatbin_kernels[] = {
#define KERNEL(name, image) {#name, image},
#include "fatbin_kernels.inc"
#undef KERNEL
};

const int onep_fatbin_image_count = sizeof onep_fatbin_images / sizeof onep_fatbin_images[0];
const char onep_fatbin_cuda[] = ONEPASS_CUDA_RELEASE;
