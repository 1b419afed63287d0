/*
 * A progress bar on stderr for work that lasts over a second: only if stderr is a terminal, never with --quiet, without
 * colour where NO_COLOR is set or the terminal is dumb. Never touches stdout. One bar at a time.
 */
#ifndef TOOL_PROGRESS_H
#define TOOL_PROGRESS_H

#include <stdbool.h>

/* Starts the clock; `label` says what is being done and is kept, not copied. */
void progress_begin(const char *label, bool quiet);

/* `done` is from 0 to 1. Has the type of onepass_progress; `context` is not used. */
void progress_update(void *context, double done);

/* Wipes the bar, if one was drawn, so that a line can be printed; it comes back with the next update. */
void progress_wipe(void);

/* Wipes it and draws no more until the next progress_begin. */
void progress_clear(void);

#endif
