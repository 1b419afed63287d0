/*
 * The one table of commands and options. It drives parsing here, and --help, shell completion and the manual page in
 * pages.c, so none of them can know an option the others do not. Values are checked against the table (choices, whole
 * numbers, ranges) while parsing; what depends on more than one option is checked by the command.
 */
#ifndef TOOL_OPTIONS_H
#define TOOL_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum command_id {
    COMMAND_KL,
    COMMAND_XENT,
    COMMAND_HEAD,
    COMMAND_LINEAR,
    COMMAND_INFO,
    COMMAND_CHECK,
    COMMAND_BENCH,
    COMMAND_SWEEP,
    COMMAND_DEMO,
    COMMAND_COMPLETION,
    COMMAND_MAN,
    COMMANDS,
} command_id;

typedef struct command_spec {
    const char *name;        /* of two words: "bench sweep" */
    const char *summary;     /* one line, no full stop */
    const char *description; /* whole sentences, one space between them */
} command_spec;

typedef enum option_kind {
    OPTION_FLAG,
    OPTION_FILE,
    OPTION_TEXT,
    OPTION_CHOICE,
    OPTION_INTEGER,
    OPTION_REAL,
} option_kind;

typedef struct option_spec {
    unsigned commands; /* bit 1 << command_id */
    const char *name;  /* without dashes; of a positional argument as help shows it */
    const char *help;
    option_kind kind;
    bool positional;      /* required, in the table's order */
    char letter;          /* short form, or 0 */
    const char *argument; /* what help calls the value; NULL with choices: the choices themselves */
    const char *choices;  /* "a|b|c" */
    const char *fallback; /* the value if the option is not given; NULL: none */
    double low, high;     /* range of a number, both ends included */
    bool is_list;         /* choices or integers, separated by commas */
} option_spec;

enum { OPTIONS = 96 /* room for the table; a static assertion holds it to that */ };

extern const command_spec command_specs[COMMANDS];
extern const option_spec option_specs[];
extern const size_t option_count;

/* Whether a row of the table is one of the command's options, or one of its positional arguments. */
static inline bool option_applies(const option_spec *spec, int command, bool positional)
{
    return spec->commands >> command & 1 && spec->positional == positional;
}

/* What a command line said: one text for each row of the table, NULL where it is silent. */
typedef struct parsed_options {
    command_id command;
    bool help;
    const char *texts[OPTIONS];
} parsed_options;

/* Parses what follows the command's name. 0, or EXIT_USAGE after having said what is wrong. */
int options_parse(parsed_options *parsed, command_id command, int count, char *const arguments[]);

/* The command that the first words name, the longest that fits, and how many words it has; COMMANDS: none. */
command_id command_named(int count, char *const words[], int *used);

/* The value of an option or positional argument of the command, or its fallback; NULL if it has neither. */
const char *options_text(const parsed_options *parsed, const char *name);
bool options_given(const parsed_options *parsed, const char *name);
int options_choice(const parsed_options *parsed, const char *name); /* index among the choices */

/* The items of a list, in its order, each once; how many. `text` NULL: the option's value or fallback. */
enum { LIST_MOST = 64 };
int options_choices(const parsed_options *parsed, const char *name, const char *text, int items[LIST_MOST]);
int options_integers(const parsed_options *parsed, const char *name, const char *text, int64_t items[LIST_MOST]);

/*
 * The one rule for real values, of whatever option: a decimal or hexadecimal number without anything around it, finite
 * (what is too small is 0), within both ends. 0, or EXIT_USAGE after having said what is wrong; `others` is what else
 * the option takes, "" for nothing.
 */
int options_check_real(const char *name, const char *text, double low, double high, const char *others, double *value);

/* Whether the text is meant as a number, if not a good one: "1e400", "nan", but not "2x". */
bool options_looks_real(const char *text);

/* 0 without a value. */
int64_t options_integer(const parsed_options *parsed, const char *name);
double options_real(const parsed_options *parsed, const char *name);

#endif
