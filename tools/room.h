/*
 * Whether memory of a size is there to be filled. malloc does not say: where memory is overcommitted it gives more than
 * there is, and the process is killed while it fills it. Allocates nothing.
 */
#ifndef TOOL_ROOM_H
#define TOOL_ROOM_H

#include <stdbool.h>
#include <stdint.h>

/* False if the machine, or the control group the process is in, has not that much left. True where nobody says. */
bool room_for(uint64_t bytes);

/* *total += count * size; false, with *total at the largest number, if that does not fit. */
bool room_add(uint64_t *total, uint64_t count, uint64_t size);

#endif
