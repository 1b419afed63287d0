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

enum mixed_kind { REVERSE_KL, MIXTURE, VARIATION };

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

    /* f(j, v, w) for the vectors of this lane, v and w their columns on both sides. */
    template <class F> __device__ __forceinline__ void for_vectors(const F &f) const
    {
#pragma unroll 1
        for (int j = 0; j < VECTORS; j++) {
            float v[LANES], w[LANES];
            unpack(vectors(0)[32 * j], v);
            unpack(vectors(1)[32 * j], w);
            f(j, v, w);
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
            for_vectors([&](int j, const float(&v)[LANES], const float(&w)[LANES]) {
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

    /* Sums of a float4 over the slices of the row, each sum of a slice in every lane. */
    __device__ __forceinline__ void exchange_sums(double (&x)[3])
    {
        this->send(0, 1, make_float4((float)x[0], (float)x[1], (float)x[2], 0));
        this->receive();
        x[0] = x[1] = x[2] = 0;
        this->for_states([&](int s) {
            const float4 one = this->received(0)[s];
            x[0] += (double)one.x;
            x[1] += (double)one.y;
            x[2] += (double)one.z;
        });
        sum_over_warp(x);
    }
    static __device__ __forceinline__ void sum_over_warp(double (&x)[3])
    {
#pragma unroll
        for (int offset = 16; offset > 0; offset >>= 1)
#pragma unroll
            for (int i = 0; i < 3; i++)
                x[i] += __shfl_xor_sync(~0u, x[i], offset);
    }
};

/* ---- columns ----------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ float log2_of(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float inverse_of(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* A row seen from one slice, both sides, and what columns are made from. */
struct mixed_columns {
    slice_softmax of_s, of_t;
    float share_s, share_t; /* what exponentials are multiplied by */
    float shift;            /* delta = d_s - d_t + shift, in units of log 2 */
    float a, b, q, p;       /* p = 1 - q */
    bool has_ratios;        /* slopes are not b S log(S/M) and a T log(T/M) alone, as those of JS are */

    /* Exponents; of columns without mass, a number that leaves differences finite. NaN stays NaN. */
    __device__ __forceinline__ float exponent_s(float v) const
    {
        return larger(of_s.exponent(v), -1e30f);
    }
    __device__ __forceinline__ float exponent_t(float w) const
    {
        return larger(of_t.exponent(w), -1e30f);
    }
    __device__ __forceinline__ float probability_s(float v) const
    {
        return exp2_of(of_s.exponent(v)) * share_s;
    }
    __device__ __forceinline__ float probability_t(float w) const
    {
        return exp2_of(of_t.exponent(w)) * share_t;
    }

    /* S dD/dS and T dD/dT but for multiples of S and T, which cancel in gradients; returns the value in units of log 2. */
    __device__ __forceinline__ float mixture(float v, float w, float &s, float &t, float &s_phi, float &t_psi) const
    {
        const float d_s = exponent_s(v), d_t = exponent_t(w), delta = (d_s - d_t) + shift;
        const bool s_is_larger = delta >= 0;
        const float rho = exp2_of(-fabsf(delta));
        const float sum = s_is_larger ? fmaf(q, rho, p) : fmaf(p, rho, q), l = log2_of(sum);
        const float large = exp2_of(s_is_larger ? d_s : d_t) * (s_is_larger ? share_s : share_t), small = large * rho;
        s = s_is_larger ? large : small;
        t = s_is_larger ? small : large;
        const float b_s = b * s * (fminf(delta, 0) - l), a_t = a * t * (-fmaxf(delta, 0) - l);
        s_phi = b_s * LN_2;
        t_psi = a_t * LN_2;
        if (has_ratios) {
            const float of_large = inverse_of(sum), of_small = of_large * rho; /* over M */
            const float both = s_is_larger ? fmaf(b, of_large, a * of_small) : fmaf(a, of_large, b * of_small);
            s_phi += s * (b - p * both);
            t_psi += t * (a - q * both);
        }
        return b_s + a_t + (delta - delta); /* NaN where delta is one, which fminf would hide */
    }
    __device__ __forceinline__ float variation(float v, float w, float &s, float &t, float &s_phi, float &t_psi) const
    {
        s = probability_s(v);
        t = probability_t(w);
        const float difference = s - t;
        const float half_sign = difference > 0 ? 0.5f : difference < 0 ? -0.5f : difference;
        s_phi = s * half_sign;
        t_psi = -t * half_sign;
        return 0.5f * fabsf(difference);
    }
    template <mixed_kind KIND>
    __device__ __forceinline__ float terms(float v, float w, float &s, float &t, float &s_phi, float &t_psi) const
    {
        return KIND == MIXTURE ? mixture(v, w, s, t, s_phi, t_psi) : variation(v, w, s, t, s_phi, t_psi);
    }
};

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* The softmax of a slice from sums in double. */
__device__ __forceinline__ softmax_state state_of(const slice_softmax &of, int ties, double tail)
{
    softmax_state s = {of.m, 0, (float)tail * exp2_of(-of.error)};
    ties = __reduce_add_sync(~0u, ties);
    s.ties = of.m == minus_infinity(0.0f) ? 0.0f : (float)ties;
    return s;
}

/* How far the maximum of a slice is below the row's, in units of log 2; of a slice without mass anything finite. */
__device__ __forceinline__ float below_of(const slice_softmax &of, float row_m)
{
    return of.m == minus_infinity(0.0f) ? 0.0f : (of.m - row_m) * of.k;
}

template <class T, mixed_kind KIND> __device__ __forceinline__ void cluster_mixed(const onep_logits_loss_args &k)
{
    enum { LANES = element<T>::lanes };
    __shared__ exchange<2> states;
    __shared__ unsigned long long barriers[2 * ONEP_LOGITS_MAX_WARPS];
    __shared__ int claims[2];
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
    while (warp.row >= 0) {
        warp.put_beyond(k.grad_predictions, k.columns, k.width);
        warp.put_beyond(k.grad_targets, k.columns, k.width);
        slice_frame frame(k, warp.row);
        const bool takes_part = frame.takes_part();
        const float scale = (float)(number_of(k.weights, row_of(k.weights, k.rows, warp.row), 1) *
                                    frame.upstream_of_row(facts.upstream));

        /* The softmaxes, and of reverse KL the sum of exp(d_s) (d_s - d_t): infinite where T alone has no mass. */
        const slice_softmax of_s(facts.k_s, warp.settle(0, k.predictions));
        const slice_softmax of_t(facts.k_t, warp.settle(1, k.targets));
        int ties_s = 0, ties_t = 0;
        double sums[3] = {0, 0, 0};
        warp.for_vectors([&](int, const float(&v)[LANES], const float(&w)[LANES]) {
            float tail_s = 0, tail_t = 0, products[LANES];
#pragma unroll
            for (int i = 0; i < LANES; i++) {
                const float d_s = of_s.exponent(v[i]), d_t = of_t.exponent(w[i]), e_s = exp2_of(d_s);
                add_exponential(v[i], of_s.m, e_s, ties_s, tail_s);
                add_exponential(w[i], of_t.m, exp2_of(d_t), ties_t, tail_t);
                products[i] = 0;
                if (KIND == REVERSE_KL) /* -inf - -inf counts nothing: there is no mass */
                    add_product(v[i] == minus_infinity(0.0f) ? 0.0f : e_s, d_s - d_t, products[i]);
            }
            sums[0] += (double)tail_s;
            sums[1] += (double)tail_t;
            if (KIND == REVERSE_KL)
                sums[2] += (double)sum_of(products);
        });
        warp.sum_over_warp(sums);
        const softmax_state mine_s = state_of(of_s, ties_s, sums[0]), mine_t = state_of(of_t, ties_t, sums[1]);
        const float mass_s = mine_s.ties + mine_s.tail;
        float mine = (float)sums[2] * exp2_of(-of_s.error);
        mine += mine_s.ties != 0 ? (of_t.error - of_s.error) * mass_s : 0.0f;
        warp.send(0, 2, make_float4(mine_s.m, mine_s.ties, mine_s.tail, mine));
        warp.send(1, 2, make_float4(mine_t.m, mine_t.ties, mine_t.tail, warp.claim_word()));
        warp.receive();

        const float4 *got_s = warp.received(0), *got_t = warp.received(1);
        const int next_claim = __float_as_int(got_t[0].w);
        const merged_softmax all_s(warp, of_s.k, [&](int s) {
            const softmax_state one = {got_s[s].x, got_s[s].y, got_s[s].z};
            return one;
        });
        const merged_softmax all_t(warp, of_t.k, [&](int s) {
            const softmax_state one = {got_t[s].x, got_t[s].y, got_t[s].z};
            return one;
        });
        double reverse = 0;
        if (KIND == REVERSE_KL) {
            warp.for_states([&](int s) {
                const float below = (got_s[s].x - all_s.m) * of_s.k, share = got_s[s].y + got_s[s].z;
                if (exp2_of(below) * share != 0)
                    reverse += (double)(exp2_of(below) * (share * (below - (got_t[s].x - all_t.m) * of_t.k) + got_s[s].w));
            });
            reverse = warp_sum(reverse);
        }
        const float inverse_s = __frcp_rn(1 + all_s.others()), inverse_t = __frcp_rn(1 + all_t.others());
        const double over_s = all_s.inverse(inverse_s), over_t = all_t.inverse(inverse_t);
        /* log2 of the sums' ratio: exactly 0 where they are the same */
        const float shift_of_sums = log2f((float)((1 + all_s.exact_others()) * over_t));
        const bool has_no_mass = all_s.has_no_mass() || all_t.has_no_mass();
        const double no_number = k.finite ? 0 : not_a_number();
        const bool is_filled = !takes_part || has_no_mass;
        const float below_s = below_of(of_s, all_s.m), below_t = below_of(of_t, all_t.m);
        const mixed_columns columns = {of_s,
                                       of_t,
                                       inverse_s * of_s.factor(all_s.m),
                                       inverse_t * of_t.factor(all_t.m),
                                       ((below_s - of_s.error) - (below_t - of_t.error)) - shift_of_sums,
                                       (float)k.a,
                                       (float)k.b,
                                       (float)k.q,
                                       (float)(1 - k.q),
                                       k.a != k.q || k.b != 1 - k.q};

        /* Results beside loss and gradients, each from a term of every slice. */
        const double log_s = warp.slice == 0 ? log1p(all_s.exact_others()) : 0;
        const double log_t = warp.slice == 0 ? log1p(all_t.exact_others()) : 0;
        if (warp.slice == 0) {
            store_result(k.lse, k, warp, takes_part ? all_s.lse(facts.z_of_s(all_s.m), log_s) : 0);
            store_result(k.target_lse, k, warp, takes_part ? all_t.lse(facts.z_of_t(all_t.m), log_t) : 0);
        }
        if (has_more) {
            const T *x = reinterpret_cast<const T *>(warp.slot(0)), *y = reinterpret_cast<const T *>(warp.slot(1));
            const float mass_t = mine_t.ties + mine_t.tail;
            const float far_s = distance_of(x, warp.columns, warp.lane, of_s);
            const float far_t = distance_of(y, warp.columns, warp.lane, of_t);
            const long long from_here = frame.label - warp.first_column;
            const bool has_label = frame.label >= 0 && from_here >= 0 && from_here < warp.columns;
            const float first = of_s.m == all_s.m || of_s.m != of_s.m
                                    ? first_at(x, warp.columns, warp.lane, of_s.m, warp.first_column)
                                    : 2e9f;
            warp.send(0, 1,
                      make_float4(mine_s.ties != 0 ? exp2_of(below_s) * (far_s - mass_s * below_s) : 0.0f,
                                  mine_t.ties != 0 ? exp2_of(below_t) * (far_t - mass_t * below_t) : 0.0f, first,
                                  has_label ? (float)widen(x[from_here]) : 0.0f));
            warp.receive();
            if (warp.slice == 0) {
                const float4 *more = warp.received(0);
                const bool has_numbers = takes_part && !has_no_mass;
                const double none = takes_part ? no_number : 0;
                double far_of_s = 0, far_of_t = 0;
                float column = 2e9f;
                warp.for_states([&](int s) {
                    far_of_s += (double)more[s].x;
                    far_of_t += (double)more[s].y;
                    column = fminf(column, more[s].z);
                });
                const double ln_2 = 0.693147180559945309;
                store_result(k.entropy, k, warp,
                             has_numbers ? log_s + warp_sum(far_of_s) * over_s * ln_2 : none);
                store_result(k.target_entropy, k, warp,
                             has_numbers ? log_t + warp_sum(far_of_t) * over_t * ln_2 : none);
                if (k.argmax.data)
                    store_first(k, warp, takes_part ? __reduce_min_sync(~0u, (int)column) : 0);
                const float v = has_numbers && frame.label >= 0 && !frame.has_bad_label()
                                    ? more[frame.label / slice_of<T>::COLUMNS].w
                                    : 0.0f;
                const double log_prob = ((double)facts.z_of_s(v) - (double)facts.z_of_s(all_s.m)) - log_s;
                store_result(k.log_prob, k, warp,
                             !has_numbers            ? none
                             : frame.has_bad_label() ? not_a_number()
                                                     : log_prob);
            }
        }

        /* The value, and what gradients need of the whole row. */
        double of_row[3] = {0, 0, 0};
        if (KIND == REVERSE_KL) {
            of_row[0] = (reverse * over_s - (double)shift_of_sums) * 0.693147180559945309;
        } else if (!is_filled) {
            warp.for_vectors([&](int, const float(&v)[LANES], const float(&w)[LANES]) {
                float s, t, values[LANES], s_phi[LANES], t_psi[LANES];
#pragma unroll
                for (int i = 0; i < LANES; i++)
                    values[i] = columns.terms<KIND>(v[i], w[i], s, t, s_phi[i], t_psi[i]);
                of_row[0] += (double)sum_of(values);
                of_row[1] += (double)sum_of(s_phi);
                of_row[2] += (double)sum_of(t_psi);
            });
            warp.sum_over_warp(of_row);
            warp.exchange_sums(of_row);
            of_row[0] *= KIND == MIXTURE ? 0.693147180559945309 : 1.0;
        }
        /* What is near, infinite or no number, by the functions of cuda_column.cuh. */
        const bool is_exact = __any_sync(~0u, !is_filled && !(of_row[0] >= 1.0 / 128 && of_row[0] < 1e30));
        const kl_columns near = {all_s.m,
                                 all_t.m,
                                 facts.over_s,
                                 facts.over_t,
                                 is_exact ? (float)(log1p(all_s.exact_others()) - log1p(all_t.exact_others())) : 0.0f,
                                 k.temperature == k.target_temperature};
        const auto exact_terms = [&](float v, float w, float &s, float &t) {
            s = columns.probability_s(v);
            t = columns.probability_t(w);
            return divergence_of<float>(k, s, t, near.delta(v, w));
        };
        if (is_exact) {
            of_row[0] = of_row[1] = of_row[2] = 0;
            warp.for_columns([&](const T &x, const T &y) {
                float s, t;
                const column_terms<float> one = exact_terms(widen(x), widen(y), s, t);
                of_row[0] += (double)one.value;
                of_row[1] += (double)one.s_phi;
                of_row[2] += (double)one.t_psi;
            });
            warp.sum_over_warp(of_row);
            warp.exchange_sums(of_row);
        }

        const float to_s = scale * (float)facts.to_s, to_t = scale * (float)facts.to_t;
        const bool has_dy = k.grad_targets.data != 0;
        if (is_filled) {
            const float x = takes_part ? (float)no_number : 0.0f;
            warp.write(k, [&](const float(&)[LANES], const float(&)[LANES], float(&dx)[LANES], float(&dy)[LANES]) {
#pragma unroll
                for (int i = 0; i < LANES; i++)
                    dx[i] = dy[i] = x;
            });
        } else if (is_exact) {
            const float rest_s = all_s.others() * inverse_s, rest_t = all_t.others() * inverse_t;
            const softmax_scale<float> through_s(all_s.m, inverse_s, 0, rest_s);
            const softmax_scale<float> through_t(all_t.m, inverse_t, 0, rest_t);
            warp.write_columns(k, [&](float v, float w, float &dx, float &dy) {
                float s, t;
                const column_terms<float> one = exact_terms(v, w, s, t);
                dx = through_s.through(one.s_phi, v, s, of_row[1]) * to_s;
                dy = through_t.through(one.t_psi, w, t, of_row[2]) * to_t;
            });
        } else if (KIND == REVERSE_KL) {
            const float value = (float)(of_row[0] * 1.44269504088896341);
            warp.write(k, [&](const float(&v)[LANES], const float(&w)[LANES], float(&dx)[LANES], float(&dy)[LANES]) {
#pragma unroll
                for (int i = 0; i < LANES; i++) {
                    const float d_s = columns.exponent_s(v[i]), d_t = columns.exponent_t(w[i]);
                    const float s = exp2_of(d_s) * columns.share_s;
                    dx[i] = s * (((d_s - d_t) + columns.shift) - value) * (LN_2 * to_s);
                    dy[i] = has_dy ? (exp2_of(d_t) * columns.share_t - s) * to_t : 0.0f;
                }
            });
        } else {
            const float s_sum = (float)of_row[1], t_sum = (float)of_row[2];
            warp.write(k, [&](const float(&v)[LANES], const float(&w)[LANES], float(&dx)[LANES], float(&dy)[LANES]) {
#pragma unroll
                for (int i = 0; i < LANES; i++) {
                    float s, t, s_phi, t_psi;
                    columns.terms<KIND>(v[i], w[i], s, t, s_phi, t_psi);
                    dx[i] = fmaf(-s, s_sum, s_phi) * to_s;
                    dy[i] = fmaf(-t, t_sum, t_psi) * to_t;
                }
            });
        }
        warp.request(0, k.predictions, warp.next);
        warp.request(1, k.targets, warp.next);
        if (warp.slice == 0) {
            if (KIND == REVERSE_KL && !is_exact) /* with the logarithms in double */
                of_row[0] = reverse * over_s * 0.693147180559945309 - (log_s - log_t);
            const double weight = number_of(k.weights, row_of(k.weights, k.rows, warp.row), 1);
            if (warp.lane == 0)
                facts.add(k, warp, !takes_part ? 0 : weight * (has_no_mass ? no_number : k.weight * of_row[0]));
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
    extern "C" __global__ void __launch_bounds__(ONEP_LOGITS_MAX_WARPS * 32, ONEP_LOGITS_MIXED_BLOCKS)                 \
        onep_logits_##kind##_cluster_##name(const __grid_constant__ onep_logits_loss_args k)                           \
    {                                                                                                                  \
        cluster_mixed<T, KIND>(k);                                                                                     \
    }

#endif
