/*
 * Reading and writing .npy headers. The header is a Python dict literal; of that language only what numpy writes is
 * known: three keys, two kinds of quotes, True and False, a tuple of integers, white space and trailing commas.
 */
#include "npy.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the .npy reader maps little-endian files: it needs a little-endian machine"
#endif

static const unsigned char magic[] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

#define READABLE_TYPES "onepass reads f2, f4, f8, bf16 as V2, and b1, u1 or i1 for masks"

enum { ALIGNMENT = 64, QUOTED = 60 /* characters of a file's own text shown in a message */ };

/* The text being parsed, and where the reason goes if it is refused. */
typedef struct cursor {
    const char *at, *end;
    npy_error *error;
} cursor;

__attribute__((format(printf, 2, 3))) static bool refuse(npy_error *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return false;
}

/* ---- the literal ------------------------------------------------------------------------------------------------- */

static void skip_space(cursor *in)
{
    while (in->at < in->end && (*in->at == ' ' || *in->at == '\t' || *in->at == '\n' || *in->at == '\r'))
        in->at++;
}

/* The next character that is not white space, '\0' at the end. */
static char peek(cursor *in)
{
    skip_space(in);
    return in->at < in->end ? *in->at : '\0';
}

static bool accept(cursor *in, char wanted)
{
    if (peek(in) != wanted)
        return false;
    in->at++;
    return true;
}

/* Says what was found where something else was needed. */
static bool refuse_here(cursor *in, const char *wanted)
{
    skip_space(in);
    int left = in->end - in->at < QUOTED ? (int)(in->end - in->at) : QUOTED;
    if (left == 0)
        return refuse(in->error, "header ends early; %s must follow", wanted);
    return refuse(in->error, "header has \"%.*s\" where %s must follow", left, in->at, wanted);
}

/* A string without escapes, in either kind of quotes. */
static bool read_string(cursor *in, const char **text, int *length, const char *wanted)
{
    char quote = peek(in);
    if (quote != '\'' && quote != '"')
        return refuse_here(in, wanted);
    const char *first = in->at + 1;
    const char *last = first;
    while (last < in->end && *last != quote && *last != '\\' && *last != '\n')
        last++;
    if (last == in->end || *last != quote || last - first > QUOTED)
        return refuse_here(in, wanted);
    *text = first;
    *length = (int)(last - first);
    in->at = last + 1;
    return true;
}

static bool is_word(const char *text, int length, const char *word)
{
    return (size_t)length == strlen(word) && memcmp(text, word, (size_t)length) == 0;
}

/* One of the names numpy and ml_dtypes give the types that can be read. */
static bool read_descr(cursor *in, npy_header *header)
{
    static const struct {
        const char *name;
        element_type type;
    } names[] = {
        {"f2", ELEMENT_F16},  {"f4", ELEMENT_F32}, {"f8", ELEMENT_F64}, {"V2", ELEMENT_BF16},
        {"b1", ELEMENT_BOOL}, {"u1", ELEMENT_U8},  {"i1", ELEMENT_U8},  {"bfloat16", ELEMENT_BF16},
        {"i4", ELEMENT_I32},  {"i8", ELEMENT_I64},
    };
    if (peek(in) == '[' || peek(in) == '(')
        return refuse(in->error, "header says a structured dtype; " READABLE_TYPES);
    const char *text;
    int length;
    if (!read_string(in, &text, &length, "a dtype such as '<f4'"))
        return false;
    /* '<' is little-endian, '=' this machine's order (little-endian too), '|' order does not apply. */
    bool ordered = length > 0 && (text[0] == '<' || text[0] == '=' || text[0] == '|');
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (is_word(text + ordered, length - ordered, names[i].name)) {
            header->type = names[i].type;
            return true;
        }
    if (length > 0 && text[0] == '>')
        return refuse(in->error, "header says dtype '%.*s', big-endian; convert it: a.astype('<%.*s') in numpy", length,
                      text, length - 1, text + 1);
    return refuse(in->error, "header says dtype '%.*s'; " READABLE_TYPES, length, text);
}

static bool read_boolean(cursor *in, bool *value)
{
    skip_space(in);
    static const char *const words[] = {"False", "True"};
    for (int i = 0; i < 2; i++) {
        size_t length = strlen(words[i]);
        if ((size_t)(in->end - in->at) >= length && memcmp(in->at, words[i], length) == 0) {
            in->at += length;
            *value = i;
            return true;
        }
    }
    return refuse_here(in, "True or False for fortran_order");
}

static bool read_dimension(cursor *in, int64_t *value)
{
    if (peek(in) == '-')
        return refuse_here(in, "a dimension of 0 or more");
    const char *first = in->at;
    uint64_t sum = 0;
    for (; in->at < in->end && *in->at >= '0' && *in->at <= '9'; in->at++) {
        sum = 10 * sum + (uint64_t)(*in->at - '0');
        if (sum > INT64_MAX || in->at - first >= 19)
            return refuse(in->error, "header says a dimension of %.*s...; it must be below 2^63",
                          (int)(in->at - first + 1), first);
    }
    if (in->at == first || (*first == '0' && in->at - first > 1)) {
        in->at = first;
        return refuse_here(in, "a dimension (an integer)");
    }
    *value = (int64_t)sum;
    return true;
}

/* (), (5,), (5, 6), (5, 6,); (5) is a number in Python, not a tuple. */
static bool read_shape(cursor *in, npy_header *header)
{
    header->rank = 0;
    if (!accept(in, '('))
        return refuse_here(in, "a shape (a tuple)");
    while (!accept(in, ')')) {
        if (header->rank == NPY_MAX_RANK)
            return refuse(in->error, "header says more than %d dimensions; that is the most there may be",
                          NPY_MAX_RANK);
        if (!read_dimension(in, &header->shape[header->rank++]))
            return false;
        if (!accept(in, ',') && (peek(in) != ')' || header->rank == 1))
            return refuse_here(in, "a comma");
    }
    return true;
}

static bool read_literal(cursor *in, npy_header *header)
{
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    bool seen[3] = {false};
    if (!accept(in, '{'))
        return refuse_here(in, "{");
    while (!accept(in, '}')) {
        const char *text;
        int length, key = 0;
        if (!read_string(in, &text, &length, "a key (descr, fortran_order or shape)"))
            return false;
        while (key < 3 && !is_word(text, length, keys[key]))
            key++;
        if (key == 3)
            return refuse(in->error, "header has the key '%.*s'; the keys are descr, fortran_order and shape", length,
                          text);
        if (seen[key])
            return refuse(in->error, "header has the key '%s' twice; each must appear once", keys[key]);
        seen[key] = true;
        if (!accept(in, ':'))
            return refuse_here(in, "a colon");
        bool read = key == 0   ? read_descr(in, header)
                    : key == 1 ? read_boolean(in, &header->fortran_order)
                               : read_shape(in, header);
        if (!read)
            return false;
        if (!accept(in, ',') && peek(in) != '}')
            return refuse_here(in, "a comma or }");
    }
    for (int key = 0; key < 3; key++)
        if (!seen[key])
            return refuse(in->error, "header lacks the key '%s'; it must have descr, fortran_order and shape",
                          keys[key]);
    skip_space(in);
    return in->at == in->end || refuse_here(in, "nothing but white space");
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/*
 * Strides and byte count. Dimensions of 0 are left out of the product, as numpy does: an empty array whose other
 * dimensions overflow would still have strides that do.
 */
static bool size_up(npy_header *header)
{
    const int64_t limit = INT64_MAX - NPY_MAX_HEADER - NPY_PREAMBLE;
    int64_t product = 1;
    bool empty = false;
    for (int i = 0; i < header->rank; i++) {
        int dimension = header->fortran_order ? i : header->rank - 1 - i;
        int64_t extent = header->shape[dimension];
        header->strides[dimension] = product;
        empty = empty || extent == 0;
        if (extent > 0 && product > limit / extent)
            return false;
        product *= extent > 0 ? extent : 1;
    }
    if (product > limit / (int64_t)element_infos[header->type].size)
        return false;
    header->data_bytes = empty ? 0 : (uint64_t)product * element_infos[header->type].size;
    return true;
}

bool npy_header_end(const unsigned char *bytes, size_t count, size_t *end, npy_error *error)
{
    if (count == 0)
        return refuse(error, "the file is empty; a .npy file begins with a header");
    if (count < sizeof magic + 2 || memcmp(bytes, magic, sizeof magic) != 0)
        return refuse(error, "does not begin with \\x93NUMPY and a version; it is not a .npy file");
    int major = bytes[6], minor = bytes[7];
    if (major < 1 || major > 3 || minor != 0)
        return refuse(error, "header says version %d.%d; onepass reads 1.0, 2.0 and 3.0", major, minor);
    size_t length_bytes = major == 1 ? 2 : 4;
    size_t start = sizeof magic + 2 + length_bytes;
    if (count < start)
        return refuse(error, "the file ends after %zu bytes, within the header's length", count);
    uint32_t length = 0;
    for (size_t i = 0; i < length_bytes; i++)
        length |= (uint32_t)bytes[sizeof magic + 2 + i] << (8 * i);
    if (length > NPY_MAX_HEADER)
        return refuse(error, "header says it is %" PRIu32 " bytes long; the most is %d", length, NPY_MAX_HEADER);
    *end = start + length;
    return true;
}

bool npy_read_header(const unsigned char *bytes, size_t count, npy_header *header, npy_error *error)
{
    size_t end;
    memset(header, 0, sizeof *header);
    if (!npy_header_end(bytes, count, &end, error))
        return false;
    size_t start = bytes[6] == 1 ? NPY_PREAMBLE - 2 : NPY_PREAMBLE;
    if (count < end)
        return refuse(error, "header says it is %zu bytes long, but the file ends %zu bytes before that", end - start,
                      end - count);
    cursor in = {(const char *)bytes + start, (const char *)bytes + end, error};
    if (!read_literal(&in, header))
        return false;
    header->data_offset = end;
    char text[NPY_MAX_SHAPE_TEXT];
    if (!size_up(header))
        return refuse(error, "header says shape %s of %s; its size in bytes must be below 2^63",
                      npy_shape_text(text, header->rank, header->shape), element_infos[header->type].name);
    return true;
}

bool npy_check_size(const npy_header *header, uint64_t file_size, npy_error *error)
{
    uint64_t wanted = header->data_offset + header->data_bytes;
    char text[NPY_MAX_SHAPE_TEXT];
    npy_shape_text(text, header->rank, header->shape);
    const char *name = element_infos[header->type].name;
    if (file_size == wanted)
        return true;
    if (file_size < wanted)
        return refuse(error, "header says shape %s of %s, so the file must be %" PRIu64 " bytes; it has %" PRIu64, text,
                      name, wanted, file_size);
    return refuse(error,
                  "header says shape %s of %s, so the file must be %" PRIu64 " bytes; there are %" PRIu64 " left over",
                  text, name, wanted, file_size - wanted);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* The literal with its shape in full; returns its length. */
static size_t format_literal(const npy_header *header, char *text, size_t size)
{
    int used = snprintf(text, size, "{'descr': '%s', 'fortran_order': %s, 'shape': (",
                        element_infos[header->type].descr, header->fortran_order ? "True" : "False");
    for (int i = 0; i < header->rank; i++)
        used += snprintf(text + used, size - (size_t)used, "%s%" PRId64 "%s", i ? ", " : "", header->shape[i],
                         header->rank == 1 ? "," : "");
    used += snprintf(text + used, size - (size_t)used, "), }");
    return (size_t)used;
}

bool npy_describe(npy_header *header, element_type type, int rank, const int64_t *shape)
{
    memset(header, 0, sizeof *header);
    header->type = type;
    header->rank = rank;
    memcpy(header->shape, shape, (size_t)rank * sizeof *shape);
    if (!size_up(header))
        return false;
    char text[NPY_MAX_WRITTEN];
    size_t length = NPY_PREAMBLE - 2 + format_literal(header, text, sizeof text) + 1;
    header->data_offset = (length + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return true;
}

void npy_write_header(const npy_header *header, unsigned char bytes[NPY_MAX_WRITTEN])
{
    const size_t start = NPY_PREAMBLE - 2;
    size_t length = header->data_offset - start;
    memcpy(bytes, magic, sizeof magic);
    bytes[6] = 1;
    bytes[7] = 0;
    bytes[8] = (unsigned char)(length & 0xff);
    bytes[9] = (unsigned char)(length >> 8);
    size_t used = start + format_literal(header, (char *)bytes + start, NPY_MAX_WRITTEN - start);
    memset(bytes + used, ' ', header->data_offset - used);
    bytes[header->data_offset - 1] = '\n';
}

const char *npy_shape_text(char text[NPY_MAX_SHAPE_TEXT], int rank, const int64_t *shape)
{
    int used = snprintf(text, NPY_MAX_SHAPE_TEXT, "(");
    for (int i = 0; i < rank; i++) {
        if (used > NPY_MAX_SHAPE_TEXT - 30)
            return strcpy(text + used, "...)"), text;
        used += snprintf(text + used, NPY_MAX_SHAPE_TEXT - (size_t)used, "%" PRId64 "%s", shape[i],
                         rank == 1      ? ","
                         : i + 1 < rank ? ", "
                                        : "");
    }
    strcpy(text + used, ")");
    return text;
}
