/* The JSON writer. See json.h. */
#include "json.h"

#include <inttypes.h>
#include <math.h>

/* The length of the UTF-8 sequence at `text`, 0 if there is none: overlong forms and surrogates are none. */
static int utf8_length(const unsigned char *text)
{
    static const struct {
        unsigned char first_low, first_high, second_low, second_high, length;
    } rules[] = {{0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
                 {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
                 {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
    if (text[0] < 0x80)
        return 1;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (text[0] < rules[i].first_low || text[0] > rules[i].first_high)
            continue;
        if (text[1] < rules[i].second_low || text[1] > rules[i].second_high)
            return 0;
        for (int k = 2; k < rules[i].length; k++)
            if ((text[k] & 0xc0) != 0x80)
                return 0;
        return rules[i].length;
    }
    return 0;
}

static void write_string(FILE *stream, const char *value)
{
    fputc('"', stream);
    for (const unsigned char *at = (const unsigned char *)value; *at;) {
        int length = utf8_length(at);
        if (length == 0)
            fprintf(stream, "\\udc%02x", *at);
        else if (*at == '"' || *at == '\\')
            fprintf(stream, "\\%c", *at);
        else if (*at < 0x20 || *at == 0x7f)
            fprintf(stream, "\\u%04x", *at);
        else
            fwrite(at, 1, (size_t)length, stream);
        at += length ? length : 1;
    }
    fputc('"', stream);
}

static void write_name(json_writer *json, const char *name)
{
    if (json->follows)
        fputs(", ", json->stream);
    json->follows = true;
    if (name) {
        write_string(json->stream, name);
        fputs(": ", json->stream);
    }
}

json_writer json_begin(FILE *stream, const char *command)
{
    json_writer json = {.stream = stream};
    json_open(&json, NULL, '{');
    json_integer(&json, "schema", 1);
    json_string(&json, "command", command);
    return json;
}

void json_end(json_writer *json)
{
    json_close(json, '}');
    fputc('\n', json->stream);
}

void json_number(json_writer *json, const char *name, double value)
{
    if (isfinite(value)) {
        write_name(json, name);
        fprintf(json->stream, "%.17g", value);
        return;
    }
    json_null(json, name);
    if (!name)
        return;
    char text_name[64];
    snprintf(text_name, sizeof text_name, "%s_text", name);
    json_string(json, text_name, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

void json_null(json_writer *json, const char *name)
{
    write_name(json, name);
    fputs("null", json->stream);
}

void json_integer(json_writer *json, const char *name, int64_t value)
{
    write_name(json, name);
    fprintf(json->stream, "%" PRId64, value);
}

void json_boolean(json_writer *json, const char *name, bool value)
{
    write_name(json, name);
    fputs(value ? "true" : "false", json->stream);
}

void json_string(json_writer *json, const char *name, const char *value)
{
    write_name(json, name);
    write_string(json->stream, value);
}

void json_open(json_writer *json, const char *name, char bracket)
{
    write_name(json, name);
    fputc(bracket, json->stream);
    json->follows = false;
}

void json_close(json_writer *json, char bracket)
{
    fputc(bracket, json->stream);
    json->follows = true;
}

void json_shape(json_writer *json, const char *name, int rank, const int64_t *shape)
{
    json_open(json, name, '[');
    for (int i = 0; i < rank; i++)
        json_integer(json, NULL, shape[i]);
    json_close(json, ']');
}

void json_strings(json_writer *json, const char *name, int count, const char *const values[])
{
    json_open(json, name, '[');
    for (int i = 0; i < count; i++)
        if (values[i])
            json_string(json, NULL, values[i]);
    json_close(json, ']');
}
