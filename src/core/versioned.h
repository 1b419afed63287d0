/*
 * Structures of the public header that may grow start with their own size. A caller compiled against an older header
 * passes a shorter one: what it lacks is zero, the default. One compiled against a newer header passes a longer one: it
 * is taken if what this library does not know is zero, and refused otherwise, never ignored.
 */
#ifndef ONEP_VERSIONED_H
#define ONEP_VERSIONED_H

#include "onepass.h"

/* Copies *from into *to (to_size bytes). first_size is the size the structure had when it was first published. */
onepass_status onep_read_versioned(const char *operator_name, const char *argument, const void *from, size_t first_size,
                                   void *to, size_t to_size);

/* The way back: fills in a structure the caller gave, `to`, whose size it has set. What an older one lacks is left out,
 * what a newer one has beyond ours is zero. */
onepass_status onep_write_versioned(const char *operator_name, const char *argument, const void *from, size_t from_size,
                                    size_t first_size, void *to);

#endif
