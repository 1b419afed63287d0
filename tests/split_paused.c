/* See split_paused.h. */
#include "split_paused.h"

#include <string.h>

#include "cuda/fatbin.h"

onepass_status __real_onep_cuda_launch(const onep_cuda *cuda, const char *operator_name, const onep_launch *launch,
                                       const void *args);
onepass_status __wrap_onep_cuda_launch(const onep_cuda *cuda, const char *operator_name, const onep_launch *launch,
                                       const void *args);

#if defined(ONEPASS_HAVE_SM90A)

/* The image, byte for byte as the CUDA compiler wrote it. */
extern const unsigned char split_paused_image[] __attribute__((visibility("hidden")));
__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        ".globl split_paused_image\n"
        ".hidden split_paused_image\n"
        "split_paused_image:\n"
        ".incbin \"" SPLIT_PAUSED_IMAGE "\"\n"
        ".popsection\n");

static onep_cu_module *module;
static int is_paused;

void split_pause(onep_cu_stream *stream, const int *pauses)
{
    const onep_driver *driver = cuda_driver();
    if (!is_paused && !pauses[0] && !pauses[1])
        return;
    onep_cuda_info info;
    if (!onep_cuda_describe(0, &info) || !info.has_tma)
        return; /* the kernels are not for this device, and not used on it */
    if (!module)
        MUST(driver->cuModuleLoadData(&module, split_paused_image));
    onep_cu_function *set;
    int both[2] = {pauses[0], pauses[1]};
    void *parameters[] = {both};
    MUST(driver->cuModuleGetFunction(&set, module, "set_pauses"));
    MUST(driver->cuLaunchKernel(set, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    is_paused = pauses[0] || pauses[1];
}

onepass_status __wrap_onep_cuda_launch(const onep_cuda *cuda, const char *operator_name, const onep_launch *launch,
                                       const void *args)
{
    const char *name = onep_fatbin_kernels[launch->kernel].name;
    if (!is_paused || !strstr(name, "_product_sm90_"))
        return __real_onep_cuda_launch(cuda, operator_name, launch, args);
    const onep_driver *driver = cuda_driver();
    onep_cu_function *function;
    void *parameters[] = {(void *)(uintptr_t)args};
    onep_cu_attribute attributes[] = {{.id = ONEP_CU_CLUSTER, .value.blocks = {launch->cluster, 1, 1}},
                                      {.id = ONEP_CU_PROGRAMMATIC, .value.allowed = 1}};
    onep_cu_launch shape = {launch->grid,           1,          1, launch->block, 1, 1, launch->shared_bytes,
                            onep_cuda_stream(cuda), attributes, 2};
    MUST(driver->cuModuleGetFunction(&function, module, name));
    MUST(driver->cuFuncSetAttribute(function, ONEP_CU_MAX_SHARED, (int)launch->shared_bytes));
    MUST(driver->cuLaunchKernelEx(&shape, function, parameters, NULL));
    return ONEPASS_OK;
}

#else

void split_pause(onep_cu_stream *stream, const int *pauses)
{
    (void)stream, (void)pauses; /* the kernels are not in the library either */
}

onepass_status __wrap_onep_cuda_launch(const onep_cuda *cuda, const char *operator_name, const onep_launch *launch,
                                       const void *args)
{
    return __real_onep_cuda_launch(cuda, operator_name, launch, args);
}

#endif
