/*
 * Divergences from a teacher of k columns with a row in the shared memory of one block, for logits of one type, without
 * a softcap and without label terms: every logit is read once, every gradient written once, but for what of a wide row
 * does not fit and comes from the second-level cache again.
 *
 * The columns are cut into vectors of 16 bytes, wherever the row lies; vector q is thread q's (mod ONEP_TOP_K_THREADS),
 * which copies it, reads it and writes its gradient, so that no barrier is needed for it. When its gradient is made,
 * the next row's vector is copied to its place. Two sweeps: the softmax of the columns outside of the set, each thread
 * against its own maximum, and the gradients. What was named is computed in double in between (cuda_top_k_set.cuh).
 * Where a vector may have a named column its byte in a set of bits says so. The bits of a row depend on the row alone:
 * where a vector is held is of no matter.
 */
#ifndef ONEP_LOGITS_TOP_K_HELD_CUH
#define ONEP_LOGITS_TOP_K_HELD_CUH

#include "cuda/ampere.cuh"
#include "cuda/shared.cuh"
#include "logits/cuda_around.cuh"
#include "logits/cuda_team.cuh"
#include "logits/cuda_top_k_set.cuh"

enum { COPY_GROUPS = 8 }; /* of a row: the first sweep begins when the first group is there */

__device__ __forceinline__ float exp2_of(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/*
 * The exponentials against a maximum m: exp((v - m) / temperature) = 2^(v k - r) 2^-error, with k = log2(e) /
 * temperature, r = m k rounded, error = m k - r. One fma and one ex2 per element: off by |v - m| k u, beside ex2's
 * 2^-22.5.
 */
struct exponent_of {
    float k, m, r, error;

    __device__ __forceinline__ exponent_of(float factor) : k(factor), m(minus_infinity(0.0f)), r(0), error(0) {}
    __device__ __forceinline__ void set(float largest)
    {
        m = largest;
        r = largest == minus_infinity(0.0f) ? 0.0f : __fmul_rn(largest, k);
        error = largest == minus_infinity(0.0f) ? 0.0f : fmaf(largest, k, -r);
    }
    __device__ __forceinline__ float operator()(float v) const
    {
        return exp2_of(fmaf(v, k, -r));
    }
};

/* One thread's softmax: its maximum, columns at it, and the sum of the other exponentials. */
struct thread_softmax {
    exponent_of e;
    double tail;
    int ties;

    __device__ __forceinline__ thread_softmax(float k) : e(k), tail(0), ties(0) {}
    /* All of it against another maximum, that is not below: a factor for it. */
    __device__ __forceinline__ double against(float m) const
    {
        return e.m == minus_infinity(0.0f) ? 0.0 : (double)exp2_of((e.m - m) * e.k);
    }
    __device__ __forceinline__ double whole() const
    {
        return tail * (double)exp2_of(-e.error) + (double)ties;
    }
    /* Numbers are to come of which this is the largest. */
    __device__ __forceinline__ void raise(float most)
    {
        most = larger(most, e.m); /* NaN stays */
        if (most == e.m)
            return;
        const double so_far = whole() * against(most);
        e.set(most);
        tail = so_far * (double)exp2_of(e.error);
        ties = 0;
    }
    /* The sum of their exponentials, of those below the maximum. */
    template <int LANES> __device__ __forceinline__ float sum_below(const float (&v)[LANES])
    {
        float below[LANES];
#pragma unroll
        for (int i = 0; i < LANES; i++) {
            const bool is_most = v[i] == e.m;
            below[i] = is_most ? 0.0f : e(v[i]);
            ties += is_most ? 1 : 0;
        }
#pragma unroll
        for (int step = 1; step < LANES; step *= 2)
#pragma unroll
            for (int i = 0; i < LANES; i += 2 * step)
                below[i] += below[i + step];
        return below[0];
    }
};

/* The larger ones of two halves; NaN if either is. */
__device__ __forceinline__ unsigned larger_words(bf16, unsigned a, unsigned b)
{
    unsigned y;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
__device__ __forceinline__ unsigned larger_words(f16, unsigned a, unsigned b)
{
    unsigned y;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
__device__ __forceinline__ unsigned larger_words(float, unsigned a, unsigned b)
{
    return __float_as_uint(larger(__uint_as_float(a), __uint_as_float(b)));
}
/* The largest element of N vectors. */
template <class T, int N> __device__ __forceinline__ float largest_element(const pack<T> (&some)[N])
{
    unsigned most = reinterpret_cast<const uint4 *>(&some[0])->x;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const uint4 raw = *reinterpret_cast<const uint4 *>(&some[j]);
        most = larger_words(T(), most,
                            larger_words(T(), larger_words(T(), raw.x, raw.y), larger_words(T(), raw.z, raw.w)));
    }
    if (sizeof(T) == 4)
        return __uint_as_float(most);
    union {
        unsigned word;
        T half[4 / sizeof(T)];
    } both = {most};
    return larger((float)widen(both.half[0]), (float)widen(both.half[4 / sizeof(T) - 1]));
}

template <class T, int THREADS> struct top_k_held {
    enum { LANES = element<T>::lanes, BATCH = 4 }; /* of vectors, whose maximum is found first */
    typedef block_of<THREADS> block;
    typedef pack<T> vector;

    const onep_logits_top_k_args &k;
    top_k_set<THREADS> set;
    vector *slots;
    int vectors, held, group; /* of a row; in shared memory; of a group of copies, per thread */

    static __device__ __forceinline__ unsigned char *memory_of()
    {
        ONEP_DYNAMIC_SHARED(memory);
        return memory;
    }
    __device__ __forceinline__ top_k_held(const onep_logits_top_k_args &args)
        : k(args), set(args, memory_of()),
          slots(reinterpret_cast<vector *>(memory_of() + 16ll * args.keys + ONEP_TOP_K_BITS / 8)),
          vectors((int)((args.loss.columns + LANES - 1) / LANES)), held((int)args.held)
    {
        group = (vectors + THREADS * COPY_GROUPS - 1) / (THREADS * COPY_GROUPS);
    }

    /* ---- vectors ---- */

    static __device__ __forceinline__ bool is_whole(const onep_logits_operand &o, const char *row)
    {
        return o.col_stride == sizeof(T) && (unsigned long long)row % sizeof(vector) == 0;
    }
    /* Calls f(group) after all of them, and f(q) for this thread's vectors in between. */
    template <class F, class G> __device__ __forceinline__ void for_groups(const F &before, const G &f) const
    {
        int q = threadIdx.x;
#pragma unroll 1
        for (int g = 0; g < COPY_GROUPS; g++) {
            before(g);
#pragma unroll 1
            for (int i = 0; i < group && q < vectors; i++, q += THREADS)
                f(q);
        }
    }
    __device__ __forceinline__ vector load(const onep_logits_operand &o, const char *row, bool whole, int q) const
    {
        const long long first = (long long)q * LANES;
        if (whole && first + LANES <= k.loss.columns)
            return load_pack(reinterpret_cast<const T *>(row) + first);
        vector some;
#pragma unroll
        for (int i = 0; i < LANES; i++) {
            narrow(some.at[i], minus_infinity(0.0f));
            if (first + i < k.loss.columns)
                some.at[i] = *reinterpret_cast<const T *>(row + (first + i) * o.col_stride);
        }
        return some;
    }
    __device__ __forceinline__ void store(const onep_logits_operand &o, char *row, bool whole, int q,
                                          const float (&made)[LANES]) const
    {
        const long long first = (long long)q * LANES;
        vector some;
#pragma unroll
        for (int i = 0; i < LANES; i++)
            narrow(some.at[i], made[i]);
        if (whole && first + LANES <= k.loss.columns) {
            store_pack(reinterpret_cast<T *>(row) + first, some);
            return;
        }
#pragma unroll
        for (int i = 0; i < LANES; i++)
            if (first + i < k.loss.columns)
                *reinterpret_cast<T *>(row + (first + i) * o.col_stride) = some.at[i];
    }

    /* ---- copies ---- */

    /* A row to come, NULL: none, or one that takes no part. */
    struct coming {
        const char *row;
        bool whole;
    };
    __device__ __forceinline__ coming coming_of(long long row) const
    {
        coming c = {0, false};
        if (row < 0 || !takes_part(row))
            return c;
        c.row = row_of(k.loss.predictions, k.loss.rows, row);
        c.whole = is_whole(k.loss.predictions, c.row);
        return c;
    }
    __device__ __forceinline__ void fetch(const coming &c, int q) const
    {
        if (!c.row || q >= held)
            return;
        const long long first = (long long)q * LANES;
        if (c.whole && first + LANES <= k.loss.columns)
            cp_async<16>(shared_address(slots + q), reinterpret_cast<const T *>(c.row) + first);
        else
            slots[q] = load(k.loss.predictions, c.row, c.whole, q);
    }

    /* ---- a row ---- */

    __device__ __forceinline__ bool takes_part(long long row) const
    {
        const onep_logits_loss_args &a = k.loss;
        if (a.mask.data && *row_of(a.mask, a.rows, row) == 0)
            return false;
        return !a.labels.data || integer_of(a.labels.type, row_of(a.labels, a.rows, row)) != a.ignore_index;
    }

    /* Bit i: column i of vector q may have been named. */
    __device__ __forceinline__ unsigned named_in(int q) const
    {
        const unsigned word = set.bits[q * LANES / 32 % (ONEP_TOP_K_BITS / 32)];
        return word >> q * LANES % 32 & ((1u << LANES) - 1);
    }
    /* Takes the named columns out of vector q. */
    __device__ __forceinline__ void take_out(int q, vector &some) const
    {
        if (named_in(q) == 0) /* often */
            return;
        unsigned named = 0;
        for_named_in(q, [&](int i, int) { named |= 1u << i; });
#pragma unroll
        for (int i = 0; i < LANES; i++)
            if (named >> i & 1)
                narrow(some.at[i], minus_infinity(0.0f));
    }

    /* Calls f(i, entry) for the named columns of a vector, entry being where column i begins in their order. */
    template <class F> __device__ __forceinline__ void for_named_in(int q, const F &f) const
    {
        unsigned named = named_in(q);
#pragma unroll 1
        while (named != 0) { /* not often */
            const int i = __ffs(named) - 1, at = set.find((long long)q * LANES + i);
            named &= named - 1;
            if (at >= 0)
                f(i, at);
        }
    }

    /* A batch of this thread's vectors, from q on, of which no more than `most` are left in the group. */
    __device__ __forceinline__ void add_batch(thread_softmax &own, const char *row, bool whole, int q, int most) const
    {
        vector some[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const int at = q + b * THREADS;
            if (b < most && at < vectors) {
                some[b] = at < held ? slots[at] : load(k.loss.predictions, row, whole, at);
                take_out(at, some[b]);
            } else {
#pragma unroll
                for (int i = 0; i < LANES; i++)
                    narrow(some[b].at[i], minus_infinity(0.0f));
            }
        }
        own.raise(largest_element(some));
        float sums[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            float v[LANES];
            unpack(some[b], v);
            sums[b] = own.sum_below(v);
        }
        own.tail += (double)((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }

    /* The columns outside: the largest v, and the sum of the exponentials against it but for one. */
    __device__ __forceinline__ void find_outside(const char *row, bool whole, float k2, float &m, double &others) const
    {
        thread_softmax own(k2);
#pragma unroll 1
        for (int g = 0; g < COPY_GROUPS; g++) {
            await(g);
#pragma unroll 1
            for (int i = 0; i < group; i += BATCH) {
                const int q = (g * group + i) * THREADS + (int)threadIdx.x;
                if (q < vectors)
                    add_batch(own, row, whole, q, group - i);
            }
        }
        const float most = block::largest(own.e.m);
        double sums[2] = {own.e.m == most ? own.tail * (double)exp2_of(-own.e.error) : own.whole() * own.against(most),
                          own.e.m == most ? (double)own.ties : 0.0};
        exact_sum none = {0, 0};
        block::sum(sums, none);
        m = most;
        others = most == minus_infinity(0.0f) ? 0 : sums[0] + (sums[1] - 1);
    }
    /* Waits for a group of copies, while those after it may be on their way. */
    static __device__ __forceinline__ void await(int g)
    {
        switch (g) {
        case 0:
            return cp_async_wait<COPY_GROUPS - 1>();
        case 1:
            return cp_async_wait<COPY_GROUPS - 2>();
        case 2:
            return cp_async_wait<COPY_GROUPS - 3>();
        case 3:
            return cp_async_wait<COPY_GROUPS - 4>();
        case 4:
            return cp_async_wait<COPY_GROUPS - 5>();
        case 5:
            return cp_async_wait<COPY_GROUPS - 6>();
        case 6:
            return cp_async_wait<COPY_GROUPS - 7>();
        default:
            return cp_async_wait<0>();
        }
    }

    /* Gradients of the columns, all of them x. */
    __device__ __forceinline__ void fill(long long row, float x) const
    {
        const onep_logits_operand &o = k.loss.grad_predictions;
        char *to = row_of(o, k.loss.rows, row);
        if (!to)
            return;
        const bool whole = is_whole(o, to);
        float made[LANES];
#pragma unroll
        for (int i = 0; i < LANES; i++)
            made[i] = x;
#pragma unroll 1
        for (int q = threadIdx.x; q < vectors; q += THREADS)
            store(o, to, whole, q, made);
    }
    /* All of a row that comes. */
    __device__ __forceinline__ void bring(const coming &next) const
    {
        cp_async_wait<0>(); /* what comes must not be overtaken by what has come */
        for_groups([&](int g) { commit(g); }, [&](int q) { fetch(next, q); });
        cp_async_commit();
    }
    /* A group ends where the next one begins. */
    static __device__ __forceinline__ void commit(int g)
    {
        if (g > 0)
            cp_async_commit();
    }

    /* Gradients; `by` times the exponentials outside of the set, by_set times their slopes in it. The next row comes.
     */
    __device__ __forceinline__ void write_gradients(long long row, const char *from, bool whole, exponent_of e,
                                                    float by, double by_set, const coming &next) const
    {
        const onep_logits_operand &o = k.loss.grad_predictions;
        char *to = row_of(o, k.loss.rows, row);
        const bool to_whole = is_whole(o, to);
        for_groups([&](int g) { commit(g); },
                   [&](int q) {
                       const vector some = q < held ? slots[q] : load(k.loss.predictions, from, whole, q);
                       float made[LANES];
                       unpack(some, made);
                       fetch(next, q);
#pragma unroll
                       for (int i = 0; i < LANES; i++)
                           made[i] = e(made[i]) * by;
                       store(o, to, to_whole, q, made);
                       for_named_in(q, [&](int i, int at) {
                           store_column(o, to, (long long)q * LANES + i, by_set * set.slopes[at]);
                       });
                   });
        cp_async_commit();
    }
    /* The same where `factor` is no number that float has. */
    __device__ __forceinline__ void write_wide_gradients(long long row, const char *from, float m, double factor,
                                                         double by_set) const
    {
        const onep_logits_loss_args &a = k.loss;
        char *to = row_of(a.grad_predictions, a.rows, row);
#pragma unroll 1
        for (int q = threadIdx.x; q < vectors; q += THREADS)
#pragma unroll 1
            for (long long column = (long long)q * LANES; column < a.columns && column < (q + 1ll) * LANES; column++) {
                const int at = set.find(column);
                const double v = load_column<double>(a.predictions, from, column);
                double made = 0;
                if (at >= 0)
                    made = by_set * set.slopes[at];
                else if (v != minus_infinity(v))
                    made = times(exp((v - (double)m) / a.temperature), factor);
                store_column(a.grad_predictions, to, column, made);
            }
    }

    /* Everything of the row; returns its weighted value, in every thread. The row's copies have been asked for. */
    __device__ __forceinline__ double run(long long row, double upstream_one, double divisor, long long next_row)
    {
        const onep_logits_loss_args &a = k.loss;
        fill_columns<float, team_of_threads>(a.grad_predictions, row_of(a.grad_predictions, a.rows, row), a.columns,
                                             a.width, 0.0f);
        const coming next = coming_of(next_row);
        if (!takes_part(row)) {
            fill(row, 0);
            bring(next);
            return 0;
        }
        const double weight = number_of(a.weights, row_of(a.weights, a.rows, row), 1);
        const double upstream =
            a.per_row ? number_of(a.grad_value, row_of(a.grad_value, a.rows, row), 1) : upstream_one;
        const char *from = row_of(a.predictions, a.rows, row);
        const bool whole = is_whole(a.predictions, from);
        set.load(row);
        exponent_of e((float)(1.44269504088896341 / a.temperature));
        float m;
        double others;
        find_outside(from, whole, e.k, m, others);
        e.set(m);

        const auto z_at = [&](long long column) {
            return (double)widen(*reinterpret_cast<const T *>(from + column * a.predictions.col_stride)) /
                   a.temperature;
        };
        const student outside((double)m / a.temperature, others), in_set = set.student_of_set(z_at);
        const bool is_undefined = !(outside.most < -minus_infinity(0.0)) || !(in_set.most < -minus_infinity(0.0));
        const student all = joined(in_set, outside);
        bool has_no_mass = !is_undefined && all.has_no_mass;
        if (!has_no_mass && !set.has_bad_index) {
            set.finish(all, outside, in_set, z_at);
            has_no_mass = set.lacks_mass;
        }
        const double scale = weight * upstream / divisor;
        if (has_no_mass || set.has_bad_index || is_undefined) {
            const double x = has_no_mass && a.finite ? 0 : not_a_number();
            fill(row, (float)x);
            bring(next);
            return weight * x;
        }
        if (a.grad_predictions.data) {
            const double by_set = a.weight / a.temperature * scale;
            const double factor = by_set * set.tail_slope;
            const float by = (float)factor * exp2_of(-e.error);
            if (magnitude(by) < -minus_infinity(0.0f)) {
                write_gradients(row, from, whole, e, by, by_set, next);
                return weight * (a.weight * set.value);
            }
            write_wide_gradients(row, from, m, factor, by_set);
        }
        bring(next);
        return weight * (a.weight * set.value);
    }

    /* The softmax over two sets of columns. */
    static __device__ __forceinline__ student joined(const student &a, const student &b)
    {
        if (a.has_no_mass)
            return b;
        if (b.has_no_mass)
            return a;
        const bool is_a = a.most >= b.most;
        const double below = is_a ? b.most - a.most : a.most - b.most;
        const double of_lower = (1 + (is_a ? b.others : a.others)) * exp(below);
        return student(is_a ? a.most : b.most, (is_a ? a.others : b.others) + of_lower);
    }
    struct team_of_threads {
        static __device__ __forceinline__ int rank()
        {
            return threadIdx.x;
        }
        static __device__ __forceinline__ int size()
        {
            return THREADS;
        }
    };

    /* ---- all rows ---- */

    /* Chunks are this block's, every gridDim.x-th; -1: there are no more rows. */
    __device__ __forceinline__ long long after(long long row) const
    {
        const onep_logits_rows &rows = k.loss.rows;
        const long long chunk = row / rows.chunk;
        if (row + 1 < rows.count && (row + 1) / rows.chunk == chunk)
            return row + 1;
        return chunk + gridDim.x < rows.chunks ? (chunk + gridDim.x) * rows.chunk : -1;
    }

    __device__ __forceinline__ void run_all()
    {
        const onep_logits_loss_args &a = k.loss;
        const double upstream_one = upstream_of(a);
        if (a.made_for.data && upstream_one == load_any<double>(a.made_for.type, a.made_for.data))
            return; /* the gradients in memory are the ones asked for: no block gets further */
        const double divisor =
            a.counted ? __ldcg(a.counted) : number_of(a.divisor_from, a.divisor_from.data, a.divisor);
        long long row = blockIdx.x < a.rows.chunks ? blockIdx.x * a.rows.chunk : -1;
        bring(coming_of(row));
        double sum = 0;
        while (row >= 0) {
            const long long next = after(row);
            const double value = run(row, upstream_one, divisor, next);
            if (a.per_row && a.value.data && threadIdx.x == 0)
                store_number(a.value, a.rows, row, value);
            sum += value;
            if (next != row + 1 || next % a.rows.chunk == 0) { /* the last one of its chunk */
                if (a.value.data && !a.per_row && threadIdx.x == 0)
                    a.partial[row / a.rows.chunk] = sum;
                sum = 0;
            }
            row = next;
        }
        cp_async_wait<0>();
        if (a.per_row || !a.value.data || !last_block(a.ticket, gridDim.x))
            return;
        __shared__ double room[32];
        const double total = sum_partials(a.partial, a.rows.chunks, room);
        if (threadIdx.x == 0) {
            const bool is_none = a.counted && a.finite && divisor == 0;
            store_any<double>(a.value.type, a.value.data, is_none ? 0.0 : total / divisor);
        }
    }
};

#define ONEP_LOGITS_TOP_K_HELD(name, T)                                                                                \
    extern "C" __global__ void __launch_bounds__(ONEP_TOP_K_THREADS, 2)                                                \
        onep_top_k_held_##name(const __grid_constant__ onep_logits_top_k_args k)                                       \
    {                                                                                                                  \
        top_k_held<T, ONEP_TOP_K_THREADS> rows(k);                                                                     \
        rows.run_all();                                                                                                \
    }

#endif
