/*
 * KL divergence over tensors whose elements lie one after the other: each input is read once with 16-byte loads, each
 * result written once; nothing else is stored but one double per chunk. The value alone runs on a persistent grid, and
 * so do gradients that may be there already; with other element-wise results each block does one chunk. Bytes moved per
 * element: the two inputs and what is asked for.
 */
#ifndef ONEP_KL_FLAT_CUH
#define ONEP_KL_FLAT_CUH

#include "cuda/reduce.cuh"
#include "kl/cuda_line.cuh"

template <class T> __device__ __forceinline__ kl_line<T> flat_line(const onep_kl_flat_args &a)
{
    typedef typename element<T>::real R;
    kl_line<T> line;
    line.predictions = static_cast<const T *>(a.predictions);
    line.targets = static_cast<const T *>(a.targets);
    line.upstream = static_cast<const R *>(a.upstream);
    line.value = static_cast<R *>(a.value);
    line.grad_predictions = static_cast<T *>(a.grad_predictions);
    line.grad_targets = static_cast<T *>(a.grad_targets);
    line.value_scale = 1;
    line.grad_scale = (R)(upstream_of(a.common) * a.common.grad_scale);
    line.outputs = a.common.outputs;
    line.finite = a.common.finite;
    return line;
}

/*
 * A thread's packs of the chunk that begins at its element `at`. FULL: the chunk lies within the tensor. Returns which
 * packs were left, as bits.
 */
template <class T, int FORM, int OUTPUTS, bool FULL>
__device__ __forceinline__ unsigned flat_packs(const kl_line<T> &line, long long at, long long count,
                                               kl_sums<typename element<T>::real> &sums)
{
    const int lanes = element<T>::lanes;
    const int stride = ONEP_CUDA_THREADS * lanes;
    const int steps = ONEP_CUDA_CHUNK(sizeof(T)) / stride;
    /* Packs loaded before the first is used: all of them, but eight elements with their gradients fill the registers.
     */
    const int ahead = (lanes == 8 && OUTPUTS != ONEP_CUDA_SUM) || lanes == 2 ? 2 : steps;
    unsigned left = 0;
    if (FULL) {
#pragma unroll 1
        for (int first = 0; first < steps; first += ahead) {
            pack<T> p[ahead];
            pack<T> t[ahead];
#pragma unroll
            for (int i = 0; i < ahead; i++)
                p[i] = load_pack(line.predictions + at + (first + i) * stride);
#pragma unroll
            for (int i = 0; i < ahead; i++)
                t[i] = load_pack(line.targets + at + (first + i) * stride);
#pragma unroll
            for (int i = 0; i < ahead; i++)
                if (!line_pack<T, FORM, OUTPUTS, false, false>(line, p[i], t[i], at + (first + i) * stride, 0, lanes,
                                                               true, sums))
                    left |= 1u << (first + i);
        }
    } else {
#pragma unroll 1
        for (int i = 0; i < steps; i++) {
            long long here = at + i * stride;
            if (here + lanes > count)
                left |= here < count ? 1u << i : 0;
            else if (!line_pack<T, FORM, OUTPUTS, false, false>(line, load_pack(line.predictions + here),
                                                                load_pack(line.targets + here), here, 0, lanes, true,
                                                                sums))
                left |= 1u << i;
        }
    }
    return left;
}

template <class T, int FORM, int OUTPUTS> __device__ __forceinline__ void kl_flat(const onep_kl_flat_args &a)
{
    typedef typename element<T>::real R;
    const int lanes = element<T>::lanes;
    const int chunk = ONEP_CUDA_CHUNK(sizeof(T));
    static_assert(chunk % (ONEP_CUDA_THREADS * lanes) == 0, "a chunk is a whole number of packs for every thread");
    __shared__ double room[2][ONEP_CUDA_THREADS / 32];

    if (already_made(a.common))
        return; /* no block gets further */
    const kl_line<T> line = flat_line<T>(a);
    const int outputs = OUTPUTS ? OUTPUTS : a.common.outputs;
    int turn = 0;
    for (long long c = blockIdx.x; c < a.chunks; c += gridDim.x, turn ^= 1) {
        kl_sums<R> sums;
        sums.clear();
        long long at = c * chunk + threadIdx.x * lanes;
        unsigned left = (c + 1) * chunk <= a.count ? flat_packs<T, FORM, OUTPUTS, true>(line, at, a.count, sums)
                                                   : flat_packs<T, FORM, OUTPUTS, false>(line, at, a.count, sums);
#pragma unroll 1
        for (; left != 0; left >>= 1, at += ONEP_CUDA_THREADS * lanes)
            if (left & 1)
                line_left<T, FORM, OUTPUTS>(line, at, 0, a.count, true, sums);
        if (outputs & ONEP_CUDA_SUM) {
            double sum = block_sum<ONEP_CUDA_THREADS>(sums.total(), room[turn]);
            if (threadIdx.x == 0 && a.chunks == 1) /* small tensors: no other block to wait for */
                store_any<double>(a.common.value_type, a.common.value, sum * a.common.value_scale);
            else if (threadIdx.x == 0)
                a.common.partial[c] = sum;
        }
    }
    const bool partials = (outputs & ONEP_CUDA_SUM) && a.chunks != 1;
    if (!partials || !last_block(a.common.ticket, gridDim.x))
        return;
    double sum = sum_partials<ONEP_CUDA_THREADS>(a.common.partial, a.chunks, room[turn]);
    if (threadIdx.x == 0)
        store_any<double>(a.common.value_type, a.common.value, sum * a.common.value_scale);
}

/*
 * The kernels of one element type and form: the value, value and gradient to the predictions, that gradient alone,
 * and anything. The numbers are the blocks a multiprocessor must hold at once: two, unless
 * registers would spill.
 */
#define ONEP_KL_FLAT(T, form, sum_blocks, grad_blocks)                                                                 \
    extern "C" __global__ void __launch_bounds__(ONEP_CUDA_THREADS, sum_blocks)                                        \
        onep_kl_flat_##T##_##form##_sum(const onep_kl_flat_args a)                                                     \
    {                                                                                                                  \
        kl_flat<T, form, ONEP_CUDA_SUM>(a);                                                                            \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(ONEP_CUDA_THREADS, grad_blocks)                                       \
        onep_kl_flat_##T##_##form##_grad(const onep_kl_flat_args a)                                                    \
    {                                                                                                                  \
        kl_flat<T, form, ONEP_CUDA_SUM | ONEP_CUDA_GRAD_PREDICTIONS>(a);                                               \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(ONEP_CUDA_THREADS, grad_blocks)                                       \
        onep_kl_flat_##T##_##form##_back(const onep_kl_flat_args a)                                                    \
    {                                                                                                                  \
        kl_flat<T, form, ONEP_CUDA_GRAD_PREDICTIONS>(a);                                                               \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(ONEP_CUDA_THREADS, 1)                                                 \
        onep_kl_flat_##T##_##form##_any(const onep_kl_flat_args a)                                                     \
    {                                                                                                                  \
        kl_flat<T, form, 0>(a);                                                                                        \
    }

#endif
