/*
 * What must happen when the process is ended from outside: temporary outputs are removed, and a mapped file that shrank
 * is named. Holds the only state signal handlers read. Never allocates.
 */
#ifndef TOOL_TEMPORARY_H
#define TOOL_TEMPORARY_H

#include <stdbool.h>
#include <stddef.h>

/* Handlers for SIGINT, SIGTERM, SIGHUP, SIGPIPE and SIGBUS; a limit on file sizes becomes an error instead of an end.
 */
void temporary_guard_signals(void);

/*
 * Creates a new file in the directory of `target`, with the permissions `target` has or would get. Returns a descriptor
 * and an id, or -1 with errno set.
 */
int temporary_create(const char *target, int *id);

/* Gives the file the target's name: 0, or -1 with errno set and the file still there. */
int temporary_rename(int id, const char *target);
void temporary_remove(int id);

/* Files that are mapped, so that a bus error can name the one that failed. `name` is kept, not copied. */
void temporary_watch(const void *address, size_t size, const char *name);
void temporary_unwatch(const void *address);

#endif
