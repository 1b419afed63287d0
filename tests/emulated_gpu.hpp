/*
 * CUDA C on the CPU, as far as the kernels of the split product use it, for tests of what they compute and of how their
 * warps hand shared memory to each other. A file with kernels is included after this one and compiled as C++; the
 * headers with instructions that C++ has no words for (shared.cuh, halves.cuh, hopper.cuh, ampere.cuh) are replaced by
 * the functions here, which do what the PTX manual says.
 *
 * Threads are those of emulated_threads.hpp, tensor cores those of tensor_core.h.
 *
 * What it cannot show: speed, what the manual does not say, and races between instructions of one warp.
 */
#ifndef ONEPASS_TEST_EMULATED_GPU_HPP
#define ONEPASS_TEST_EMULATED_GPU_HPP

#include "emulated_math.hpp"
#include "emulated_threads.hpp"

extern "C" {
#include "tensor_core.h"
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
template <class T> static inline T from_lane_0(T x)
{
    return __shfl_sync(~0u, x, 0);
}
static inline int opaque(int x)
{
    return x;
}
static inline bool elect_one()
{
    return from_lane_0(emulated::current->thread) == emulated::current->thread;
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
static inline void mbarrier_init(unsigned barrier, unsigned arrivals)
{
    *emulated_at(barrier, emulated_rank()) = {(int16_t)arrivals, (int16_t)arrivals, 0};
}
static inline void mbarrier_init_fence() {}
static inline void mbarrier_arrive_expect_tx(unsigned barrier, unsigned bytes)
{
    std::lock_guard<std::mutex> held(emulated::current->block->cluster->lock);
    emulated_barrier *b = emulated_at(barrier, emulated_rank());
    b->bytes_and_phase += 2 * (int32_t)bytes;
    b->pending--;
    emulated_settle(b);
}
static inline void mbarrier_arrive_cluster(unsigned barrier, unsigned block)
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
static inline void mbarrier_wait(unsigned barrier, unsigned parity)
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

static inline void tma_load_multicast(unsigned to, const void *map, unsigned barrier, int x, int y,
                                      unsigned short blocks)
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
static inline void tma_load(unsigned to, const void *map, unsigned barrier, int x, int y)
{
    tma_load_multicast(to, map, barrier, x, y, (unsigned short)(1 << emulated_rank()));
}
static inline void prefetch_tensormap(const void *) {}

/* The descriptor's fields as the manual has them; only the layout that is used is understood. */
static inline unsigned long long smem_descriptor(unsigned address)
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
static inline void wgmma_fence() {}
static inline void wgmma_commit() {}
static inline void wgmma_wait()
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
template <int N> static inline void wgmma(float (&d)[N], unsigned long long left, unsigned long long right, int more)
{
    emulated_multiply(
        d, [&](int row, int k) { return emulated_half(left, row, k); }, right, more);
}
template <int N> static inline void wgmma(float (&d)[N], const unsigned (&left)[4], unsigned long long right, int more)
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
template <int COUNT> static inline void setmaxnreg_dec() {}
template <int COUNT> static inline void setmaxnreg_inc() {}

/* ---- ampere.cuh -------------------------------------------------------------------------------------------------- */

#define ONEP_AMPERE_CUH

/* Copies arrive at once: a wait that is missing does not show, a barrier that is missing does. */
static inline void cp_async_16(unsigned to, const void *from, bool inside)
{
    if (inside)
        memcpy(emulated::memory_at(to), from, 16);
    else
        memset(emulated::memory_at(to), 0, 16);
}
template <int BYTES> static inline void cp_async(unsigned to, const void *from)
{
    if ((uintptr_t)from % BYTES != 0 || to % BYTES != 0) {
        fprintf(stderr, "a copy of %d bytes that is not aligned\n", BYTES);
        abort();
    }
    memcpy(emulated::memory_at(to), from, BYTES);
}
static inline void cp_async_commit() {}
static inline void cp_async_wait_1() {}
static inline void cp_async_wait_0() {}
template <int N> static inline void cp_async_wait() {}

static inline void ldmatrix_x4(unsigned at, unsigned (&to)[4])
{
    const unsigned lane = thread_now() % 32;
    for (unsigned matrix = 0; matrix < 4; matrix++) {
        unsigned row = emulated::from_lane(at, 8 * matrix + lane / 4);
        memcpy(&to[matrix], emulated::memory_at(row + lane % 4 * 4), 4);
    }
}
static inline void mma(float (&d)[4], const unsigned (&left)[4], unsigned right0, unsigned right1)
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
