/*
 * Timing: a team of threads that waits between jobs, plain loops over memory that show what the machine can do, and a
 * runner that times several kinds of work in turn, so that all of them see the same machine. Shared by bench and demo.
 * Never starts a thread inside what is timed.
 */
#ifndef TOOL_MEASURE_H
#define TOOL_MEASURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "json.h"

/* ---- a team ------------------------------------------------------------------------------------------------------ */

typedef struct team team;

/* Called once for each of `count` members, at the same time; member 0 is the caller. */
typedef void team_function(void *context, int index, int count);

team *team_create(int count);     /* NULL: no memory or no threads */
void team_destroy(team *members); /* NULL is allowed */

/* Wakes the members: they stay awake, waiting for the next team_run. Without it team_run wakes them itself. */
void team_wake(team *members);
void team_run(team *members, team_function *function, void *context);

/* The part of 0..total that belongs to a member: [first, last), cut at multiples of `unit`. */
void team_share(int64_t total, int64_t unit, int index, int count, int64_t *first, int64_t *last);

/* ---- plain loops ------------------------------------------------------------------------------------------------- */

typedef void memory_loop(unsigned char *to, const unsigned char *a, const unsigned char *b, int64_t lines);

/* One or two inputs of an operator and its output, all of the same size and aligned to 64 bytes; one set for each loop.
 */
typedef struct memory_set {
    team *members;
    const void *inputs[2]; /* the second one NULL: there is one */
    size_t input_bytes;    /* of each; up to the next multiple of 64 is read and written */
    void *output;
    memory_loop *loop; /* set by measure_floor */
    int repeats;
} memory_set;

/* ---- timing ------------------------------------------------------------------------------------------------------ */

typedef struct timed_work {
    const char *name;
    void (*prepare)(void *context); /* before each sample, not timed; NULL: nothing */
    void (*run)(void *context, int repeats);
    void *context;
    double bytes;    /* read and written by one run; or its floating-point operations, ... */
    int floor;       /* index of the plain loop it is compared with; its own if it is one */
    int repeats;     /* runs in one sample: short work is repeated */
    double *samples; /* seconds of one run, a round each */
    int rounds;
    bool counts_flops; /* ... if this is set */
} timed_work;

/*
 * What the machine can do with the same bytes and as many threads: every byte of the inputs read and, if `writes`,
 * every byte of the output written. The faster of two loops is taken: inputs one after the other or together; ordinary
 * stores or stores past the caches.
 */
timed_work measure_floor(memory_set *set, bool writes);

/* How long to measure: `rounds` at least, and until `seconds` have passed; but no new round after `most_seconds`. */
typedef struct measure_rule {
    int rounds;
    double seconds, most_seconds;
    double shortest_sample; /* shorter work is repeated within a sample; a GPU's never is */
    bool shows_progress;    /* moves the progress bar from 0 to 1 */
} measure_rule;

/* What bench and demo take: 15 rounds, samples of 2 ms. */
measure_rule measure_thoroughly(double seconds);

/* Whether a round comes after so many, and so many seconds. */
bool measure_goes_on(const measure_rule *rule, int round, double passed);

/* Warms up, then runs all in turn, round after round, as long as the rule says. False: no memory. */
bool measure_in_turn(timed_work *works, int count, const measure_rule *rule);
void measure_release(timed_work *works, int count);

/* The quantile q of the samples, and the median over rounds of the floor's time divided by this one's. */
double measure_quantile(const timed_work *work, double q);
double measure_share(const timed_work *works, int index);

/* A header line, and a line for each work: milliseconds, quantiles, GB/s, share. `errors` may hold NaN for none. */
void measure_print_table(const timed_work *works, int count, const double *errors);

/* The same as an object in an array. */
void measure_print_json(json_writer *json, const timed_work *works, int index, double error);

#endif
