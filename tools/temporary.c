/* Temporary files and the signals that threaten them. See temporary.h. */
#define _GNU_SOURCE /* O_TMPFILE */
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

enum { MOST = TEMPORARY_MOST, ATTEMPTS = 1000 };

/* `exists` says that there is a file of that name; a file in use may have no name yet. */
typedef struct beside {
    volatile sig_atomic_t exists;
    bool used;
    char path[FILES_MAX_PATH];
} beside;

static beside temporaries[MOST]; /* new files */
static beside olds[MOST];        /* second names of what they replace, while that can fail */

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
    for (int i = 0; i < MOST; i++)
        if (olds[i].exists)
            unlink(olds[i].path);
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

/* Signals that do not end a process, or that cannot be handled, or are handled in their own way below. */
static bool is_left_alone(int signal_number)
{
    static const int others[] = {SIGKILL, SIGSTOP, SIGCHLD, SIGCONT,  SIGTSTP, SIGTTIN,
                                 SIGTTOU, SIGURG,  SIGBUS,  SIGWINCH, SIGXFSZ};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (signal_number == others[i])
            return true;
    return false;
}

void temporary_guard_signals(void)
{
    for (int number = 1; number <= SIGRTMAX; number++) {
        struct sigaction action = {.sa_handler = on_end, .sa_flags = (int)SA_RESETHAND}, previous;
        /* A signal ignored by who started us (nohup) stays ignored; a sanitizer keeps its own handlers. */
        if (!is_left_alone(number) && sigaction(number, NULL, &previous) == 0 && previous.sa_handler == SIG_DFL)
            sigaction(number, &action, NULL);
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

/*
 * "directory/.onepass-<process>-<n>.tmp": short, so that a target with the longest allowed name works too. Tries names
 * until `make` does not find its own taken; returns what it returns.
 */
typedef int maker(const char *path, const void *context);

static int make_beside(const char *target, beside *made, maker *make, const void *context)
{
    const char *slash = strrchr(target, '/');
    int directory = slash ? (int)(slash - target) + 1 : 0;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        int length =
            snprintf(made->path, FILES_MAX_PATH, "%.*s.onepass-%ld-%d.tmp", directory, target, (long)getpid(), attempt);
        if (length >= FILES_MAX_PATH) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int result = make(made->path, context);
        made->exists = result >= 0;
        if (result >= 0 || errno != EEXIST)
            return result;
    }
    return -1;
}

static int make_file(const char *path, const void *unused)
{
    (void)unused;
    return open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

static int make_second_name(const char *path, const void *target)
{
    return link(target, path);
}

/* The way to name a file without a name that needs no privilege. */
static void path_of_descriptor(char path[40], int descriptor)
{
    snprintf(path, 40, "/proc/self/fd/%d", descriptor);
}

static int make_first_name(const char *path, const void *descriptor)
{
    char from[40];
    path_of_descriptor(from, *(const int *)descriptor);
    return linkat(AT_FDCWD, from, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
}

/* -1 where the file system has no such files, or where they could not be named later. */
static int open_nameless(const char *target)
{
    char directory[FILES_MAX_PATH], self[40];
    const char *slash = strrchr(target, '/');
    int length = slash ? (int)(slash - target) + 1 : 1;
    snprintf(directory, sizeof directory, "%.*s", length, slash ? target : ".");
    int descriptor = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    if (descriptor < 0)
        return -1;
    path_of_descriptor(self, descriptor);
    if (access(self, F_OK) == 0)
        return descriptor;
    close(descriptor);
    return -1;
}

int temporary_create(const char *target, int *id)
{
    *id = 0;
    while (temporaries[*id].used)
        if (++*id == MOST) {
            errno = EMFILE;
            return -1;
        }
    int descriptor = open_nameless(target);
    if (descriptor < 0) {
        sigset_t previous = block_signals();
        descriptor = make_beside(target, &temporaries[*id], make_file, NULL);
        restore_signals(previous);
    } else {
        snprintf(temporaries[*id].path, FILES_MAX_PATH, "%s", target); /* for the directory of its first name */
    }
    temporaries[*id].used = descriptor >= 0;
    struct stat status;
    if (descriptor >= 0 && stat(target, &status) == 0) {
        int ignored = fchmod(descriptor, status.st_mode & 0777);
        (void)ignored;
    }
    return descriptor;
}

int temporary_finish(int id, int descriptor)
{
    int result = 0;
    if (!temporaries[id].exists) {
        char target[FILES_MAX_PATH];
        memcpy(target, temporaries[id].path, sizeof target);
        sigset_t previous = block_signals();
        result = make_beside(target, &temporaries[id], make_first_name, &descriptor);
        restore_signals(previous);
    }
    int error = errno;
    if (close(descriptor) != 0 && result == 0)
        return -1;
    errno = error;
    return result;
}

static void forget(beside *file)
{
    if (file->exists)
        unlink(file->path);
    file->exists = 0;
    file->used = false;
}

int temporary_publish(const int ids[], const char *const targets[], int count, bool *undone)
{
    enum { NEW, KEPT, LOST } before[MOST];
    *undone = true;
    sigset_t previous = block_signals();
    for (int i = 0; i < count - 1; i++) { /* the last one never has to be undone */
        int kept = make_beside(targets[i], &olds[i], make_second_name, targets[i]);
        before[i] = kept == 0 ? KEPT : errno == ENOENT ? NEW : LOST;
    }
    int done = 0;
    while (done < count && rename(temporaries[ids[done]].path, targets[done]) == 0) {
        temporaries[ids[done]].exists = 0;
        temporaries[ids[done]].used = false;
        done++;
    }
    int error = errno;
    for (int i = done; i-- > 0 && done < count;) {
        if (before[i] == KEPT && rename(olds[i].path, targets[i]) == 0)
            olds[i].exists = 0;
        else if (before[i] != NEW || unlink(targets[i]) != 0)
            *undone = false;
    }
    for (int i = 0; i < count - 1; i++)
        forget(&olds[i]);
    restore_signals(previous);
    errno = error;
    return done;
}

void temporary_remove(int id)
{
    sigset_t previous = block_signals();
    forget(&temporaries[id]);
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
