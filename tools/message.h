/*
 * Exit codes, and the one way the tool says that something is wrong: one line on stderr, "onepass kl: file: value;
 * rule". Control characters in names and values are escaped, so a hostile file cannot forge a second line or drive the
 * terminal. Never writes to stdout, never exits.
 */
#ifndef TOOL_MESSAGE_H
#define TOOL_MESSAGE_H

#include "onepass.h"

enum exit_code {
    EXIT_FINE = 0,
    EXIT_CHECK = 1,  /* a check failed */
    EXIT_USAGE = 2,  /* the command line breaks a rule */
    EXIT_INPUT = 3,  /* a file, or what is in it, breaks a rule; also no memory and failed writes */
    EXIT_DEVICE = 4, /* the device asked for is not there, or failed */
};

/* The subcommand named at the start of every message; NULL: none. The text is kept, not copied. */
void message_set_command(const char *command);

/* Prints the line and returns `code`, so that a caller can write `return message_error(EXIT_INPUT, ...)`. */
int message_error(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for a library call that failed: its message, and the exit code its status stands for. */
int message_library_error(onepass_status status);

/* The prefix of messages ("onepass kl: "), for code that may not call the functions above: signal handlers. */
const char *message_prefix(void);

#endif
