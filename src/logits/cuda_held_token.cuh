/*
 * Token log-probabilities with one reading of every row, of any width: slice by slice through shared memory, as sweep 1
 * of cuda_held.cuh. Log-probabilities at some indices, entropy and LSE are stored, nothing else. The gradient is the
 * business of cuda_token.cuh.
 */
#ifndef ONEP_LOGITS_HELD_TOKEN_CUH
#define ONEP_LOGITS_HELD_TOKEN_CUH

#include "logits/cuda_slot.cuh"
#include "logits/cuda_team.cuh"

template <class T, class TEAM> struct held_token_row {
    typedef TEAM own;
    typedef held_operand<T, TEAM, true> operand;
    enum { SLICE = ONEP_LOGITS_SLOT / (int)sizeof(quad_of<T>) };

    const onep_logits_token_args &k;
    const long long row;
    const char *logits;
    operand x;
    held_softmax exps;
    known_softmax p;
    float largest[1];
    double distance; /* sum of -exp(d) d */

    static __device__ __forceinline__ unsigned char *slot_of(const onep_logits_token_args &args)
    {
        ONEP_DYNAMIC_SHARED(memory);
        const int all = operand::quads_of(args.columns), per_team = all < SLICE ? all : SLICE;
        return memory + (long long)sizeof(quad_of<T>) * per_team * own::in_block();
    }
    __device__ __forceinline__ held_token_row(const onep_logits_token_args &args, long long row_index)
        : k(args), row(row_index), logits(row_of(args.logits, args.rows, row_index)), x(slot_of(args), args.softcap),
          exps(args.temperature), distance(0)
    {
        largest[0] = minus_infinity(0.0f);
    }

    /* Calls f(q) for this thread's quads of [begin, end). */
    template <class F> __device__ __forceinline__ void for_quads(int begin, int end, const F &f) const
    {
#pragma unroll 1
        for (int q = begin + own::rank(); q < end; q += own::size())
            f(q);
    }

    __device__ __forceinline__ void find_softmax()
    {
        const int quads = operand::quads_of(k.columns);
#pragma unroll 1
        for (int begin = 0; begin < quads; begin += SLICE) {
            const int end = quads - begin < SLICE ? quads : begin + SLICE;
            x.fetch(k.logits, logits, k.columns, begin, end);
            cp_async_wait_0();
            for_quads(begin, end, [&](int q) {
                quad v;
                x.load(q, v);
#pragma unroll
                for (int i = 0; i < QUAD; i++)
                    largest[0] = larger(largest[0], v[i]);
            });
            own::largest(largest);
            double factor = 1;
            const double before = exps.sum(), rise = exps.template raise<own::HAS_SLICES>(largest[0], factor);
            if (own::HAS_SLICES && before != 0)
                distance = factor * (distance + before * rise);
            for_quads(begin, end, [&](int q) {
                quad v, d, e;
                x.load(q, v);
                exps.exponentials(v, d, e);
                exps.add(d, e);
#pragma unroll
                for (int i = 0; i < QUAD; i++)
                    v[i] = e[i] != 0 ? e[i] * -d[i] : 0.0f;
                distance += quad_sum(v);
            });
        }
        double sums[3] = {exps.tail, exps.ties, distance};
        own::sum(sums);
        p.find(largest[0], exps.most, sums[0], sums[1]);
        distance = sums[2] * p.one_over_sum;
    }

    /* log P at an index; `undefined` in a row without mass. */
    __device__ __forceinline__ double log_prob_of(long long index, bool has_no_mass, double undefined) const
    {
        if (index == k.ignore_index)
            return 0;
        if (index < 0 || index >= k.columns)
            return not_a_number();
        const float v = x.capped(load_any<float>(k.logits.type, logits + index * k.logits.col_stride));
        return has_no_mass ? undefined : ((double)exps.z_of(v) - (double)exps.most) - p.log_sum;
    }

    __device__ __forceinline__ void store(bool takes_part)
    {
        const bool has_no_mass = takes_part && largest[0] == minus_infinity(0.0f);
        const double undefined = k.finite ? 0 : not_a_number();
        const char *indices = row_of(k.indices, k.rows, row);
        char *to = row_of(k.log_prob, k.rows, row);
        for (long long i = own::rank(); i < k.count && to; i += own::size()) {
            const double value =
                takes_part ? log_prob_of(integer_of(k.indices.type, indices + i * k.indices.col_stride), has_no_mass,
                                         undefined)
                           : 0;
            store_any<double>(k.log_prob.type, to + i * k.log_prob.col_stride, value);
        }
        if (own::rank() == 0) {
            store_number(k.entropy, k.rows, row, !takes_part ? 0 : has_no_mass ? undefined : p.log_sum + distance);
            store_number(k.lse, k.rows, row, takes_part ? p.lse : 0);
        }
    }
};

template <class T, class TEAM> __device__ __forceinline__ void held_token(const onep_logits_token_args &k)
{
    const long long first = TEAM::index() * k.rows.chunk;
    const long long last = first + k.rows.chunk < k.rows.count ? first + k.rows.chunk : k.rows.count;
    for (long long row = first; row < last; row++) {
        held_token_row<T, TEAM> one(k, row);
        const bool takes_part = !k.mask.data || *row_of(k.mask, k.rows, row) != 0;
        if (takes_part)
            one.find_softmax();
        one.store(takes_part);
    }
}

#define ONEP_LOGITS_HELD_TOKEN(name, T)                                                                                \
    extern "C" __global__ void __launch_bounds__(ONEP_LOGITS_OCTETS * 8, 4)                                            \
        onep_logits_token_octet_##name(const __grid_constant__ onep_logits_token_args k)                               \
    {                                                                                                                  \
        held_token<T, octet>(k);                                                                                       \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(ONEP_LOGITS_MAX_WARPS * 32, 2)                                        \
        onep_logits_token_block_##name(const __grid_constant__ onep_logits_token_args k)                               \
    {                                                                                                                  \
        held_token<T, whole_block>(k);                                                                                 \
    }

#endif
