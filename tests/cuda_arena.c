/* See cuda_arena.h. */
#include "cuda_arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

onepass_handle *head_handle;
onep_cu_stream *head_stream;
uint64_t head_streams = 1u << 24;
struct head_arena head_arena;

/* ---- the arena --------------------------------------------------------------------------------------------------- */

enum { ARENA_BYTES = 96 << 20, BAND = 4096 };

void head_arena_begin(int poison)
{
    if (!head_arena.device) {
        head_arena.device = cuda_claim(ARENA_BYTES);
        head_arena.host = malloc(ARENA_BYTES);
        head_arena.sent = malloc(ARENA_BYTES);
        head_arena.writable = malloc(ARENA_BYTES);
        if (!head_arena.host || !head_arena.sent || !head_arena.writable)
            exit(2);
    }
    if (!head_arena.most)
        head_arena.most = ARENA_BYTES;
    memset(head_arena.host, poison, head_arena.most);
    memset(head_arena.writable, 0, head_arena.most);
    head_arena.most = head_arena.used = BAND;
}

char *head_arena_take(size_t bytes, size_t shift)
{
    size_t at = (head_arena.used + 255) / 256 * 256 + shift;
    head_arena.used = at + bytes + BAND;
    head_arena.most = head_arena.used > head_arena.most ? head_arena.used : head_arena.most;
    if (head_arena.used > ARENA_BYTES) {
        fprintf(stderr, "the arena is too small\n");
        exit(2);
    }
    return head_arena.host + at;
}

char *head_to_device(const char *host)
{
    return head_arena.device + (host - head_arena.host);
}

head_field field_place(onep_type type, int64_t rows, int64_t columns, head_layout l, int written)
{
    int64_t size = (int64_t)onep_type_size(type);
    int64_t col = l == STRIDED ? 2 * size : size, gap = 0;
    if (l == PADDED)
        gap = 16;
    else if (l == STRIDED)
        gap = 3 * size;
    int64_t row = columns * col + gap;
    head_field f = {.rows = rows, .columns = columns};
    f.host = head_arena_take((size_t)(rows * row), l == SHIFTED ? (size_t)size : 0);
    f.operand = (onep_operand){.data = head_to_device(f.host), .type = type, .col_stride = col};
    f.operand.row_stride[0] = row;
    for (int64_t i = 0; written && i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            memset(head_arena.writable + (f.host - head_arena.host) + i * row + j * col, 1, (size_t)size);
    return f;
}

static char *address(const head_field *f, int64_t i, int64_t j)
{
    return f->host + i * f->operand.row_stride[0] + j * f->operand.col_stride;
}

double field_get(const head_field *f, int64_t i, int64_t j)
{
    return onep_load(f->operand.type, address(f, i, j));
}

/* Returns what was stored. */
double head_put(const head_field *f, int64_t i, int64_t j, double x)
{
    onep_store(f->operand.type, address(f, i, j), x);
    return field_get(f, i, j);
}

void *head_take_workspace(size_t bytes)
{
    if (!bytes)
        return NULL;
    char *host = head_arena_take(bytes, 0);
    memset(head_arena.writable + (host - head_arena.host), 1, bytes);
    return head_to_device(host);
}

void head_arena_send(void)
{
    memcpy(head_arena.sent, head_arena.host, head_arena.used);
    cuda_upload(head_arena.device, head_arena.host, head_arena.used);
}

void head_arena_fetch(void)
{
    cuda_download(head_arena.host, head_arena.device, head_arena.used);
    size_t changed = 0;
    for (size_t i = 0; i < head_arena.used; i++)
        changed += !head_arena.writable[i] && head_arena.host[i] != head_arena.sent[i];
    CHECK(changed == 0, "%zu bytes changed that are not the call's to change", changed);
    CHECK(cuda_tickets_are_zero(head_handle), "a ticket is not 0");
}

double head_normal(test_random *random)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += test_random_unit(random);
    return sum;
}
