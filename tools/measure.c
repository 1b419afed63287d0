/* Timing. See measure.h. */
#define _POSIX_C_SOURCE 200809L
#include "measure.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "clock.h"
#include "progress.h"

enum { LINE = 64, WARM_UPS = 3, MOST_REPEATS = 1000000 };

/* Seconds after which a single run has warmed up everything there is. */
static const double long_run = 0.1;

/* ---- a team ------------------------------------------------------------------------------------------------------ */

typedef struct member {
    team *members;
    pthread_t thread;
    int index;
} member;

struct team {
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    unsigned generation;     /* of the wake-up, under the mutex */
    atomic_uint started;     /* generation whose work has begun */
    atomic_int ready, done;  /* members awake, members that are through */
    team_function *function; /* NULL: go home */
    void *context;
    int count, threads;
    bool awake;
    member others[]; /* count - 1, of which `threads` were started */
};

/* Sleeps until woken, then waits awake for the work: waking a sleeper would cost up to a tenth of a millisecond. */
static void *member_main(void *argument)
{
    const member *self = argument;
    team *members = self->members;
    for (unsigned seen = 1;; seen++) {
        pthread_mutex_lock(&members->mutex);
        while (members->generation != seen)
            pthread_cond_wait(&members->wake, &members->mutex);
        pthread_mutex_unlock(&members->mutex);
        atomic_fetch_add(&members->ready, 1);
        while (atomic_load(&members->started) != seen)
            sched_yield();
        if (!members->function)
            return NULL;
        members->function(members->context, self->index, members->count);
        atomic_fetch_add(&members->done, 1);
    }
}

void team_wake(team *members)
{
    if (members->awake)
        return;
    atomic_store(&members->ready, 0);
    atomic_store(&members->done, 0);
    pthread_mutex_lock(&members->mutex);
    members->generation++;
    pthread_cond_broadcast(&members->wake);
    pthread_mutex_unlock(&members->mutex);
    while (atomic_load(&members->ready) != members->threads)
        sched_yield();
    members->awake = true;
}

void team_run(team *members, team_function *function, void *context)
{
    team_wake(members);
    members->function = function;
    members->context = context;
    atomic_store(&members->started, members->generation);
    if (function) {
        function(context, 0, members->count);
        while (atomic_load(&members->done) != members->threads)
            sched_yield();
    }
    members->awake = false;
}

team *team_create(int count)
{
    team *members = calloc(1, sizeof *members + (size_t)count * sizeof members->others[0]);
    if (!members)
        return NULL;
    members->count = count;
    pthread_mutex_init(&members->mutex, NULL);
    pthread_cond_init(&members->wake, NULL);
    for (int i = 0; i < count - 1; i++) {
        members->others[i] = (member){.members = members, .index = i + 1};
        if (pthread_create(&members->others[i].thread, NULL, member_main, &members->others[i]) != 0) {
            team_destroy(members);
            return NULL;
        }
        members->threads++;
    }
    return members;
}

void team_destroy(team *members)
{
    if (!members)
        return;
    team_run(members, NULL, NULL);
    for (int i = 0; i < members->threads; i++)
        pthread_join(members->others[i].thread, NULL);
    pthread_cond_destroy(&members->wake);
    pthread_mutex_destroy(&members->mutex);
    free(members);
}

void team_share(int64_t total, int64_t unit, int index, int count, int64_t *first, int64_t *last)
{
    int64_t units = (total + unit - 1) / unit;
    *first = units / count * index + (units % count < index ? units % count : index);
    *last = *first + units / count + (index < units % count);
    *first = *first * unit < total ? *first * unit : total;
    *last = *last * unit < total ? *last * unit : total;
}

/* ---- plain loops ------------------------------------------------------------------------------------------------- */

/* Sums nobody looks at must reach memory, or the loops would be removed: volatile, because clang removes stores to what
 * is never read even if it is atomic. */
static volatile atomic_uint_least64_t sink;

/* Vectors are spelled out: left to itself a compiler may make of these loops something slower than the memory. */
typedef uint64_t block __attribute__((vector_size(16)));

enum { BLOCKS = LINE / sizeof(block) };

static inline block load_block(const unsigned char *from)
{
    block loaded;
    memcpy(&loaded, from, sizeof loaded);
    return loaded;
}

/* Independent accumulators, so that loads and not a chain of additions set the pace. */
static inline void add_line(block sums[BLOCKS], const unsigned char *from)
{
    for (size_t k = 0; k < BLOCKS; k++)
        sums[k] ^= load_block(from + k * sizeof(block));
}

static void keep(const block sums[BLOCKS])
{
    for (size_t k = 0; k < BLOCKS; k++)
        atomic_store_explicit(&sink, sums[k][0] ^ sums[k][1], memory_order_relaxed);
}

static void read_one(unsigned char *to, const unsigned char *a, const unsigned char *b, int64_t lines)
{
    (void)to;
    (void)b;
    block sums[BLOCKS] = {{0}};
    for (int64_t line = 0; line < lines; line++)
        add_line(sums, a + line * LINE);
    keep(sums);
}

static void read_apart(unsigned char *to, const unsigned char *a, const unsigned char *b, int64_t lines)
{
    (void)to;
    block sums[BLOCKS] = {{0}};
    for (int64_t line = 0; line < lines; line++)
        add_line(sums, a + line * LINE);
    for (int64_t line = 0; line < lines; line++)
        add_line(sums, b + line * LINE);
    keep(sums);
}

static void read_together(unsigned char *to, const unsigned char *a, const unsigned char *b, int64_t lines)
{
    (void)to;
    block left[BLOCKS] = {{0}}, right[BLOCKS] = {{0}};
    for (int64_t line = 0; line < lines; line++) {
        add_line(left, a + line * LINE);
        add_line(right, b + line * LINE);
    }
    keep(left);
    keep(right);
}

/* What is written: of two inputs something that needs both of them. */
static inline block made_of(bool two, const unsigned char *a, const unsigned char *b, int64_t at)
{
    return two ? load_block(a + at) ^ load_block(b + at) : load_block(a + at);
}

static inline void write_made(bool two, unsigned char *to, const unsigned char *a, const unsigned char *b,
                              int64_t lines)
{
    for (int64_t i = 0; i < lines * LINE; i += (int64_t)sizeof(block)) {
        block made = made_of(two, a, b, i);
        memcpy(to + i, &made, sizeof made);
    }
}

/* Stores that do not first read the line they overwrite; `to` is aligned to a line. */
static inline void stream_made(bool two, unsigned char *to, const unsigned char *a, const unsigned char *b,
                               int64_t lines)
{
#if defined(__SSE2__)
    for (int64_t i = 0; i < lines * LINE; i += (int64_t)sizeof(block))
        _mm_stream_si128((__m128i *)(void *)(to + i), (__m128i)made_of(two, a, b, i));
    _mm_sfence();
#else
    write_made(two, to, a, b, lines);
#endif
}

static void write_lines(unsigned char *to, const unsigned char *a, const unsigned char *b, int64_t lines)
{
    write_made(true, to, a, b, lines);
}

static void write_one(unsigned char *to, const unsigned char *a, const unsigned char *b, int64_t lines)
{
    write_made(false, to, a, b, lines);
}

static void stream_lines(unsigned char *to, const unsigned char *a, const unsigned char *b, int64_t lines)
{
    stream_made(true, to, a, b, lines);
}

static void stream_one(unsigned char *to, const unsigned char *a, const unsigned char *b, int64_t lines)
{
    stream_made(false, to, a, b, lines);
}

/* Without this the compiler may see that a loop repeated over unchanged memory gives the same again. */
static void forget(void)
{
    atomic_signal_fence(memory_order_seq_cst);
}

/* One member's share of every array, as often as the set says. */
static void loop_share(void *context, int index, int count)
{
    const memory_set *set = context;
    const unsigned char *a = set->inputs[0], *b = set->inputs[1];
    int64_t first, last;
    team_share((int64_t)((set->input_bytes + LINE - 1) / LINE), 1, index, count, &first, &last);
    for (int repeat = 0; repeat < set->repeats; repeat++, forget())
        set->loop((unsigned char *)set->output + first * LINE, a + first * LINE, b ? b + first * LINE : NULL,
                  last - first);
}

static void run_loop(void *context, int repeats)
{
    memory_set *set = context;
    set->repeats = repeats;
    team_run(set->members, loop_share, set);
}

static void wake_loop(void *context)
{
    team_wake(((memory_set *)context)->members);
}

/* ---- timing ------------------------------------------------------------------------------------------------------ */

static double time_once(const timed_work *work, int repeats)
{
    if (work->prepare)
        work->prepare(work->context);
    double begun = clock_seconds();
    work->run(work->context, repeats);
    return (clock_seconds() - begun) / repeats;
}

/* Of a few runs, or one if that takes long. */
static double shortest_of(const timed_work *work)
{
    double shortest = time_once(work, 1);
    for (int i = 1; i < WARM_UPS && shortest < long_run; i++)
        shortest = fmin(shortest, time_once(work, 1));
    return shortest;
}

/* The faster of two loops; both are run once before, which touches the output for the first time. */
static memory_loop *faster(memory_set *set, memory_loop *one, memory_loop *other)
{
    timed_work work = {.prepare = wake_loop, .run = run_loop, .context = set};
    double seconds[2];
    for (int pass = 0; pass < 2; pass++)
        for (int k = 0; k < 2; k++) {
            set->loop = k ? other : one;
            seconds[k] = shortest_of(&work);
        }
    return seconds[0] < seconds[1] ? one : other;
}

timed_work measure_floor(memory_set *set, bool writes)
{
    bool two = set->inputs[1];
    if (writes)
        set->loop = two ? faster(set, write_lines, stream_lines) : faster(set, write_one, stream_one);
    else
        set->loop = two ? faster(set, read_apart, read_together) : faster(set, read_one, read_one);
    return (timed_work){
        .name = writes ? "plain read + write" : "plain read",
        .prepare = wake_loop,
        .run = run_loop,
        .context = set,
        .bytes = (1 + two + writes) * (double)set->input_bytes,
    };
}

/* Short work is repeated within a sample, so that the clock and a wake-up are not what is measured. */
measure_rule measure_thoroughly(double seconds)
{
    return (measure_rule){
        .rounds = 15, .seconds = seconds, .most_seconds = INFINITY, .shortest_sample = 2e-3, .shows_progress = true};
}

static void warm_up(timed_work *work, double shortest_sample)
{
    double repeats = ceil(shortest_sample / fmax(shortest_of(work), 1e-9));
    work->repeats = (int)fmin(fmax(repeats, 1), MOST_REPEATS);
}

static bool make_room(timed_work *work)
{
    /* Doubled each time the number of rounds reaches a power of two. */
    if (work->rounds & (work->rounds - 1))
        return true;
    size_t room = work->rounds ? 2 * (size_t)work->rounds : 1;
    double *larger = realloc(work->samples, room * sizeof *larger);
    if (larger)
        work->samples = larger;
    return larger;
}

bool measure_goes_on(const measure_rule *rule, int round, double passed)
{
    return (round < rule->rounds && passed < rule->most_seconds) || passed < rule->seconds;
}

bool measure_in_turn(timed_work *works, int count, const measure_rule *rule)
{
    for (int i = 0; i < count; i++)
        warm_up(&works[i], rule->shortest_sample);
    double begun = clock_seconds();
    for (int round = 0; measure_goes_on(rule, round, clock_seconds() - begun); round++) {
        for (int i = 0; i < count; i++) {
            if (!make_room(&works[i]))
                return false;
            works[i].samples[works[i].rounds++] = time_once(&works[i], works[i].repeats);
        }
        if (rule->shows_progress)
            progress_update(NULL, fmin((clock_seconds() - begun) / rule->seconds, (round + 1.0) / rule->rounds));
    }
    return true;
}

void measure_release(timed_work *works, int count)
{
    for (int i = 0; i < count; i++) {
        free(works[i].samples);
        works[i].samples = NULL;
    }
}

static int compare(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* Of `rounds` values, linear between two of them; sorts them. */
static double quantile(double *values, int rounds, double q)
{
    qsort(values, (size_t)rounds, sizeof *values, compare);
    double place = q * (rounds - 1);
    int below = (int)place;
    int above = below + 1 < rounds ? below + 1 : below;
    return values[below] + (place - below) * (values[above] - values[below]);
}

double measure_quantile(const timed_work *work, double q)
{
    double result = NAN;
    double *sorted = malloc((size_t)work->rounds * sizeof *sorted);
    if (sorted) {
        memcpy(sorted, work->samples, (size_t)work->rounds * sizeof *sorted);
        result = quantile(sorted, work->rounds, q);
    }
    free(sorted);
    return result;
}

double measure_share(const timed_work *works, int index)
{
    const timed_work *work = &works[index], *floor_work = &works[work->floor];
    double result = NAN;
    double *ratios = malloc((size_t)work->rounds * sizeof *ratios);
    if (ratios) {
        /* Of speeds, not of times: the two may move different numbers of bytes. */
        for (int i = 0; i < work->rounds; i++)
            ratios[i] = work->bytes / work->samples[i] / (floor_work->bytes / floor_work->samples[i]);
        result = quantile(ratios, work->rounds, 0.5);
    }
    free(ratios);
    return result;
}

void measure_print_table(const timed_work *works, int count, const double *errors)
{
    printf("%-20s %10s %10s %10s %9s %7s", "work", "ms", "q20", "q80", works[0].counts_flops ? "GFLOP/s" : "GB/s",
           "share");
    puts(errors ? "      error" : "");
    for (int i = 0; i < count; i++) {
        const timed_work *work = &works[i];
        double median = measure_quantile(work, 0.5);
        printf("%-20s %10.4f %10.4f %10.4f %9.2f %6.1f%%", work->name, 1e3 * median, 1e3 * measure_quantile(work, 0.2),
               1e3 * measure_quantile(work, 0.8), 1e-9 * work->bytes / median, 100 * measure_share(works, i));
        if (errors && !isnan(errors[i]))
            printf(" %10.1e", errors[i]);
        putchar('\n');
    }
}

void measure_print_json(json_writer *json, const timed_work *works, int index, double error)
{
    const timed_work *work = &works[index];
    double median = measure_quantile(work, 0.5);
    json_open(json, NULL, '{');
    json_string(json, "work", work->name);
    json_number(json, "ms", 1e3 * median);
    json_number(json, "ms_q20", 1e3 * measure_quantile(work, 0.2));
    json_number(json, "ms_q80", 1e3 * measure_quantile(work, 0.8));
    json_number(json, work->counts_flops ? "gflop_per_s" : "gb_per_s", 1e-9 * work->bytes / median);
    json_number(json, work->counts_flops ? "flops" : "bytes", work->bytes);
    json_integer(json, "rounds", work->rounds);
    json_integer(json, "repeats", work->repeats);
    json_string(json, "floor", works[work->floor].name);
    json_number(json, "share", measure_share(works, index));
    if (!isnan(error))
        json_number(json, "error", error);
    json_close(json, '}');
}
