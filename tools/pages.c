/* Help and the manual page from the option table; completion.c has the scripts. See pages.h. */
#define _POSIX_C_SOURCE 200809L
#include "pages.h"

#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "message.h"

/* Of the page itself: the day its text was last changed. */
#define MANUAL_DATE "November 16, 2026"

enum { HELP_COLUMN = 28, HELP_WIDTH = 100 };

static const struct {
    const char *code, *meaning;
} exits[] = {{"0", "Everything is fine."},
             {"1", "A check failed."},
             {"2", "The command line breaks a rule."},
             {"3", "A file, or what is in it, breaks a rule, or could not be read or written."},
             {"4", "The device is not there, or failed."}};

static const struct {
    const char *command, *meaning;
} examples[] = {
    {"onepass kl student.npy teacher.npy", "The divergence, averaged over the batch:"},
    {"onepass kl student.npy teacher.npy --pred log-probs --grad-pred g.npy",
     "The same from log-probabilities, with the gradient:"},
    {"onepass kl student.npy teacher.npy --reduction rows -o rows.npy", "One value a row:"},
    {"onepass bench kl --rows 4096 --cols 32000 --dtype bf16", "How fast it is here:"},
};

/* What help calls the value of an option; NULL for a flag. */
static const char *argument_of(const option_spec *spec)
{
    return spec->argument ? spec->argument : spec->choices;
}

/* ---- help -------------------------------------------------------------------------------------------------------- */

/* Words from `column` on, each line begun at `indent`. */
static void wrap(FILE *stream, const char *text, int column, int indent)
{
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (column > indent && column + 1 + length > HELP_WIDTH) {
            fprintf(stream, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', stream);
            column++;
        }
        fprintf(stream, "%.*s", length, text);
        column += length;
        text += length + (text[length] == ' ');
    }
    fputc('\n', stream);
}

static void help_line(FILE *stream, const char *term, const option_spec *spec)
{
    int used = fprintf(stream, "  %s", term);
    if (used > HELP_COLUMN - 2)
        used = fprintf(stream, "\n") - 1;
    fprintf(stream, "%*s", HELP_COLUMN - used, "");
    char text[400];
    int length = snprintf(text, sizeof text, "%s", spec->help);
    if (spec->fallback)
        snprintf(text + length, sizeof text - (size_t)length, " Default: %s.", spec->fallback);
    wrap(stream, text, HELP_COLUMN, HELP_COLUMN);
}

static void help_option(FILE *stream, const option_spec *spec)
{
    char term[100];
    const char *argument = argument_of(spec);
    char letter[8] = "";
    if (spec->letter)
        snprintf(letter, sizeof letter, "-%c, ", spec->letter);
    if (spec->positional)
        snprintf(term, sizeof term, "%s%s%s", spec->name, argument ? " " : "", argument ? argument : "");
    else
        snprintf(term, sizeof term, "%s--%s%s%s", letter, spec->name, argument ? " " : "", argument ? argument : "");
    help_line(stream, term, spec);
}

void pages_usage(FILE *stream)
{
    fputs("usage: onepass COMMAND [OPTIONS]\n\ncommands:\n", stream);
    for (int command = 0; command < COMMANDS; command++)
        fprintf(stream, "  %-12s %s\n", command_specs[command].name, command_specs[command].summary);
    fputs("\nonepass COMMAND --help explains one; onepass --version says which this is.\n", stream);
}

void pages_help(FILE *stream, command_id id)
{
    int command = (int)id;
    fprintf(stream, "usage: onepass %s", command_specs[command].name);
    for (size_t row = 0; row < option_count; row++)
        if (option_applies(&option_specs[row], command, true))
            fprintf(stream, " %s", option_specs[row].name);
    fputs(" [OPTIONS]\n\n", stream);
    wrap(stream, command_specs[command].description, 0, 0);
    fputc('\n', stream);
    for (int positional = 1; positional >= 0; positional--)
        for (size_t row = 0; row < option_count; row++)
            if (option_applies(&option_specs[row], command, positional))
                help_option(stream, &option_specs[row]);
}

/* ---- the manual page --------------------------------------------------------------------------------------------- */

/* A text line of mdoc: nothing in it may be taken for a request, and each sentence has a line of its own. */
static void mdoc_text(FILE *stream, const char *text)
{
    if (*text == '.' || *text == '\'')
        fputs("\\&", stream);
    for (; *text; text++) {
        if (text[0] == ' ' && text[-1] == '.')
            fputc('\n', stream);
        else if (*text == '\\')
            fputs("\\e", stream);
        else
            fputc(*text, stream);
    }
    fputc('\n', stream);
}

/* The value of an option after .Fl: "probs|log-probs" as "Ar probs | log-probs". */
static void mdoc_argument(FILE *stream, const option_spec *spec)
{
    const char *text = argument_of(spec);
    if (!text)
        return;
    fputs(spec->argument ? " Ar " : " Cm ", stream);
    for (; *text; text++) {
        if (*text == '|')
            fputs(" | ", stream);
        else
            fputc(*text, stream);
    }
}

static void mdoc_option(FILE *stream, const option_spec *spec)
{
    if (spec->positional) {
        fprintf(stream, ".It Ar %s", spec->name);
        mdoc_argument(stream, spec);
    } else {
        fputs(".It", stream);
        if (spec->letter)
            fprintf(stream, " Fl %c ,", spec->letter);
        fprintf(stream, " Fl -%s", spec->name);
        mdoc_argument(stream, spec);
    }
    fputc('\n', stream);
    mdoc_text(stream, spec->help);
    if (spec->fallback)
        fprintf(stream, "The default is\n.Cm %s .\n", spec->fallback);
}

static void mdoc_command(FILE *stream, int command)
{
    fprintf(stream, ".Ss onepass %s\n", command_specs[command].name);
    mdoc_text(stream, command_specs[command].description);
    fputs(".Bl -tag -width Ds\n", stream);
    for (int positional = 1; positional >= 0; positional--)
        for (size_t row = 0; row < option_count; row++)
            if (option_applies(&option_specs[row], command, positional))
                mdoc_option(stream, &option_specs[row]);
    fputs(".El\n", stream);
}

static void mdoc_synopsis(FILE *stream, int command)
{
    fprintf(stream, ".Nm\n.Cm %s\n", command_specs[command].name);
    for (size_t row = 0; row < option_count; row++)
        if (option_applies(&option_specs[row], command, true))
            fprintf(stream, ".Ar %s\n", option_specs[row].name);
    fputs(".Op Ar options\n", stream);
}

void pages_manual(FILE *stream)
{
    fputs(".Dd " MANUAL_DATE
          "\n.Dt ONEPASS 1\n.Os\n.Sh NAME\n.Nm onepass\n.Nd fused KL-divergence losses\n.Sh SYNOPSIS\n",
          stream);
    for (int command = 0; command < COMMANDS; command++)
        mdoc_synopsis(stream, command);
    fputs(".Nm\n.Fl -version\n.Sh DESCRIPTION\n", stream);
    mdoc_text(stream, "Computes KL divergences of arrays in .npy files, reading each input once. Results go to stdout, "
                      "messages and progress to stderr. A value given twice counts the last time.");
    mdoc_text(stream, "The files may be of version 1.0, 2.0 or 3.0, in C or Fortran order, little-endian. Type bf16 is "
                      "read from and written to V2, two bytes of no particular kind.");
    for (int command = 0; command < COMMANDS; command++)
        mdoc_command(stream, command);
    fputs(".Sh ENVIRONMENT\n.Bl -tag -width Ds\n.It Ev ONEPASS_ISA\n"
          "The vector level to use instead of the best one: ref, scalar, avx2, avx512 or neon.\n"
          ".It Ev NO_COLOR\nIf set and not empty, the progress bar has no colour.\n.El\n.Sh EXIT STATUS\n"
          ".Bl -tag -width Ds\n",
          stream);
    for (size_t i = 0; i < sizeof exits / sizeof exits[0]; i++)
        fprintf(stream, ".It %s\n%s\n", exits[i].code, exits[i].meaning);
    fputs(".El\n.Sh EXAMPLES\n", stream);
    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++)
        fprintf(stream, "%s%s\n.Pp\n.Dl %s\n", i ? ".Pp\n" : "", examples[i].meaning, examples[i].command);
}

/* ---- the commands ------------------------------------------------------------------------------------------------ */

/* With --json the page is a string in the object. */
static int print_page(const char *command, bool as_json, void (*write_page)(FILE *, int), int argument)
{
    if (!as_json) {
        write_page(stdout, argument);
        return EXIT_FINE;
    }
    char *text = NULL;
    size_t size;
    FILE *memory = open_memstream(&text, &size);
    if (memory)
        write_page(memory, argument);
    if (!memory || fclose(memory) != 0) {
        free(text);
        return message_error(EXIT_INPUT, "no memory for the page");
    }
    json_writer json = json_begin(stdout, command);
    json_string(&json, "text", text);
    json_end(&json);
    free(text);
    return EXIT_FINE;
}

static void write_manual(FILE *stream, int unused)
{
    (void)unused;
    pages_manual(stream);
}

static void write_completion(FILE *stream, int chosen)
{
    pages_completion(stream, (shell)chosen);
}

int command_man(const parsed_options *options)
{
    return print_page("man", options_given(options, "json"), write_manual, 0);
}

int command_completion(const parsed_options *options)
{
    return print_page("completion", options_given(options, "json"), write_completion, options_choice(options, "SHELL"));
}

static void write_help(FILE *stream, int command)
{
    if (command == COMMANDS)
        pages_usage(stream);
    else
        pages_help(stream, (command_id)command);
}

int pages_print_help(command_id id, bool as_json)
{
    return print_page(id == COMMANDS ? "help" : command_specs[id].name, as_json, write_help, (int)id);
}
