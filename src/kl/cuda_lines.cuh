/*
 * KL divergence over rows whose elements lie one after the other, all of one type, with weights, masks and values per
 * row, and over tensors whose addresses are no multiples of 16. A strip is a row or a part of one; it is the work of a
 * warp or of a block, whichever keeps the device busy. Inputs are read once, 16 bytes at a time wherever such a pack
 * lies within the row, results written once; a strip whose row has others stores one double. Masked rows are not read.
 *
 * Where operands are misaligned, packs begin where the gradient to the predictions (or the predictions) has a multiple
 * of 16, and each input's pack is cut out of the two aligned ones it lies in.
 */
#ifndef ONEP_KL_LINES_CUH
#define ONEP_KL_LINES_CUH

#include "cuda/reduce.cuh"
#include "kl/cuda_line.cuh"
#include "kl/cuda_offsets.cuh"

/* Elements before the first pack of a row: what its packs begin at is aligned in the first result, or else the input.
 */
template <class T> __device__ __forceinline__ int line_head(const kl_line<T> &line)
{
    const T *first = line.predictions;
    if (line.outputs & ONEP_CUDA_GRAD_PREDICTIONS)
        first = line.grad_predictions;
    else if (line.outputs & ONEP_CUDA_GRAD_TARGETS)
        first = line.grad_targets;
    unsigned beyond = (unsigned)(reinterpret_cast<unsigned long long>(first) % 16);
    return (int)((16 - beyond) % 16 / sizeof(T));
}

/*
 * The elements [0, end) of a strip of aligned packs, by thread `thread` of `team`, each warp some in a row at a time;
 * returns the thread's sum, unweighted.
 */
template <class T, int FORM, int OUTPUTS>
__device__ __forceinline__ double line_aligned(const kl_line<T> &line, int end, int thread, int team)
{
    typedef typename element<T>::real R;
    const int lanes = element<T>::lanes;
    const int ahead = lanes == 4 ? 4 : 2; /* packs of each input a lane loads before it computes */
    kl_sums<R> sums;
    sums.clear();
    for (int first = (thread / 32 * (32 * ahead) + thread % 32) * lanes; first < end; first += team * lanes * ahead) {
        unsigned left = 0;
        if (first + (32 * (ahead - 1) + 1) * lanes <= end) {
            pack<T> p[ahead];
            pack<T> t[ahead];
#pragma unroll
            for (int i = 0; i < ahead; i++)
                p[i] = load_pack(line.predictions + first + 32 * lanes * i);
#pragma unroll
            for (int i = 0; i < ahead; i++)
                t[i] = load_pack(line.targets + first + 32 * lanes * i);
#pragma unroll
            for (int i = 0; i < ahead; i++)
                if (!line_pack<T, FORM, OUTPUTS, false, false>(line, p[i], t[i], first + 32 * lanes * i, 0, lanes, true,
                                                               sums))
                    left |= 1u << i;
        } else if (end >= lanes) { /* packs that are not whole are read as the last one that is, and left */
            const int last = end - lanes;
            pack<T> p[ahead];
            pack<T> t[ahead];
#pragma unroll
            for (int i = 0; i < ahead; i++) {
                const int c = first + 32 * lanes * i < last ? first + 32 * lanes * i : last / lanes * lanes;
                p[i] = load_pack(line.predictions + c);
                t[i] = load_pack(line.targets + c);
            }
#pragma unroll
            for (int i = 0; i < ahead; i++) {
                const int c = first + 32 * lanes * i;
                if (c > last)
                    left |= c < end ? 1u << i : 0;
                else if (!line_pack<T, FORM, OUTPUTS, false, false>(line, p[i], t[i], c, 0, lanes, true, sums))
                    left |= 1u << i;
            }
        } else {
            left = 1;
        }
#pragma unroll 1
        for (int c = first; left != 0; left >>= 1, c += 32 * lanes)
            if (left & 1)
                line_left<T, FORM, OUTPUTS>(line, c, 0, end, true, sums);
        sums.fold();
    }
    return sums.total();
}

/*
 * The pack `shift` bytes after an aligned address, the 16 bytes there being known. What lies after them, `next` bytes
 * on, was asked for by the neighbouring thread: it comes from the first-level cache, and needs no register while memory
 * is waited for. Without a shift `next` is 0, and no branch keeps loads from being moved up.
 */
template <class T>
__device__ __forceinline__ pack<T> rest_of_pack(const uint4 &low, const T *at, unsigned next, unsigned shift)
{
    const uint4 high = *reinterpret_cast<const uint4 *>(reinterpret_cast<const char *>(at) + next);
    return cut_pack<T>(low, high, shift);
}

/*
 * The same where operands are misaligned: the elements [begin, end), of packs that begin at 0, `begin` in the first.
 * What lies in [row_begin, row_end) may be read.
 */
template <class T, int FORM, int OUTPUTS>
__device__ __forceinline__ double line_misaligned(const kl_line<T> &line, int begin, int end, int row_begin,
                                                  int row_end, int thread, int team)
{
    typedef typename element<T>::real R;
    const int lanes = element<T>::lanes;
    const int ahead = lanes == 4 && OUTPUTS ? 4 : OUTPUTS || lanes == 4 ? 2 : 1; /* as above */
    /* Without a gradient packs begin where the predictions are aligned: see line_head. */
    const unsigned p_shift =
        OUTPUTS == ONEP_CUDA_SUM ? 0 : (unsigned)(reinterpret_cast<unsigned long long>(line.predictions) % 16);
    const unsigned t_shift = (unsigned)(reinterpret_cast<unsigned long long>(line.targets) % 16);
    const unsigned p_next = p_shift ? 16 : 0;
    const unsigned t_next = t_shift ? 16 : 0;
    const T *predictions = line.predictions - p_shift / sizeof(T);
    const T *targets = line.targets - t_shift / sizeof(T);
    /* The packs in [first_whole, last_whole] are whole, and their windows lie within the row. */
    const int before = (int)((p_shift < t_shift ? t_shift : p_shift) / sizeof(T));
    const int p_after = p_shift ? 2 * lanes - (int)(p_shift / sizeof(T)) : lanes;
    const int t_after = t_shift ? 2 * lanes - (int)(t_shift / sizeof(T)) : lanes;
    const int after = p_after > t_after ? p_after : t_after;
    const int first_whole = row_begin + before > begin ? row_begin + before : begin;
    const int last_whole = row_end - after < end - lanes ? row_end - after : end - lanes;
    kl_sums<R> sums;
    sums.clear();
    for (int first = (thread / 32 * (32 * ahead) + thread % 32) * lanes; first < end; first += team * lanes * ahead) {
        unsigned left = 0;
        if (first >= first_whole && first + 32 * lanes * (ahead - 1) <= last_whole) {
            uint4 p[ahead];
            uint4 t[ahead];
#pragma unroll
            for (int i = 0; i < ahead; i++)
                p[i] = *reinterpret_cast<const uint4 *>(predictions + first + 32 * lanes * i);
#pragma unroll
            for (int i = 0; i < ahead; i++)
                t[i] = *reinterpret_cast<const uint4 *>(targets + first + 32 * lanes * i);
#pragma unroll
            for (int i = 0; i < ahead; i++) {
                const int c = first + 32 * lanes * i;
                if (!line_pack<T, FORM, OUTPUTS, false, false>(
                        line, rest_of_pack(p[i], predictions + c, p_next, p_shift),
                        rest_of_pack(t[i], targets + c, t_next, t_shift), c, 0, lanes, false, sums))
                    left |= 1u << i;
            }
        } else {
#pragma unroll 1
            for (int i = 0; i < ahead; i++) {
                const int c = first + 32 * lanes * i;
                if (c < first_whole || c > last_whole)
                    left |= c < end ? 1u << i : 0;
                else if (!line_pack<T, FORM, OUTPUTS, false, false>(
                             line,
                             rest_of_pack(*reinterpret_cast<const uint4 *>(predictions + c), predictions + c, p_next,
                                          p_shift),
                             rest_of_pack(*reinterpret_cast<const uint4 *>(targets + c), targets + c, t_next, t_shift),
                             c, 0, lanes, false, sums))
                    left |= 1u << i;
            }
        }
#pragma unroll 1
        for (int c = first; left != 0; left >>= 1, c += 32 * lanes)
            if (left & 1)
                line_left<T, FORM, OUTPUTS>(line, c, begin, end, false, sums);
        sums.fold();
    }
    return sums.total();
}

/* x within [-limit, limit] */
__device__ __forceinline__ int clipped(long long x, int limit)
{
    return (int)(x < -limit ? -limit : x > limit ? limit : x);
}

/* One strip's columns, by thread `thread` of `team`; returns the thread's sum, unweighted. */
template <class T, int FORM, int OUTPUTS, bool ALIGNED>
__device__ __forceinline__ double lines_columns(const onep_kl_rows_args &a, const row_offsets &at, long long part,
                                                double weight, double grad_scale, int thread, int team)
{
    typedef typename element<T>::real R;
    const int far = 1 << 30; /* strips are shorter */
    kl_line<T> line;
    line.predictions = reinterpret_cast<const T *>(a.predictions.data + at.predictions);
    line.targets = reinterpret_cast<const T *>(a.targets.data + at.targets);
    line.upstream = reinterpret_cast<const R *>(a.upstream.data && !a.per_row ? a.upstream.data + at.upstream : 0);
    line.value = reinterpret_cast<R *>(a.value.data + at.value);
    line.grad_predictions = reinterpret_cast<T *>(a.grad_predictions.data + at.grad_predictions);
    line.grad_targets = reinterpret_cast<T *>(a.grad_targets.data + at.grad_targets);
    line.value_scale = (R)weight;
    line.grad_scale = (R)grad_scale;
    line.outputs = a.common.outputs;
    line.finite = a.common.finite;
    if (ALIGNED) {
        const long long from = part * a.strip;
        line.move(from);
        return line_aligned<T, FORM, OUTPUTS>(line, clipped(a.columns - from, (int)a.strip), thread, team);
    }
    const int lanes = element<T>::lanes;
    const int head = line_head<T>(line);
    const int begin = part == 0 && head ? lanes - head : 0;
    const long long from = part * a.strip + head - (begin ? lanes : 0);
    const long long last = (part + 1) * a.strip + head;
    line.move(from);
    return line_misaligned<T, FORM, OUTPUTS>(line, begin, clipped((last < a.columns ? last : a.columns) - from, far),
                                             clipped(-from, far), clipped(a.columns - from, far), thread, team);
}

/* Zeros for a strip of a masked row. */
template <class T>
__device__ __forceinline__ void lines_masked(const onep_kl_rows_args &a, const row_offsets &at, long long part,
                                             int thread, int team)
{
    typedef typename element<T>::real R;
    const int outputs = a.common.outputs;
    T zero;
    narrow(zero, 0);
    long long end = (part + 1) * a.strip < a.columns ? (part + 1) * a.strip : a.columns;
    for (long long c = part * a.strip + thread; c < end; c += team) {
        if (outputs & ONEP_CUDA_VALUE)
            reinterpret_cast<R *>(a.value.data + at.value)[c] = 0;
        if (outputs & ONEP_CUDA_GRAD_PREDICTIONS)
            reinterpret_cast<T *>(a.grad_predictions.data + at.grad_predictions)[c] = zero;
        if (outputs & ONEP_CUDA_GRAD_TARGETS)
            reinterpret_cast<T *>(a.grad_targets.data + at.grad_targets)[c] = zero;
    }
}

__device__ __forceinline__ double row_weight(const onep_kl_rows_args &a, long long row)
{
    return a.weights.data ? load_any<double>(a.weights.type, a.weights.data + offsets_of(a, row).weights) : 1.0;
}

/*
 * One strip by a warp or a block: its element-wise results, its row's value if the row is one strip.
 * Returns its weighted sum, in the first thread of the team.
 */
template <class T, int FORM, int OUTPUTS, bool ALIGNED>
__device__ __forceinline__ double lines_strip(const onep_kl_rows_args &a, long long strip, double *room)
{
    const int thread = a.by_block ? threadIdx.x : threadIdx.x & 31;
    const int team = a.by_block ? ONEP_CUDA_LINES_THREADS : 32;
    long long row = a.parts == 1 ? strip : (unsigned)strip / (unsigned)a.parts;
    long long part = strip - row * a.parts;
    row_offsets at = offsets_of(a, row);
    double sum = 0;
    if (a.mask.data && a.mask.data[at.mask] == 0) { /* the same for the whole team */
        lines_masked<T>(a, at, part, thread, team);
    } else {
        double upstream = a.upstream.data && a.per_row
                              ? load_any<double>(a.upstream.type, a.upstream.data + at.upstream)
                              : upstream_of(a.common);
        double weight = row_weight(a, row);
        sum = lines_columns<T, FORM, OUTPUTS, ALIGNED>(a, at, part, weight, weight * upstream * a.common.grad_scale,
                                                       thread, team);
        if (a.common.outputs &
            ONEP_CUDA_SUM) /* the weight is read again: it would be in the way for all of the strip */
            sum = row_weight(a, row) * (a.by_block ? block_sum<ONEP_CUDA_LINES_THREADS>(sum, room) : warp_sum(sum));
    }
    if (a.per_row && (a.common.outputs & ONEP_CUDA_SUM) && thread == 0) {
        if (a.parts == 1)
            store_any<double>(a.value.type, a.value.data + offsets_of(a, row).value, sum);
        else
            a.common.partial[strip] = sum;
    }
    return sum;
}

template <class T, int FORM, int OUTPUTS, bool ALIGNED>
__device__ __forceinline__ void kl_lines(const onep_kl_rows_args &a)
{
    const int warps = ONEP_CUDA_LINES_THREADS / 32;
    __shared__ double room[2][warps];
    if (already_made(a.common))
        return; /* no block gets further */
    const bool one_value = (a.common.outputs & ONEP_CUDA_SUM) && !a.per_row;
    int turn = 0;
    for (long long tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
        /* Each team takes consecutive strips, so that the sum runs in their order. */
        int share = a.tile_strips;
        long long strip = tile * share;
        if (!a.by_block) {
            share /= warps;
            strip += (threadIdx.x >> 5) * share;
        }
        double sum = 0;
        for (; share > 0 && strip < a.strips; share--, strip++) {
            sum += lines_strip<T, FORM, OUTPUTS, ALIGNED>(a, strip, room[turn]);
            turn ^= a.by_block; /* warps may have different numbers of strips */
        }
        if (!one_value)
            continue;
        if (!a.by_block) {
            if ((threadIdx.x & 31) == 0)
                room[turn][threadIdx.x >> 5] = sum;
            __syncthreads(); /* without it thread 0 would add sums of the tile before */
            sum = 0;
            for (int w = 0; threadIdx.x == 0 && w < warps; w++)
                sum += room[turn][w];
            turn ^= 1;
        }
        if (threadIdx.x == 0)
            a.common.partial[tile] = sum;
    }
    const bool rows_in_parts = (a.common.outputs & ONEP_CUDA_SUM) && a.per_row && a.parts > 1;
    if (!one_value && !rows_in_parts)
        return;
    if (!last_block(a.common.ticket, gridDim.x))
        return;
    if (one_value) {
        double sum = sum_partials<ONEP_CUDA_LINES_THREADS>(a.common.partial, a.tiles, room[turn]);
        if (threadIdx.x == 0)
            store_any<double>(a.common.value_type, a.common.value, sum * a.common.value_scale);
    }
    if (rows_in_parts)
        sum_parts<ONEP_CUDA_LINES_THREADS>(a);
}

/*
 * The kernels of one element type and form: aligned, the value, and the value and the gradient to the predictions;
 * misaligned, the same, and anything at any address. The numbers are the blocks a multiprocessor must hold at once: as
 * many as registers do not spill for.
 */
#define ONEP_KL_LINES_KERNEL(T, form, name, outputs, aligned, blocks)                                                  \
    extern "C" __global__ void __launch_bounds__(ONEP_CUDA_LINES_THREADS, blocks)                                      \
        onep_kl_lines_##T##_##form##_##name(const onep_kl_rows_args a)                                                 \
    {                                                                                                                  \
        kl_lines<T, form, outputs, aligned>(a);                                                                        \
    }
#define ONEP_KL_LINES(T, form, sum_blocks, grad_blocks, loose_sum_blocks, loose_grad_blocks)                           \
    ONEP_KL_LINES_KERNEL(T, form, sum, ONEP_CUDA_SUM, true, sum_blocks)                                                \
    ONEP_KL_LINES_KERNEL(T, form, grad, ONEP_CUDA_SUM | ONEP_CUDA_GRAD_PREDICTIONS, true, grad_blocks)                 \
    ONEP_KL_LINES_KERNEL(T, form, loose_sum, ONEP_CUDA_SUM, false, loose_sum_blocks)                                   \
    ONEP_KL_LINES_KERNEL(T, form, loose_grad, ONEP_CUDA_SUM | ONEP_CUDA_GRAD_PREDICTIONS, false, loose_grad_blocks)    \
    ONEP_KL_LINES_KERNEL(T, form, loose, 0, false, 3)

#endif
