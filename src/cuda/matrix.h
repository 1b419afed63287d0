/* A matrix as kernels get it: device address, strides in bytes, type as in cuda/types.h. */
#ifndef ONEP_MATRIX_H
#define ONEP_MATRIX_H

#include "cuda/types.h"

/* Rows by columns; a vector with one element per column has row_stride 0. data NULL: absent. */
typedef struct onep_matrix {
    char *data;
    long long row_stride, col_stride;
    int type;
} onep_matrix;

#endif
