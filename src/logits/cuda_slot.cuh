/*
 * A slice of a row of one operand in shared memory, where sweeps find it, and the exponentials of its softmax. A thread
 * reads and writes only its own quads of columns, so the copy needs no barrier.
 */
#ifndef ONEP_LOGITS_SLOT_CUH
#define ONEP_LOGITS_SLOT_CUH

#include "cuda/ampere.cuh"
#include "logits/cuda_column.cuh"
#include "logits/cuda_row.cuh"

/* ---- a slice of one operand in shared memory --------------------------------------------------------------------- */

/* Four columns, the unit of copies: as few as keep loads and stores wide, for what is unrolled is small then. */
enum { QUAD = 4 };
typedef float quad[QUAD];

template <class T> struct alignas(sizeof(T) * QUAD) quad_of {
    T at[QUAD];
};

/* By halves: every term is rounded twice. */
__device__ __forceinline__ double quad_sum(const quad &x)
{
    return (double)((x[0] + x[1]) + (x[2] + x[3]));
}

/* HAS_CAP: there may be a softcap. */
template <class T, class TEAM, bool HAS_CAP> struct held_operand {
    quad_of<T> *slot;
    int begin; /* the first quad of the slice in it */
    float cap, one_over_cap;

    __device__ __forceinline__ held_operand(unsigned char *memory, double softcap)
        : slot(reinterpret_cast<quad_of<T> *>(memory)), begin(0), cap(HAS_CAP ? (float)softcap : 0.0f),
          one_over_cap(HAS_CAP && softcap > 0 ? (float)(1 / softcap) : 0.0f)
    {
    }

    static __device__ __forceinline__ int quads_of(long long columns)
    {
        return (int)((columns + QUAD - 1) / QUAD);
    }
    static __device__ __forceinline__ bool is_whole(const onep_logits_operand &o, const char *row)
    {
        return o.col_stride == sizeof(T) && (unsigned long long)row % sizeof(quad_of<T>) == 0;
    }

    /* Begins to copy this thread's quads of [from, to); beyond the columns there are -inf. Nothing outside is read. */
    __device__ __forceinline__ void fetch(const onep_logits_operand &o, const char *row, long long columns, int from,
                                          int to)
    {
        const bool whole = is_whole(o, row);
        begin = from;
        for (int q = from + TEAM::rank(); q < to; q += TEAM::size()) {
            const long long first = (long long)q * QUAD;
            if (whole && first + QUAD <= columns) {
                cp_async<sizeof(quad_of<T>)>(shared_address(slot + (q - from)), row + first * (long long)sizeof(T));
                continue;
            }
            quad_of<T> some;
#pragma unroll
            for (int i = 0; i < QUAD; i++) {
                narrow(some.at[i], minus_infinity(0.0f));
                if (first + i < columns)
                    some.at[i] = *reinterpret_cast<const T *>(row + (first + i) * o.col_stride);
            }
            slot[q - from] = some;
        }
        cp_async_commit();
    }

    /* Logits as they were passed, and after the softcap, under which a mask of -inf stays one. */
    __device__ __forceinline__ float capped(float x) const
    {
        return HAS_CAP && cap > 0 && x != minus_infinity(x) ? cap * tanh_of(x * one_over_cap) : x;
    }
    __device__ __forceinline__ void raw(int q, quad &x) const
    {
        const quad_of<T> some = slot[q - begin];
#pragma unroll
        for (int i = 0; i < QUAD; i++)
            x[i] = widen(some.at[i]);
    }
    __device__ __forceinline__ void load(int q, quad &v) const
    {
        raw(q, v);
        if (HAS_CAP && cap > 0) {
#pragma unroll
            for (int i = 0; i < QUAD; i++)
                v[i] = capped(v[i]);
        }
    }

    /* Stores a gradient to v, times a factor, as one to the logits of quad q. */
    __device__ __forceinline__ void store_gradient(const onep_logits_operand &o, char *row, long long columns, int q,
                                                   quad &dv, float factor) const
    {
        const long long first = (long long)q * QUAD;
        if (HAS_CAP && cap > 0) {
            const logit_scale<float> scale((double)cap, 1);
            quad x;
            raw(q, x);
#pragma unroll
            for (int i = 0; i < QUAD; i++)
                dv[i] *= scale.slope_of(x[i]);
        }
        quad_of<T> some;
#pragma unroll
        for (int i = 0; i < QUAD; i++)
            narrow(some.at[i], dv[i] * factor);
        if (is_whole(o, row) && first + QUAD <= columns) {
            *reinterpret_cast<quad_of<T> *>(row + first * (long long)sizeof(T)) = some;
            return;
        }
#pragma unroll
        for (int i = 0; i < QUAD; i++)
            if (first + i < columns)
                *reinterpret_cast<T *>(row + (first + i) * o.col_stride) = some.at[i];
    }
};

/* ---- one side's softmax ------------------------------------------------------------------------------------------ */

/* What is known of it when its sums are: once per row, for the logarithm and the quotients are long in double. */
struct known_softmax {
    double others, one_over_sum, log_sum, lse; /* all NaN if there is NaN or +inf among the logits */

    __device__ __forceinline__ void find(float largest_v, float most, double tail, double ties)
    {
        find(largest_v, most, tail + (ties - 1));
    }
    __device__ __forceinline__ void find(float largest_v, float most, double all_others)
    {
        others = largest_v == minus_infinity(0.0f) ? 0 : all_others;
        if (!(largest_v < -minus_infinity(0.0f)))
            others = not_a_number();
        one_over_sum = 1 / (1 + others);
        log_sum = log1p(others);
        lse = largest_v == minus_infinity(0.0f) ? (double)largest_v : (double)most + log_sum;
    }
    __device__ __forceinline__ float rest() const
    {
        return (float)(others * one_over_sum);
    }
};

/*
 * Its exponentials, of d = z - most, where most is the largest z of the slices so far, or 0 while there is none. z = v
 * times 1 / temperature grows with v, so that its maximum is that of v.
 */
struct held_softmax {
    float one_over_temperature, most;
    double tail, ties; /* sum of exp(d) below the maximum, columns at it */

    __device__ __forceinline__ held_softmax(double temperature)
        : one_over_temperature((float)(1 / temperature)), most(0), tail(0), ties(0)
    {
    }
    __device__ __forceinline__ float z_of(float v) const
    {
        return __fmul_rn(v, one_over_temperature);
    }
    /* Takes the sums to a larger maximum, that of v; there are none yet if the row is one slice. Returns how much it
     * rose; exponentials shrink by the factor. */
    template <bool HAS_SLICES> __device__ __forceinline__ double raise(float largest_v, double &factor)
    {
        const float before = most;
        most = largest_v == minus_infinity(0.0f) ? 0.0f : z_of(largest_v);
        const double rise = (double)most - (double)before;
        if (HAS_SLICES && sum() != 0 && rise != 0) {
            factor = exp(-rise);
            tail = sum() * factor;
            ties = 0;
        }
        return rise;
    }
    __device__ __forceinline__ double sum() const
    {
        return tail + ties;
    }
    /* d = z - most and exp(d) of a quad. */
    __device__ __forceinline__ void exponentials(const quad &v, quad &d, quad &e) const
    {
#pragma unroll
        for (int i = 0; i < QUAD; i++) {
            d[i] = z_of(v[i]) - most;
            e[i] = fast_exp(d[i]);
        }
    }
    __device__ __forceinline__ void add(const quad &d, const quad &e)
    {
        quad below, at;
#pragma unroll
        for (int i = 0; i < QUAD; i++) {
            at[i] = d[i] == 0 ? 1.0f : 0.0f;
            below[i] = d[i] == 0 ? 0.0f : e[i];
        }
        tail += quad_sum(below);
        ties += quad_sum(at);
    }
};

#endif
