/*
 * Outputs that are not published yet, and what must happen when the process is ended from outside: no temporary file
 * stays, and a mapped file that shrank is named. Holds the only state signal handlers read. Never allocates.
 */
#ifndef TOOL_TEMPORARY_H
#define TOOL_TEMPORARY_H

#include <stdbool.h>
#include <stddef.h>

enum { TEMPORARY_MOST = 8 }; /* at the same time */

/*
 * Handlers for every signal that would end the process and is not handled or ignored already, and for SIGBUS; a limit
 * on file sizes becomes an error instead of an end.
 */
void temporary_guard_signals(void);

/*
 * Creates a new file in the directory of `target`, with the permissions `target` has or would get. It has no name where
 * the file system can do that, so that nothing is left of it even after SIGKILL; otherwise a handler removes it.
 * Returns a descriptor and an id, or -1 with errno set.
 */
int temporary_create(const char *target, int *id);

/* Gives the file a name beside its target if it has none, and closes the descriptor: 0, or -1 with errno set. */
int temporary_finish(int id, int descriptor);

/*
 * The finished files take the names of their targets, all or none: if one cannot, those before it are given back what
 * they were. Returns `count`, or which one failed, with errno set; `undone` is then false if a file could not be given
 * back, because its file system has no hard links. A process that is killed in between leaves some replaced.
 */
int temporary_publish(const int ids[], const char *const targets[], int count, bool *undone);

void temporary_remove(int id);

/* Files that are mapped, so that a bus error can name the one that failed. `name` is kept, not copied. */
void temporary_watch(const void *address, size_t size, const char *name);
void temporary_unwatch(const void *address);

#endif
