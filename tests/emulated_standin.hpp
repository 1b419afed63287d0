/* How a kernel that emulated_threads.hpp runs gets into the stand-in's table: EMULATED_KERNEL(name) after its source.
 */
#ifndef ONEPASS_TEST_EMULATED_STANDIN_HPP
#define ONEPASS_TEST_EMULATED_STANDIN_HPP

#include "emulated_threads.hpp"

extern "C" {
#include "emulated_standin.h"
}

template <class ARGS>
static void emulated_run(void (*kernel)(ARGS), const char *name, const emulated_shape *shape, const void *args)
{
    static uint64_t seed = 1;
    emulated::launch(kernel, shape->grid, shape->block, 1, *static_cast<const ARGS *>(args),
                     {name, seed++, 16, shape->shared_bytes});
}

template <class ARGS> static constexpr size_t emulated_args_size(void (*)(ARGS))
{
    return sizeof(ARGS);
}

#define EMULATED_KERNEL(name)                                                                                          \
    __attribute__((constructor)) static void register_##name()                                                         \
    {                                                                                                                  \
        static emulated_kernel kernel = {                                                                              \
            #name,                                                                                                     \
            emulated_args_size(name),                                                                                  \
            [](const emulated_shape *shape, const void *args) { emulated_run(name, #name, shape, args); },             \
            nullptr,                                                                                                   \
        };                                                                                                             \
        emulated_register(&kernel);                                                                                    \
    }

#endif
