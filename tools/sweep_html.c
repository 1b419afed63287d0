/* The page of a sweep. See sweep_html.h. */
#include "sweep_html.h"

#include <inttypes.h>
#include <math.h>

static void put_escaped(FILE *stream, const char *text)
{
    for (; *text; text++) {
        if (*text == '<')
            fputs("&lt;", stream);
        else if (*text == '&')
            fputs("&amp;", stream);
        else if ((unsigned char)*text < 0x20 || *text == 0x7f)
            fputc(' ', stream);
        else
            fputc(*text, stream);
    }
}

/* ---- colours ----------------------------------------------------------------------------------------------------- */

/* From far below the floor to at it, told apart without telling red from green: light enough for black digits. */
static const struct {
    double share;
    int red, green, blue;
} stops[] = {{0, 214, 84, 56}, {0.4, 244, 165, 96}, {0.7, 247, 232, 170}, {0.85, 168, 210, 226}, {1, 104, 168, 214}};

enum { STOPS = sizeof stops / sizeof stops[0] };

static void put_colour(FILE *stream, double share)
{
    double bounded = fmin(fmax(share, 0), 1);
    int above = 1;
    while (above < STOPS - 1 && bounded > stops[above].share)
        above++;
    double part = (bounded - stops[above - 1].share) / (stops[above].share - stops[above - 1].share);
    fprintf(stream, "#%02x%02x%02x", (int)(stops[above - 1].red + part * (stops[above].red - stops[above - 1].red)),
            (int)(stops[above - 1].green + part * (stops[above].green - stops[above - 1].green)),
            (int)(stops[above - 1].blue + part * (stops[above].blue - stops[above - 1].blue)));
}

/* ---- one point --------------------------------------------------------------------------------------------------- */

static void put_variant(FILE *stream, const sweep_point *point)
{
    fprintf(stream, "%s %s %s %s", element_infos[point->type].name, sweep_reduction_name(point),
            sweep_layout_names[point->layout], point->gradient ? "gradient" : "value");
}

static void put_numbers(FILE *stream, const sweep_point *point)
{
    fprintf(stream, "%" PRId64 " x %" PRId64 ", %s ", point->rows, point->columns,
            sweep_operator_names[point->operator_id]);
    put_variant(stream, point);
    if (point->state == SWEEP_MEASURED) {
        fprintf(stream, ": %.6g ms, floor %.6g ms (%s), %.1f%%, workspace %zu bytes", 1e3 * point->seconds,
                1e3 * point->floor, point->floor_name, 100 * sweep_share(point), point->workspace);
    } else {
        fputs(": refused: ", stream);
        put_escaped(stream, point->message ? point->message : "");
    }
}

static int place(const int64_t *list, int64_t value)
{
    int at = 0;
    while (list[at] != value)
        at++;
    return at;
}

static bool is_shown(const sweep_point *point)
{
    return point->state == SWEEP_MEASURED || point->state == SWEEP_REFUSED;
}

/* ---- maps -------------------------------------------------------------------------------------------------------- */

enum { WIDE = 58, HIGH = 26, LEFT = 82, BELOW = 24, SMALL = 13 };

/* 10000000 as 10M: rounded to what fits beside a row. */
static void put_extent(FILE *stream, int64_t extent)
{
    static const char units[] = " kMGT";
    int unit = 0;
    while (extent >= 1000 && extent % 1000 == 0 && unit < 4) {
        extent /= 1000;
        unit++;
    }
    fprintf(stream, "%" PRId64 "%.*s", extent, unit > 0, &units[unit]);
}

/* The point with the smallest share of an operator at a shape; NULL: none was measured. */
static const sweep_point *worst_at(const sweep_plan *plan, sweep_operator id, int row, int column)
{
    const sweep_point *worst = NULL;
    for (size_t i = 0; i < plan->count; i++) {
        const sweep_point *point = &plan->points[i];
        if (point->operator_id == id && point->state == SWEEP_MEASURED && point->rows == plan->rows[row] &&
            point->columns == plan->columns[column] && (!worst || sweep_share(point) < sweep_share(worst)))
            worst = point;
    }
    return worst;
}

static void put_large_cell(FILE *stream, const sweep_point *worst, int x, int y)
{
    fprintf(stream, "<g class=\"cell\"><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"", x, y, WIDE - 2,
            HIGH - 2);
    put_colour(stream, sweep_share(worst));
    fprintf(stream, "\"/><text class=\"digits\" x=\"%d\" y=\"%d\">%.*f%%</text><title>", x + WIDE / 2 - 1,
            y + HIGH / 2 + 3, sweep_share(worst) < 0.0995 ? 1 : 0, 100 * sweep_share(worst));
    put_numbers(stream, worst);
    fputs("</title></g>\n", stream);
}

static void put_large_map(FILE *stream, const sweep_plan *plan, sweep_operator id)
{
    int width = LEFT + plan->column_count * WIDE, height = plan->row_count * HIGH + BELOW;
    fprintf(
        stream,
        "<svg class=\"map\" role=\"img\" aria-label=\"%s: smallest share of each shape\" width=\"%d\" height=\"%d\" "
        "viewBox=\"0 0 %d %d\">\n",
        sweep_operator_names[id], width, height, width, height);
    for (int r = 0; r < plan->row_count; r++) {
        fprintf(stream, "<text class=\"row\" x=\"%d\" y=\"%d\">", LEFT - 8, r * HIGH + HIGH / 2 + 3);
        put_extent(stream, plan->rows[r]);
        fputs(r == 0 ? plan->rows[r] == 1 ? " row</text>\n" : " rows</text>\n" : "</text>\n", stream);
        for (int c = 0; c < plan->column_count; c++) {
            const sweep_point *worst = worst_at(plan, id, r, c);
            if (worst)
                put_large_cell(stream, worst, LEFT + c * WIDE, r * HIGH);
        }
    }
    for (int c = 0; c < plan->column_count; c++) {
        fprintf(stream, "<text class=\"column\" x=\"%d\" y=\"%d\">", LEFT + c * WIDE + WIDE / 2, height - 8);
        put_extent(stream, plan->columns[c]);
        fputs(c == 0 ? " col</text>\n" : "</text>\n", stream);
    }
    fputs("</svg>\n", stream);
}

static bool same_variant(const sweep_point *a, const sweep_point *b)
{
    return a->operator_id == b->operator_id && a->type == b->type && a->reduction == b->reduction &&
           a->layout == b->layout;
}

/* Points first to last - 1, which are of one variant, without gradient or with it. */
static void put_small_map(FILE *stream, const sweep_plan *plan, size_t first, size_t last, bool gradient)
{
    const sweep_point *some = NULL;
    for (size_t i = first; i < last && !some; i++)
        if (plan->points[i].gradient == gradient && is_shown(&plan->points[i]))
            some = &plan->points[i];
    if (!some)
        return;
    int width = plan->column_count * SMALL, height = plan->row_count * SMALL;
    fputs("<figure><figcaption>", stream);
    put_variant(stream, some);
    fprintf(stream, "</figcaption><svg width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n", width, height, width,
            height);
    for (size_t i = first; i < last; i++) {
        const sweep_point *point = &plan->points[i];
        if (point->gradient != gradient || !is_shown(point))
            continue;
        bool refused = point->state == SWEEP_REFUSED;
        fprintf(stream, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"",
                refused ? "point refused" : "point", place(plan->columns, point->columns) * SMALL,
                place(plan->rows, point->rows) * SMALL, SMALL - 1, SMALL - 1);
        if (!refused) {
            fputs(" fill=\"", stream);
            put_colour(stream, sweep_share(point));
            fputc('"', stream);
        }
        fputs("><title>", stream);
        put_numbers(stream, point);
        fputs("</title></rect>\n", stream);
    }
    fputs("</svg></figure>\n", stream);
}

static void put_operator(FILE *stream, const sweep_plan *plan, sweep_operator id, size_t first, size_t last)
{
    fprintf(stream, "<section>\n<h2>%s</h2>\n", sweep_operator_names[id]);
    put_large_map(stream, plan, id);
    fputs("<details><summary>Each type, reduction, layout and result</summary>\n<div>\n", stream);
    for (size_t begun = first; begun < last;) {
        size_t end = begun;
        while (end < last && same_variant(&plan->points[begun], &plan->points[end]))
            end++;
        put_small_map(stream, plan, begun, end, false);
        put_small_map(stream, plan, begun, end, true);
        begun = end;
    }
    fputs("</div>\n</details>\n</section>\n", stream);
}

/* ---- the page ---------------------------------------------------------------------------------------------------- */

static const char style[] =
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;"
    "background:#fff;color:#1c1c1c}"
    "h1{font-size:1.4em}h2{font-size:1.1em;margin:1.6em 0 .5em}"
    "svg text{font:12px system-ui,sans-serif;fill:currentColor}"
    "svg .digits{fill:#1c1c1c;text-anchor:middle}svg .row{text-anchor:end}svg .column{text-anchor:middle}"
    ".map{max-width:100%;height:auto}.refused{fill:none;stroke:#8a8a8a;stroke-dasharray:2 2}"
    "details div{display:flex;flex-wrap:wrap;gap:14px;margin-top:10px}figure{margin:0}"
    "figcaption{font-size:11px;line-height:1.3}"
    "@media(prefers-color-scheme:dark){body{background:#161616;color:#e4e4e4}}";

static void put_legend(FILE *stream)
{
    fputs("<svg width=\"460\" height=\"26\" viewBox=\"0 0 460 26\" role=\"img\" aria-label=\"colours\">\n", stream);
    for (int i = 0; i <= 10; i++) {
        fprintf(stream, "<rect x=\"%d\" y=\"0\" width=\"38\" height=\"24\" fill=\"", i * 41);
        put_colour(stream, i / 10.0);
        fprintf(stream, "\"/><text class=\"digits\" x=\"%d\" y=\"16\">%d%%</text>\n", i * 41 + 19, i * 10);
    }
    fputs("</svg>\n", stream);
}

void sweep_write_html(FILE *stream, const sweep_plan *plan, const char *isa, int threads)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<title>onepass bench sweep</title>\n<style>",
          stream);
    fputs(style, stream);
    fprintf(
        stream,
        "</style>\n</head>\n<body>\n<h1>onepass bench sweep</h1>\n"
        "<p>%s, %d threads, seed %" PRIu64 ". A cell is a shape: its colour is floor / time, the floor being a plain "
        "loop over the same bytes, or the operations at the rate of a product, and 1 &micro;s for a call. Large maps show the "
        "smallest share of all types, reductions, layouts and results; pointing at a cell shows the numbers. "
        "Dashed: refused.</p>\n",
        isa, threads, plan->seed);
    put_legend(stream);
    for (size_t first = 0; first < plan->count;) {
        size_t last = first;
        while (last < plan->count && plan->points[last].operator_id == plan->points[first].operator_id)
            last++;
        put_operator(stream, plan, plan->points[first].operator_id, first, last);
        first = last;
    }
    fputs("</body>\n</html>\n", stream);
}
