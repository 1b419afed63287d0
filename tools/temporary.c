/* Temporary files and the signals that threaten them. See temporary.h. */
#define _XOPEN_SOURCE 700
#include "temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "message.h"

enum { MOST = 8, ATTEMPTS = 1000 };

static struct {
    volatile sig_atomic_t exists;
    char path[FILES_MAX_PATH];
} temporaries[MOST];

static struct watched {
    const char *volatile address;
    size_t size;
    const char *name;
} watches[MOST];

/* ---- handlers: only what is safe in one -------------------------------------------------------------------------- */

static void remove_all(void)
{
    for (int i = 0; i < MOST; i++)
        if (temporaries[i].exists)
            unlink(temporaries[i].path);
}

/* Without control characters: a file's name must not add a line of its own. */
static void put(const char *text)
{
    for (; *text; text++) {
        char byte = (unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text;
        ssize_t ignored = write(STDERR_FILENO, &byte, 1);
        (void)ignored;
    }
}

/* Was installed to run once: the signal raised again here ends the process when the handler returns. */
static void on_end(int signal_number)
{
    remove_all();
    raise(signal_number);
}

static void on_bus_error(int signal_number, siginfo_t *information, void *context)
{
    (void)signal_number, (void)context;
    /* Several threads may meet the same hole: one of them speaks, the others wait for the end. */
    static atomic_flag taken = ATOMIC_FLAG_INIT;
    while (atomic_flag_test_and_set(&taken))
        pause();
    const char *at = information->si_addr;
    const char *name = "a mapped file";
    for (int i = 0; i < MOST; i++)
        if (watches[i].address && at >= watches[i].address && at < watches[i].address + watches[i].size)
            name = watches[i].name;
    remove_all();
    put(message_prefix());
    put(name);
    put(": the file shrank, or its device failed or is full, while it was in use; it must stay as it is");
    ssize_t ignored = write(STDERR_FILENO, "\n", 1);
    (void)ignored;
    _exit(EXIT_INPUT);
}

void temporary_guard_signals(void)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        struct sigaction action = {.sa_handler = on_end, .sa_flags = (int)SA_RESETHAND}, previous;
        /* A signal ignored by who started us (nohup) stays ignored. */
        if (sigaction(ends[i], NULL, &previous) == 0 && previous.sa_handler != SIG_IGN)
            sigaction(ends[i], &action, NULL);
    }
    struct sigaction bus = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &bus, NULL);
    signal(SIGXFSZ, SIG_IGN);
}

/* ---- the files --------------------------------------------------------------------------------------------------- */

/* Between the making (or naming) of a file and the note of it no handler may run. */
static sigset_t block_signals(void)
{
    sigset_t all, previous;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &previous);
    return previous;
}

static void restore_signals(sigset_t previous)
{
    int error = errno;
    sigprocmask(SIG_SETMASK, &previous, NULL);
    errno = error;
}

/* "directory/.onepass-<process>-<n>.tmp": short, so that a target with the longest allowed name works too. */
static int open_beside(const char *target, char path[FILES_MAX_PATH])
{
    const char *slash = strrchr(target, '/');
    int directory = slash ? (int)(slash - target) + 1 : 0;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        int length =
            snprintf(path, FILES_MAX_PATH, "%.*s.onepass-%ld-%d.tmp", directory, target, (long)getpid(), attempt);
        if (length >= FILES_MAX_PATH) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int descriptor = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor >= 0 || errno != EEXIST)
            return descriptor;
    }
    return -1;
}

int temporary_create(const char *target, int *id)
{
    *id = 0;
    while (temporaries[*id].exists)
        if (++*id == MOST) {
            errno = EMFILE;
            return -1;
        }
    sigset_t previous = block_signals();
    int descriptor = open_beside(target, temporaries[*id].path);
    temporaries[*id].exists = descriptor >= 0;
    restore_signals(previous);
    struct stat status;
    if (descriptor >= 0 && stat(target, &status) == 0) {
        int ignored = fchmod(descriptor, status.st_mode & 0777);
        (void)ignored;
    }
    return descriptor;
}

int temporary_rename(int id, const char *target)
{
    sigset_t previous = block_signals();
    int result = rename(temporaries[id].path, target);
    if (result == 0)
        temporaries[id].exists = 0;
    restore_signals(previous);
    return result;
}

void temporary_remove(int id)
{
    sigset_t previous = block_signals();
    unlink(temporaries[id].path);
    temporaries[id].exists = 0;
    restore_signals(previous);
}

void temporary_watch(const void *address, size_t size, const char *name)
{
    for (int i = 0; i < MOST; i++)
        if (!watches[i].address) {
            watches[i].size = size;
            watches[i].name = name;
            watches[i].address = address;
            return;
        }
}

void temporary_unwatch(const void *address)
{
    for (int i = 0; i < MOST; i++)
        if (watches[i].address == address)
            watches[i].address = NULL;
}
