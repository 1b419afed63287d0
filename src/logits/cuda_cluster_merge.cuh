/*
 * What becomes of the states that warps of a cluster send each other (cuda_cluster.cuh): the row's softmax, merged by
 * every warp in the order of slices, in double; results that are few per row, by one warp for 32 rows at a time; and
 * what is not often asked for. Nothing here depends on how many blocks a cluster has.
 */
#ifndef ONEP_LOGITS_CLUSTER_MERGE_CUH
#define ONEP_LOGITS_CLUSTER_MERGE_CUH

#include "logits/cuda_cluster.cuh"

/* ---- results ----------------------------------------------------------------------------------------------------- */

/*
 * What results of rows are made from, until there are 32 rows or no more: then a lane has a row. Logarithms and
 * quotients in double are long, and slice 0's warp, which has the results, is one that every other warp waits for.
 */
template <class RECORD> struct row_ledger {
    RECORD at[32];

    /* Of slice 0's warp: keeps a row's record, which lane 0 has. */
    __device__ __forceinline__ void add(int &count, int lane, const RECORD &record)
    {
        if (lane == 0)
            at[count] = record;
        count++;
    }
    /* Of the record kept last, a value that was not known then; a KL or reverse KL is not to be made of sums. */
    __device__ __forceinline__ void set_value(int count, int lane, double value)
    {
        if (lane == 0) {
            at[count - 1].direction = 0;
            at[count - 1].value = value;
        }
    }
    /* Calls f(record), NULL in lanes without a row, when there is no more room or `is_over`. */
    template <class F> __device__ __forceinline__ void settle(int &count, int lane, bool is_over, const F &f)
    {
        if (count < 32 && !is_over)
            return;
        __syncwarp(); /* lane 0 has written them all */
        f(lane < count ? &at[lane] : 0);
        __syncwarp(); /* before they are overwritten */
        count = 0;
    }
};

/* ---- merging ----------------------------------------------------------------------------------------------------- */

/* Sums over the warp, side by side: one waits while another moves. */
template <int N> __device__ __forceinline__ void sum_over_warp(double (&x)[N])
{
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1)
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] += __shfl_xor_sync(~0u, x[i], offset);
}

/* The row's softmax, from its slices'. */
struct merged_softmax {
    float m, ties;
    double tail;

    /* What a lane adds of one of its slices. */
    __device__ __forceinline__ void add(const float4 &state, float k, int &at_most)
    {
        const bool is_most = state.x == m;
        at_most += is_most ? (int)state.y : 0;
        tail += (double)(is_most ? state.z : __fmul_rn(state.y + state.z, exp2_of(__fmul_rn(state.x - m, k))));
    }
    /* states: (maximum, columns at it, sum of the others, anything) of every slice. */
    template <class WARP> __device__ __forceinline__ merged_softmax(const WARP &warp, float k, const float4 *states)
    {
        m = minus_infinity(0.0f);
        warp.for_states([&](int s) { m = larger(m, states[s].x); });
        m = largest_of_warp(m);
        int at_most = 0;
        tail = 0;
        warp.for_states([&](int s) { add(states[s], k, at_most); });
        ties = (float)__reduce_add_sync(~0u, at_most);
        tail = warp_sum(tail);
    }
    __device__ __forceinline__ merged_softmax() {}
    __device__ __forceinline__ bool has_no_mass() const
    {
        return m == minus_infinity(0.0f);
    }
    /* The sum less 1, as known_softmax has it, of a row with mass. */
    __device__ __forceinline__ double exact_others() const
    {
        return m < -minus_infinity(0.0f) ? tail + ((double)ties - 1) : not_a_number();
    }
    __device__ __forceinline__ float others() const
    {
        return (float)exact_others();
    }
    __device__ __forceinline__ double lse(float z_of_m, double log_sum) const
    {
        return has_no_mass() ? (double)m : (double)z_of_m + log_sum;
    }
    /* 1 / sum, one step of Newton's from a single one: a division would need more registers. */
    __device__ __forceinline__ double inverse(float approximate) const
    {
        const double y = (double)approximate;
        return y * (1 - exact_others() * y + (1 - y));
    }
};

/* exp((m - row's) / temperature) of a slice's maximum; 0 of one without mass. */
__device__ __forceinline__ float weight_of(const float4 &state, float row_m, float k)
{
    return state.y != 0 ? exp2_of(__fmul_rn(state.x - row_m, k)) : 0.0f;
}

/*
 * What is not often asked for is made from the slice in its slot, by a loop of few registers: sum of exp(d) -d, where
 * d = (v - of.m) / temperature, in units of log 2.
 */
template <class T>
__device__ __forceinline__ float distance_of(const T *slice, int columns, int lane, const slice_softmax &of)
{
    double sum = 0;
#pragma unroll 1
    for (int column = lane; column < columns; column += 32) {
        const float d = of.exponent(widen(slice[column])), e = exp2_of(d);
        sum += e != 0 ? (double)(e * (of.error - d)) : 0.0;
    }
    return (float)warp_sum(sum) * exp2_of(-of.error);
}
/* Of the row, divided by its sum and in natural units: sum of P (most - z). */
template <class WARP, class DISTANCE>
__device__ __forceinline__ double merged_distance(const WARP &warp, float k, float row_m, double one_over_sum,
                                                  const float4 *states, const DISTANCE &distance)
{
    double sum = 0;
    warp.for_states([&](int s) {
        const float4 one = states[s];
        const float below = (one.x - row_m) * k;
        if (one.y != 0)
            sum += (double)(exp2_of(below) * (distance(s) - (one.y + one.z) * below));
    });
    return warp_sum(sum) * one_over_sum * 0.693147180559945309;
}

/* The first column of the slice with its largest element, which may be NaN. */
template <class T>
__device__ __forceinline__ float first_at(const T *slice, int columns, int lane, float m, int first_column)
{
    int found = slice_of<T>::COLUMNS;
#pragma unroll 1
    for (int column = lane; column < columns; column += 32) {
        const float v = widen(slice[column]);
        if ((v == m || v != v) && column < found)
            found = column;
    }
    return (float)(first_column + __reduce_min_sync(~0u, found)); /* exact up to ONEP_LOGITS_MAX_COLUMNS */
}
template <class WARP, class FIRST>
__device__ __forceinline__ long long merged_first(const WARP &warp, float row_m, const float4 *states,
                                                  const FIRST &first)
{
    int found = 0x7fffffff;
    warp.for_slices([&](int s) {
        const float m = states[s].x;
        if (m == row_m || m != m)
            found = (int)first(s) < found ? (int)first(s) : found;
    });
    return __reduce_min_sync(~0u, found);
}

#endif
