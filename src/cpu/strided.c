/* Copies between strided and compact memory. See strided.h. */
#include "cpu/strided.h"

#include <string.h>

/* One copy loop per size: with the size a constant, each becomes a plain load and store. */
static inline __attribute__((always_inline)) void copy_elements(char *to, int64_t to_stride, const char *from,
                                                                int64_t from_stride, size_t size, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        memcpy(to + i * to_stride, from + i * from_stride, size);
}

static void copy_strided(char *to, int64_t to_stride, const char *from, int64_t from_stride, size_t size, int64_t count)
{
    if (to_stride == (int64_t)size && from_stride == (int64_t)size)
        memcpy(to, from, size * (size_t)count);
    else if (size == 2)
        copy_elements(to, to_stride, from, from_stride, 2, count);
    else if (size == 4)
        copy_elements(to, to_stride, from, from_stride, 4, count);
    else
        copy_elements(to, to_stride, from, from_stride, 8, count);
}

void onep_collect(void *to, const char *from, int64_t stride, size_t size, int64_t count)
{
    copy_strided((char *)to, (int64_t)size, from, stride, size, count);
}

void onep_spread(char *to, int64_t stride, const void *from, size_t size, int64_t count)
{
    copy_strided(to, stride, (const char *)from, (int64_t)size, size, count);
}

static int64_t magnitude(int64_t x)
{
    return x < 0 ? -x : x;
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) void copy_tile(char *to, int64_t to_row, int64_t to_column,
                                                            const char *from, int64_t from_row, int64_t from_column,
                                                            size_t size, int64_t rows, int64_t columns)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t column = 0; column < columns; column++)
            memcpy(to + row * to_row + column * to_column, from + row * from_row + column * from_column, size);
}

/* Whole columns one after the other where the elements of a column lie closer together than those of a row. */
static inline __attribute__((always_inline)) void collect_tile(char *to, const char *from, int64_t row_stride,
                                                               int64_t col_stride, size_t size, const onep_tile *tile)
{
    int64_t to_row = tile->to_row * (int64_t)size, to_column = tile->to_column * (int64_t)size;
    if (tile->which)
        for (int64_t row = 0; row < tile->rows; row++)
            copy_tile(to + row * to_row, 0, to_column, from + tile->which[row] * row_stride, 0, col_stride, size, 1,
                      tile->columns);
    else if (magnitude(row_stride) < magnitude(col_stride))
        copy_tile(to, to_column, to_row, from, col_stride, row_stride, size, tile->columns, tile->rows);
    else
        copy_tile(to, to_row, to_column, from, row_stride, col_stride, size, tile->rows, tile->columns);
}

static inline __attribute__((always_inline)) void spread_tile(char *to, int64_t row_stride, int64_t col_stride,
                                                              const char *from, size_t size, const onep_tile *tile)
{
    int64_t from_row = tile->to_row * (int64_t)size, from_column = tile->to_column * (int64_t)size;
    if (tile->which)
        for (int64_t row = 0; row < tile->rows; row++)
            copy_tile(to + tile->which[row] * row_stride, 0, col_stride, from + row * from_row, 0, from_column, size, 1,
                      tile->columns);
    else if (magnitude(row_stride) < magnitude(col_stride))
        copy_tile(to, col_stride, row_stride, from, from_column, from_row, size, tile->columns, tile->rows);
    else
        copy_tile(to, row_stride, col_stride, from, from_row, from_column, size, tile->rows, tile->columns);
}

void onep_collect_tile(void *to, const char *from, int64_t row_stride, int64_t col_stride, size_t size,
                       const onep_tile *tile)
{
    if (size == 2)
        collect_tile((char *)to, from, row_stride, col_stride, 2, tile);
    else if (size == 4)
        collect_tile((char *)to, from, row_stride, col_stride, 4, tile);
    else
        collect_tile((char *)to, from, row_stride, col_stride, 8, tile);
}

void onep_spread_tile(char *to, int64_t row_stride, int64_t col_stride, const void *from, size_t size,
                      const onep_tile *tile)
{
    if (size == 2)
        spread_tile(to, row_stride, col_stride, (const char *)from, 2, tile);
    else if (size == 4)
        spread_tile(to, row_stride, col_stride, (const char *)from, 4, tile);
    else
        spread_tile(to, row_stride, col_stride, (const char *)from, 8, tile);
}

static int64_t place(const onep_tile *tile, int64_t row)
{
    return tile->which ? tile->which[row] : row;
}

void onep_load_rows(double *to, onep_type type, const char *from, int64_t stride, const onep_tile *tile)
{
    if (type == ONEP_F32)
        for (int64_t row = 0; row < tile->rows; row++) {
            float x;
            memcpy(&x, from + place(tile, row) * stride, sizeof x);
            to[row] = (double)x;
        }
    else
        for (int64_t row = 0; row < tile->rows; row++)
            to[row] = onep_load(type, from + place(tile, row) * stride);
}

static void store_floats(char *to, int64_t stride, const double *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        float x = (float)from[i];
        memcpy(to + i * stride, &x, sizeof x);
    }
}

void onep_store_rows(onep_type type, char *to, int64_t stride, const double *from, const onep_tile *tile)
{
    if (type == ONEP_F32 && !tile->which && stride == (int64_t)sizeof(float))
        store_floats(to, sizeof(float), from, tile->rows);
    else if (type == ONEP_F32 && !tile->which)
        store_floats(to, stride, from, tile->rows);
    else
        for (int64_t row = 0; row < tile->rows; row++)
            onep_store(type, to + place(tile, row) * stride, from[row]);
}
