/*
 * An arena with everything a call on a GPU touches: device memory with its image on the host, in which fields (matrices
 * of any layout) and workspaces are placed, and where only what is marked may change.
 */
#ifndef ONEPASS_TEST_CUDA_ARENA_H
#define ONEPASS_TEST_CUDA_ARENA_H

#include "core/tensor.h"
#include "cuda_harness.h"

/* What calls are made with; set by the program. */
extern onepass_handle *head_handle;
extern onep_cu_stream *head_stream;
extern uint64_t head_streams; /* of random numbers; the last one used */

/* ---- the arena --------------------------------------------------------------------------------------------------- */

/* Device memory and its image on the host; what a call may write is marked, one byte per byte. */
extern struct head_arena {
    char *device, *host, *sent;
    unsigned char *writable; /* one per byte */
    size_t used, most;       /* most is what was used, and so must be filled anew */
} head_arena;

typedef enum head_layout { COMPACT, SHIFTED, PADDED, STRIDED, LAYOUTS } head_layout;

/* A matrix in the arena; its operand has device addresses. */
typedef struct head_field {
    onep_operand operand;
    int64_t rows, columns;
    char *host;
} head_field;

/* Begins anew, filled with a byte that is in nobody's interest. */
void head_arena_begin(int poison);
char *head_arena_take(size_t bytes, size_t shift);
char *head_to_device(const char *host);
head_field field_place(onep_type type, int64_t rows, int64_t columns, head_layout l, int written);

double field_get(const head_field *f, int64_t i, int64_t j);
double head_put(const head_field *f, int64_t i, int64_t j, double x); /* returns what was stored */
void *head_take_workspace(size_t bytes);                              /* at a multiple of 256; NULL for none */

/* Copies it to the device and back; the second checks that nothing changed that was not marked, and all tickets. */
void head_arena_send(void);
void head_arena_fetch(void);

/* Normally distributed, nearly: within 6. */
double head_normal(test_random *random);

#endif
