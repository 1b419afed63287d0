/*
 * CUDA C on the CPU, as far as the kernels of the split product use it, for tests of what they compute and of how their
 * warps hand shared memory to each other. A file with kernels is included after this one and compiled as C++; the
 * headers with instructions that C++ has no words for (shared.cuh, halves.cuh, hopper.cuh, ampere.cuh) are replaced by
 * the functions here, which do what the PTX manual says.
 *
 * The threads of a block are fibers of one thread of the machine: shared memory is that thread's own memory, at the
 * same offsets in every block, so that one block finds another one's. A fiber runs until it waits; with whom the next
 * round begins, and which warp is held back for how long, is drawn at random, so that a barrier that is missing shows.
 * Tensor cores are those of tensor_core.h.
 *
 * What it cannot show: speed, what the manual does not say, and races between instructions of one warp.
 */
#ifndef ONEPASS_TEST_EMULATED_GPU_HPP
#define ONEPASS_TEST_EMULATED_GPU_HPP

#include <setjmp.h>
#include <ucontext.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

extern "C" {
#include "tensor_core.h"
}

/* ---- words of the language --------------------------------------------------------------------------------------- */

#define __CUDACC__    1
#define __CUDA_ARCH__ 0
#define __device__
#define __forceinline__ inline
#define __global__
#define __shared__ static thread_local
#define __grid_constant__
#define __launch_bounds__(...)

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
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
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline double2 make_double2(double x, double y)
{
    return {x, y};
}

template <class TO, class FROM> static inline TO same_bits_as(FROM from)
{
    TO to;
    static_assert(sizeof to == sizeof from, "as many bits");
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline float __int_as_float(int x)
{
    return same_bits_as<float>(x);
}
static inline int __float_as_int(float x)
{
    return same_bits_as<int>(x);
}
static inline float __uint_as_float(unsigned x)
{
    return same_bits_as<float>(x);
}
static inline float __fadd_rn(float x, float y)
{
    return x + y;
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

namespace emulated
{

enum { WARP = 32, STACK = 256 << 10, SHARED = 232 << 10 };

struct index {
    unsigned x;
};

struct warp_state {
    int arrived = 0;
    unsigned long long round = 0;
    double values[WARP]; /* what lanes show each other */
    unsigned fragments[WARP][4];
};

struct block_state;

struct fiber {
    ucontext_t context; /* only to begin with: _setjmp and _longjmp leave the signal mask alone, and are cheap */
    jmp_buf at;
    unsigned thread;
    bool begun = false, done = false;
    char *stack = nullptr;
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
    cluster_state *cluster = nullptr;
    std::vector<fiber> fibers;
    std::vector<warp_state> warps;
    jmp_buf scheduler;
    unsigned block = 0, grid = 0, at_barrier = 0;
    unsigned long long barrier_round = 0;
    uint64_t random = 0;
    void (*kernel)(const void *) = nullptr;
    const void *args = nullptr;
};

/* Everything shared of a block lies in its thread's memory; addresses are offsets from here. */
alignas(1024) static thread_local char anchor[1024];
alignas(1024) static thread_local unsigned char dynamic_shared[SHARED];
static thread_local fiber *current;

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

static inline void yield()
{
    if (_setjmp(current->at) == 0)
        _longjmp(current->block->scheduler, 1);
}

template <class CONDITION> static inline void wait_until(CONDITION condition)
{
    while (!condition())
        yield();
}

/* All lanes of a warp; those that have ended do not count. */
static inline void warp_barrier()
{
    block_state &b = *current->block;
    warp_state &w = b.warps[current->thread / WARP];
    unsigned long long round = w.round;
    if (++w.arrived == WARP) {
        w.arrived = 0;
        w.round++;
    }
    wait_until([&] { return w.round != round; });
}

template <class T> static inline T from_lane(T value, unsigned lane)
{
    warp_state &w = current->block->warps[current->thread / WARP];
    static_assert(sizeof(T) <= sizeof(double), "fits");
    memcpy(&w.values[current->thread % WARP], &value, sizeof value);
    warp_barrier();
    T other;
    memcpy(&other, &w.values[lane % WARP], sizeof other);
    warp_barrier(); /* or the next exchange would write over it */
    return other;
}

static void enter_kernel(unsigned high, unsigned low)
{
    fiber *f = (fiber *)(((uintptr_t)high << 32) | low);
    f->block->kernel(f->block->args);
    f->done = true;
    _longjmp(f->block->scheduler, 1);
}

/* Lets a fiber run until it makes room. */
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

/* One block, on a thread of its own. */
static void run_block(block_state &b)
{
    size_t left = b.fibers.size();
    for (fiber &f : b.fibers) {
        getcontext(&f.context);
        f.stack = (char *)malloc(STACK);
        f.context.uc_stack.ss_sp = f.stack;
        f.context.uc_stack.ss_size = STACK;
        f.context.uc_link = nullptr;
        uintptr_t address = (uintptr_t)&f;
        makecontext(&f.context, (void (*)())(void *)enter_kernel, 2, (unsigned)(address >> 32), (unsigned)address);
    }
    size_t held = b.warps.size(), rounds = 0; /* a warp that is held back, and for how long */
    while (left > 0) {                        /* rounds that begin somewhere else every time */
        b.random = b.random * 6364136223846793005ull + 1442695040888963407ull;
        size_t begin = (size_t)(b.random >> 33) % b.fibers.size();
        if (rounds-- == 0) {
            held = (size_t)(b.random >> 40) % (2 * b.warps.size()); /* mostly none */
            rounds = (size_t)(b.random >> 50) % 200;
        }
        for (size_t i = 0; i < b.fibers.size(); i++) {
            fiber &f = b.fibers[(begin + i) % b.fibers.size()];
            if (f.done || f.thread / WARP == held)
                continue;
            resume(f);
            left -= f.done;
        }
        std::this_thread::yield();
    }
    for (fiber &f : b.fibers)
        free(f.stack);
}

/* A launch: clusters one after the other, the blocks of one side by side. */
template <class ARGS>
static void launch(void (*kernel)(ARGS), unsigned grid, unsigned threads, unsigned blocks, const ARGS &args,
                   uint64_t seed)
{
    static thread_local void (*called)(ARGS); /* set in each block's thread */
    for (unsigned first = 0; first < grid; first += blocks) {
        cluster_state cluster;
        cluster.anchors.resize(blocks);
        cluster.threads = blocks * threads;
        std::atomic<unsigned> ready{0}, ended{0};
        std::vector<std::thread> running;
        for (unsigned rank = 0; rank < blocks; rank++)
            running.emplace_back([&, rank] {
                block_state b;
                b.cluster = &cluster;
                b.fibers.resize(threads);
                b.warps.resize(threads / WARP);
                b.block = first + rank;
                b.grid = grid;
                b.random = seed + 977 * (first + rank);
                b.args = &args;
                called = kernel;
                b.kernel = [](const void *a) { called(*static_cast<const ARGS *>(a)); };
                for (unsigned t = 0; t < threads; t++) {
                    b.fibers[t].thread = t;
                    b.fibers[t].block = &b;
                }
                memset(dynamic_shared, 0xff, sizeof dynamic_shared); /* NaN */
                cluster.anchors[rank] = anchor;
                ready++;
                while (ready < blocks)
                    std::this_thread::yield();
                run_block(b);
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
#define gridDim   (emulated::index{emulated::current->block->grid})

static inline void __syncwarp()
{
    emulated::warp_barrier();
}
static inline void __syncthreads()
{
    emulated::block_state &b = *emulated::current->block;
    unsigned long long round = b.barrier_round;
    if (++b.at_barrier == b.fibers.size()) {
        b.at_barrier = 0;
        b.barrier_round++;
    }
    emulated::wait_until([&] { return b.barrier_round != round; });
}
template <class T> static inline T __shfl_sync(unsigned, T value, int lane)
{
    return emulated::from_lane(value, (unsigned)lane);
}
template <class T> static inline T __shfl_xor_sync(unsigned, T value, int distance)
{
    return emulated::from_lane(value, emulated::current->thread ^ (unsigned)distance);
}
static inline bool __any_sync(unsigned, bool x)
{
    bool any = false;
    for (unsigned lane = 0; lane < emulated::WARP; lane++)
        any = emulated::from_lane(x, lane) || any;
    return any;
}
static inline unsigned __vmaxu2(unsigned x, unsigned y)
{
    unsigned low = (x & 0xffff) > (y & 0xffff) ? x & 0xffff : y & 0xffff;
    return low | ((x >> 16) > (y >> 16) ? x >> 16 : y >> 16) << 16;
}
static inline void __nanosleep(int)
{
    for (int i = 0; i < 50; i++)
        emulated::yield();
}

/* ---- shared.cuh, halves.cuh -------------------------------------------------------------------------------------- */

#define ONEP_SHARED_CUH
#define ONEP_HALVES_CUH
#define ONEP_DYNAMIC_SHARED(name) unsigned char *name = emulated::dynamic_shared

static inline unsigned shared_address(const volatile void *p)
{
    return emulated::address_of(p);
}
static inline float load_shared(unsigned at)
{
    float x;
    memcpy(&x, emulated::memory_at(at), sizeof x);
    return x;
}
static inline float2 load_shared_two(unsigned at)
{
    return {load_shared(at), load_shared(at + 4)};
}

static inline unsigned pack_halves(float first, float second)
{
    return (unsigned)onep_f16_from_f64((double)first) | (unsigned)onep_f16_from_f64((double)second) << 16;
}
static inline void unpack_halves(unsigned word, float &first, float &second)
{
    first = onep_f16_to_f32((uint16_t)word);
    second = onep_f16_to_f32((uint16_t)(word >> 16));
}

/* ---- hopper.cuh -------------------------------------------------------------------------------------------------- */

#define ONEP_HOPPER_CUH

static inline unsigned thread_now()
{
    return emulated::current->thread;
}
template <class T> static inline T of_lane_0(T x)
{
    return __shfl_sync(~0u, x, 0);
}
static inline int asked_again(int x)
{
    return x;
}
static inline bool elected()
{
    return of_lane_0(emulated::current->thread) == emulated::current->thread;
}

static inline void cluster_sync()
{
    emulated::cluster_state &c = *emulated::current->block->cluster;
    long long mine = c.arrived++, round = mine / c.threads;
    emulated::wait_until([&] { return c.arrived >= (round + 1) * (long long)c.threads; });
}

/* A barrier in 64 bits of shared memory. */
struct emulated_barrier {
    int16_t wanted, pending;
    int32_t bytes_and_phase; /* bytes still to come, times 2, + the phase's parity */
};
static_assert(sizeof(emulated_barrier) == 8, "as large as the real one");

static inline void emulated_settle(emulated_barrier *b)
{
    if (b->pending == 0 && (b->bytes_and_phase >> 1) == 0) {
        b->pending = b->wanted;
        b->bytes_and_phase ^= 1;
    }
}
static inline emulated_barrier *emulated_at(unsigned barrier, int block)
{
    return reinterpret_cast<emulated_barrier *>(emulated::memory_at(barrier, block));
}
static inline int emulated_rank()
{
    return (int)(emulated::current->block->block % (unsigned)emulated::cluster_blocks());
}
static inline void barrier_init(unsigned barrier, unsigned arrivals)
{
    *emulated_at(barrier, emulated_rank()) = {(int16_t)arrivals, (int16_t)arrivals, 0};
}
static inline void barrier_init_done() {}
static inline void barrier_expect(unsigned barrier, unsigned bytes)
{
    std::lock_guard<std::mutex> held(emulated::current->block->cluster->lock);
    emulated_barrier *b = emulated_at(barrier, emulated_rank());
    b->bytes_and_phase += 2 * (int32_t)bytes;
    b->pending--;
    emulated_settle(b);
}
static inline void barrier_arrive_at(unsigned barrier, unsigned block)
{
    std::lock_guard<std::mutex> held(emulated::current->block->cluster->lock);
    emulated_barrier *b = emulated_at(barrier, (int)block);
    if (b->pending <= 0) {
        fprintf(stderr, "an arrival too many at a barrier\n");
        abort();
    }
    b->pending--;
    emulated_settle(b);
}
static inline void barrier_wait(unsigned barrier, unsigned parity)
{
    emulated::wait_until([&] {
        std::lock_guard<std::mutex> held(emulated::current->block->cluster->lock);
        return ((unsigned)emulated_at(barrier, emulated_rank())->bytes_and_phase & 1) != parity;
    });
}

/* What stands in for the driver's description of a matrix, in the 128 bytes of a map. */
struct emulated_map {
    const char *data;
    long long rows, columns, stride;
    int element_size, box_rows;
};

static inline void copy_box_to(unsigned to, const void *map, unsigned barrier, int x, int y, unsigned short blocks)
{
    emulated_map m;
    memcpy(&m, map, sizeof m);
    const int box_columns = 128 / m.element_size;
    std::lock_guard<std::mutex> held(emulated::current->block->cluster->lock);
    for (int block = 0; block < emulated::cluster_blocks(); block++) {
        if (!(blocks >> block & 1))
            continue;
        for (int r = 0; r < m.box_rows; r++)
            for (int c = 0; c < box_columns; c++) {
                /* 16-byte pieces of 128 bytes are exchanged by the number, mod 8, of those in memory */
                unsigned at = to + (unsigned)(r * 128 + c * m.element_size);
                at ^= (at >> 7 & 7) << 4;
                char *there = emulated::memory_at(at, block);
                bool inside = y + r >= 0 && y + r < m.rows && x + c >= 0 && x + c < m.columns;
                if (inside)
                    memcpy(there, m.data + (y + r) * m.stride + (long long)(x + c) * m.element_size,
                           (size_t)m.element_size);
                else
                    memset(there, 0, (size_t)m.element_size);
            }
        emulated_barrier *b = emulated_at(barrier, block);
        b->bytes_and_phase -= 2 * m.box_rows * 128;
        emulated_settle(b);
    }
}
static inline void copy_box(unsigned to, const void *map, unsigned barrier, int x, int y)
{
    copy_box_to(to, map, barrier, x, y, (unsigned short)(1 << emulated_rank()));
}
static inline void fetch_map(const void *) {}

/* The descriptor's fields as the manual has them; only the layout that is used is understood. */
static inline unsigned long long tile_descriptor(unsigned address)
{
    return (unsigned long long)(address >> 4) | 1ull << 62;
}
static inline uint16_t emulated_half(unsigned long long descriptor, int row, int k)
{
    unsigned at = (unsigned)((descriptor & 0xffffffffull) << 4) + (unsigned)(row / 8 * 1024 + row % 8 * 128 + k * 2);
    at ^= (at >> 7 & 7) << 4;
    uint16_t half;
    memcpy(&half, emulated::memory_at(at), sizeof half);
    return half;
}
static inline void products_fence() {}
static inline void products_commit() {}
static inline void products_wait()
{
    emulated::warp_barrier();
} /* by all threads of a warp at once */
template <int N> static inline void keep_in_place(float (&)[N]) {}

/* One thread's part of a product of 64 by 2 N, 16 deep; left(row, k) of the group of warps' 64 rows. */
template <int N, class LEFT>
static inline void emulated_multiply(float (&d)[N], LEFT left, unsigned long long right, int more)
{
    const unsigned lane = thread_now() % 32, warp = thread_now() / 32 % 4;
    uint16_t rows[2][16], column[16];
    for (int r = 0; r < 2; r++)
        for (int k = 0; k < 16; k++)
            rows[r][k] = left((int)(warp * 16 + lane / 4) + 8 * r, k);
    for (int i = 0; i < N / 4; i++)
        for (int s = 0; s < 2; s++) {
            for (int k = 0; k < 16; k++)
                column[k] = emulated_half(right, 8 * i + 2 * (int)(lane % 4) + s, k);
            for (int r = 0; r < 2; r++) {
                float &sum = d[4 * i + 2 * r + s];
                sum = tensor_core_dot(&tensor_core_hopper, ONEP_F16, more ? sum : 0.0f, rows[r], column, 16);
            }
        }
}
template <int N> static inline void multiply(float (&d)[N], unsigned long long left, unsigned long long right, int more)
{
    emulated_multiply(
        d, [&](int row, int k) { return emulated_half(left, row, k); }, right, more);
}
template <int N>
static inline void multiply(float (&d)[N], const unsigned (&left)[4], unsigned long long right, int more)
{
    emulated::warp_state &w = emulated::current->block->warps[thread_now() / 32];
    memcpy(w.fragments[thread_now() % 32], left, sizeof left);
    emulated::warp_barrier();
    emulated_multiply(
        d,
        [&](int row, int k) {
            /* word of a fragment: row + 8, then 8 further of the depth */
            const unsigned *words = w.fragments[row % 8 * 4 + k % 8 / 2];
            return (uint16_t)(words[row % 16 / 8 + k / 8 * 2] >> (k % 2 * 16));
        },
        right, more);
    emulated::warp_barrier();
}
template <int COUNT> static inline void give_registers() {}
template <int COUNT> static inline void take_registers() {}

/* ---- ampere.cuh -------------------------------------------------------------------------------------------------- */

#define ONEP_AMPERE_CUH

/* Copies arrive at once: a wait that is missing does not show, a barrier that is missing does. */
static inline void copy_piece(unsigned to, const void *from, bool inside)
{
    if (inside)
        memcpy(emulated::memory_at(to), from, 16);
    else
        memset(emulated::memory_at(to), 0, 16);
}
static inline void copies_commit() {}
static inline void copies_wait_but_one() {}

static inline void load_matrices(unsigned at, unsigned (&to)[4])
{
    const unsigned lane = thread_now() % 32;
    for (unsigned matrix = 0; matrix < 4; matrix++) {
        unsigned row = emulated::from_lane(at, 8 * matrix + lane / 4);
        memcpy(&to[matrix], emulated::memory_at(row + lane % 4 * 4), 4);
    }
}
static inline void multiply(float (&d)[4], const unsigned (&left)[4], unsigned right0, unsigned right1)
{
    const unsigned lane = thread_now() % 32;
    uint16_t rows[2][16], columns[2][16];
    unsigned words[4] = {left[0], left[1], left[2], left[3]}, right[2] = {right0, right1};
    for (int part = 0; part < 4; part++) /* of left: row + 8 * (part % 2), depth 8 (part / 2) */
        for (unsigned q = 0; q < 4; q++) {
            unsigned word = emulated::from_lane(words[part], lane / 4 * 4 + q);
            rows[part % 2][part / 2 * 8 + (int)q * 2] = (uint16_t)word;
            rows[part % 2][part / 2 * 8 + (int)q * 2 + 1] = (uint16_t)(word >> 16);
        }
    for (unsigned s = 0; s < 2; s++)
        for (int part = 0; part < 2; part++)
            for (unsigned q = 0; q < 4; q++) { /* column 2 (lane % 4) + s is that of lanes 4 of that number on */
                unsigned word = emulated::from_lane(right[part], (2 * (lane % 4) + s) * 4 + q);
                columns[s][part * 8 + (int)q * 2] = (uint16_t)word;
                columns[s][part * 8 + (int)q * 2 + 1] = (uint16_t)(word >> 16);
            }
    for (int r = 0; r < 2; r++)
        for (int s = 0; s < 2; s++)
            d[2 * r + s] = tensor_core_dot(&tensor_core_hopper, ONEP_F16, d[2 * r + s], rows[r], columns[s], 16);
}

#endif
