/* Memory whose neighbourhood is watched: guard bands on both sides, or a page that may not be touched on one. */
#ifndef CASES_BUFFER_H
#define CASES_BUFFER_H

#include <stddef.h>

typedef enum case_guard {
    CASE_BANDS,       /* 4 KiB of pattern on both sides: a write outside is seen afterwards */
    CASE_PAGE_AFTER,  /* the last byte touches a page that may not be read; a band before */
    CASE_PAGE_BEFORE, /* the first byte touches such a page; a band after */
    CASE_GUARDS,
} case_guard;

/* Reused from call to call; zero it before its first use. */
typedef struct case_buffer {
    char *data; /* `bytes` of it belong to the owner */
    size_t bytes;
    char *map; /* `usable` bytes between two forbidden pages */
    size_t usable;
} case_buffer;

enum { CASE_BAND = 4096 };

/* Makes data point at `bytes` bytes at an address that is `shift` bytes off the place the guard alone would give.
 * Returns 0 if there is no memory. */
int case_buffer_place(case_buffer *buffer, size_t bytes, case_guard guard, size_t shift);
void case_buffer_free(case_buffer *buffer);

/* The number of guard bytes that changed since case_buffer_place. */
size_t case_buffer_damage(const case_buffer *buffer);

#endif
