/* One line on stderr for everything that goes wrong. See message.h. */
#include "message.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#include "progress.h"

enum { MESSAGE_SIZE = 8192 };

static char prefix[64] = "onepass: ";

void message_set_command(const char *command)
{
    if (command)
        snprintf(prefix, sizeof prefix, "onepass %s: ", command);
    else
        snprintf(prefix, sizeof prefix, "onepass: ");
}

const char *message_prefix(void)
{
    return prefix;
}

int message_error(int code, const char *format, ...)
{
    char text[MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);

    progress_wipe();
    fputs(prefix, stderr);
    for (const char *at = text; *at; at++) {
        unsigned char byte = (unsigned char)*at;
        bool control = byte < 0x20 || byte == 0x7f;
        fprintf(stderr, control ? "\\x%02x" : "%c", byte);
    }
    fputc('\n', stderr);
    return code;
}

int message_library_error(onepass_status status)
{
    bool device = status == ONEPASS_NO_DEVICE || status == ONEPASS_DEVICE_ERROR;
    return message_error(device ? EXIT_DEVICE : EXIT_INPUT, "%s", onepass_last_error());
}
