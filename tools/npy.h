/*
 * The .npy format: headers of versions 1.0, 2.0 and 3.0 read from memory, version 1.0 written. Everything in a header
 * is checked before it is believed; nothing is ever evaluated. No files are opened and no memory is allocated here.
 */
#ifndef TOOL_NPY_H
#define TOOL_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "element.h"

enum {
    NPY_MAX_RANK = 64,
    NPY_PREAMBLE = 12,        /* magic, version and the longest length field */
    NPY_MAX_HEADER = 1 << 20, /* of a file that is read */
    NPY_MAX_WRITTEN = 2048,   /* of a file that is written: 64 dimensions of 19 digits fit */
    NPY_MAX_SHAPE_TEXT = 100,
};

typedef struct npy_header {
    element_type type;
    bool fortran_order;
    int rank;
    int64_t shape[NPY_MAX_RANK];
    int64_t strides[NPY_MAX_RANK]; /* in elements, as fortran_order says */
    uint64_t data_offset;          /* where the elements begin */
    uint64_t data_bytes;           /* data_offset + data_bytes fits in an int64_t */
} npy_header;

/* What is wrong with a file: the value and the rule, without the file's name. */
typedef struct npy_error {
    char text[400];
} npy_error;

/* From the first `count` bytes (up to NPY_PREAMBLE of them): how many bytes come before the elements. */
bool npy_header_end(const unsigned char *bytes, size_t count, size_t *end, npy_error *error);

/* Reads the header at the start of `count` bytes, which may be all of the file or no more than its header. */
bool npy_read_header(const unsigned char *bytes, size_t count, npy_header *header, npy_error *error);

/* A file must hold exactly what its header says. */
bool npy_check_size(const npy_header *header, uint64_t file_size, npy_error *error);

/* Fills shape, strides (row-major), data_offset and data_bytes of a file to be written; false if it is too large. */
bool npy_describe(npy_header *header, element_type type, int rank, const int64_t *shape);

/* The header's bytes, header->data_offset of them. */
void npy_write_header(const npy_header *header, unsigned char bytes[NPY_MAX_WRITTEN]);

/* "(3, 4)", cut with "..." if it is long; returns `text`. */
const char *npy_shape_text(char text[NPY_MAX_SHAPE_TEXT], int rank, const int64_t *shape);

#endif
