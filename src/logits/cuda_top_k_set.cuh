/*
 * The entries of a teacher of k columns, of one row, by one block: sorted by column in shared memory, and the
 * divergence made from them and from two softmaxes of the student, in and outside of what was named. The arithmetic is
 * that of top_k.c, in double; sums that may cancel are compensated. Sums go by the order of columns, so that the order
 * of the entries, and padding, are of no matter.
 */
#ifndef ONEP_LOGITS_TOP_K_SET_CUH
#define ONEP_LOGITS_TOP_K_SET_CUH

#include "logits/cuda_column.cuh"
#include "logits/cuda_top_k_args.h"

enum { TOP_LOG_PROBS, TOP_PROBS, TOP_LOGITS };                             /* onepass_top_values */
enum { OUTSIDE_TAIL, OUTSIDE_ZERO, OUTSIDE_RENORMALISED, OUTSIDE_SUBSET }; /* onepass_outside */

/* A sum with what was lost in rounding. */
struct exact_sum {
    double x, lost;

    __device__ __forceinline__ void add(double y)
    {
        const double sum = x + y, back = sum - x;
        lost += (x - (sum - back)) + (y - back);
        x = sum;
    }
    /* The sum, or so much more than it: added before what was lost. Of what is not finite nothing is lost. */
    __device__ __forceinline__ double value(double more = 0) const
    {
        return x - x == 0 ? (x + more) + lost : x;
    }
};

/* The larger one; NaN if either is. */
__device__ __forceinline__ double larger(double a, double b)
{
    return a > b || a != a ? a : b;
}

/* What a block of so many threads adds up or compares, by trees of fixed shape; the result is in every thread. */
template <int THREADS> struct block_of {
    enum { WARPS = THREADS / 32 };

    /* N sums, and one that is compensated; the latter in lane 0. */
    template <int N> static __device__ __forceinline__ void sum_of_warp(double (&x)[N], exact_sum &exact)
    {
#pragma unroll
        for (int offset = 16; offset > 0; offset >>= 1) {
            const double more = __shfl_down_sync(~0u, exact.x, offset);
            const double lost = __shfl_down_sync(~0u, exact.lost, offset);
            exact.add(more);
            exact.lost += lost;
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = warp_sum(x[i]);
    }
    template <int N> static __device__ __forceinline__ void sum(double (&x)[N], exact_sum &exact)
    {
        __shared__ double room[N + 2][WARPS];
        const int lane = threadIdx.x & 31;
        sum_of_warp(x, exact);
        __syncthreads(); /* the sums before have been read */
        if (lane == 0) {
            const int warp = threadIdx.x >> 5;
#pragma unroll
            for (int i = 0; i < N; i++)
                room[i][warp] = x[i];
            room[N][warp] = exact.x;
            room[N + 1][warp] = exact.lost;
        }
        __syncthreads(); /* and every warp's are there */
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = lane < WARPS ? room[i][lane] : 0;
        exact.x = lane < WARPS ? room[N][lane] : 0;
        exact.lost = lane < WARPS ? room[N + 1][lane] : 0;
        sum_of_warp(x, exact);
        exact.x = __shfl_sync(~0u, exact.x, 0);
        exact.lost = __shfl_sync(~0u, exact.lost, 0);
    }
    template <class R> static __device__ __forceinline__ R largest(R x)
    {
        __shared__ R room[WARPS];
        const int lane = threadIdx.x & 31;
#pragma unroll
        for (int offset = 16; offset > 0; offset >>= 1)
            x = larger(x, __shfl_xor_sync(~0u, x, offset));
        __syncthreads(); /* as above */
        if (lane == 0)
            room[threadIdx.x >> 5] = x;
        __syncthreads();
        x = room[lane % WARPS];
#pragma unroll
        for (int offset = WARPS / 2; offset > 0; offset >>= 1)
            x = larger(x, __shfl_xor_sync(~0u, x, offset));
        return x;
    }
};

/* A number with its logarithm. */
struct mass {
    double x, log;
};

/* A softmax of the student in double: the largest z, and the sum of exp(z - largest) but for one column's. */
struct student {
    double most, others, log_sum;
    bool has_no_mass; /* no number above -inf, and none that is undefined */

    __device__ __forceinline__ student() : most(minus_infinity(0.0)), others(0), log_sum(0), has_no_mass(true) {}
    __device__ __forceinline__ student(double largest, double all_but_largest)
        : most(largest), others(all_but_largest), log_sum(log1p(all_but_largest)),
          has_no_mass(largest == minus_infinity(0.0))
    {
    }
    template <class R>
    __device__ __forceinline__ student(const softmax_part<R> &s)
        : most((double)s.most), others(s.others), log_sum(s.log_sum()), has_no_mass(s.has_no_mass())
    {
    }
    __device__ __forceinline__ mass of(double z) const
    {
        const double log_s = (z - most) - log_sum;
        const mass s = {exp(log_s), log_s};
        return s;
    }
};

template <int THREADS> struct top_k_set {
    typedef block_of<THREADS> block;
    enum { MOST_FEW = THREADS < 256 ? THREADS : 256 }; /* entries that are sorted by counting */

    const onep_logits_top_k_args &k;
    long long *keys; /* shared: those of entries that are no padding, in order; then the largest number */
    double *values;  /* shared: theirs, NaN where one is none, logits over their temperature */
    double *slopes;  /* the same: in the end dD/dz, of the entry that begins a column */
    unsigned *bits;  /* shared: of columns that may have been named */
    int count;       /* entries that are no padding */
    bool has_bad_index;
    /* The divergence. */
    double max, sum, log_sum; /* T = y / sum, or log T = y - max - log_sum */
    double weight_in_set, value, tail_slope;
    bool lacks_mass;

    /* `memory`: onep_top_k_shared_bytes. */
    __device__ __forceinline__ top_k_set(const onep_logits_top_k_args &args, unsigned char *memory)
        : k(args), keys(reinterpret_cast<long long *>(memory)), values(reinterpret_cast<double *>(memory) + args.keys),
          slopes(values), bits(reinterpret_cast<unsigned *>(memory + 16ll * args.keys)), count(0), has_bad_index(false),
          max(0), sum(1), log_sum(0), weight_in_set(1), value(0), tail_slope(0), lacks_mass(false)
    {
    }

    /* ---- entries by column ---- */

    __device__ __forceinline__ long long column(int at) const
    {
        return keys[at] / ONEP_TOP_K_PLACES;
    }
    __device__ __forceinline__ bool begins_column(int at) const
    {
        return at == 0 || column(at) != column(at - 1);
    }
    /* Calls f(at) for this thread's entries that begin a column. */
    template <class F> __device__ __forceinline__ void for_named(const F &f) const
    {
#pragma unroll 1
        for (int at = threadIdx.x; at < count; at += THREADS)
            if (begins_column(at))
                f(at);
    }

    __device__ __forceinline__ void sort()
    {
#pragma unroll 1
        for (int size = 2; size <= k.keys; size *= 2)
#pragma unroll 1
            for (int step = size / 2; step > 0; step /= 2) {
                __syncthreads(); /* the step before, or what is sorted, is there */
#pragma unroll 1
                for (int i = threadIdx.x; i < k.keys / 2; i += THREADS) {
                    const int a = (i & -step) * 2 + (i & (step - 1)), b = a + step;
                    const long long x = keys[a], y = keys[b];
                    if ((x > y) == ((a & size) == 0)) {
                        keys[a] = y;
                        keys[b] = x;
                    }
                }
            }
        __syncthreads(); /* for whoever reads them */
    }
    /* Of no more entries than threads: each finds how many come before its own. */
    __device__ __forceinline__ void sort_few(long long key, double y)
    {
        int before = 0;
        __syncthreads(); /* all keys are there */
        if (key != NEVER)
#pragma unroll 4
            for (int i = 0; i < k.keys; i++)
                before += keys[i] < key;
        __syncthreads(); /* and have been read */
        if (key != NEVER) {
            keys[before] = key;
            values[before] = y;
        }
        __syncthreads(); /* for whoever reads them */
    }
    __device__ __forceinline__ double value_of(const char *row, long long place) const
    {
        const double y = load_any<double>(k.loss.targets.type, row + place * k.loss.targets.col_stride);
        const bool is_legal = y < -minus_infinity(y) && (k.values != TOP_PROBS || y >= 0);
        if (!is_legal)
            return not_a_number();
        return k.values == TOP_LOGITS ? y / k.loss.target_temperature : y;
    }

    /* Takes the row's entries. An index that is no column leaves none. */
    __device__ __forceinline__ void load(long long row)
    {
        const onep_logits_rows &rows = k.loss.rows;
        const char *indices = row_of(k.indices, rows, row), *from = row_of(k.loss.targets, rows, row);
        const bool is_few = k.keys <= MOST_FEW;
        __syncthreads(); /* the row before is done with all of it */
        for (int i = threadIdx.x; i < ONEP_TOP_K_BITS / 32; i += THREADS)
            bits[i] = 0;
        int named = 0, bad = 0;
        long long key = NEVER;
        double y = 0;
        for (int place = threadIdx.x; place < k.keys; place += THREADS) {
            key = NEVER;
            if (place < k.entries) {
                const long long index = integer_of(k.indices.type, indices + place * k.indices.col_stride);
                if (is_few)
                    y = value_of(from, place);
                bad |= index >= k.loss.columns;
                if (index >= 0 && index < k.loss.columns)
                    key = index * ONEP_TOP_K_PLACES + place;
                named += key != NEVER;
            }
            keys[place] = key;
        }
        has_bad_index = __syncthreads_or(bad) != 0;
        count = 0;
        if (has_bad_index)
            return;
        if (is_few) {
            count = __syncthreads_count(named);
            sort_few(key, y);
        } else {
            double counts[1] = {(double)named};
            exact_sum none = {0, 0};
            block::sum(counts, none);
            count = (int)counts[0];
            sort();
            for (int at = threadIdx.x; at < count; at += THREADS)
                values[at] = value_of(from, keys[at] % ONEP_TOP_K_PLACES);
        }
        for_named([&](int at) {
            const int bit = (int)(column(at) % ONEP_TOP_K_BITS);
            atomicOr(bits + bit / 32, 1u << bit % 32);
        });
        __syncthreads();
    }

    /* The entry that begins a column, -1: it was not named. */
    __device__ __forceinline__ int find(long long wanted) const
    {
        const int bit = (int)(wanted % ONEP_TOP_K_BITS);
        if (count == 0 || !(bits[bit / 32] >> bit % 32 & 1))
            return -1;
        int low = 0, high = count; /* the first key that is not below the wanted column's */
        while (low < high) {
            const int middle = (low + high) / 2;
            if (keys[middle] < wanted * ONEP_TOP_K_PLACES)
                low = middle + 1;
            else
                high = middle;
        }
        return low < count && column(low) == wanted ? low : -1;
    }

    /* ---- the teacher ---- */

    __device__ __forceinline__ bool is_normalised() const
    {
        return k.values == TOP_LOGITS || k.outside >= OUTSIDE_RENORMALISED;
    }
    /* T of the column that entry `at` begins. */
    __device__ __forceinline__ mass target(int at) const
    {
        const long long own = column(at);
        exact_sum all = {0, 0};
        if (k.values == TOP_PROBS) {
            for (int i = at; i < count && column(i) == own; i++)
                all.add(values[i]);
            const double x = all.value();
            const mass t = {x / sum, log(x) - log_sum};
            return t;
        }
        double largest = minus_infinity(0.0);
        int end = at;
        for (; end < count && column(end) == own; end++)
            largest = larger(largest, values[end]);
        const double below = largest - max; /* -inf: no mass; NaN: none that is defined */
        mass t = {exp(below) / sum, below - log_sum};
        if (end - at > 1 && largest - largest == 0) {
            for (int i = at; i < end; i++)
                all.add(exp(values[i] - largest));
            t.x *= all.value();
            t.log += log(all.value());
        }
        return t;
    }
    /* What T is normalised by, where it is. */
    __device__ __forceinline__ void normalise()
    {
        const bool is_softmax = k.values != TOP_PROBS;
        double largest = minus_infinity(0.0);
        for (int at = threadIdx.x; at < count; at += THREADS)
            largest = larger(largest, values[at]);
        largest = block::largest(largest);
        if (count == 0 || largest == (is_softmax ? minus_infinity(0.0) : 0)) {
            lacks_mass = true;
            return;
        }
        exact_sum below = {0, 0};
        double ties[1] = {0};
        for (int at = threadIdx.x; at < count; at += THREADS) {
            const double y = values[at];
            if (is_softmax && y == largest)
                ties[0]++;
            else
                below.add(is_softmax ? exp(y - largest) : y);
        }
        block::sum(ties, below);
        const double all = below.value();
        max = is_softmax ? largest : 0;
        sum = is_softmax ? ties[0] + all : all;
        log_sum = is_softmax ? log1p((ties[0] - 1) + all) : log(all);
    }

    /* ---- the divergence ---- */

    /* T log(T/S) - T + S, or S log(S/T) - S + T. A column without either adds nothing. */
    __device__ __forceinline__ double term(const mass &s, const mass &t) const
    {
        if (s.x == 0 && t.x == 0)
            return 0;
        const double ratio = t.log - s.log;
        return relative_entropy(k.is_reverse ? s.x : t.x, k.is_reverse ? -ratio : ratio, k.is_reverse ? t.x : s.x);
    }
    __device__ __forceinline__ double slope(const mass &s, const mass &t) const
    {
        if (!k.is_reverse)
            return s.x * weight_in_set - t.x;
        return s.x == 0 ? 0 : s.x * ((s.log - t.log) - value);
    }

    /* The student over the set alone, from z in double. */
    template <class F> __device__ __forceinline__ student student_of_set(const F &z_at) const
    {
        double most = minus_infinity(0.0), ties[1] = {0};
        for_named([&](int at) { most = larger(most, z_at(column(at))); });
        most = block::largest(most);
        if (most == minus_infinity(0.0))
            return student();
        exact_sum below = {0, 0};
        for_named([&](int at) {
            const double z = z_at(column(at));
            if (z == most)
                ties[0]++;
            else
                below.add(exp(z - most));
        });
        block::sum(ties, below);
        return student(most, (ties[0] - 1) + below.value());
    }

    /*
     * D and the slopes, from the student over all columns, those outside of the set and (for ONEPASS_OUTSIDE_SUBSET)
     * those in it. z_at(column) is its z, in double for a subset. Of predictions that are undefined nothing is known
     * afterwards but whether T or S lacks mass.
     */
    template <class F>
    __device__ __forceinline__ void finish(const student &all, const student &outside, const student &in_set,
                                           const F &z_at)
    {
        const bool is_subset = k.outside == OUTSIDE_SUBSET;
        lacks_mass = false;
        value = tail_slope = 0;
        max = log_sum = 0;
        sum = weight_in_set = 1;
        if (is_normalised())
            normalise();
        student s_all = all; /* what S is normalised by */
        if (is_subset) {
            s_all = in_set;
            lacks_mass |= count > 0 && s_all.has_no_mass;
        }
        if (k.loss.columns == 0)
            lacks_mass = false;
        if (lacks_mass || k.loss.columns == 0)
            return;
        exact_sum mass_of_t = {threadIdx.x == 0 ? -1.0 : 0.0, 0};
        double sums[2] = {0, 0}; /* of the terms; columns that were named */
#pragma unroll 1
        for (int pass = 0; pass < 2; pass++) { /* code is long: once for both */
            for_named([&](int at) {
                const mass t = target(at), s = s_all.of(z_at(column(at)));
                if (pass == 1) {
                    slopes[at] = slope(s, t);
                    return;
                }
                mass_of_t.add(t.x);
                sums[0] += term(s, t);
                sums[1]++;
            });
            if (pass == 0)
                finish_value(sums, mass_of_t, all, outside);
        }
        __syncthreads(); /* any thread may read the slopes, and the logits they were made from be overwritten */
    }
    /* D and all but the slopes, from what the threads have of the named columns. */
    __device__ __forceinline__ void finish_value(double (&sums)[2], exact_sum &mass_of_t, const student &all,
                                                 const student &outside)
    {
        block::sum(sums, mass_of_t);
        double terms = sums[0], surplus = 0, shortage = 0; /* shortage: 1 less the mass of T as it was passed */
        if (!is_normalised()) {
            surplus = mass_of_t.value();
            weight_in_set = mass_of_t.value(1);
            shortage = -surplus;
        }
        const bool has_rest = k.outside != OUTSIDE_SUBSET && sums[1] < (double)k.loss.columns;
        mass s_rest = {0, minus_infinity(0.0)}, t_rest = {0, minus_infinity(0.0)};
        if (has_rest && !outside.has_no_mass) {
            s_rest.log = ((outside.most - all.most) + outside.log_sum) - all.log_sum;
            s_rest.x = exp(s_rest.log);
        }
        if (has_rest && k.outside == OUTSIDE_TAIL && shortage > 0) {
            t_rest.x = shortage;
            t_rest.log = log(shortage);
            weight_in_set = 1;
            surplus = 0;
        }
        if (has_rest)
            terms += term(s_rest, t_rest);
        value = terms + (k.is_reverse ? -surplus : surplus); /* which the terms add */
        if (s_rest.x != 0) {                                 /* otherwise no column outside has mass to move */
            tail_slope =
                k.is_reverse ? s_rest.x * ((s_rest.log - t_rest.log) - value) : s_rest.x * weight_in_set - t_rest.x;
            tail_slope /= 1 + outside.others;
        }
    }
};

#endif
