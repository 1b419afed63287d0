/*
 * How losses from logits are cut into blocks of rows for the CPU. It depends on the shape alone, never on threads or
 * vector level. A row is worked on by one thread, in strips of ONEP_STRIP columns.
 */
#ifndef ONEP_LOGITS_PLAN_H
#define ONEP_LOGITS_PLAN_H

#include <stdint.h>

enum {
    ONEP_LOGITS_MAX_BLOCKS = 256,       /* partial sums stay on the caller's stack: 2 KiB */
    ONEP_LOGITS_BLOCK_ELEMENTS = 32768, /* a block is worth handing to a thread from about here */
    ONEP_LOGITS_RUN = 8,                /* vectors added up in the kernel's own type before double takes over */
    ONEP_LOGITS_NARROW = 512,           /* bytes of a row up to which rows share vectors, as REAL */
    ONEP_LOGITS_STREAM_BYTES = 1 << 25, /* gradients from this size on are written past the caches */
};

/* A KL below this is computed again from terms that do not cancel. */
#define ONEP_LOGITS_SMALL 0x1p-7

/* The arithmetic of a divergence. */
typedef enum onep_terms_kind {
    ONEP_TERMS_KL,
    ONEP_TERMS_REVERSE_KL,
    ONEP_TERMS_MIXTURE,
    ONEP_TERMS_VARIATION,
} onep_terms_kind;

typedef struct onep_logits_blocks {
    int64_t count, rows;
} onep_logits_blocks;

static inline onep_logits_blocks onep_logits_blocks_of(int64_t rows, int64_t columns)
{
    int64_t fewest = rows / ONEP_LOGITS_MAX_BLOCKS + (rows % ONEP_LOGITS_MAX_BLOCKS != 0);
    int64_t worth = ONEP_LOGITS_BLOCK_ELEMENTS / (columns > 0 ? columns : 1);
    onep_logits_blocks blocks = {.rows = fewest > worth ? fewest : worth};
    blocks.rows += blocks.rows < 1;
    blocks.count = rows / blocks.rows + (rows % blocks.rows != 0);
    return blocks;
}

#endif
