/* See buffer.h. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "cases/buffer.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What guard bytes hold: depends on the address, so that a shifted copy of the pattern is seen too. */
static char guard_byte(const char *at)
{
    uintptr_t address = (uintptr_t)at;
    return (char)(0xa5 ^ address ^ (address >> 8));
}

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

void case_buffer_free(case_buffer *buffer)
{
    if (buffer->map)
        munmap(buffer->map - page_size(), buffer->usable + 2 * page_size());
    memset(buffer, 0, sizeof *buffer);
}

static int reserve(case_buffer *buffer, size_t needed)
{
    if (buffer->usable >= needed)
        return 1;
    case_buffer_free(buffer);
    size_t page = page_size();
    size_t usable = (needed + needed / 2 + page - 1) / page * page;
    char *all = mmap(NULL, usable + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return 0;
    buffer->map = all + page;
    buffer->usable = usable;
    if (mprotect(buffer->map, usable, PROT_READ | PROT_WRITE) == 0)
        return 1;
    case_buffer_free(buffer);
    return 0;
}

/* Start and end of the guard bytes before and after the data. */
static void bands(const case_buffer *buffer, char **before, char **after)
{
    char *end = buffer->map + buffer->usable;
    *before = buffer->data - buffer->map > CASE_BAND ? buffer->data - CASE_BAND : buffer->map;
    char *data_end = buffer->data + buffer->bytes;
    *after = end - data_end > CASE_BAND ? data_end + CASE_BAND : end;
}

int case_buffer_place(case_buffer *buffer, size_t bytes, case_guard guard, size_t shift)
{
    if (!reserve(buffer, bytes + 2 * CASE_BAND + shift))
        return 0;
    buffer->bytes = bytes;
    switch (guard) {
    case CASE_PAGE_AFTER:
        buffer->data = buffer->map + buffer->usable - bytes - shift;
        break;
    case CASE_PAGE_BEFORE:
        buffer->data = buffer->map + shift;
        break;
    default:
        buffer->data = buffer->map + CASE_BAND + shift;
        break;
    }
    char *before;
    char *after;
    bands(buffer, &before, &after);
    for (char *at = before; at < buffer->data; at++)
        *at = guard_byte(at);
    for (char *at = buffer->data + bytes; at < after; at++)
        *at = guard_byte(at);
    return 1;
}

size_t case_buffer_damage(const case_buffer *buffer)
{
    char *before;
    char *after;
    bands(buffer, &before, &after);
    size_t damage = 0;
    for (const char *at = before; at < buffer->data; at++)
        damage += *at != guard_byte(at);
    for (const char *at = buffer->data + buffer->bytes; at < after; at++)
        damage += *at != guard_byte(at);
    return damage;
}
