/* Inputs and outputs as memory. See files.h. */
#define _XOPEN_SOURCE 700
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "message.h"
#include "room.h"
#include "temporary.h"

static bool is_dash(const char *path)
{
    return strcmp(path, "-") == 0;
}

static int count_dashes(const char *const paths[], int count)
{
    int dashes = 0;
    for (int i = 0; i < count; i++)
        dashes += paths[i] && is_dash(paths[i]);
    return dashes;
}

bool files_have_dash(const char *const paths[], int count)
{
    return count_dashes(paths, count) > 0;
}

static void release(unsigned char *bytes, size_t size, bool mapped)
{
    if (mapped) {
        temporary_unwatch(bytes);
        munmap(bytes, size);
    } else {
        free(bytes);
    }
}

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

const char *input_name(const input_file *file)
{
    return is_dash(file->path) ? "stdin" : file->path;
}

/* Reads on until `wanted` bytes are there or the stream ends; memory grows with what came, not with what was promised.
 */
static int fill(input_file *file, int descriptor, size_t *capacity, size_t wanted)
{
    while (file->size < wanted) {
        if (file->size == *capacity) {
            size_t larger = *capacity < 1 << 16 ? 1 << 16 : 2 * *capacity;
            unsigned char *grown = room_for(larger - *capacity) ? realloc(file->bytes, larger) : NULL;
            if (!grown)
                return message_error(EXIT_INPUT, "%s: no memory for %zu bytes", input_name(file), larger);
            file->bytes = grown;
            *capacity = larger;
        }
        size_t room = (wanted < *capacity ? wanted : *capacity) - file->size;
        ssize_t got = read(descriptor, file->bytes + file->size, room);
        if (got < 0 && errno != EINTR)
            return message_error(EXIT_INPUT, "%s: %s", input_name(file), strerror(errno));
        if (got == 0)
            break;
        file->size += got > 0 ? (size_t)got : 0;
    }
    return 0;
}

/* A pipe says how long it is in its header at most, so the header is read first. */
static int read_stream(input_file *file, int descriptor)
{
    npy_error error;
    size_t capacity = 0, end;
    int code = fill(file, descriptor, &capacity, NPY_PREAMBLE);
    if (code)
        return code;
    if (!npy_header_end(file->bytes, file->size, &end, &error))
        return message_error(EXIT_INPUT, "%s: %s", input_name(file), error.text);
    code = fill(file, descriptor, &capacity, end);
    if (code)
        return code;
    if (!npy_read_header(file->bytes, file->size, &file->header, &error))
        return message_error(EXIT_INPUT, "%s: %s", input_name(file), error.text);
    size_t whole = file->header.data_offset + file->header.data_bytes;
    code = fill(file, descriptor, &capacity, whole + 1);
    if (code)
        return code;
    if (file->size > whole)
        return message_error(EXIT_INPUT,
                             "%s: bytes are left over after the %zu its header asks for; there must be none",
                             input_name(file), whole);
    if (!npy_check_size(&file->header, file->size, &error))
        return message_error(EXIT_INPUT, "%s: %s", input_name(file), error.text);
    return 0;
}

/* False if the file cannot be mapped: it is then read. */
static bool map_input(input_file *file, int descriptor, const struct stat *status)
{
    if (!S_ISREG(status->st_mode) || status->st_size == 0 || lseek(descriptor, 0, SEEK_CUR) != 0)
        return false;
    void *address = mmap(NULL, (size_t)status->st_size, PROT_READ, MAP_SHARED, descriptor, 0);
    if (address == MAP_FAILED)
        return false;
    file->bytes = address;
    file->size = (size_t)status->st_size;
    file->mapped = true;
    posix_madvise(address, file->size, POSIX_MADV_SEQUENTIAL);
    temporary_watch(address, file->size, input_name(file));
    return true;
}

static int read_descriptor(input_file *file, int descriptor)
{
    struct stat status;
    if (fstat(descriptor, &status) != 0)
        return message_error(EXIT_INPUT, "%s: %s", input_name(file), strerror(errno));
    if (S_ISDIR(status.st_mode))
        return message_error(EXIT_INPUT, "%s: is a directory; a .npy file is needed", input_name(file));
    file->device = status.st_dev;
    file->inode = status.st_ino;
    if (!map_input(file, descriptor, &status))
        return read_stream(file, descriptor);
    npy_error error;
    if (!npy_read_header(file->bytes, file->size, &file->header, &error) ||
        !npy_check_size(&file->header, file->size, &error))
        return message_error(EXIT_INPUT, "%s: %s", input_name(file), error.text);
    return 0;
}

static int input_open(input_file *file, const char *path)
{
    *file = (input_file){.path = path};
    if (is_dash(path))
        return read_descriptor(file, STDIN_FILENO);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return message_error(EXIT_INPUT, "%s: cannot be read: %s", path, strerror(errno));
    int code = read_descriptor(file, descriptor);
    close(descriptor);
    return code;
}

int inputs_open(input_file inputs[], const char *const paths[], int count)
{
    int code = 0, dashes = count_dashes(paths, count);
    if (dashes > 1)
        return message_error(EXIT_USAGE, "-: stdin is given as %d inputs; only one can have it", dashes);
    for (int i = 0; i < count && code == 0; i++)
        if (paths[i])
            code = input_open(&inputs[i], paths[i]);
    return code;
}

void inputs_close(input_file inputs[], int count)
{
    for (int i = 0; i < count; i++) {
        release(inputs[i].bytes, inputs[i].size, inputs[i].mapped);
        inputs[i] = (input_file){.path = inputs[i].path};
    }
}

onepass_tensor input_tensor(input_file *file)
{
    return (onepass_tensor){
        .data = file->bytes,
        .device = {ONEPASS_CPU, 0},
        .ndim = file->header.rank,
        .dtype = element_infos[file->header.type].dtype,
        .shape = file->header.shape,
        .strides = file->header.strides,
        .byte_offset = file->header.data_offset,
    };
}

/* ---- what a path for an output stands for ------------------------------------------------------------------------ */

/* A file that exists, or a name in a directory that does. */
typedef struct identity {
    bool exists, shareable; /* a terminal or /dev/null may be written to by two */
    dev_t device;
    ino_t inode;
    const char *name;
} identity;

/* The directory that a path is in: how much of the path is its name, and the part after it. */
static const char *split_path(const char *path, char directory[FILES_MAX_PATH])
{
    const char *slash = strrchr(path, '/');
    snprintf(directory, FILES_MAX_PATH, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    return slash ? slash + 1 : path;
}

/* Whether a new file can take the name of `path`, links resolved, as far as that can be known beforehand. */
static int check_directory(const char *path, const char *target, const struct stat *existing)
{
    struct stat status;
    char directory[FILES_MAX_PATH];
    const char *name = split_path(target, directory);
    if (!*name || stat(directory, &status) != 0)
        return message_error(EXIT_INPUT, "%s: cannot be written: its directory does not exist", path);
    if (access(directory, W_OK | X_OK) != 0)
        return message_error(EXIT_INPUT, "%s: cannot be written: its directory: %s", path, strerror(errno));
    if (existing && existing->st_dev != status.st_dev)
        return message_error(EXIT_INPUT, "%s: is a mount point; it cannot be replaced", path);
    return 0;
}

static int identify(const char *path, identity *found)
{
    struct stat status;
    *found = (identity){.name = path};
    char target[FILES_MAX_PATH];
    int code = 0;
    if (stat(path, &status) == 0) {
        if (S_ISDIR(status.st_mode))
            return message_error(EXIT_INPUT, "%s: is a directory; an output must be a file", path);
        if (S_ISREG(status.st_mode) && access(path, W_OK) != 0)
            return message_error(EXIT_INPUT, "%s: cannot be written: %s", path, strerror(errno));
        found->exists = true;
        found->shareable = S_ISCHR(status.st_mode);
        if (S_ISREG(status.st_mode) && realpath(path, target))
            code = check_directory(path, target, &status);
    } else {
        if (errno != ENOENT)
            return message_error(EXIT_INPUT, "%s: cannot be written: %s", path, strerror(errno));
        if (lstat(path, &status) == 0)
            return message_error(EXIT_INPUT, "%s: is a link to nothing; an output must be a file", path);
        code = check_directory(path, path, NULL);
        found->name = split_path(path, target);
        if (code == 0 && stat(target, &status) != 0)
            code = message_error(EXIT_INPUT, "%s: cannot be written: %s", path, strerror(errno));
    }
    found->device = status.st_dev;
    found->inode = status.st_ino;
    return code;
}

/* A file that stdout goes to: it would lose its name to an output, and what is printed with it. */
static bool identify_stdout(identity *found)
{
    struct stat status;
    if (fstat(STDOUT_FILENO, &status) != 0 || !S_ISREG(status.st_mode))
        return false;
    *found = (identity){.exists = true, .device = status.st_dev, .inode = status.st_ino};
    return true;
}

static bool same_file(const identity *a, const identity *b)
{
    return a->exists == b->exists && a->device == b->device && a->inode == b->inode && !a->shareable &&
           (a->exists || strcmp(a->name, b->name) == 0);
}

int output_check(const char *const paths[], int count, const input_file inputs[], int input_count)
{
    identity found[8], standard = {0};
    bool to_file = identify_stdout(&standard);
    for (int i = 0; i < count; i++) {
        if (!paths[i])
            continue;
        for (int k = 0; k < i; k++)
            if (paths[k] && is_dash(paths[k]) && is_dash(paths[i]))
                return message_error(EXIT_USAGE, "-: stdout is given to two outputs; only one can have it");
        if (is_dash(paths[i]))
            continue;
        int code = identify(paths[i], &found[i]);
        if (code)
            return code;
        if (to_file && same_file(&found[i], &standard))
            return message_error(EXIT_USAGE, "%s: the same file as stdout; each output needs its own", paths[i]);
        for (int k = 0; k < i; k++)
            if (paths[k] && !is_dash(paths[k]) && same_file(&found[i], &found[k]))
                return message_error(EXIT_USAGE, "%s: the same file as the output %s; each output needs its own",
                                     paths[i], paths[k]);
        for (int k = 0; k < input_count; k++) {
            identity input = {.exists = true, .device = inputs[k].device, .inode = inputs[k].inode};
            if (inputs[k].path && same_file(&found[i], &input))
                return message_error(EXIT_USAGE, "%s: the same file as the input %s; an input is never overwritten",
                                     paths[i], input_name(&inputs[k]));
        }
    }
    return 0;
}

/* ---- outputs ----------------------------------------------------------------------------------------------------- */

static int cannot_write(const output_file *file, int error)
{
    return message_error(EXIT_INPUT, "%s: cannot be written (%zu bytes): %s",
                         is_dash(file->path) ? "stdout" : file->path, file->size, strerror(error));
}

/* Blocks are claimed before the file is mapped: on a full disk the mapping would fail later, with a signal. */
static int claim_room(int descriptor, off_t size)
{
    int error = posix_fallocate(descriptor, 0, size);
    if (error == EOPNOTSUPP || error == EINVAL || error == ENOSYS)
        error = ftruncate(descriptor, size) == 0 ? 0 : errno;
    return error;
}

static int open_replacement(output_file *file)
{
    if (!realpath(file->path, file->target))
        snprintf(file->target, sizeof file->target, "%s", file->path);
    file->descriptor = temporary_create(file->target, &file->temporary_id);
    if (file->descriptor < 0)
        return cannot_write(file, errno);
    file->kind = OUTPUT_REPLACE;
    int error = claim_room(file->descriptor, (off_t)file->size);
    if (error)
        return cannot_write(file, error);
    void *address = mmap(NULL, file->size, PROT_READ | PROT_WRITE, MAP_SHARED, file->descriptor, 0);
    if (address != MAP_FAILED) {
        file->bytes = address;
        file->mapped = true;
        temporary_watch(address, file->size, file->path);
    }
    return 0;
}

static void output_release(output_file *file)
{
    release(file->bytes, file->size, file->mapped);
    file->bytes = NULL;
    file->mapped = false;
}

static void output_close(output_file *file)
{
    output_release(file);
    if (file->kind == OUTPUT_REPLACE) {
        if (file->descriptor >= 0)
            close(file->descriptor);
        temporary_remove(file->temporary_id);
    }
    file->kind = OUTPUT_NONE;
}

/* Room for file->size bytes, mapped or allocated. */
static int claim(output_file *file)
{
    struct stat status;
    int code = 0;
    if (!is_dash(file->path) && (stat(file->path, &status) != 0 || S_ISREG(status.st_mode)))
        code = open_replacement(file);
    if (code == 0 && !file->mapped && !(file->bytes = room_for(file->size) ? malloc(file->size) : NULL))
        code = cannot_write(file, ENOMEM);
    if (code)
        output_close(file);
    return code;
}

int output_open(output_file *file, const char *path, element_type type, int rank, const int64_t *shape)
{
    *file = (output_file){.path = path, .kind = OUTPUT_STREAM, .descriptor = -1};
    char text[NPY_MAX_SHAPE_TEXT];
    if (!npy_describe(&file->header, type, rank, shape))
        return message_error(EXIT_INPUT, "%s: shape %s of %s is too large; its size in bytes must be below 2^63", path,
                             npy_shape_text(text, rank, shape), element_infos[type].name);
    file->size = file->header.data_offset + file->header.data_bytes;
    int code = claim(file);
    if (code == 0) {
        unsigned char header[NPY_MAX_WRITTEN];
        npy_write_header(&file->header, header);
        memcpy(file->bytes, header, file->header.data_offset);
    }
    return code;
}

int output_open_bytes(output_file *file, const char *path, const void *bytes, size_t size)
{
    *file = (output_file){.path = path, .kind = OUTPUT_STREAM, .descriptor = -1, .size = size};
    int code = claim(file);
    if (code == 0)
        memcpy(file->bytes, bytes, size);
    return code;
}

onepass_tensor output_tensor(output_file *file)
{
    return (onepass_tensor){
        .data = file->bytes,
        .device = {ONEPASS_CPU, 0},
        .ndim = file->header.rank,
        .dtype = element_infos[file->header.type].dtype,
        .shape = file->header.shape,
        .byte_offset = file->header.data_offset,
    };
}

static int write_all(int descriptor, const unsigned char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t put = write(descriptor, bytes, size);
        if (put < 0 && errno != EINTR)
            return errno;
        if (put > 0) {
            bytes += put;
            size -= (size_t)put;
        }
    }
    return 0;
}

static int output_seal(output_file *file)
{
    int descriptor = file->descriptor, error = 0;
    if (file->kind == OUTPUT_STREAM)
        descriptor = is_dash(file->path) ? STDOUT_FILENO : open(file->path, O_WRONLY | O_CLOEXEC);
    if (descriptor < 0)
        return cannot_write(file, errno);
    if (!file->mapped)
        error = write_all(descriptor, file->bytes, file->size);
    output_release(file);
    if (file->kind == OUTPUT_STREAM && descriptor != STDOUT_FILENO && close(descriptor) != 0 && !error)
        error = errno;
    return error ? cannot_write(file, error) : 0;
}

int outputs_seal(output_file outputs[], int count)
{
    int code = 0;
    for (int kind = OUTPUT_REPLACE; kind <= OUTPUT_STREAM; kind++)
        for (int i = 0; i < count && code == 0; i++)
            if (outputs[i].kind == (output_kind)kind)
                code = output_seal(&outputs[i]);
    return code;
}

int outputs_publish(output_file outputs[], int count)
{
    if (fflush(stdout) != 0 || ferror(stdout)) /* a flush of the last part knows nothing of those before it */
        return message_error(EXIT_INPUT, "stdout: could not be written; no file was");
    output_file *files[TEMPORARY_MOST];
    const char *targets[TEMPORARY_MOST];
    int ids[TEMPORARY_MOST], file_count = 0;
    for (int i = 0; i < count; i++) {
        if (outputs[i].kind != OUTPUT_REPLACE)
            continue;
        int finished = temporary_finish(outputs[i].temporary_id, outputs[i].descriptor);
        outputs[i].descriptor = -1;
        if (finished != 0)
            return cannot_write(&outputs[i], errno);
        files[file_count] = &outputs[i];
        targets[file_count] = outputs[i].target;
        ids[file_count++] = outputs[i].temporary_id;
    }
    bool undone;
    int published = temporary_publish(ids, targets, file_count, &undone);
    if (published < file_count)
        return message_error(EXIT_INPUT, "%s: cannot be replaced: %s; %s", files[published]->path, strerror(errno),
                             undone ? "no file was" : "other outputs of this call are");
    for (int i = 0; i < file_count; i++)
        files[i]->kind = OUTPUT_NONE;
    return 0;
}

void outputs_close(output_file outputs[], int count)
{
    for (int i = 0; i < count; i++)
        output_close(&outputs[i]);
}
