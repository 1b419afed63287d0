/* Finds libcuda.so.1 and its functions, once per process. See driver.h. Creates no context and allocates nothing. */
#include "cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/cancel.h"
#include "core/loading.h"

/* The functions in driver.h have had these symbols since CUDA 11.0. */
enum { OLDEST_VERSION = 11000 };

static onep_driver driver;
static char missing[256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* POSIX lets an object pointer become a function pointer; C has no conversion for it. */
static int find(void *library, const char *symbol, void *function, size_t size)
{
    void *address = dlsym(library, symbol);
    if (!address) {
        snprintf(missing, sizeof missing, "the driver is too old: it has no %s; CUDA %d.%d or newer is needed", symbol,
                 OLDEST_VERSION / 1000, OLDEST_VERSION % 1000 / 10);
        return 0;
    }
    memcpy(function, &address, size);
    return 1;
}

static int find_all(void *library)
{
#define FUNCTION(member, symbol, parameters)                                                                           \
    if (!find(library, symbol, &driver.member, sizeof driver.member))                                                  \
        return 0;
    ONEP_DRIVER_FUNCTIONS(FUNCTION)
#undef FUNCTION
    void *optional = dlsym(library, "cuLaunchKernelEx");
    memcpy(&driver.cuLaunchKernelEx, &optional, sizeof optional);
    optional = dlsym(library, "cuTensorMapEncodeTiled");
    memcpy(&driver.cuTensorMapEncodeTiled, &optional, sizeof optional);
    return 1;
}

static int start(void)
{
    int error = driver.cuInit(0);
    if (error == 0)
        error = driver.cuDriverGetVersion(&driver.version);
    if (error == 0)
        error = driver.cuDeviceGetCount(&driver.devices);
    if (error != 0) {
        char text[160];
        onep_driver_text(error, text, sizeof text);
        snprintf(missing, sizeof missing, "the driver does not start: %s", text);
        return 0;
    }
    if (driver.devices < 1) {
        snprintf(missing, sizeof missing, "the driver shows no device");
        return 0;
    }
    if (driver.version < OLDEST_VERSION) {
        snprintf(missing, sizeof missing, "the driver is too old: it is for CUDA %d.%d, %d.%d or newer is needed",
                 driver.version / 1000, driver.version % 1000 / 10, OLDEST_VERSION / 1000, OLDEST_VERSION % 1000 / 10);
        return 0;
    }
    return 1;
}

static void load(void)
{
    if (!onep_can_load_libraries()) {
        snprintf(missing, sizeof missing, "this program is linked statically: libcuda.so.1 cannot be loaded");
        return;
    }
    /* Never closed: a driver that has started threads of its own cannot be unloaded. */
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        snprintf(missing, sizeof missing, "%s", why ? why : "libcuda.so.1 cannot be loaded");
        return;
    }
    if (find_all(library))
        start();
}

const onep_driver *onep_driver_get(void)
{
    onep_load_once(&once, load);
    return missing[0] ? NULL : &driver;
}

const char *onep_driver_missing(void)
{
    onep_load_once(&once, load);
    return missing;
}

void onep_driver_text(int error, char *text, size_t size)
{
    const char *name = NULL, *words = NULL;
    if (driver.cuGetErrorName)
        driver.cuGetErrorName(error, &name);
    if (driver.cuGetErrorString)
        driver.cuGetErrorString(error, &words);
    if (name)
        snprintf(text, size, "%s, %s", name, words ? words : "no description");
    else
        snprintf(text, size, "CUDA error %d", error);
}
