/*
 * The result of a sweep as one page without scripts or anything from elsewhere: of each operator a map of rows and
 * columns with the smallest share in each cell, and a small map for each type, reduction, layout and result, in which
 * every point that was measured or refused is a cell with its numbers as its title.
 */
#ifndef TOOL_SWEEP_HTML_H
#define TOOL_SWEEP_HTML_H

#include <stdio.h>

#include "sweep_plan.h"

void sweep_write_html(FILE *stream, const sweep_plan *plan, const char *isa, int threads);

#endif
