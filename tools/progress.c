/* The progress bar. See progress.h. */
#define _POSIX_C_SOURCE 200809L
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"

enum { BAR_WIDTH = 30 };

static struct {
    const char *label;
    bool active, drawn, colour;
    double begun, last;
} bar;

void progress_begin(const char *label, bool quiet)
{
    progress_clear();
    const char *no_colour = getenv("NO_COLOR");
    const char *terminal = getenv("TERM");
    bool dumb = !terminal || strcmp(terminal, "dumb") == 0;
    bar.active = !quiet && isatty(STDERR_FILENO);
    bar.colour = !dumb && !(no_colour && *no_colour);
    bar.label = label;
    bar.begun = bar.last = clock_seconds();
}

/* "kl  [=========>          ]  45%  3 s, 4 s left" over the same line again and again. */
static void draw(double done, double elapsed)
{
    int filled = (int)(done * BAR_WIDTH);
    char cells[BAR_WIDTH + 1];
    for (int i = 0; i < BAR_WIDTH; i++)
        cells[i] = i < filled ? '=' : i == filled ? '>' : ' ';
    cells[BAR_WIDTH] = '\0';
    fprintf(stderr, "\r%s [%s%s%s] %3.0f%%  %.0f s", bar.label, bar.colour ? "\033[32m" : "", cells,
            bar.colour ? "\033[0m" : "", 100 * done, elapsed);
    if (done > 0)
        fprintf(stderr, ", %.0f s left   ", elapsed * (1 - done) / done);
    fflush(stderr);
    bar.drawn = true;
}

void progress_update(void *context, double done)
{
    (void)context;
    if (!bar.active)
        return;
    double now = clock_seconds();
    if (now - bar.begun < 1 || now - bar.last < 0.1)
        return;
    bar.last = now;
    draw(done < 0 ? 0 : done > 1 ? 1 : done, now - bar.begun);
}

void progress_wipe(void)
{
    if (bar.drawn)
        fprintf(stderr, "\r%*s\r", (int)strlen(bar.label) + BAR_WIDTH + 40, "");
    bar.drawn = false;
}

void progress_clear(void)
{
    progress_wipe();
    bar.active = false;
}
