/*
 * Writes one JSON object: doubles with 17 digits, a NaN or an infinity as null followed by a second member "NAME_text"
 * that says which, strings escaped, bytes that are not UTF-8 as \udcXX (what Python's surrogateescape reads back).
 * Members appear in the order of the calls. Never reads JSON.
 */
#ifndef TOOL_JSON_H
#define TOOL_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct json_writer {
    FILE *stream;
    bool follows; /* a value was written at this level, so a comma comes first */
} json_writer;

/* The outermost object, with its first members: the schema's version and the command. Ends with a newline. */
json_writer json_begin(FILE *stream, const char *command);
void json_end(json_writer *json);

/* `name` is NULL inside an array. */
void json_number(json_writer *json, const char *name, double value);
void json_null(json_writer *json, const char *name);
void json_integer(json_writer *json, const char *name, int64_t value);
void json_boolean(json_writer *json, const char *name, bool value);
void json_string(json_writer *json, const char *name, const char *value);
void json_open(json_writer *json, const char *name, char bracket); /* '{' or '[' */
void json_close(json_writer *json, char bracket);                  /* '}' or ']' */
void json_shape(json_writer *json, const char *name, int rank, const int64_t *shape);
void json_strings(json_writer *json, const char *name, int count, const char *const values[]); /* those not NULL */

#endif
