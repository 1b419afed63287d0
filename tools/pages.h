/*
 * Everything the option table is turned into for people and shells: --help, completion scripts, the manual page. The
 * text of an option is in the table alone; what is here is only how each of them is laid out.
 */
#ifndef TOOL_PAGES_H
#define TOOL_PAGES_H

#include <stdio.h>

#include "options.h"

void pages_usage(FILE *stream);
void pages_help(FILE *stream, command_id id);
void pages_manual(FILE *stream);

/* A command's page, or with COMMANDS the list of them, on stdout; an exit code. */
int pages_print_help(command_id id, bool as_json);

typedef enum shell {
    SHELL_BASH, /* in the order of the table's choices */
    SHELL_ZSH,
    SHELL_FISH,
} shell;

void pages_completion(FILE *stream, shell which);

/* The commands that print them. */
int command_completion(const parsed_options *options);
int command_man(const parsed_options *options);

#endif
