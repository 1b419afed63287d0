/*
 * CUDA C on the CPU: the words of the language and the threads of a launch. A file with kernels is included after this
 * one and compiled as C++; what it computes with is in emulated_math.hpp, the instructions of the
 * split product are in emulated_gpu.hpp.
 *
 * The threads of a block are fibers of one thread of the machine: shared memory is that thread's own memory, at the
 * same offsets in every block, so that one block finds another one's. A fiber runs until it waits; with whom the next
 * round begins, and which warp is held back for how long, is drawn at random, so that a barrier that is missing shows.
 * A kernel whose threads wait for each other forever ends the program with its name.
 */
#ifndef ONEPASS_TEST_EMULATED_THREADS_HPP
#define ONEPASS_TEST_EMULATED_THREADS_HPP

/* Where only one block is ever under way in the process (the stand-in says so), shared memory is found faster. */
#ifdef EMULATED_ONE_AT_A_TIME
#define EMULATED_LOCAL
#else
#define EMULATED_LOCAL thread_local
#endif

#include <float.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

/* ---- words of the language --------------------------------------------------------------------------------------- */

#define __CUDACC__    1
#define __CUDA_ARCH__ 0
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__    __attribute__((noinline))
#define __global__
#define __constant__ static const
#define __shared__   static EMULATED_LOCAL
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
#define __launch_bounds__(...)

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) double2 {
    double x, y;
};
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}
static inline int2 make_int2(int x, int y)
{
    return {x, y};
}
static inline int4 make_int4(int x, int y, int z, int w)
{
    return {x, y, z, w};
}
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline double2 make_double2(double x, double y)
{
    return {x, y};
}

/* ---- fibers ------------------------------------------------------------------------------------------------------ */

namespace emulated
{

enum {
    WARP = 32,
    MASKS = 8,
    STACK = (256 << 10) + (65 << 6), /* no power of 2: the stacks' ends would share a line of the cache */
    SHARED = 232 << 10,
    IDLE_ROUNDS = 20000,
};

struct index {
    unsigned x;
};

/* Lanes that wait for each other: those of one mask. What they show each other in turns, so that one wait is enough. */
struct gathering {
    unsigned mask, arrived;
    unsigned long long round;
    unsigned came[2]; /* to that turn */
    double values[2][WARP];
};

struct warp_state {
    unsigned alive = 0; /* lanes that have not ended */
    gathering gatherings[MASKS];
    unsigned fragments[WARP][4];
};

struct block_state;

struct fiber {
#if defined(__x86_64__) || defined(__aarch64__)
    void *at = nullptr; /* its stack's top, where its registers are */
#else
    ucontext_t context; /* only to begin with: _setjmp and _longjmp leave the signal mask alone, and are cheap */
    jmp_buf at;
    bool begun = false;
#endif
    unsigned thread = 0;
    bool done = false;
    const unsigned long long *awaited = nullptr; /* it waits until this is not `seen` any more; NULL: it can run */
    unsigned long long seen = 0;
    block_state *block = nullptr;
};

/* Blocks of a cluster: their shared memories, and the threads of all that have come to the cluster's barrier. */
struct cluster_state {
    std::mutex lock; /* of barriers in shared memory and of copies */
    std::vector<char *> anchors;
    std::atomic<long long> arrived{0};
    unsigned threads = 0;
};

struct block_state {
    const char *name = "";
    cluster_state *cluster = nullptr;
    std::vector<fiber> fibers;
    std::vector<warp_state> warps;
#if defined(__x86_64__) || defined(__aarch64__)
    void *scheduler = nullptr;
#else
    jmp_buf scheduler;
#endif
    unsigned block = 0, grid = 0, at_barrier = 0, alive = 0;
    unsigned long long barrier_round = 0, progress = 0;
    uint64_t random = 0;
    unsigned longest_hold = 0;
    void (*kernel)(const void *) = nullptr;
    const void *args = nullptr;
};

/* Everything shared of a block lies in its thread's memory; addresses are offsets from here. */
alignas(1024) static EMULATED_LOCAL char anchor[1024];
alignas(1024) static EMULATED_LOCAL unsigned char dynamic_shared[SHARED];
static EMULATED_LOCAL fiber *current;

static const unsigned ADDRESS_ZERO = 1u << 30; /* offsets may be negative */

static inline unsigned address_of(const volatile void *p)
{
    return ADDRESS_ZERO + (unsigned)(int)((const volatile char *)p - anchor);
}
static inline char *memory_at(unsigned address, int block_of_cluster)
{
    return current->block->cluster->anchors[(size_t)block_of_cluster] + (int)(address - ADDRESS_ZERO);
}
static inline char *memory_at(unsigned address)
{
    return anchor + (int)(address - ADDRESS_ZERO);
}
static inline int cluster_blocks()
{
    return (int)current->block->cluster->anchors.size();
}

/* Runs one block after the other; a fiber is made once a launch. */
static void fiber_main(fiber *f);

#if defined(__x86_64__) || defined(__aarch64__)
/*
 * Stores the registers that a function must keep on the stack, and where that is at *from; then the same backwards with
 * the stack `to`. Sanitizers see nothing of it, and it is ten times as fast as what C has.
 */
#if defined(__x86_64__)
__attribute__((naked, noinline, used)) static void switch_stacks(void **, void *)
{
    __asm__ volatile("pushq %rbp\n\tpushq %rbx\n\tpushq %r12\n\tpushq %r13\n\tpushq %r14\n\tpushq %r15\n\t"
                     "movq %rsp, (%rdi)\n\tmovq %rsi, %rsp\n\t"
                     "popq %r15\n\tpopq %r14\n\tpopq %r13\n\tpopq %r12\n\tpopq %rbx\n\tpopq %rbp\n\tretq");
}
static inline void *first_frame(char *top, void (*begin)())
{
    void **at = reinterpret_cast<void **>(top) - 1; /* as after a call: 8 less than a multiple of 16 */
    *at = nullptr;
    *--at = reinterpret_cast<void *>(begin);
    for (int i = 0; i < 6; i++)
        *--at = nullptr;
    return at;
}
#else
__attribute__((noinline)) void switch_stacks(void **from, void *to) __asm__("emulated_switch_stacks");
__asm__(".text\n.p2align 2\n.weak emulated_switch_stacks\n.hidden emulated_switch_stacks\n"
        ".type emulated_switch_stacks, %function\nemulated_switch_stacks:\n\t"
        "sub sp, sp, #160\n\tstp x19, x20, [sp, #0]\n\tstp x21, x22, [sp, #16]\n\tstp x23, x24, [sp, #32]\n\t"
        "stp x25, x26, [sp, #48]\n\tstp x27, x28, [sp, #64]\n\tstp x29, x30, [sp, #80]\n\t"
        "stp d8, d9, [sp, #96]\n\tstp d10, d11, [sp, #112]\n\tstp d12, d13, [sp, #128]\n\tstp d14, d15, [sp, #144]\n\t"
        "mov x9, sp\n\tstr x9, [x0]\n\tmov sp, x1\n\t"
        "ldp x19, x20, [sp, #0]\n\tldp x21, x22, [sp, #16]\n\tldp x23, x24, [sp, #32]\n\t"
        "ldp x25, x26, [sp, #48]\n\tldp x27, x28, [sp, #64]\n\tldp x29, x30, [sp, #80]\n\t"
        "ldp d8, d9, [sp, #96]\n\tldp d10, d11, [sp, #112]\n\tldp d12, d13, [sp, #128]\n\tldp d14, d15, [sp, #144]\n\t"
        "add sp, sp, #160\n\tret\n.size emulated_switch_stacks, . - emulated_switch_stacks\n");
static inline void *first_frame(char *top, void (*begin)())
{
    void **at = reinterpret_cast<void **>(top) - 20;
    memset(at, 0, 160);
    at[11] = reinterpret_cast<void *>(begin); /* x30: where it returns to */
    return at;
}
#endif

static void begin_fiber()
{
    fiber_main(current);
}
static inline void make_fiber(fiber &f, char *stack)
{
    f.at = first_frame(stack + STACK, begin_fiber);
}
__attribute__((noinline)) static void yield()
{
    switch_stacks(&current->at, current->block->scheduler);
}
/* Lets a fiber run until it makes room. */
__attribute__((noinline)) static void resume(fiber &f)
{
    current = &f;
    switch_stacks(&f.block->scheduler, f.at);
}

#else

static void begin_fiber(unsigned high, unsigned low)
{
    fiber_main((fiber *)(((uintptr_t)high << 32) | low));
}
static inline void make_fiber(fiber &f, char *stack)
{
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = stack;
    f.context.uc_stack.ss_size = STACK;
    f.context.uc_link = nullptr;
    uint64_t address = (uintptr_t)&f;
    makecontext(&f.context, (void (*)())(void *)begin_fiber, 2, (unsigned)(address >> 32), (unsigned)address);
}
__attribute__((noinline)) static void yield()
{
    if (_setjmp(current->at) == 0)
        _longjmp(current->block->scheduler, 1);
}
__attribute__((noinline)) static void resume(fiber &f)
{
    current = &f;
    if (_setjmp(f.block->scheduler) != 0)
        return;
    if (f.begun)
        _longjmp(f.at, 1);
    f.begun = true;
    setcontext(&f.context);
}

#endif

template <class CONDITION> static inline void wait_until(CONDITION condition)
{
    while (!condition())
        yield();
}

/* The same for a count that goes on, without being asked every round. */
static inline void wait_while(const unsigned long long &count, unsigned long long seen)
{
    if (count == seen) {
        current->awaited = &count;
        current->seen = seen;
        yield();
        current->awaited = nullptr;
    }
}

/* ---- barriers: threads that have ended do not count -------------------------------------------------------------- */

static inline void settle(block_state &b)
{
    if (b.at_barrier > 0 && b.at_barrier == b.alive) {
        b.at_barrier = 0;
        b.barrier_round++;
        b.progress++;
    }
}
static inline void settle(block_state &b, const warp_state &w, gathering &g)
{
    if (g.arrived && (g.arrived & w.alive) == (g.mask & w.alive)) {
        g.came[g.round & 1] = g.arrived;
        g.arrived = 0;
        g.round++;
        b.progress++;
    }
}

static inline void block_barrier()
{
    block_state &b = *current->block;
    const unsigned long long round = b.barrier_round;
    b.at_barrier++;
    settle(b);
    wait_while(b.barrier_round, round);
}

static inline warp_state &warp_of(const fiber &f)
{
    return f.block->warps[f.thread / WARP];
}

static inline gathering &gathering_of(unsigned mask)
{
    warp_state &w = warp_of(*current);
    gathering *g = w.gatherings;
    while (g->mask != mask && g->mask != 0)
        if (++g == w.gatherings + MASKS) {
            fprintf(stderr, "%s: the lanes of a warp have more than %d masks\n", current->block->name, (int)MASKS);
            abort();
        }
    g->mask = mask;
    return *g;
}
/* The turn it was. */
static inline unsigned gather(gathering &g)
{
    const unsigned long long round = g.round;
    g.arrived |= 1u << current->thread % WARP;
    settle(*current->block, warp_of(*current), g);
    wait_while(g.round, round);
    return round & 1;
}

static inline void warp_barrier(unsigned mask = ~0u)
{
    gather(gathering_of(mask));
}

/* Shows a value to the other lanes; the turn in which theirs are. */
template <class T> static inline unsigned show(gathering &g, T value)
{
    static_assert(sizeof(T) <= sizeof(double), "fits");
    memcpy(&g.values[g.round & 1][current->thread % WARP], &value, sizeof value);
    return gather(g);
}
/* What another lane shows; NaN, or a number nobody expects, if it takes no part. */
template <class T> static inline T from_lane(unsigned mask, T value, unsigned lane)
{
    gathering &g = gathering_of(mask);
    const unsigned turn = show(g, value);
    T other;
    memcpy(&other, &g.values[turn][lane % WARP], sizeof other);
    if (!(g.came[turn] & 1u << lane % WARP))
        memset(&other, 0xff, sizeof other);
    return other;
}
template <class T> static inline T from_lane(T value, unsigned lane)
{
    return from_lane(~0u, value, lane);
}

static void fiber_main(fiber *f)
{
    for (;;) {
        block_state &b = *f->block;
        b.kernel(b.args);
        warp_state &w = warp_of(*f);
        f->done = true;
        w.alive &= ~(1u << f->thread % WARP);
        b.alive--;
        b.progress++;
        settle(b);
        for (gathering &g : w.gatherings)
            settle(b, w, g);
        yield();
    }
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* Stacks of a thread's launches: kept from one to the next. */
struct stacks {
    char *memory = nullptr;
    size_t count = 0;

    char *of(const char *name, size_t threads)
    {
        if (threads <= count)
            return memory;
        give_back();
        void *claimed =
            mmap(nullptr, threads * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (claimed == MAP_FAILED) {
            fprintf(stderr, "%s: no memory for the stacks of %zu threads\n", name, threads);
            abort();
        }
        count = threads;
        return memory = (char *)claimed;
    }
    void give_back()
    {
        if (memory)
            munmap(memory, count * STACK);
        memory = nullptr;
        count = 0;
    }
    ~stacks()
    {
        give_back();
    }
};
/* One for all files with kernels: a launch ends before the next one begins. */
inline stacks &stacks_here()
{
    static thread_local stacks here;
    return here;
}

static inline void make_fibers(block_state &b, unsigned threads)
{
    char *memory = stacks_here().of(b.name, threads);
    b.fibers.resize(threads);
    b.warps.resize((threads + WARP - 1) / WARP);
    for (unsigned t = 0; t < threads; t++) {
        b.fibers[t].thread = t;
        b.fibers[t].block = &b;
        make_fiber(b.fibers[t], memory + (size_t)t * STACK);
    }
}

/* One block, on the thread that calls. */
static void run_block(block_state &b)
{
    const size_t threads = b.fibers.size();
    const bool alone = b.cluster->anchors.size() == 1;
    for (size_t w = 0; w < b.warps.size(); w++) {
        const size_t lanes = threads - w * WARP;
        b.warps[w].alive = lanes < WARP ? (1u << lanes) - 1 : ~0u;
        for (gathering &g : b.warps[w].gatherings)
            g.mask = g.arrived = 0;
    }
    for (fiber &f : b.fibers)
        f.done = false;
    b.alive = (unsigned)threads;
    b.at_barrier = 0;
    size_t held = b.warps.size(), rounds = 0; /* a warp that is held back, and for how long */
    unsigned long long progress = b.progress, idle = 0;
    while (b.alive > 0) { /* rounds that begin somewhere else every time */
        b.random = b.random * 6364136223846793005ull + 1442695040888963407ull;
        const size_t begin = (size_t)(b.random >> 33) % threads;
        if (rounds-- == 0) {
            held = (size_t)(b.random >> 40) % (2 * b.warps.size()); /* mostly none */
            rounds = (size_t)(b.random >> 50) % b.longest_hold;
        }
        for (size_t i = 0; i < threads; i++) {
            fiber &f = b.fibers[begin + i < threads ? begin + i : begin + i - threads];
            if (!f.done && !(f.awaited && *f.awaited == f.seen) && f.thread / WARP != held)
                resume(f);
        }
        idle = b.progress == progress ? idle + 1 : 0;
        progress = b.progress;
        if (!alone) {
            std::this_thread::yield();
        } else if (idle > IDLE_ROUNDS) {
            fprintf(stderr, "%s: %u threads of block %u wait for each other forever\n", b.name, b.alive, b.block);
            abort();
        }
    }
}

/* How a launch is tried: what is drawn at random, how many rounds a warp may be held back, shared memory asked for. */
struct launch_options {
    const char *name;
    uint64_t seed;
    unsigned longest_hold, shared_bytes;
};

/* A launch: clusters one after the other, the blocks of one side by side. */
template <class ARGS>
static void launch(void (*kernel)(ARGS), unsigned grid, unsigned threads, unsigned blocks, const ARGS &args,
                   const launch_options &options)
{
    static EMULATED_LOCAL void (*called)(ARGS); /* set in each block's thread */
    auto prepare = [&](block_state &b, cluster_state &cluster) {
        b.name = options.name;
        b.cluster = &cluster;
        b.grid = grid;
        b.longest_hold = options.longest_hold;
        b.args = &args;
        called = kernel;
        b.kernel = [](const void *a) { called(*static_cast<const ARGS *>(a)); };
        make_fibers(b, threads);
    };
    auto run = [&](block_state &b, unsigned block) {
        b.block = block;
        b.random = options.seed + 977 * block;
        memset(dynamic_shared, 0xff, options.shared_bytes); /* NaN */
        run_block(b);
    };
    if (blocks == 1) { /* no other block to wait for: on this thread */
        cluster_state cluster;
        cluster.anchors.assign(1, anchor);
        cluster.threads = threads;
        block_state b;
        prepare(b, cluster);
        for (unsigned block = 0; block < grid; block++)
            run(b, block);
        return;
    }
    for (unsigned first = 0; first < grid; first += blocks) {
        cluster_state cluster;
        cluster.anchors.resize(blocks);
        cluster.threads = blocks * threads;
        std::atomic<unsigned> ready{0}, ended{0};
        std::vector<std::thread> running;
        for (unsigned rank = 0; rank < blocks; rank++)
            running.emplace_back([&, rank] {
                block_state b;
                prepare(b, cluster);
                cluster.anchors[rank] = anchor;
                ready++;
                while (ready < blocks)
                    std::this_thread::yield();
                run(b, first + rank);
                ended++;
                while (ended < blocks) /* its shared memory may still be looked at */
                    std::this_thread::yield();
            });
        for (std::thread &t : running)
            t.join();
    }
}

} // namespace emulated

#define threadIdx (emulated::index{emulated::current->thread})
#define blockIdx  (emulated::index{emulated::current->block->block})
#define blockDim  (emulated::index{(unsigned)emulated::current->block->fibers.size()})
#define gridDim   (emulated::index{emulated::current->block->grid})
#define warpSize  32

static inline void __syncwarp(unsigned mask = ~0u)
{
    emulated::warp_barrier(mask);
}
static inline void __syncthreads()
{
    emulated::block_barrier();
}
static inline void __nanosleep(int)
{
    for (int i = 0; i < 50; i++)
        emulated::yield();
}

/* ---- between lanes ----------------------------------------------------------------------------------------------- */

static inline unsigned emulated_lane()
{
    return emulated::current->thread % emulated::WARP;
}
/* `width` lanes are a warp of their own; one that has no such neighbour gets its own value. */
template <class T> static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32)
{
    const unsigned within = (unsigned)width - 1;
    return emulated::from_lane(mask, value, (emulated_lane() & ~within) | ((unsigned)lane & within));
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int distance, int width = 32)
{
    const unsigned lane = emulated_lane(), other = lane ^ (unsigned)distance;
    return emulated::from_lane(mask, value, other > (lane | ((unsigned)width - 1)) ? lane : other);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32)
{
    const unsigned lane = emulated_lane(), other = lane + distance;
    return emulated::from_lane(mask, value, other > (lane | ((unsigned)width - 1)) ? lane : other);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32)
{
    const unsigned lane = emulated_lane(), first = lane & ~((unsigned)width - 1);
    return emulated::from_lane(mask, value, lane < first + distance ? lane : lane - distance);
}
static inline unsigned __ballot_sync(unsigned mask, bool x)
{
    emulated::gathering &g = emulated::gathering_of(mask);
    const unsigned turn = emulated::show(g, x);
    unsigned votes = 0;
    for (unsigned lane = 0; lane < emulated::WARP; lane++)
        if (g.came[turn] & 1u << lane) {
            bool vote;
            memcpy(&vote, &g.values[turn][lane], sizeof vote);
            votes |= (unsigned)vote << lane;
        }
    return votes;
}
static inline bool __any_sync(unsigned mask, bool x)
{
    return __ballot_sync(mask, x) != 0;
}
static inline bool __all_sync(unsigned mask, bool x)
{
    return __ballot_sync(mask, !x) == 0;
}
static inline int __syncthreads_count(int x)
{
    static EMULATED_LOCAL int count; /* a barrier before: the last one's result has been read */
    emulated::block_barrier();
    count = 0;
    emulated::block_barrier();
    count += x != 0;
    emulated::block_barrier();
    return count;
}
static inline int __syncthreads_or(int x)
{
    return __syncthreads_count(x) != 0;
}
static inline int __syncthreads_and(int x)
{
    return __syncthreads_count(!x) == 0;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static inline void __threadfence() {}
static inline void __threadfence_block() {}

/* Loads and stores with a hint for the caches. */
template <class T> static inline T __ldcg(const T *from)
{
    return *from;
}
template <class T> static inline T __ldg(const T *from)
{
    return *from;
}
template <class T> static inline T __ldcs(const T *from)
{
    return *from;
}
template <class T> static inline void __stcg(T *to, T value)
{
    *to = value;
}
template <class T> static inline void __stcs(T *to, T value)
{
    *to = value;
}

/* Fibers are not interrupted, and blocks of a grid that count together run one after the other. */
static inline unsigned atomicInc(unsigned *at, unsigned last)
{
    const unsigned old = *at;
    *at = old >= last ? 0 : old + 1;
    return old;
}
template <class T> static inline T atomicAdd(T *at, T more)
{
    const T old = *at;
    *at = old + more;
    return old;
}
template <class T> static inline T atomicMax(T *at, T other)
{
    const T old = *at;
    *at = old < other ? other : old;
    return old;
}
template <class T> static inline T atomicMin(T *at, T other)
{
    const T old = *at;
    *at = other < old ? other : old;
    return old;
}
template <class T> static inline T atomicOr(T *at, T other)
{
    const T old = *at;
    *at = old | other;
    return old;
}
template <class T> static inline T atomicExch(T *at, T other)
{
    const T old = *at;
    *at = other;
    return old;
}
template <class T> static inline T atomicCAS(T *at, T expected, T other)
{
    const T old = *at;
    if (old == expected)
        *at = other;
    return old;
}

#endif
