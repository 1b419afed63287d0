/*
 * Divergences of logits from logits other than KL, a row in the shared memory of a cluster (cuda_cluster.cuh): every
 * logit is read once, every gradient written once. A slice stays in its slot, and every sweep is a loop over its
 * vectors: short code, few registers, and so three blocks per multiprocessor, which wait for copies and for each other
 * in turn. Gradients that cannot be stored as they are made are put in order in the slots they come from.
 *
 * Sweeps of a row: its softmaxes; value and sums of the derivatives (reverse KL needs none); gradients. In units of
 * log 2, with d the exponents of a column against its slice's maxima and delta = log(S / T),
 *
 *   reverse KL   D = sum of S delta,  dz = S (delta - D)
 *   M = q T + (1-q) S:  rho = 2^-|delta|, L = log of M over the larger of S and T:
 *                A + B rho with A = 1-q, B = q where S is the larger, and the other way round
 *                log(S/M) = min(delta, 0) - L,  log(T/M) = -max(delta, 0) - L
 *   total variation  from S - T
 *
 * by ex2, lg2 and rcp alone: off by what the exponents are off by and 2^-22, of the terms' magnitudes. Where D is below
 * 2^-7, infinite or no number, value and gradients are those of cuda_column.cuh instead, whose functions keep the
 * digits of small ones: two more sweeps, of rows that are that near each other.
 */
#ifndef ONEP_LOGITS_CLUSTER_MIXED_CUH
#define ONEP_LOGITS_CLUSTER_MIXED_CUH

#include "logits/cuda_cluster_loss.cuh"

/* JENSEN_SHANNON: a mixture with a = q and b = 1 - q, whose slopes are b S log(S/M) and a T log(T/M) alone. */
enum mixed_kind { REVERSE_KL, MIXTURE, JENSEN_SHANNON, VARIATION };

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* A lane's sum over its vectors, in parts of two: every term is rounded up to 18 times, and two registers hold it. */
struct lane_sum {
    float part, all;

    __device__ __forceinline__ lane_sum() : part(0), all(0) {}
    __device__ __forceinline__ void add(float x)
    {
        part += x;
    }
    __device__ __forceinline__ void end_of_vector(int turn)
    {
        if (turn & 1) {
            all += part;
            part = 0;
        }
    }
};
/* The vector to sweep over in that turn. */
__device__ __forceinline__ int in_turn(int turn)
{
    return (turn >> 1) + (turn & 1) * (VECTORS / 2);
}

/* ---- slices in their slots --------------------------------------------------------------------------------------- */

template <class T> struct mixed_warp : cluster_warp<T, 2, 2, 2> {
    typedef cluster_warp<T, 2, 2, 2> base;
    typedef slice_of<T> slice_type;
    enum { LANES = element<T>::lanes };

    __device__ __forceinline__ mixed_warp(const onep_logits_rows &all, long long all_columns, unsigned *chunk_counter,
                                          exchange<2> &shared_states, unsigned long long *barriers)
        : base(all, all_columns, chunk_counter, shared_states, barriers)
    {
    }

    __device__ __forceinline__ pack<T> *vectors(int operand) const
    {
        return reinterpret_cast<pack<T> *>(this->slot(operand)) + this->lane;
    }

    /* Has this row's slice in its slot from the slot's beginning on, -inf beyond its columns; returns its maximum. */
    __device__ __forceinline__ float settle(int operand, const onep_logits_operand &o)
    {
        const int shift = this->await(operand, o);
        slice_type x;
        this->take(operand, shift, x);
        if (shift != 0 || this->columns < slice_type::COLUMNS) {
            __syncwarp(); /* every lane has taken what others are about to overwrite */
#pragma unroll
            for (int j = 0; j < VECTORS; j++)
                vectors(operand)[32 * j] = x.at[j];
            __syncwarp(); /* and lanes read each other's */
        }
        return largest_of(x);
    }

    /* f(turn, j, v, w) for vector j of this lane, v and w its columns on both sides. */
    template <class F> __device__ __forceinline__ void for_vectors(const F &f) const
    {
#pragma unroll 1
        for (int turn = 0; turn < VECTORS; turn++) {
            const int j = in_turn(turn);
            float v[LANES], w[LANES];
            unpack(vectors(0)[32 * j], v);
            unpack(vectors(1)[32 * j], w);
            f(turn, j, v, w);
        }
    }

    /* f(x, y) for columns, one after the other; whose lane they are is of no matter to it. */
    template <class F> __device__ __forceinline__ void for_columns(const F &f) const
    {
        T *x = reinterpret_cast<T *>(this->slot(0)), *y = reinterpret_cast<T *>(this->slot(1));
#pragma unroll 1
        for (int i = this->lane; i < this->columns; i += 32)
            f(x[i], y[i]);
    }

    /* Stores what the slot has, from its beginning on, as this row's slice of o. */
    __device__ __forceinline__ void store_slot(int operand, const onep_logits_operand &o, char *to) const
    {
        const T *at = reinterpret_cast<const T *>(this->slot(operand));
        if (o.col_stride != sizeof(T)) {
#pragma unroll 2
            for (int i = this->lane; i < this->columns; i += 32)
                *reinterpret_cast<T *>(to + i * o.col_stride) = at[i];
            return;
        }
        const int shift = base::shift_of(o, to), begin = 16 - shift & 15, bytes = this->columns * (int)sizeof(T);
        const unsigned bits = (begin & 3) * 8;
        const auto store = [&](int j, uint4 vector) {
            const int from = (32 * j + this->lane) * 16 + begin;
            if (from + 16 <= bytes)
                *reinterpret_cast<uint4 *>(to + from) = vector;
        };
        const uint4 *from = reinterpret_cast<const uint4 *>(at);
#define STORE(words) for_shifted<words>(from, this->lane, bits, store)
        ONEP_WITH_SHIFT(begin, STORE)
#undef STORE
        const int column = this->edge_of(shift);
        if (column >= 0)
            reinterpret_cast<T *>(to)[column] = at[column];
    }
    __device__ __forceinline__ bool is_direct(const onep_logits_operand &o, const char *to) const
    {
        return o.col_stride == sizeof(T) && base::shift_of(o, to) == 0 && this->columns % LANES == 0;
    }

    /* Both gradients of this row's slice: make(v, w, dx, dy) makes a vector of each; dy need not be made without
     * gradients to targets. Then the slots are free. */
    template <class F> __device__ __forceinline__ void write(const onep_logits_loss_args &k, const F &make)
    {
        char *to_x = this->slice_at(k.grad_predictions, this->row), *to_y = this->slice_at(k.grad_targets, this->row);
        const bool x_is_direct = to_x && is_direct(k.grad_predictions, to_x);
        const bool y_is_direct = to_y && is_direct(k.grad_targets, to_y);
        if (to_x || to_y)
            for_vectors([&](int, int j, const float(&v)[LANES], const float(&w)[LANES]) {
                float dx[LANES], dy[LANES];
                make(v, w, dx, dy);
                const int column = (32 * j + this->lane) * LANES;
                if (!x_is_direct)
                    vectors(0)[32 * j] = packed(T(), dx);
                else if (column < this->columns)
                    store_pack(reinterpret_cast<T *>(to_x) + column, packed(T(), dx));
                if (!to_y)
                    return;
                if (!y_is_direct)
                    vectors(1)[32 * j] = packed(T(), dy);
                else if (column < this->columns)
                    store_pack(reinterpret_cast<T *>(to_y) + column, packed(T(), dy));
            });
        finish(k, x_is_direct ? 0 : to_x, y_is_direct ? 0 : to_y);
    }
    /* The same, make(v, w, dx, dy) for one column: less code where that is long. */
    template <class F> __device__ __forceinline__ void write_columns(const onep_logits_loss_args &k, const F &make)
    {
        for_columns([&](T &x, T &y) {
            float dx, dy;
            make(widen(x), widen(y), dx, dy);
            narrow(x, dx);
            narrow(y, dy);
        });
        finish(k, this->slice_at(k.grad_predictions, this->row), this->slice_at(k.grad_targets, this->row));
    }
    /* Stores what is in order in the slots; they are free then. */
    __device__ __forceinline__ void finish(const onep_logits_loss_args &k, char *to_x, char *to_y) const
    {
        __syncwarp(); /* lanes store what other lanes have put in order */
        if (to_x)
            store_slot(0, k.grad_predictions, to_x);
        if (to_y)
            store_slot(1, k.grad_targets, to_y);
        fence_copies(); /* the next row's slices will lie where lanes have written */
        __syncwarp();
    }
};

/* Sums over the slices of the row, of what every lane has. Returns whether any lane of any slice has the flag. */
template <class WARP> __device__ __forceinline__ bool exchange_sums(WARP &warp, double (&x)[3], bool flag)
{
    sum_over_warp(x);
    warp.send(0, 1, make_float4((float)x[0], (float)x[1], (float)x[2], __any_sync(~0u, flag) ? 1.0f : 0.0f));
    warp.receive();
    x[0] = x[1] = x[2] = 0;
    flag = false;
    warp.for_slices([&](int s) {
        const float4 one = warp.received(0)[s];
        x[0] += (double)one.x;
        x[1] += (double)one.y;
        x[2] += (double)one.z;
        flag |= one.w != 0;
    });
    sum_over_warp(x);
    return __any_sync(~0u, flag);
}

/* ---- columns ----------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ float inverse_of(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Of a column: its value, and S dD/dS and T dD/dT but for multiples of S and T, which cancel in gradients; in units. */
struct mixed_terms {
    float value, s_phi, t_psi;
    bool is_tie; /* of total variation: S is T, and the signs are wrong */
};
template <mixed_kind KIND> __device__ __forceinline__ double value_in_units()
{
    return KIND == VARIATION ? 0.5 : -0.693147180559945309;
}
/* Derivatives are in the same units for total variation, else in natural ones. */
template <mixed_kind KIND> __device__ __forceinline__ float slope_in_units()
{
    return KIND == VARIATION ? 0.5f : 1.0f;
}

/* A row seen from one slice, both sides, and what columns are made from. */
struct mixed_columns {
    slice_softmax of_s, of_t;
    float share_s, share_t; /* what exponentials are multiplied by */
    float shift;            /* delta = d_s - d_t + shift, in units of log 2 */
    float apart;            /* the same from logits: delta = v k_s - w k_t + apart */
    bool same_temperature;
    float a, b, q, p; /* p = 1 - q */
    bool has_ratios;  /* of S and T to M, in the slopes */

    __device__ __forceinline__ float probability_s(float v) const
    {
        return __fmul_rn(exp2_of(of_s.exponent(v)), share_s);
    }
    __device__ __forceinline__ float probability_t(float w) const
    {
        return __fmul_rn(exp2_of(of_t.exponent(w)), share_t);
    }
    /* NaN or +inf somewhere in the row. */
    __device__ __forceinline__ bool is_undefined() const
    {
        return !(shift - shift == 0);
    }

    /* The gradient of reverse KL to v; `value` in units of log 2. Products and sums are spelled out in all of these:
     * kernels must round alike. */
    __device__ __forceinline__ float reverse_slope(float v, float w, float value, float to_s) const
    {
        const float d_s = of_s.exponent(v);
        const float apart_by = fmaxf(d_s - of_t.exponent(w), -1e30f); /* where S has no mass as well */
        return __fmul_rn(__fmul_rn(exp2_of(d_s), __fmul_rn(__fmul_rn(share_s, to_s), LN_2)),
                         apart_by + (shift - value));
    }
    /*
     * With L = log2 of M over the larger of S and T, and |delta| between them: -log2 of the larger over M is L, of the
     * smaller |delta| + L. Columns without mass on either side (NaN) count as far apart.
     */
    template <mixed_kind KIND> __device__ __forceinline__ mixed_terms mixture(float v, float w) const
    {
        mixed_terms e;
        const float d_s = of_s.exponent(v), d_t = of_t.exponent(w), delta = (d_s - d_t) + shift;
        const bool s_is_larger = delta >= 0;
        const float far = fminf(fabsf(delta), 1e30f), rho = exp2_of(-far);
        const float q_large = s_is_larger ? p : q, q_small = s_is_larger ? q : p;
        const float sum = fmaf(q_small, rho, q_large), l = log2_of(sum);
        const float large = __fmul_rn(exp2_of(s_is_larger ? d_s : d_t), s_is_larger ? share_s : share_t);
        const float small = __fmul_rn(large, rho);
        const float of_large = __fmul_rn(large, l), of_small = __fmul_rn(small, far + l);
        const float c_large = KIND == JENSEN_SHANNON ? q_large : s_is_larger ? b : a;
        const float c_small = KIND == JENSEN_SHANNON ? q_small : s_is_larger ? a : b;
        e.value = fmaf(c_large, of_large, __fmul_rn(c_small, of_small));
        e.s_phi = __fmul_rn(s_is_larger ? of_large : of_small, __fmul_rn(b, -LN_2));
        e.t_psi = __fmul_rn(s_is_larger ? of_small : of_large, __fmul_rn(a, -LN_2));
        if (KIND == MIXTURE && has_ratios) {
            const float large_m = inverse_of(sum), small_m = __fmul_rn(large_m, rho); /* over M */
            const float both = fmaf(c_large, large_m, __fmul_rn(c_small, small_m));
            e.s_phi = fmaf(s_is_larger ? large : small, fmaf(-p, both, b), e.s_phi);
            e.t_psi = fmaf(s_is_larger ? small : large, fmaf(-q, both, a), e.t_psi);
        }
        e.is_tie = false;
        return e;
    }
    __device__ __forceinline__ mixed_terms variation(float v, float w) const
    {
        mixed_terms e;
        const float s = probability_s(v), t = probability_t(w);
        /* Not from S - T, which is their rounding where they are near each other. */
        const float delta = same_temperature ? fmaf(v - w, of_s.k, apart) : fmaf(v, of_s.k, fmaf(-w, of_t.k, apart));
        e.value = fabsf(s - t);
        e.s_phi = copysignf(s, delta);
        e.t_psi = copysignf(t, -delta);
        e.is_tie = delta == 0;
        return e;
    }
    template <mixed_kind KIND> __device__ __forceinline__ mixed_terms terms(float v, float w) const
    {
        return KIND == VARIATION ? variation(v, w) : mixture<KIND>(v, w);
    }
    /* The gradient to v from its s_phi, with the row's sum of them; and to w from its t_psi. */
    template <mixed_kind KIND>
    __device__ __forceinline__ float slope_s(float v, float s_phi, float s_sum, float to_s) const
    {
        return KIND == VARIATION
                   ? fmaf(s_phi, __fmul_rn(0.5f, to_s), -__fmul_rn(fabsf(s_phi), __fmul_rn(s_sum, to_s)))
                   : fmaf(s_phi, to_s,
                          -__fmul_rn(exp2_of(of_s.exponent(v)), __fmul_rn(__fmul_rn(share_s, s_sum), to_s)));
    }
    template <mixed_kind KIND>
    __device__ __forceinline__ float slope_t(float w, float t_psi, float t_sum, float to_t) const
    {
        return KIND == VARIATION
                   ? fmaf(t_psi, __fmul_rn(0.5f, to_t), -__fmul_rn(fabsf(t_psi), __fmul_rn(t_sum, to_t)))
                   : fmaf(t_psi, to_t,
                          -__fmul_rn(exp2_of(of_t.exponent(w)), __fmul_rn(__fmul_rn(share_t, t_sum), to_t)));
    }
};

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/*
 * What the first sweep over a slice adds up per lane: both softmaxes, and of reverse KL the sum of exp(d_s) (d_s -
 * d_t), infinite where T alone has no mass.
 */
struct mixed_sweep {
    int ties_s, ties_t;
    lane_sum tails_s, tails_t, products;

    __device__ __forceinline__ mixed_sweep() : ties_s(0), ties_t(0) {}
    template <mixed_kind KIND, int LANES>
    __device__ __forceinline__ void add(int turn, const slice_softmax &of_s, const slice_softmax &of_t,
                                        const float (&v)[LANES], const float (&w)[LANES])
    {
#pragma unroll
        for (int i = 0; i < LANES; i++) {
            const float d_s = of_s.exponent(v[i]), d_t = of_t.exponent(w[i]), e_s = exp2_of(d_s);
            add_exponential(v[i], of_s.m, e_s, ties_s, tails_s.part);
            add_exponential(w[i], of_t.m, exp2_of(d_t), ties_t, tails_t.part);
            if (KIND == REVERSE_KL) /* no mass, no product: -inf - -inf would be NaN */
                add_product(e_s, d_s - d_t, products.part);
        }
        tails_s.end_of_vector(turn);
        tails_t.end_of_vector(turn);
        products.end_of_vector(turn);
    }
};

/* How far the maximum of a slice is below the row's, in units of log 2; of a slice without mass anything finite. */
__device__ __forceinline__ float below_of(const slice_softmax &of, float row_m)
{
    return of.m == minus_infinity(0.0f) ? 0.0f : __fmul_rn(of.m - row_m, of.k);
}

/* The whole row, from the states of its slices, and seen from this one. */
template <mixed_kind KIND> struct mixed_row {
    merged_softmax s, t;
    double cross; /* of reverse KL: the sum of exp(d_s) (d_s - d_t) */
    float inverse_s, inverse_t;
    float log_of_sums; /* of the ratio of both, exactly 0 where they are the same */
    double over_s, over_t;
    bool has_no_mass;

    __device__ __forceinline__ mixed_row() {}
    template <class WARP>
    __device__ __forceinline__ mixed_row(const WARP &warp, const loss_facts &facts, const float4 *got_s,
                                         const float4 *got_t)
    {
        merge_both<KIND == REVERSE_KL ? -1 : 0>(warp, facts.k_s, facts.k_t, got_s, got_t, s, t, cross);
        inverse_s = __frcp_rn(1 + s.others());
        inverse_t = __frcp_rn(1 + t.others());
        over_s = s.inverse(inverse_s);
        over_t = t.inverse(inverse_t);
        log_of_sums = ::log_of_sums(s.exact_others(), t.exact_others(), over_t);
        has_no_mass = s.has_no_mass() || t.has_no_mass();
    }
    /* Seen from a slice. */
    __device__ __forceinline__ mixed_columns columns_of(const onep_logits_loss_args &k, const slice_softmax &of_s,
                                                        const slice_softmax &of_t) const
    {
        const float below_s = below_of(of_s, s.m), below_t = below_of(of_t, t.m);
        const bool same_temperature = k.temperature == k.target_temperature;
        const float of_sums = __fmul_rn(-1.44269504f, log_of_sums);
        const mixed_columns seen = {of_s,
                                    of_t,
                                    __fmul_rn(inverse_s, of_s.factor(s.m)),
                                    __fmul_rn(inverse_t, of_t.factor(t.m)),
                                    ((below_s - of_s.error) - (below_t - of_t.error)) + of_sums,
                                    same_temperature ? fmaf(t.m - s.m, of_s.k, of_sums)
                                                     : fmaf(t.m, of_t.k, fmaf(-s.m, of_s.k, of_sums)),
                                    same_temperature,
                                    (float)k.a,
                                    (float)k.b,
                                    (float)k.q,
                                    (float)(1 - k.q),
                                    k.a != k.q || k.b != 1 - k.q};
        return seen;
    }
    __device__ __forceinline__ double reverse_value() const
    {
        return fma(cross, over_s, -(double)log_of_sums);
    }
};

/* log(1 + x) for |x| < 0.66: twice the inverse hyperbolic tangent of x / (2 + x), first term left out 4e-9 of it. */
__device__ __forceinline__ float small_log1p(float x)
{
    const float z = __fmul_rn(x, inverse_of(2 + x)), zz = __fmul_rn(z, z);
    float sum = 1.0f / 11;
    sum = fmaf(sum, zz, 1.0f / 9);
    sum = fmaf(sum, zz, 1.0f / 7);
    sum = fmaf(sum, zz, 1.0f / 5);
    sum = fmaf(sum, zz, 1.0f / 3);
    return fmaf(__fmul_rn(sum, zz), 2 * z, 2 * z);
}

/* divergence_of a column with |delta| < 1/2, without the functions of a library: what is near is near in most columns.
 */
template <mixed_kind KIND>
__device__ __forceinline__ column_terms<float> near_terms(const mixed_columns &of, float s, float t, float delta)
{
    column_terms<float> e = {0, 0, 0, 0};
    const float below = small_excess(-delta); /* exp(-delta) - 1 + delta */
    if (KIND == VARIATION) {
        const float difference = __fmul_rn(t, small_excess(delta) + delta);
        const float half_sign = difference > 0 ? 0.5f : difference < 0 ? -0.5f : 0.0f;
        e.value = 0.5f * fabsf(difference);
        e.s_phi = __fmul_rn(s, half_sign);
        e.t_psi = __fmul_rn(-t, half_sign);
    } else if (KIND == REVERSE_KL) {
        e.value = __fmul_rn(s, below);
        e.s_phi = __fmul_rn(s, delta + 1);
        e.t_psi = -s;
    } else {
        const float t_less_s = below - delta, m_less_s = __fmul_rn(of.q, t_less_s); /* over S */
        const float s_m = inverse_of(1 + m_less_s), t_less_m = __fmul_rn(__fmul_rn(of.p, t_less_s), s_m);
        const float log_m_s = small_log1p(m_less_s), log_t_m = small_log1p(t_less_m);
        e.value =
            fmaf(__fmul_rn(of.a, t), small_excess(-log_t_m), __fmul_rn(__fmul_rn(of.b, s), small_excess(log_m_s)));
        e.s_phi =
            fmaf(__fmul_rn(of.b, s), 1 - log_m_s - __fmul_rn(of.p, s_m), -__fmul_rn(__fmul_rn(of.a, of.p), t) * s_m);
        e.t_psi = fmaf(__fmul_rn(of.a, t), 1 + log_t_m - __fmul_rn(of.q, 1 + t_less_m),
                       -__fmul_rn(__fmul_rn(of.b, of.q), s) * (1 + t_less_m));
    }
    return e;
}

/* A row that is near, infinite or no number, seen from one slice. */
template <mixed_kind KIND> struct exact_columns {
    const onep_logits_loss_args &k;
    const mixed_columns &columns;
    const kl_columns apart;
    const softmax_scale<float> through_s, through_t;

    __device__ __forceinline__ exact_columns(const onep_logits_loss_args &args, const loss_facts &facts,
                                             const mixed_row<KIND> &of, const mixed_columns &seen)
        : k(args), columns(seen), apart({of.s.m, of.t.m, facts.over_s, facts.over_t, of.log_of_sums,
                                         args.temperature == args.target_temperature}),
          through_s(of.s.m, of.inverse_s, 0, __fmul_rn(of.s.others(), of.inverse_s)),
          through_t(of.t.m, of.inverse_t, 0, __fmul_rn(of.t.others(), of.inverse_t))
    {
    }
    __device__ __forceinline__ column_terms<float> terms(float v, float w) const
    {
        const float s = columns.probability_s(v), t = columns.probability_t(w), delta = apart.delta(v, w);
        return s > 0 && t > 0 && fabsf(delta) < 0.5f ? near_terms<KIND>(columns, s, t, delta)
                                                     : divergence_of<float>(k, s, t, delta);
    }
    __device__ __forceinline__ void slopes(float v, float w, const double (&of_row)[3], float &dx, float &dy) const
    {
        const column_terms<float> one = terms(v, w);
        dx = through_s.through(one.s_phi, v, columns.probability_s(v), of_row[1]);
        dy = through_t.through(one.t_psi, w, columns.probability_t(w), of_row[2]);
    }
};

template <class T, mixed_kind KIND> __device__ __forceinline__ void cluster_mixed(const onep_logits_loss_args &k)
{
    enum { LANES = element<T>::lanes };
    __shared__ exchange<2> states;
    __shared__ unsigned long long barriers[2 * ONEP_LOGITS_MAX_WARPS];
    __shared__ int claims[2];
    __shared__ row_ledger<divergence_record> ledger;
    if (has_gradients_already(k))
        return;
    __shared__ loss_facts facts;
    if (threadIdx.x == 0)
        facts.find(k, k.temperature, k.target_temperature, k.weight);
    mixed_warp<T> warp(k.rows, k.columns, k.ticket + 1, states, barriers);
    warp.begin(claims);
    if (warp.slice >= warp.slices)
        warp.row = -1;
    warp.request(0, k.predictions, warp.row);
    warp.request(1, k.targets, warp.row);
    const bool has_more = k.entropy.data || k.target_entropy.data || k.argmax.data || k.log_prob.data;
    double sum = 0;
    int rows_kept = 0;
    const auto settle = [&](const divergence_record *record) {
        const double value = record ? divergence_results(k, facts, *record) : 0;
        add_values(k, sum, record != 0, record ? record->row : 0, record && record->ends_a_chunk, value);
    };
    kl_row here, ahead;
    ahead.find(k, facts, warp.row);
    for (;;) {
        if (warp.has_results())
            ledger.settle(rows_kept, warp.lane, warp.row < 0, settle);
        if (warp.row < 0)
            break;
        here = ahead;
        warp.put_beyond(k.grad_predictions, k.columns, k.width);
        warp.put_beyond(k.grad_targets, k.columns, k.width);

        /* The softmaxes, and of reverse KL the sum of exp(d_s) (d_s - d_t): infinite where T alone has no mass. */
        const slice_softmax of_s(facts.k_s, warp.settle(0, k.predictions));
        const slice_softmax of_t(facts.k_t, warp.settle(1, k.targets));
        mixed_sweep first;
        warp.for_vectors([&](int turn, int, const float(&v)[LANES], const float(&w)[LANES]) {
            first.template add<KIND>(turn, of_s, of_t, v, w);
        });
        double sums[3] = {(double)first.tails_s.all, (double)first.tails_t.all, (double)first.products.all};
        sum_over_warp(sums);
        const softmax_state mine_s = state_of(of_s, first.ties_s, sums[0]);
        const softmax_state mine_t = state_of(of_t, first.ties_t, sums[1]);
        const float mass_s = mine_s.ties + mine_s.tail;
        warp.send(0, 2, make_float4(mine_s.m, mine_s.ties, mine_s.tail, cross_sum_of(sums[2], of_s, mine_s, of_t)));
        warp.send(1, 2, make_float4(mine_t.m, mine_t.ties, mine_t.tail, warp.claim_word()));
        ahead.find(k, facts, warp.next);
        warp.receive();

        const float4 *got_s = warp.received(0), *got_t = warp.received(1);
        const int next_claim = __float_as_int(got_t[0].w);
        const mixed_row<KIND> whole(warp, facts, got_s, got_t);
        const merged_softmax &all_s = whole.s, &all_t = whole.t;
        const mixed_columns columns = whole.columns_of(k, of_s, of_t);
        const double no_number = k.finite ? 0 : not_a_number();
        const bool is_filled = !here.takes_part || whole.has_no_mass;

        /* Results beside loss and gradients, each from a term of every slice. */
        divergence_record record = {
            warp.row, warp.ends_a_chunk, 0, all_s.m, all_t.m, 0, all_s.exact_others(), all_t.exact_others(), 0, 0, 0,
            0};
        if (has_more) {
            const T *x = reinterpret_cast<const T *>(warp.slot(0)), *y = reinterpret_cast<const T *>(warp.slot(1));
            const float mass_t = mine_t.ties + mine_t.tail;
            const float far_s = distance_of(x, warp.columns, warp.lane, of_s);
            const float far_t = distance_of(y, warp.columns, warp.lane, of_t);
            const int from_here = here.label - warp.first_column;
            const bool has_label = here.label >= 0 && from_here >= 0 && from_here < warp.columns;
            const float below_s = below_of(of_s, all_s.m), below_t = below_of(of_t, all_t.m);
            const float first = of_s.m == all_s.m || of_s.m != of_s.m
                                    ? first_at(x, warp.columns, warp.lane, of_s.m, warp.first_column)
                                    : 2e9f;
            warp.send(0, 1,
                      make_float4(mine_s.ties != 0 ? exp2_of(below_s) * (far_s - mass_s * below_s) : 0.0f,
                                  mine_t.ties != 0 ? exp2_of(below_t) * (far_t - mass_t * below_t) : 0.0f, first,
                                  has_label ? (float)widen(x[from_here]) : 0.0f));
            warp.receive();
            const float4 *more = warp.received(0);
            double far[2] = {0, 0};
            float column = 2e9f;
            warp.for_slices([&](int s) {
                far[0] += (double)more[s].x;
                far[1] += (double)more[s].y;
                column = fminf(column, more[s].z);
            });
            sum_over_warp(far);
            record.distance_s = far[0] * whole.over_s * 0.693147180559945309;
            record.distance_t = far[1] * whole.over_t * 0.693147180559945309;
            record.first = __reduce_min_sync(~0u, (int)column);
            if (here.label >= 0)
                record.v_label = more[here.label / slice_of<T>::COLUMNS].w;
        }

        /* The value, and what gradients need of the whole row. */
        double of_row[3] = {0, 0, 0};
        bool has_ties = false;
        if (KIND == REVERSE_KL) {
            of_row[0] = whole.reverse_value();
        } else if (!is_filled) {
            lane_sum values, of_s_phi, of_t_psi;
            warp.for_vectors([&](int turn, int, const float(&v)[LANES], const float(&w)[LANES]) {
#pragma unroll
                for (int i = 0; i < LANES; i++) {
                    const mixed_terms one = columns.terms<KIND>(v[i], w[i]);
                    values.add(one.value);
                    of_s_phi.add(one.s_phi);
                    of_t_psi.add(one.t_psi);
                    has_ties |= one.is_tie;
                }
                values.end_of_vector(turn);
                of_s_phi.end_of_vector(turn);
                of_t_psi.end_of_vector(turn);
            });
            of_row[0] = (double)values.all * value_in_units<KIND>();
            of_row[1] = (double)(of_s_phi.all * slope_in_units<KIND>());
            of_row[2] = (double)(of_t_psi.all * slope_in_units<KIND>());
            has_ties = exchange_sums(warp, of_row, has_ties);
        }
        /* What is near, infinite or no number, by the functions of cuda_column.cuh. */
        const bool is_exact = __any_sync(
            ~0u, !is_filled && (has_ties || columns.is_undefined() || !(of_row[0] >= 1.0 / 128 && of_row[0] < 1e30)));
        const exact_columns<KIND> exact(k, facts, whole, columns);
        if (is_exact) {
            of_row[0] = of_row[1] = of_row[2] = 0;
            warp.for_columns([&](const T &x, const T &y) {
                const column_terms<float> one = exact.terms(widen(x), widen(y));
                of_row[0] += (double)one.value;
                of_row[1] += (double)one.s_phi;
                of_row[2] += (double)one.t_psi;
            });
            exchange_sums(warp, of_row, false);
        }

        const float to_s = __fmul_rn(here.scale, (float)facts.to_s), to_t = __fmul_rn(here.scale, (float)facts.to_t);
        const bool has_dy = k.grad_targets.data != 0;
        if (is_filled) {
            const float x = here.takes_part ? (float)no_number : 0.0f;
            warp.write(k, [&](const float(&)[LANES], const float(&)[LANES], float(&dx)[LANES], float(&dy)[LANES]) {
#pragma unroll
                for (int i = 0; i < LANES; i++)
                    dx[i] = dy[i] = x;
            });
        } else if (is_exact) {
            warp.write_columns(k, [&](float v, float w, float &dx, float &dy) {
                exact.slopes(v, w, of_row, dx, dy);
                dx *= to_s;
                dy *= to_t;
            });
        } else if (KIND == REVERSE_KL) {
            const float value = (float)(of_row[0] * 1.44269504088896341);
            warp.write(k, [&](const float(&v)[LANES], const float(&w)[LANES], float(&dx)[LANES], float(&dy)[LANES]) {
#pragma unroll
                for (int i = 0; i < LANES; i++) {
                    dx[i] = columns.reverse_slope(v[i], w[i], value, to_s);
                    dy[i] = has_dy ? (columns.probability_t(w[i]) - columns.probability_s(v[i])) * to_t : 0.0f;
                }
            });
        } else {
            const float s_sum = (float)of_row[1], t_sum = (float)of_row[2];
            warp.write(k, [&](const float(&v)[LANES], const float(&w)[LANES], float(&dx)[LANES], float(&dy)[LANES]) {
#pragma unroll
                for (int i = 0; i < LANES; i++) {
                    const mixed_terms one = columns.terms<KIND>(v[i], w[i]);
                    dx[i] = columns.slope_s<KIND>(v[i], one.s_phi, s_sum, to_s);
                    dy[i] = columns.slope_t<KIND>(w[i], one.t_psi, t_sum, to_t);
                }
            });
        }
        warp.request(0, k.predictions, warp.next);
        warp.request(1, k.targets, warp.next);
        if (warp.has_results()) {
            record.direction = KIND == REVERSE_KL && !is_exact ? -1 : 0;
            record.value = record.direction < 0 ? whole.cross : of_row[0];
            ledger.add(rows_kept, warp.lane, record);
        }
        warp.step(next_claim);
    }
    finish_loss(k, facts.divisor);
}

#define ONEP_LOGITS_CLUSTER_MIXED(name, T)                                                                             \
    ONEP_LOGITS_CLUSTER_OF(reverse_kl, REVERSE_KL, name, T)                                                            \
    ONEP_LOGITS_CLUSTER_OF(mixture, MIXTURE, name, T)                                                                  \
    ONEP_LOGITS_CLUSTER_OF(variation, VARIATION, name, T)
#define ONEP_LOGITS_CLUSTER_OF(kind, KIND, name, T)                                                                    \
    extern "C" __global__ void __launch_bounds__(ONEP_LOGITS_MAX_WARPS * 32, ONEP_LOGITS_CLUSTER_BLOCKS)               \
        onep_logits_##kind##_cluster_##name(const __grid_constant__ onep_logits_loss_args k)                           \
    {                                                                                                                  \
        cluster_mixed<T, KIND>(k);                                                                                     \
    }

#endif
