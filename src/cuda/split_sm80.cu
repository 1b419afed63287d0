/*
 * The fp32 product on the tensor cores of Ampere and later, by instructions every one of them has: the same sums in the
 * same order as split_sm90a.cu, from planes of both operands. On one device both give the same bits, if it adds up 16
 * products at a time for either instruction; Ampere adds 8 at a time, and then 8 more.
 *
 * A block makes a tile of 64 rows of the left operand by 128 of the right one, eight warps 32 by 32 each. One chunk of
 * both, 48 KB, is multiplied while the next is copied: 96 KB, what the smallest of these devices have.
 */
#include "cuda/ampere.cuh"
#include "cuda/pdl.cuh"
#include "cuda/split.cuh"

enum {
    LEFT = ONEP_SPLIT_AMPERE_LEFT,
    RIGHT = ONEP_SPLIT_AMPERE_RIGHT,
    ROW_BYTES = 2 * ONEP_SPLIT_CHUNK, /* of a chunk of a row in a plane */
    LEFT_BYTES = LEFT * ROW_BYTES,
    RIGHT_BYTES = RIGHT * ROW_BYTES,
    STAGE = 2 * (LEFT_BYTES + RIGHT_BYTES),
    SLICES = ONEP_SPLIT_CHUNK / 16,
};
static_assert(2 * STAGE == ONEP_SPLIT_AMPERE_SHARED, "two stages");

/* Piece `piece` (of 8) of a row: exchanged by the row's number, so that 8 rows of one piece lie in different banks. */
__device__ __forceinline__ unsigned piece_at(unsigned plane, int row, int piece)
{
    return plane + row * ROW_BYTES + ((piece ^ (row % 8)) * 16);
}

/* A chunk of COUNT rows of both planes. */
template <int COUNT>
__device__ __forceinline__ void copy_rows(unsigned to, const unsigned short *high, const unsigned short *low,
                                          long long first, long long rows, long long pitch, int chunk)
{
#pragma unroll
    for (int e = 0; e < COUNT * 8; e += ONEP_SPLIT_AMPERE_THREADS) {
        const int row = (e + (int)threadIdx.x) / 8, piece = threadIdx.x % 8;
        const bool inside = first + row < rows;
        const long long at = (inside ? first + row : 0) * pitch + chunk * ONEP_SPLIT_CHUNK + piece * 8;
        cp_async_16(piece_at(to, row, piece), high + at, inside);
        cp_async_16(piece_at(to + COUNT * ROW_BYTES, row, piece), low + at, inside);
    }
}

/* A slice of one plane of the left operand by one of the right operand. */
__device__ __forceinline__ void multiply_slice(float (&chunk)[2][4][4], unsigned left_plane, unsigned right_plane,
                                               int left_row, int right_row, int slice)
{
    const int lane = threadIdx.x % 32;
    unsigned left[2][4], right[2][4];
#pragma unroll
    for (int m = 0; m < 2; m++)
        ldmatrix_x4(piece_at(left_plane, left_row + 16 * m + lane % 16, 2 * slice + lane / 16), left[m]);
#pragma unroll
    for (int n = 0; n < 2; n++)
        ldmatrix_x4(piece_at(right_plane, right_row + 16 * n + lane / 16 * 8 + lane % 8, 2 * slice + lane / 8 % 2),
                      right[n]);
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 4; n++)
            mma(chunk[m][n], left[m], right[n / 2][n % 2 * 2], right[n / 2][n % 2 * 2 + 1]);
}

extern "C" __global__ void __launch_bounds__(ONEP_SPLIT_AMPERE_THREADS)
    onep_split_product_sm80(const onep_split_product_args a)
{
    ONEP_DYNAMIC_SHARED(room);
    const unsigned shared = shared_address(room);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int left_row = warp % 2 * 32, right_row = warp / 2 * 32;
    const long long left = (long long)(blockIdx.x / a.right_tiles) * LEFT;
    const long long right = (long long)(blockIdx.x % a.right_tiles) * RIGHT;
    /* the thread's left rows: these, 8 further, 16 further, 24 further */
    const long long row = left + left_row + lane / 4;
    float sums[2][4][4] = {};
    int bases[4] = {}, largest[4] = {};
    pdl_wait();
    pdl_launch_dependents();

    copy_rows<LEFT>(shared, a.left_high, a.left_low, left, a.left_rows, a.pitch, 0);
    copy_rows<RIGHT>(shared + 2 * LEFT_BYTES, a.right_high, a.right_low, right, a.right_rows, a.pitch, 0);
    cp_async_commit();
#pragma unroll 1
    for (int k = 0; k < a.chunks; k++) {
        const unsigned stage = shared + k % 2 * STAGE;
        if (k + 1 < a.chunks) {
            const unsigned next = shared + (k + 1) % 2 * STAGE;
            copy_rows<LEFT>(next, a.left_high, a.left_low, left, a.left_rows, a.pitch, k + 1);
            copy_rows<RIGHT>(next + 2 * LEFT_BYTES, a.right_high, a.right_low, right, a.right_rows, a.pitch, k + 1);
        }
        cp_async_commit(); /* an empty one in the end: the count below stays right */
        float factor[4];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const bool inside = row + 8 * r < a.left_rows;
            const int exponent = inside ? a.left_exponents[k * a.left_rows + row + 8 * r] : (int)ONEP_SPLIT_LEAST;
            bases[r] = k == 0 ? first_base(exponent) : bases[r];
            factor[r] = chunk_factor(exponent, bases[r]);
            largest[r] = exponent > largest[r] ? exponent : largest[r];
        }
        cp_async_wait_1();
        __syncthreads(); /* everyone's pieces are there */
        const unsigned left_high = stage, left_low = stage + LEFT_BYTES;
        const unsigned right_high = stage + 2 * LEFT_BYTES, right_low = right_high + RIGHT_BYTES;
        float chunk[2][4][4] = {};
#pragma unroll
        for (int j = 0; j < SLICES; j++) {
            multiply_slice(chunk, left_high, right_low, left_row, right_row, j);
            multiply_slice(chunk, left_low, right_high, left_row, right_row, j);
        }
#pragma unroll
        for (int j = 0; j < SLICES; j++)
            multiply_slice(chunk, left_high, right_high, left_row, right_row, j);
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sums[m][n][e] = fmaf(chunk[m][n][e], factor[2 * m + e / 2], sums[m][n][e]);
        __syncthreads(); /* or a fast warp's copies would land in what a slow one still multiplies */
    }

    float bias[4] = {-0.0f, -0.0f, -0.0f, -0.0f}; /* which changes nothing when it is added */
#pragma unroll
    for (int r = 0; r < 4; r++)
        if (a.bias.data && row + 8 * r < a.left_rows)
            bias[r] = *reinterpret_cast<const float *>(a.bias.data + (row + 8 * r) * a.bias.col_stride);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int s = 0; s < 2; s++) {
            const long long j = right + right_row + 8 * n + lane % 4 * 2 + s;
            if (j >= a.right_rows)
                continue;
            const int exponent = a.right_exponents[j];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const long long i = row + 8 * r;
                float y = scaled(sums[r / 2][n][2 * (r % 2) + s], bases[r] + exponent - 2 * ONEP_SPLIT_TOP);
                if (i >= a.left_rows)
                    continue;
                if (!is_summed(largest[r], bases[r]) || exponent == ONEP_SPLIT_INFINITE)
                    y = plain_sum(a, i, j, 0);
                *element_at(a, i, j, 0) = __fadd_rn(y, bias[r]);
            }
        }
}
