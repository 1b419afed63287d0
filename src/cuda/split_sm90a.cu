/*
 * The fp32 product on Hopper's tensor cores: c = left right^T from operands split into two fp16 (split_args.h).
 *
 *   left right = high high + (high low + low high), low low is dropped
 *
 * Tensor cores add in fp32 but cut off what does not fit. So they only ever add up one chunk, 64 of the depth: first
 * the small products, then the large ones; each chunk's sums are then added to the tile's by an FMA that rounds, and
 * that takes the chunk's power of two along. docs/numerics.md has the bound; the bits depend on the operands alone.
 *
 * A tile is 128 rows of the left operand by 2 x 128 (or 128, or 64) of the right one. Shared memory is a ring of stages
 * of 32 KB: a chunk is one stage of the left operand, then one for each 128 rows of the right one. One thread has TMA
 * fill stages; eight warps, 16 left rows each, multiply from them (WGMMA) and release them. Two blocks of a cluster work
 * side by side on neighbouring left rows and the same right ones, and each multicasts half of those to both.
 *
 * The left operand may come as it is, in fp32: its fragments are then split in registers, once for all right rows of
 * the tile. Nothing but c, and for its columns the statistics of batch normalisation, is written.
 */
#include "cuda/pdl.cuh"
#include "cuda/hopper.cuh"
#include "cuda/split.cuh"

/* Where tests slow copying (0) and multiplying (1) down, every chunk; nothing in the library. */
#ifndef ONEP_SPLIT_PAUSE
#define ONEP_SPLIT_PAUSE(which)
#endif

/* How the left operand lies: split already; fp32, the depth along memory; fp32, rows side by side in memory. */
enum left_kind { PLANES, ALONG, ACROSS };

enum {
    HALF_STAGE = ONEP_SPLIT_STAGE_BYTES / 2,
    SLICES = ONEP_SPLIT_CHUNK / 16, /* of a chunk: what one instruction multiplies */
    WARPS = 8,                      /* that multiply */
};

/* ---- TMA ----------------------------------------------------------------------------------------------------- */

/* A stage of the ring, and the phase of its mbarriers: how often the ring has gone round (mod 2). */
struct ring_position {
    int stage;
    unsigned phase;
    __device__ __forceinline__ void advance(int stages)
    {
        if (++stage == stages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

template <int KIND>
__device__ __forceinline__ void copy_left(const onep_split_product_args &a, unsigned to, unsigned barrier, int k,
                                          int row)
{
    if (KIND == PLANES) {
        tma_load(to, &a.left[0], barrier, k, row);
        tma_load(to + HALF_STAGE, &a.left[1], barrier, k, row);
    } else if (KIND == ALONG) { /* 128 rows of 32 floats, twice */
        tma_load(to, &a.left[0], barrier, k, row);
        tma_load(to + HALF_STAGE, &a.left[0], barrier, k + 32, row);
    } else { /* 64 deep by 32 rows, four times */
        for (int i = 0; i < 4; i++)
            tma_load(to + i * (ONEP_SPLIT_STAGE_BYTES / 4), &a.left[0], barrier, row + 32 * i, k);
    }
}

/* Planes of WIDTH rows; of two blocks each multicasts half of the rows to both. */
template <int WIDTH>
__device__ __forceinline__ void copy_right(const onep_split_product_args &a, unsigned to, unsigned barrier, int k,
                                           int row, int rank, int blocks)
{
    if (blocks == 1) {
        tma_load(to, &a.right[0], barrier, k, row);
        tma_load(to + HALF_STAGE, &a.right[1], barrier, k, row);
        return;
    }
    row += rank * (WIDTH / 2);
    to += rank * (WIDTH / 2 * 128);
    tma_load_multicast(to, &a.right[0], barrier, k, row, 3);
    tma_load_multicast(to + HALF_STAGE, &a.right[1], barrier, k, row, 3);
}

/* ---- the left operand in registers ------------------------------------------------------------------------------- */

/*
 * Each thread has row f of its warp's 16, and row f + 8, of every fragment. Along the depth rows are taken in the order
 * 0 2 4 6 1 3 5 7: then no two threads that read at once meet in a bank of shared memory.
 */
template <int KIND> __device__ __forceinline__ unsigned row_of_thread()
{
    unsigned thread = threadIdx.x - 128, f = thread / 4 % 8;
    return thread / 32 * 16 + (KIND == ALONG ? 2 * (f % 4) + f / 4 : f);
}

/*
 * Where in a stage of floats the thread's first one lies: depth 2 q of its row. TMA swizzles the 16-byte pieces of every
 * 128 bytes by the number (mod 8) of those: bits 4 to 6 of an address are combined with bits 7 to 9.
 *
 *   ALONG   a row has 128 bytes, 32 deep; the other 32 are half a stage on
 *   ACROSS  one deep has 128 bytes, 32 rows; the next 32 rows are a quarter of a stage on
 */
template <int KIND> __device__ __forceinline__ unsigned first_offset(unsigned row, unsigned q)
{
    return KIND == ALONG ? row * 128 + ((8 * q) ^ (row % 8 * 16))
                         : row / 32 * (ONEP_SPLIT_STAGE_BYTES / 4) + 2 * q * 128 + ((row % 32 * 4) ^ (2 * q * 16));
}

/*
 * The thread's part of a stage: depth 16 j + 8 h + 2 q and the next of both rows, in x[j][h][r]. Stages lie at multiples
 * of 128, so the bits of an offset can be combined in the address.
 */
template <int KIND> __device__ __forceinline__ void load_left(unsigned at, float2 (&x)[SLICES][2][2])
{
#pragma unroll
    for (int j = 0; j < SLICES; j++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if (KIND == ALONG) {
                    x[j][h][r] = load_shared_two((at ^ (j % 2 * 64 + h * 32)) + j / 2 * HALF_STAGE + r * (8 * 128));
                } else {
                    const int deep = (16 * j + 8 * h) * 128;
                    x[j][h][r].x = load_shared((at ^ (r * 32)) + deep);
                    x[j][h][r].y = load_shared((at ^ (16 + r * 32)) + deep + 128);
                }
            }
}

/* Exponents of both rows of a thread, in one register. */
__device__ __forceinline__ unsigned both_rows(int first, int second)
{
    return (unsigned)first | (unsigned)second << 16;
}
__device__ __forceinline__ int of_row(unsigned both, int r)
{
    return (int)(r ? both >> 16 : both & 0xffff);
}

/* Splits a chunk of both rows, scaled by its own largest element in each row. */
template <int KIND>
__device__ __forceinline__ void take_left(unsigned at, unsigned (&high)[SLICES][4], unsigned (&low)[SLICES][4],
                                          unsigned &exponents)
{
    float2 x[SLICES][2][2];
    int exponent[2];
    float most[2] = {0, 0};
    load_left<KIND>(at, x);
#pragma unroll
    for (int j = 0; j < SLICES; j++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                most[r] = fmaxf(most[r], fmaxf(fabsf(x[j][h][r].x), fabsf(x[j][h][r].y)));
#pragma unroll
    for (int r = 0; r < 2; r++) {
        most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
        most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2));
        exponent[r] = split_exponent(most[r]);
    }
    const float scale[2] = {split_scale(exponent[0]), split_scale(exponent[1])};
#pragma unroll
    for (int j = 0; j < SLICES; j++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                split_two(x[j][h][r].x, x[j][h][r].y, scale[r], high[j][2 * h + r], low[j][2 * h + r]);
    exponents = both_rows(exponent[0], exponent[1]);
}

/* What the planes of both rows were scaled with in a chunk; apart, or putting them together would wait for them. */
__device__ __forceinline__ void load_exponents(const onep_split_product_args &a, int chunk, int row, int (&to)[2])
{
    const unsigned char *from = a.left_exponents + chunk * a.left_rows + row;
    to[0] = row < a.left_rows ? from[0] : (int)ONEP_SPLIT_LEAST;
    to[1] = row + 8 < a.left_rows ? from[8] : (int)ONEP_SPLIT_LEAST;
}

/* A warp releases a stage, at the mbarriers of all blocks of the cluster: either may copy to it. */
__device__ __forceinline__ void release(unsigned barrier, int blocks)
{
    if (elect_one()) {
        mbarrier_arrive_cluster(barrier, 0);
        if (blocks > 1)
            mbarrier_arrive_cluster(barrier, 1);
    }
}

/* ---- a finished tile --------------------------------------------------------------------------------------------- */

/* Four exponents in a word: is one of them that of an infinity? */
__device__ __forceinline__ bool has_infinite(unsigned four)
{
    return ((~four - 0x01010101u) & four & 0x80808080u) != 0;
}

/* Mean and sum of squared deviations of n elements of a left row. */
struct row_statistics {
    double n, mean, m2;
};

/* Elements measured from the first, so that large means cost no digits. */
struct row_sums {
    float origin, s1, s2;
    int n;
    __device__ __forceinline__ void add(float y)
    {
        origin = n == 0 ? y : origin;
        float d = y - origin;
        s1 += d;
        s2 = fmaf(d, d, s2);
        n++;
    }
    __device__ __forceinline__ row_statistics finish() const
    {
        double shift = n ? (double)s1 / n : 0.0, m2 = (double)s2 - (double)s1 * shift;
        return {(double)n, (double)origin + shift, m2 < 0 ? 0 : m2}; /* NaN stays */
    }
};

/* Merges those of four neighbouring threads, and keeps the result. */
__device__ __forceinline__ void keep_statistics(const row_statistics &s, double *to, bool mine)
{
    double n = s.n, mean = s.mean, m2 = s.m2;
#pragma unroll 1
    for (int distance = 1; distance < 4; distance *= 2) {
        double n_b = __shfl_xor_sync(~0u, n, distance), mean_b = __shfl_xor_sync(~0u, mean, distance);
        double m2_b = __shfl_xor_sync(~0u, m2, distance), total = n + n_b, d = mean_b - mean;
        if (n_b > 0) {
            m2 = n > 0 ? m2 + m2_b + d * d * (n * n_b / total) : m2_b;
            mean = n > 0 ? (n * mean + n_b * mean_b) / total : mean_b;
            n = total;
        }
    }
    if (mine)
        *reinterpret_cast<double2 *>(to) = make_double2(mean, m2);
}

/* What is added to a right row's elements. */
__device__ __forceinline__ float right_bias(const onep_split_product_args &a, long long j)
{
    return j < a.right_rows ? *reinterpret_cast<const float *>(a.bias.data + j * a.bias.col_stride)
                                           : -0.0f;
}

/*
 * Adds it to a tile's sums. Of every 64 right rows a lane loads two, 2 lane and the next, and hands them to the lanes
 * that have them.
 */
template <int WIDTH, int HALVES>
__device__ __forceinline__ void add_right_bias(const onep_split_product_args &a, float (&sums)[HALVES][WIDTH / 2],
                                               long long first)
{
    const int lane = threadIdx.x % 32;
    first -= 2 * (lane % 4);
#pragma unroll
    for (int s = 0; s < HALVES * WIDTH / 64; s++) {
        const long long row = first + 64 * s + 2 * lane;
        const float mine[2] = {right_bias(a, row), right_bias(a, row + 1)};
#pragma unroll
        for (int n = 8 * s; n < 8 * s + 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float theirs = __shfl_sync(~0u, mine[e], 4 * (n % 8) + lane % 4);
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float &y = sums[8 * n / WIDTH][4 * n % (WIDTH / 2) + 2 * r + e];
                    y = __fadd_rn(y, theirs); /* after a rounding of its own */
                }
            }
    }
}

/*
 * Scales the sums and stores them; then, if there is an infinity in one of the thread's rows, makes its elements again
 * one by one. A thread has rows `row` and `row` + 8 of the left operand, and of the right one rows 8 n and 8 n + 1 from
 * `first` on, as far as `reach`.
 */
template <int WIDTH, int HALVES>
__device__ __forceinline__ void finish_tile(const onep_split_product_args &a, float (&sums)[HALVES][WIDTH / 2],
                                            long long row, long long first, int right_tile, int split, bool keeps,
                                            unsigned both_bases, unsigned both_largest)
{
    const int bases[2] = {of_row(both_bases, 0), of_row(both_bases, 1)};
    const bool summed[2] = {is_summed(of_row(both_largest, 0), bases[0]), is_summed(of_row(both_largest, 1), bases[1])};
    const int reach = first < a.right_rows - WIDTH * HALVES ? WIDTH * HALVES : (int)(a.right_rows - first);
    const bool inside[2] = {row < a.left_rows, row + 8 < a.left_rows};
    /* A lane loads 8 of the tile's exponents, and the lanes ask each other: 64 loads would want 64 registers. */
    const int lane = threadIdx.x % 32;
    const long long mine = first - 2 * (lane % 4) + 8 * lane;
    uint2 eight = make_uint2(0, 0);
    if (lane < WIDTH * HALVES / 8 && mine < a.right_rows)
        eight = *reinterpret_cast<const uint2 *>(a.right_exponents + mine);
    const bool infinite = has_infinite(eight.x) || has_infinite(eight.y);
    const bool again = __any_sync(~0u, infinite || !summed[0] || !summed[1]);
    float bias[2] = {-0.0f, -0.0f}; /* which changes nothing when it is added */
#pragma unroll
    for (int r = 0; r < 2; r++)
        if (a.bias.data && !a.bias_right && inside[r])
            bias[r] = *reinterpret_cast<const float *>(a.bias.data + (row + 8 * r) * a.bias.col_stride);
#pragma unroll
    for (int n = 0; n < HALVES * WIDTH / 8; n++) {
        const unsigned low_half = __shfl_sync(~0u, eight.x, n), high_half = __shfl_sync(~0u, eight.y, n);
        const unsigned two = (lane & 2 ? high_half : low_half) >> (lane & 1 ? 16 : 0);
#pragma unroll
        for (int e = 0; e < 4; e++) { /* row, row; row + 8, row + 8 */
            float &y = sums[8 * n / WIDTH][4 * n % (WIDTH / 2) + e];
            y = scaled(y, bases[e / 2] + (int)(two >> 8 * (e & 1) & 255) - 2 * ONEP_SPLIT_TOP);
            y = __fadd_rn(y, bias[e / 2]); /* after a rounding of its own */
        }
    }
    if (a.bias_right)
        add_right_bias<WIDTH, HALVES>(a, sums, first);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        char *at = a.c + split * a.split_stride + (row + 8 * r) * a.c_left_stride + first * a.c_right_stride;
        if (!inside[r])
            continue;
        if (a.c_right_stride == 4 && (unsigned long long)at % 8 == 0) { /* right neighbours are neighbours in memory */
#pragma unroll
            for (int n = 0; n < HALVES * WIDTH / 8; n++) {
                const float *two = &sums[8 * n / WIDTH][4 * n % (WIDTH / 2) + 2 * r];
                if (8 * n + 1 < reach)
                    *reinterpret_cast<float2 *>(at + 32 * n) = make_float2(two[0], two[1]);
                else if (8 * n < reach)
                    *reinterpret_cast<float *>(at + 32 * n) = two[0];
            }
            continue;
        }
#pragma unroll
        for (int n = 0; n < HALVES * WIDTH / 4; n++) {
            if (4 * (n & ~1) + (n & 1) < reach)
                *reinterpret_cast<float *>(at) = sums[4 * n / WIDTH][2 * (n & ~1) % (WIDTH / 2) + 2 * r + (n & 1)];
            at += (n & 1 ? 7 : 1) * a.c_right_stride;
        }
    }
    if (again) {
#pragma unroll 1
        for (int n = 0; n < HALVES * WIDTH / 2; n++) {
            const int j = 4 * (n / 2 & ~1) + (n / 2 & 1);
            const bool second = n & 1;
            if ((second ? inside[1] : inside[0]) && j < reach &&
                (!(second ? summed[1] : summed[0]) || a.right_exponents[first + j] == ONEP_SPLIT_INFINITE)) {
                const long long i = second ? row + 8 : row;
                const float added = a.bias_right ? right_bias(a, first + j) : second ? bias[1] : bias[0];
                *element_at(a, i, first + j, split) = __fadd_rn(plain_sum(a, i, first + j, split), added);
            }
        }
    }
    if (!a.partial)
        return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        row_statistics statistics = {0, 0, 0};
        if (again) { /* infinities are added up as they are */
            double sum = 0;
#pragma unroll 1
            for (int j = 0; inside[r] && j < reach; j += j & 1 ? 7 : 1) {
                sum += (double)*element_at(a, row + 8 * r, first + j, split);
                statistics.n += 1;
            }
            statistics.mean = statistics.n > 0 ? sum / statistics.n : 0.0;
#pragma unroll 1
            for (int j = 0; inside[r] && j < reach; j += j & 1 ? 7 : 1) {
                double d = (double)*element_at(a, row + 8 * r, first + j, split) - statistics.mean;
                statistics.m2 += d * d;
            }
        } else {
            row_sums sums_of_row = {0, 0, 0, 0};
#pragma unroll
            for (int n = 0; n < HALVES * WIDTH / 4; n++)
                if (4 * (n & ~1) + (n & 1) < reach)
                    sums_of_row.add(sums[4 * n / WIDTH][2 * (n & ~1) % (WIDTH / 2) + 2 * r + (n & 1)]);
            statistics = sums_of_row.finish();
        }
        keep_statistics(statistics, a.partial + 2 * (right_tile * a.left_rows + row + 8 * r), keeps && inside[r]);
    }
}

/* ---- the product ------------------------------------------------------------------------------------------------- */

/* What a block does at a time: a tile, or one part of its depth, chunks `begin` to `end`. */
struct job {
    int left, right_tile, split, begin, end;
};

/*
 * The blocks that run at one time should read little of both operands, or the second-level cache does not hold it: they
 * go along the left operand in bands of up to 8 right tiles.
 */
__device__ __forceinline__ job job_of(const onep_split_product_args &a, int tile, int rank)
{
    enum { BAND = 8 };
    const int split = tile % a.splits, rest = tile / a.splits, begin = split * a.split_chunks;
    const int end = begin + a.split_chunks, clusters = (a.left_tiles + a.blocks - 1) / a.blocks;
    const int first = rest / (BAND * clusters) * BAND, inside = rest - first * clusters;
    const int wide = a.right_tiles - first < BAND ? a.right_tiles - first : (int)BAND;
    return {(inside / wide * a.blocks + rank) * ONEP_SPLIT_LEFT, first + inside % wide, split, begin,
            end < a.chunks ? end : a.chunks};
}

template <int KIND, int WIDTH, int HALVES>
__device__ __forceinline__ void split_product(const onep_split_product_args &a)
{
    enum { RIGHT = WIDTH * HALVES, RIGHT_BYTES = 2 * 128 * WIDTH };
    ONEP_DYNAMIC_SHARED(room);
    alignas(8) __shared__ unsigned long long full[ONEP_SPLIT_STAGES], empty[ONEP_SPLIT_STAGES];
    /*
     * The same in all lanes, and known to be: or every product would fetch its descriptors from vector registers. And
     * asked of lane 0: or the compiler would make addresses anew in every chunk, where the tensor cores wait for them.
     */
    const int group = from_lane_0(threadIdx.x / 128), warp = from_lane_0(threadIdx.x / 32 % 4);
    const unsigned ring = from_lane_0((shared_address(room) + 1023) / 1024 * 1024);
    const unsigned fulls = from_lane_0(shared_address(full)), empties = from_lane_0(shared_address(empty));
    /* a cluster of one block or two, with numbers that follow each other */
    const int blocks = a.blocks, rank = (int)blockIdx.x & (blocks - 1);
    const int cluster = (int)blockIdx.x >> (blocks - 1), clusters = (int)gridDim.x >> (blocks - 1);
    const int tiles = ((a.left_tiles + blocks - 1) >> (blocks - 1)) * a.right_tiles * a.splits;

    if (threadIdx.x == 0) {
        for (int i = 0; i < a.stages; i++) {
            mbarrier_init(fulls + 8 * i, 1);
            mbarrier_init(empties + 8 * i, WARPS * blocks);
        }
        mbarrier_init_fence();
    }
    cluster_sync(); /* or a block's copies could arrive at an mbarrier that is not there yet */
    pdl_wait();
    pdl_launch_dependents();

    ring_position at = {0, 0};
    if (group == 0) {
        setmaxnreg_dec<24>();
        if (warp == 0 && elect_one()) {
            prefetch_tensormap(&a.left[0]);
            prefetch_tensormap(&a.right[0]);
            prefetch_tensormap(&a.right[1]);
            for (int tile = cluster; tile < tiles; tile += clusters) {
                const job mine = job_of(a, tile, rank);
                const int right = mine.right_tile * RIGHT;
#pragma unroll 1 /* 24 registers hold no more */
                for (int k = mine.begin; k < mine.end; k++)
#pragma unroll
                    for (int u = 0; u <= HALVES; u++) {
                        ONEP_SPLIT_PAUSE(0);
                        /* both blocks' warps have released the stage: a copy may go to either */
                        mbarrier_wait(empties + 8 * at.stage, at.phase ^ 1);
                        const unsigned barrier = fulls + 8 * at.stage;
                        const unsigned to = ring + at.stage * ONEP_SPLIT_STAGE_BYTES;
                        mbarrier_arrive_expect_tx(barrier, u == 0 ? (int)ONEP_SPLIT_STAGE_BYTES : (int)RIGHT_BYTES);
                        if (u == 0)
                            copy_left<KIND>(a, to, barrier, k * ONEP_SPLIT_CHUNK, mine.left);
                        else
                            copy_right<WIDTH>(a, to, barrier, k * ONEP_SPLIT_CHUNK, right + (u - 1) * WIDTH, rank,
                                              blocks);
                        at.advance(a.stages);
                    }
            }
        }
    } else {
        setmaxnreg_inc<240>();
        const unsigned row = row_of_thread<KIND>(), q = threadIdx.x % 4, first = first_offset<KIND>(row, q);
        for (int tile = cluster; tile < tiles; tile += clusters) {
            const job mine = job_of(a, tile, rank);
            float sums[HALVES][WIDTH / 2], chunk[WIDTH / 2];
#pragma unroll
            for (int h = 0; h < HALVES; h++)
#pragma unroll
                for (int i = 0; i < WIDTH / 2; i++)
                    sums[h][i] = 0;
            unsigned bases = 0, largest = 0;
            int ahead[2] = {0, 0};
            if (KIND == PLANES)
                load_exponents(a, mine.begin, mine.left + (int)row, ahead);
            for (int k = mine.begin; k < mine.end; k++) {
                unsigned high[SLICES][4], low[SLICES][4], exponents;
                const int left_stage = at.stage;
                mbarrier_wait(fulls + 8 * at.stage, at.phase);
                if (KIND == PLANES) {
                    exponents = both_rows(ahead[0], ahead[1]);
                    if (k + 1 < mine.end) /* of the next chunk: they are far away */
                        load_exponents(a, k + 1, mine.left + (int)row, ahead);
                } else {
                    take_left<KIND>(ring + at.stage * ONEP_SPLIT_STAGE_BYTES + first, high, low, exponents);
                    __syncwarp(); /* every lane has read its part of the stage */
                    release(empties + 8 * at.stage, blocks);
                }
                at.advance(a.stages);
                if (k == mine.begin)
                    bases = both_rows(first_base(of_row(exponents, 0)), first_base(of_row(exponents, 1)));
                largest = __vmaxu2(largest, exponents);
                const float factor[2] = {chunk_factor(of_row(exponents, 0), of_row(bases, 0)),
                                         chunk_factor(of_row(exponents, 1), of_row(bases, 1))};
#pragma unroll
                for (int h = 0; h < HALVES; h++) {
                    mbarrier_wait(fulls + 8 * at.stage, at.phase);
                    const unsigned from = ring + at.stage * ONEP_SPLIT_STAGE_BYTES;
                    const unsigned long long right_high = smem_descriptor(from);
                    const unsigned long long right_low = smem_descriptor(from + HALF_STAGE);
                    keep_in_place(chunk);
                    wgmma_fence();
                    if (KIND == PLANES) {
                        const unsigned rows = ring + left_stage * ONEP_SPLIT_STAGE_BYTES + (group - 1) * (64 * 128);
                        const unsigned long long left_high = smem_descriptor(rows);
                        const unsigned long long left_low = smem_descriptor(rows + HALF_STAGE);
#pragma unroll
                        for (int j = 0; j < SLICES; j++) {
                            wgmma(chunk, left_high + 2 * j, right_low + 2 * j, j != 0);
                            wgmma(chunk, left_low + 2 * j, right_high + 2 * j, 1);
                        }
#pragma unroll
                        for (int j = 0; j < SLICES; j++)
                            wgmma(chunk, left_high + 2 * j, right_high + 2 * j, 1);
                    } else {
#pragma unroll
                        for (int j = 0; j < SLICES; j++) {
                            wgmma(chunk, high[j], right_low + 2 * j, j != 0);
                            wgmma(chunk, low[j], right_high + 2 * j, 1);
                        }
#pragma unroll
                        for (int j = 0; j < SLICES; j++)
                            wgmma(chunk, high[j], right_high + 2 * j, 1);
                    }
                    wgmma_commit();
                    ONEP_SPLIT_PAUSE(1);
                    wgmma_wait();
                    keep_in_place(chunk);
                    release(empties + 8 * at.stage, blocks);
                    if (KIND == PLANES && h == HALVES - 1)
                        release(empties + 8 * left_stage, blocks);
#pragma unroll
                    for (int i = 0; i < WIDTH / 2; i++)
                        sums[h][i] = fmaf(chunk[i], factor[i / 2 % 2], sums[h][i]);
                    at.advance(a.stages);
                }
            }
            const job done = job_of(a, opaque(tile), rank);
            finish_tile<WIDTH, HALVES>(a, sums, done.left + (int)row, done.right_tile * RIGHT + 2 * (int)q,
                                       done.right_tile, done.split, q == 0, bases, largest);
        }
    }
    cluster_sync(); /* or a block could end while the other still copies to it or arrives at its mbarriers */
}

#define ONEP_SPLIT_PRODUCT(name, KIND, WIDTH, HALVES)                                                                  \
    extern "C" __global__ void __launch_bounds__(ONEP_SPLIT_PRODUCT_THREADS, 1)                                        \
        onep_split_product_sm90_##name(const __grid_constant__ onep_split_product_args a)                              \
    {                                                                                                                  \
        split_product<KIND, WIDTH, HALVES>(a);                                                                         \
    }

/*
 * Of the 240 registers a thread that multiplies may have, sums, a chunk and both halves of the left operand take 224;
 * one that copies has 24. The loops stay in registers; before and after them, and in the copying thread, a few values
 * do not. The compiler reports
 *   onep_split_product_sm90_planes_256: spills up to 32 bytes
 *   onep_split_product_sm90_planes_128: spills up to 16 bytes
 *   onep_split_product_sm90_planes_64: spills up to 16 bytes
 *   onep_split_product_sm90_along_256: spills up to 64 bytes
 *   onep_split_product_sm90_along_128: spills up to 16 bytes
 *   onep_split_product_sm90_along_64: spills up to 16 bytes
 *   onep_split_product_sm90_across_256: spills up to 64 bytes
 *   onep_split_product_sm90_across_128: spills up to 32 bytes
 *   onep_split_product_sm90_across_64: spills up to 32 bytes
 */
ONEP_SPLIT_PRODUCT(planes_256, PLANES, 128, 2)
ONEP_SPLIT_PRODUCT(planes_128, PLANES, 128, 1)
ONEP_SPLIT_PRODUCT(planes_64, PLANES, 64, 1)
ONEP_SPLIT_PRODUCT(along_256, ALONG, 128, 2)
ONEP_SPLIT_PRODUCT(along_128, ALONG, 128, 1)
ONEP_SPLIT_PRODUCT(along_64, ALONG, 64, 1)
ONEP_SPLIT_PRODUCT(across_256, ACROSS, 128, 2)
ONEP_SPLIT_PRODUCT(across_128, ACROSS, 128, 1)
ONEP_SPLIT_PRODUCT(across_64, ACROSS, 64, 1)
