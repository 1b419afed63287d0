/*
 * .npy files as memory. Inputs are mapped read-only (pipes are read); outputs are built in a temporary file beside
 * their target, mapped as well, and take their names together, only when everything has succeeded. Until then nothing
 * that exists is changed; after a failure or a signal no temporary file is left (temporary.h). Never holds a second
 * copy of an array that can be mapped.
 */
#ifndef TOOL_FILES_H
#define TOOL_FILES_H

#include <stdbool.h>
#include <sys/types.h>

#include "npy.h"

/* Enough for any path the system accepts, and its end. */
enum { FILES_MAX_PATH = 4096 };

typedef struct input_file {
    const char *path; /* as the user wrote it; "-" is stdin */
    npy_header header;
    unsigned char *bytes; /* the whole file */
    size_t size;
    bool mapped; /* otherwise allocated */
    dev_t device;
    ino_t inode;
} input_file;

/* Whether one of these paths (NULL: not given) is "-". */
bool files_have_dash(const char *const paths[], int count);

/* What follows returns 0, or an exit code after having said what is wrong. Files that are not given have no path. */

/* Opens what is given; stdin can be one of the inputs only. */
int inputs_open(input_file inputs[], const char *const paths[], int count);
void inputs_close(input_file inputs[], int count); /* also of zeroed structures */
onepass_tensor input_tensor(input_file *file);

/* What a user may call a file in a message: "stdin" for "-". */
const char *input_name(const input_file *file);

typedef enum output_kind {
    OUTPUT_NONE,    /* not open */
    OUTPUT_REPLACE, /* a temporary file that will be renamed */
    OUTPUT_STREAM,  /* stdout, a pipe or a device: written at the end, in order */
} output_kind;

typedef struct output_file {
    const char *path; /* as the user wrote it; "-" is stdout */
    output_kind kind;
    npy_header header;
    unsigned char *bytes; /* header and elements */
    size_t size;
    bool mapped;                  /* otherwise allocated, and written when sealed */
    int descriptor, temporary_id; /* of OUTPUT_REPLACE */
    char target[FILES_MAX_PATH];  /* path with links resolved: a link stays a link */
} output_file;

/*
 * Looks at the paths of all outputs (NULL: not asked for) before any is touched: refuses directories, what cannot be
 * replaced, the inputs' own files, and the same file or stdout twice.
 */
int output_check(const char *const paths[], int count, const input_file inputs[], int input_count);

/* Makes room for the array and writes its header. */
int output_open(output_file *file, const char *path, element_type type, int rank, const int64_t *shape);
onepass_tensor output_tensor(output_file *file);

/* The same for a file that is no array: these bytes. */
int output_open_bytes(output_file *file, const char *path, const void *bytes, size_t size);

/*
 * Everything is where it must be, but for the names: a full disk is found here at the latest. Files first (they may not
 * fit), then streams, which cannot be taken back.
 */
int outputs_seal(output_file outputs[], int count);

/* What was printed arrives; then the new files take their names, all or none. */
int outputs_publish(output_file outputs[], int count);

/* Releases everything; a file that was not published is gone. Also for zeroed structures. */
void outputs_close(output_file outputs[], int count);

#endif
