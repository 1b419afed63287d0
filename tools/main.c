/*
 * onepass, the command: finds the subcommand, parses its options by the table, runs it, and makes sure that what it
 * printed has arrived. Results are on stdout, everything else on stderr; the exit codes are in message.h.
 */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "message.h"
#include "pages.h"
#include "temporary.h"

#ifdef ONEPASS_HAVE_CUDA
#define CUDA_WORDS "CUDA kernels built in"
#else
#define CUDA_WORDS "no CUDA kernels"
#endif

static int (*const functions[COMMANDS])(const parsed_options *) = {
    [COMMAND_KL] = command_kl,         [COMMAND_HEAD] = command_head,
    [COMMAND_LINEAR] = command_linear, [COMMAND_INFO] = command_info,
    [COMMAND_CHECK] = command_check,   [COMMAND_BENCH] = command_bench,
    [COMMAND_DEMO] = command_demo,     [COMMAND_COMPLETION] = command_completion,
    [COMMAND_MAN] = command_man,
};

static int print_version(void)
{
    onepass_handle *handle;
    onepass_status status = onepass_create(NULL, &handle);
    if (status != ONEPASS_OK)
        return message_library_error(status);
    const char *blas = onepass_blas(handle);
    printf("onepass %s (%s, %s, %s)\n", onepass_version(), onepass_isa(handle),
           strcmp(blas, "none") == 0 ? "no BLAS" : blas, CUDA_WORDS);
    onepass_destroy(handle);
    return EXIT_FINE;
}

static int run(int count, char *arguments[])
{
    if (count < 2) {
        pages_usage(stderr);
        return EXIT_USAGE;
    }
    const char *name = arguments[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        pages_usage(stdout);
        return EXIT_FINE;
    }
    if (strcmp(name, "--version") == 0)
        return print_version();
    command_id command = command_named(name);
    if (command == COMMANDS)
        return message_error(EXIT_USAGE, "\"%s\" is not a command; see onepass --help", name);
    message_set_command(name);
    parsed_options options;
    int code = options_parse(&options, command, count - 2, arguments + 2);
    if (code)
        return code;
    if (options.help) {
        pages_help(stdout, command);
        return EXIT_FINE;
    }
    return functions[command](&options);
}

int main(int count, char *arguments[])
{
    temporary_guard_signals();
    int code = run(count, arguments);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == EXIT_FINE)
        return message_error(EXIT_INPUT, "stdout: could not be written");
    return code;
}
