/* Elements that are not contiguous: how many are gathered at a time, and the copies. strided.inc converts them too. */
#ifndef ONEP_STRIDED_H
#define ONEP_STRIDED_H

#include <stddef.h>
#include <stdint.h>

#include "core/types.h"

enum { ONEP_STRIP = 256 }; /* elements gathered at a time: a strip and its result stay in the first-level cache */

/* Elements of 2, 4 or 8 bytes between a strided place and a compact one. */
void onep_collect(void *to, const char *from, int64_t stride, size_t size, int64_t count);
void onep_spread(char *to, int64_t stride, const void *from, size_t size, int64_t count);

/* A tile of a matrix: some rows and columns of it, of which at most ONEP_STRIP elements are moved at a time. */
typedef struct onep_tile {
    int64_t rows, columns;
    const int32_t *which;      /* the rows, counted from that of the first address; NULL: all, from 0 on */
    int64_t to_row, to_column; /* distances in the compact place, in elements */
} onep_tile;

/* Such elements between a place with strides in bytes and a compact one, in the order that suits the strides. */
void onep_collect_tile(void *to, const char *from, int64_t row_stride, int64_t col_stride, size_t size,
                       const onep_tile *tile);
void onep_spread_tile(char *to, int64_t row_stride, int64_t col_stride, const void *from, size_t size,
                      const onep_tile *tile);

/* One number for each row of a tile, in double. */
void onep_load_rows(double *to, onep_type type, const char *from, int64_t stride, const onep_tile *tile);
void onep_store_rows(onep_type type, char *to, int64_t stride, const double *from, const onep_tile *tile);

#endif
