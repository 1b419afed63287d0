/* What tests of one operator's cases share: a handle per vector level, and a case held to its exact results by all. */
#ifndef ONEP_TESTS_LEVEL_CASES_H
#define ONEP_TESTS_LEVEL_CASES_H

#include <stdio.h>

#include "cases/case.h"
#include "harness.h"

static onepass_handle *handles[ONEP_LEVELS]; /* of two threads; NULL: does not run here */
static double worst[ONEP_LEVELS];            /* shares of what is allowed */

static void open_levels(void)
{
    for (int level = 0; level < ONEP_LEVELS; level++)
        handles[level] = onep_level_runs((onep_level)level) ? test_handle((onep_level)level, 2) : NULL;
}

/* Says how near the results came to what is allowed, too. */
static void close_levels(const char *test)
{
    for (int level = 0; level < ONEP_LEVELS; level++) {
        if (handles[level])
            printf("%s: %s: at most %.2f of what is allowed\n", test, onep_level_name((onep_level)level), worst[level]);
        onepass_destroy(handles[level]);
    }
}

static void check_everywhere(op_case *c)
{
    char text[1800];
    CHECK(case_make(c), "no memory");
    for (int level = 0; level < ONEP_LEVELS; level++) {
        if (!handles[level])
            continue;
        test_context("level %s: %s", onep_level_name((onep_level)level), case_describe(c, text, sizeof text));
        for (int i = 0; i < c->arguments; i++)
            c->argument[i].worst = 0;
        case_check(c, handles[level], &test_judge);
        for (int i = 0; i < c->arguments; i++)
            if (c->argument[i].given && c->argument[i].worst > worst[level])
                worst[level] = c->argument[i].worst;
    }
}

#endif
