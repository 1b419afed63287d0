/* Completion scripts for bash, zsh and fish from the option table. See pages.h. */
#include <string.h>

#include "pages.h"

/* "a|b|c" as words. */
static void put_words(FILE *stream, const char *choices)
{
    for (; *choices; choices++)
        fputc(*choices == '|' ? ' ' : *choices, stream);
}

/* Text inside single quotes; characters of `special` get a backslash. */
static void put_quoted(FILE *stream, const char *text, const char *special)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\'", stream);
        else if (strchr(special, *text))
            fputc('\\', stream);
        fputc(*text, stream);
    }
}

/* "bench sweep": a command whose first word is one, too. Its second word, or NULL. */
static const char *second_word(int command)
{
    const char *space = strchr(command_specs[command].name, ' ');
    return space ? space + 1 : NULL;
}

/* The words that make of a command another one. */
static void put_second_words(FILE *stream, int command)
{
    size_t length = strlen(command_specs[command].name);
    for (int other = 0; other < COMMANDS; other++)
        if (second_word(other) && (size_t)(second_word(other) - command_specs[other].name) == length + 1 &&
            memcmp(command_specs[other].name, command_specs[command].name, length) == 0)
            fprintf(stream, " %s", second_word(other));
}

/* Those of two words, each in single quotes. */
static void put_long_names(FILE *stream)
{
    for (int command = 0; command < COMMANDS; command++)
        if (second_word(command))
            fprintf(stream, " '%s'", command_specs[command].name);
}

/* ---- bash: where a script answers nothing, bash offers files ----------------------------------------------------- */

static void bash_command(FILE *stream, int command)
{
    fprintf(stream, "    '%s')\n", command_specs[command].name);
    fputs("        options='", stream);
    for (size_t row = 0; row < option_count; row++)
        if (option_applies(&option_specs[row], command, false))
            fprintf(stream, " --%s", option_specs[row].name);
    fputs("'\n        case $previous in\n", stream);
    for (size_t row = 0; row < option_count; row++)
        if (option_applies(&option_specs[row], command, false) && option_specs[row].choices) {
            fprintf(stream, "        --%s) words='", option_specs[row].name);
            put_words(stream, option_specs[row].choices);
            fputs("' ;;\n", stream);
        }
    for (size_t row = 0; row < option_count; row++)
        if (option_applies(&option_specs[row], command, true) && option_specs[row].choices) {
            fprintf(stream, "        %s) words='", command_specs[command].name);
            put_words(stream, option_specs[row].choices);
            put_second_words(stream, command);
            fputs("' ;;\n", stream);
        }
    fputs("        esac ;;\n", stream);
}

static void bash_script(FILE *stream)
{
    fputs("# bash completion for onepass, made by: onepass completion bash\n_onepass()\n{\n"
          "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} options='' words=''\n"
          "    local command=${COMP_WORDS[1]} long\n    for long in",
          stream);
    put_long_names(stream);
    fputs(
        "; do\n        [[ $COMP_CWORD -gt 2 && $command\\ ${COMP_WORDS[2]} == \"$long\" ]] && command=$long\n    done\n"
        "    case $command in\n",
        stream);
    for (int command = 0; command < COMMANDS; command++)
        bash_command(stream, command);
    fputs("    esac\n    if [[ $COMP_CWORD -eq 1 ]]; then\n        words='", stream);
    for (int command = 0; command < COMMANDS; command++)
        if (!second_word(command))
            fprintf(stream, "%s ", command_specs[command].name);
    fputs("--help --version'\n    elif [[ $current == -* ]]; then\n        words=$options\n    fi\n"
          "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n}\n"
          "complete -o default -F _onepass onepass\n",
          stream);
}

/* ---- zsh --------------------------------------------------------------------------------------------------------- */

/* ":name:action": what may stand where a value is expected. */
static void zsh_value(FILE *stream, int command, const option_spec *spec)
{
    fputc(':', stream);
    put_quoted(stream, spec->argument ? spec->argument : spec->name, "[]:\\");
    fputc(':', stream);
    if (spec->choices) {
        fputc('(', stream);
        put_words(stream, spec->choices);
        if (spec->positional)
            put_second_words(stream, command);
        fputc(')', stream);
    } else if (spec->kind == OPTION_FILE) {
        fputs("_files", stream);
    }
}

static void zsh_option(FILE *stream, int command, const option_spec *spec)
{
    fputs(" \\\n            ", stream);
    if (spec->positional) {
        fputs("'", stream);
    } else {
        if (spec->letter)
            fprintf(stream, "'(-%c --%s)'{-%c,--%s}'[", spec->letter, spec->name, spec->letter, spec->name);
        else
            fprintf(stream, "'--%s[", spec->name);
        put_quoted(stream, spec->help, "[]:\\");
        fputc(']', stream);
    }
    if (spec->kind != OPTION_FLAG)
        zsh_value(stream, command, spec);
    fputc('\'', stream);
}

static void zsh_script(FILE *stream)
{
    fputs("#compdef onepass\n# zsh completion for onepass, made by: onepass completion zsh\n_onepass()\n{\n"
          "    local -a commands=(\n",
          stream);
    for (int command = 0; command < COMMANDS; command++) {
        if (second_word(command))
            continue;
        fprintf(stream, "        '%s:", command_specs[command].name);
        put_quoted(stream, command_specs[command].summary, ":\\");
        fputs("'\n", stream);
    }
    fputs("    )\n    if (( CURRENT == 2 )); then\n        _describe command commands\n        return\n    fi\n"
          "    local command=$words[2] long\n    for long in",
          stream);
    put_long_names(stream);
    fputs("; do\n        if (( CURRENT > 3 )) && [[ \"$words[2] $words[3]\" == \"$long\" ]]; then\n"
          "            command=$long\n            shift words\n            (( CURRENT-- ))\n        fi\n    done\n"
          "    shift words\n    (( CURRENT-- ))\n    case $command in\n",
          stream);
    for (int command = 0; command < COMMANDS; command++) {
        fprintf(stream, "    '%s')\n        _arguments", command_specs[command].name);
        for (int positional = 1; positional >= 0; positional--)
            for (size_t row = 0; row < option_count; row++)
                if (option_applies(&option_specs[row], command, positional))
                    zsh_option(stream, command, &option_specs[row]);
        fputs(" ;;\n", stream);
    }
    fputs("    esac\n}\n"
          "if [[ $funcstack[1] == _onepass ]]; then\n    _onepass \"$@\"\nelse\n    compdef _onepass onepass\nfi\n",
          stream);
}

/* ---- fish -------------------------------------------------------------------------------------------------------- */

static void fish_option(FILE *stream, int command, const option_spec *spec)
{
    if (spec->positional && spec->kind == OPTION_FILE) {
        fprintf(stream, "complete -c onepass -n '__onepass_command %s' -F\n", command_specs[command].name);
        return;
    }
    fprintf(stream, "complete -c onepass -n '__onepass_command %s'", command_specs[command].name);
    if (!spec->positional)
        fprintf(stream, " -l %s", spec->name);
    if (spec->letter)
        fprintf(stream, " -s %c", spec->letter);
    if (spec->kind == OPTION_FILE)
        fputs(" -r -F", stream);
    else if (spec->kind != OPTION_FLAG && !spec->positional)
        fputs(" -x", stream);
    if (spec->choices) {
        fputs(" -a '", stream);
        put_words(stream, spec->choices);
        if (spec->positional)
            put_second_words(stream, command);
        fputc('\'', stream);
    }
    fputs(" -d '", stream);
    put_quoted(stream, spec->help, "\\");
    fputs("'\n", stream);
}

static void fish_script(FILE *stream)
{
    fputs("# fish completion for onepass, made by: onepass completion fish\n"
          "function __onepass_command\n    set -l words (commandline -opc) '' ''\n    set -l command $words[2]\n"
          "    contains -- \"$words[2] $words[3]\"",
          stream);
    put_long_names(stream);
    fputs("\n    and set command \"$words[2] $words[3]\"\n    test \"$command\" = \"$argv\"\nend\n"
          "complete -c onepass -f\n"
          "complete -c onepass -n __fish_use_subcommand -l version -d 'Says which onepass this is.'\n",
          stream);
    for (int command = 0; command < COMMANDS; command++) {
        if (!second_word(command)) {
            fprintf(stream, "complete -c onepass -n __fish_use_subcommand -a %s -d '", command_specs[command].name);
            put_quoted(stream, command_specs[command].summary, "\\");
            fputs("'\n", stream);
        }
        for (size_t row = 0; row < option_count; row++)
            if (option_specs[row].commands >> command & 1)
                fish_option(stream, command, &option_specs[row]);
    }
}

void pages_completion(FILE *stream, shell which)
{
    if (which == SHELL_BASH)
        bash_script(stream);
    else if (which == SHELL_ZSH)
        zsh_script(stream);
    else
        fish_script(stream);
}
