/* Finds OpenBLAS or BLIS and keeps them to one thread. See blas.h. */
#include "cpu/blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cancel.h"
#include "core/loading.h"
#include "core/status.h"

/* Where a library is and how it speaks of threads. */
typedef struct candidate {
    const char *name, *file;
    const char *get_threads, *set_threads;
} candidate;

static const candidate candidates[] = {
    [ONEP_BLAS_ANY] = {NULL, NULL, NULL, NULL},
    [ONEP_BLAS_OPENBLAS] = {"openblas", "libopenblas.so.0", "openblas_get_num_threads", "openblas_set_num_threads"},
    [ONEP_BLAS_BLIS] = {"blis", "libblis.so.4", "bli_thread_get_num_threads", "bli_thread_set_num_threads"},
};

enum { CANDIDATES = ONEP_BLAS_BLIS + 1 };

typedef struct found {
    pthread_once_t once;
    onep_blas blas; /* sgemm NULL: not there */
    void *library;
    void *get_threads, *set_threads;
} found;

static found libraries[CANDIDATES] = {
    [ONEP_BLAS_ANY] = {.once = PTHREAD_ONCE_INIT},
    [ONEP_BLAS_OPENBLAS] = {.once = PTHREAD_ONCE_INIT},
    [ONEP_BLAS_BLIS] = {.once = PTHREAD_ONCE_INIT},
};

/* Object pointers become function pointers by their bytes: ISO C has no conversion. */
#define FUNCTION(to, symbol) memcpy(&(to), &(symbol), sizeof(to))

static void keep_to_one_thread(const found *f)
{
    void (*set)(long); /* BLIS takes a 64-bit number, OpenBLAS an int: the register is the same */
    FUNCTION(set, f->set_threads);
    set(1);
}

static void load(int which)
{
    const candidate *c = &candidates[which];
    found *f = &libraries[which];
    void *present = onep_open_library(c->file, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    void *library = present ? present : onep_open_library(c->file, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return;
    void *sgemm = dlsym(library, "cblas_sgemm");
    void *dgemm = dlsym(library, "cblas_dgemm");
    void *get_threads = dlsym(library, c->get_threads);
    void *set_threads = dlsym(library, c->set_threads);
    if (!sgemm || !dgemm || !get_threads || !set_threads) {
        dlclose(library);
        return;
    }
    f->library = library;
    f->get_threads = get_threads;
    f->set_threads = set_threads;
    f->blas.name = c->name;
    f->blas.file = c->file;
    FUNCTION(f->blas.sgemm, sgemm);
    FUNCTION(f->blas.dgemm, dgemm);
    if (!present)
        keep_to_one_thread(f);
}

static void load_openblas(void)
{
    load(ONEP_BLAS_OPENBLAS);
}

static void load_blis(void)
{
    load(ONEP_BLAS_BLIS);
}

static const found *find(int which)
{
    found *f = &libraries[which];
    onep_load_once(&f->once, which == ONEP_BLAS_OPENBLAS ? load_openblas : load_blis);
    return f->library ? f : NULL;
}

/* BLIS says -1 for a number that was never set, which means one. */
static int is_single(const found *f)
{
    int (*get)(void);
    FUNCTION(get, f->get_threads);
    return get() <= 1;
}

onepass_status onep_blas_choose(const char *asked, onep_blas_choice *choice)
{
    const char *source = "config.blas";
    if (!asked) {
        source = "$ONEPASS_BLAS";
        asked = getenv("ONEPASS_BLAS");
        if (!asked || !*asked) {
            *choice = ONEP_BLAS_ANY;
            return ONEPASS_OK;
        }
    }
    *choice = strcmp(asked, "none") == 0 ? ONEP_BLAS_NONE : ONEP_BLAS_ANY;
    for (int which = ONEP_BLAS_OPENBLAS; which < CANDIDATES; which++)
        if (strcmp(asked, candidates[which].name) == 0)
            *choice = (onep_blas_choice)which;
    if (*choice == ONEP_BLAS_ANY)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "create: %s: \"%.32s\" is no BLAS; use openblas, blis or none",
                         source, asked);
    if (*choice != ONEP_BLAS_NONE && !find((int)*choice))
        return onep_fail(ONEPASS_UNSUPPORTED, "create: %s: %s cannot be loaded on this machine", source,
                         candidates[*choice].file);
    return ONEPASS_OK;
}

const onep_blas *onep_blas_of(onep_blas_choice choice)
{
    for (int which = ONEP_BLAS_OPENBLAS; which < CANDIDATES; which++) {
        if (choice != ONEP_BLAS_ANY && choice != (onep_blas_choice)which)
            continue;
        const found *f = find(which);
        if (f && is_single(f))
            return &f->blas;
    }
    return NULL;
}

void onep_blas_describe(onep_blas_choice choice, char *text, size_t size)
{
    const onep_blas *blas = onep_blas_of(choice);
    int present = 0;
    for (int which = ONEP_BLAS_OPENBLAS; which < CANDIDATES; which++)
        present = present || (choice == ONEP_BLAS_ANY && find(which)) || (int)choice == which;
    const char *variable = getenv("ONEPASS_BLAS");
    if (blas)
        snprintf(text, size, "%s, %s", blas->name, blas->file);
    else if (choice == ONEP_BLAS_NONE)
        snprintf(text, size, "the library's own product; %s is \"none\"",
                 variable && strcmp(variable, "none") == 0 ? "$ONEPASS_BLAS" : "config.blas");
    else if (present)
        snprintf(text, size, "the library's own product; the BLAS of this process is set to more than one thread");
    else
        snprintf(text, size, "the library's own product; %s and %s cannot be loaded",
                 candidates[ONEP_BLAS_OPENBLAS].file, candidates[ONEP_BLAS_BLIS].file);
}
