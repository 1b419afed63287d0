/*
 * onepass, the command: finds the subcommand, parses its options by the table, runs it, and makes sure that what it
 * printed has arrived. Results are on stdout, everything else on stderr; the exit codes are in message.h.
 */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "json.h"
#include "message.h"
#include "pages.h"
#include "temporary.h"

#ifdef ONEPASS_HAVE_CUDA
#define CUDA true
#else
#define CUDA false
#endif

static int (*const functions[COMMANDS])(const parsed_options *) = {
    [COMMAND_KL] = command_kl,       [COMMAND_XENT] = command_xent,
    [COMMAND_HEAD] = command_head,   [COMMAND_LINEAR] = command_linear,
    [COMMAND_INFO] = command_info,   [COMMAND_CHECK] = command_check,
    [COMMAND_BENCH] = command_bench, [COMMAND_SWEEP] = command_sweep,
    [COMMAND_DEMO] = command_demo,   [COMMAND_COMPLETION] = command_completion,
    [COMMAND_MAN] = command_man,
};

static int print_version(bool as_json)
{
    onepass_handle *handle;
    onepass_status status = onepass_create(NULL, &handle);
    if (status != ONEPASS_OK)
        return message_library_error(status);
    const char *blas = onepass_blas(handle);
    if (as_json) {
        json_writer json = json_begin(stdout, "version");
        json_string(&json, "version", onepass_version());
        json_string(&json, "isa", onepass_isa(handle));
        if (strcmp(blas, "none") == 0)
            json_null(&json, "blas");
        else
            json_string(&json, "blas", blas);
        json_boolean(&json, "cuda", CUDA);
        json_end(&json);
    } else {
        printf("onepass %s (%s, %s, %s)\n", onepass_version(), onepass_isa(handle),
               strcmp(blas, "none") == 0 ? "no BLAS" : blas, CUDA ? "CUDA kernels built in" : "no CUDA kernels");
    }
    onepass_destroy(handle);
    return EXIT_FINE;
}

/* onepass --help and onepass --version, which take --json and --quiet like every command, and nothing else. */
static int run_alone(bool help, int count, char *arguments[])
{
    bool as_json = false;
    for (int i = 2; i < count; i++) {
        bool json = strcmp(arguments[i], "--json") == 0;
        if (!json && strcmp(arguments[i], "--quiet") != 0 && strcmp(arguments[i], "-q") != 0)
            return message_error(EXIT_USAGE, "\"%s\": %s takes no argument but --json and --quiet", arguments[i],
                                 arguments[1]);
        as_json |= json;
    }
    return help ? pages_print_help(COMMANDS, as_json) : print_version(as_json);
}

static int run(int count, char *arguments[])
{
    if (count < 2) {
        pages_usage(stderr);
        return EXIT_USAGE;
    }
    const char *name = arguments[1];
    bool help = strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0;
    if (help || strcmp(name, "--version") == 0)
        return run_alone(help, count, arguments);
    int words;
    command_id command = command_named(count - 1, arguments + 1, &words);
    if (command == COMMANDS)
        return message_error(EXIT_USAGE, "\"%s\" is not a command; see onepass --help", name);
    message_set_command(command_specs[command].name);
    parsed_options options;
    int code = options_parse(&options, command, count - 1 - words, arguments + 1 + words);
    if (code)
        return code;
    if (options.help)
        return pages_print_help(command, options_given(&options, "json"));
    return functions[command](&options);
}

/*
 * A file opened while stdin, stdout or stderr is closed gets its number, and what is printed then goes into that file.
 * So the three are open from the start, the wrong way round: reading such a stdin and writing to such a stdout fail.
 */
static bool occupy_standard_descriptors(void)
{
    for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; descriptor++)
        if (fcntl(descriptor, F_GETFD) < 0 &&
            open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY) != descriptor)
            return false;
    return true;
}

int main(int count, char *arguments[])
{
    if (!occupy_standard_descriptors())
        return EXIT_INPUT; /* there may be no stderr to say it on */
    temporary_guard_signals();
    int code = run(count, arguments);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == EXIT_FINE)
        return message_error(EXIT_INPUT, "stdout: could not be written");
    return code;
}
