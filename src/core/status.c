/* Status names, the per-thread message of the last failure, and the version. */
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[512];

static const char *const status_names[] = {
    [ONEPASS_OK] = "ONEPASS_OK",
    [ONEPASS_INVALID_ARGUMENT] = "ONEPASS_INVALID_ARGUMENT",
    [ONEPASS_UNSUPPORTED] = "ONEPASS_UNSUPPORTED",
    [ONEPASS_NO_DEVICE] = "ONEPASS_NO_DEVICE",
    [ONEPASS_OUT_OF_MEMORY] = "ONEPASS_OUT_OF_MEMORY",
    [ONEPASS_WORKSPACE] = "ONEPASS_WORKSPACE",
    [ONEPASS_DEVICE_ERROR] = "ONEPASS_DEVICE_ERROR",
};

onepass_status onep_fail(onepass_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

const char *onepass_status_name(onepass_status status)
{
    size_t index = (size_t)status;
    size_t count = sizeof status_names / sizeof status_names[0];
    return index < count ? status_names[index] : "unknown status";
}

const char *onepass_last_error(void)
{
    return last_error;
}

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)

const char *onepass_version(void)
{
    return TEXT(ONEPASS_VERSION_MAJOR) "." TEXT(ONEPASS_VERSION_MINOR) "." TEXT(ONEPASS_VERSION_PATCH);
}
