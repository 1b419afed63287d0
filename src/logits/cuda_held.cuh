/*
 * Losses from logits by slices of a row in shared memory, where its sweeps find it: a team of threads copies a slice, and
 * another when it is done with that. A row that fits into one slice is read from memory once, a wider one again for its
 * gradients; every gradient is written once, and nothing else is stored.
 *
 * A thread reads and writes only its own quads of columns, so a copy needs no barrier. Which columns a thread has follows
 * from the width alone, sums are those of a quad in float and then double: the bits of a row depend on the row alone,
 * whatever its alignment, strides, place or the results asked for. Sweeps, with z = v / temperature:
 *
 *   1  slice by slice m = max z so far, then others = sum of exp(z - m) but for one column at m, and whatever else is a
 *      sum of exp(z - m) times something; where a slice raises m, the sums so far are taken along
 *   2  divergences other than KL: value and the sums their gradients need
 *   3  gradients, the last slice first: it is still there
 *
 * KL is (sum of exp(w - m_t) ((w - m_t) - (z - m_s))) / (1 + others_t) + log(sum_s / sum_t), from sweep 1. A row for
 * which that is below 2^-7 has its value from T h(delta) in sweep 3, where no term is negative.
 *
 * Exponentials are ex2.approx.ftz: off by 2^-22.5, and 0 below the normal numbers.
 */
#ifndef ONEP_LOGITS_HELD_CUH
#define ONEP_LOGITS_HELD_CUH

#include "logits/cuda_around.cuh"
#include "logits/cuda_column.cuh"
#include "logits/cuda_slot.cuh"
#include "logits/cuda_team.cuh"

/* LABELS: no divergence. KL: of logits from logits. MIXED: any other divergence of logits from logits. */
enum held_kind { HELD_LABELS, HELD_KL, HELD_MIXED };

template <class T, held_kind KIND, class TEAM> struct held_row : row_frame<float, TEAM> {
    typedef row_frame<float, TEAM> frame;
    typedef TEAM own;
    typedef held_operand<T, TEAM, KIND == HELD_LABELS> operand;
    enum { OPERANDS = KIND == HELD_LABELS ? 1 : 2, SLICE = ONEP_LOGITS_SLOT / OPERANDS / (int)sizeof(quad_of<T>) };
    using frame::class_weight;
    using frame::fill;
    using frame::fill_beyond;
    using frame::has_bad_label;
    using frame::k;
    using frame::label;
    using frame::label_terms;
    using frame::predictions;
    using frame::row;
    using frame::store_results;
    using frame::takes_part;
    using frame::targets;

    operand x, y;
    held_softmax exp_s, exp_t, exp_p;
    float largest[2]; /* v of predictions and targets */
    known_softmax s, t, p;
    bool has_own_p; /* P is needed and is not S */
    row_sums sums;
    double kl, target_distance; /* sums of exp(d_t) (d_t - d_s), of -exp(d_t) d_t */
    int quads, in_slot;         /* of the row; the first one of the slice in shared memory, -1: none */

    static __device__ __forceinline__ unsigned char *slot_of(const onep_logits_loss_args &args, int which)
    {
        ONEP_DYNAMIC_SHARED(memory);
        const int all = operand::quads_of(args.columns), per_operand = all < SLICE ? all : SLICE;
        return memory + (long long)sizeof(quad_of<T>) * per_operand * (own::in_block() * OPERANDS + which);
    }
    __device__ __forceinline__ held_row(const onep_logits_loss_args &args, long long row_index)
        : frame(args, row_index), x(slot_of(args, 0), args.softcap), y(slot_of(args, 1), args.target_softcap),
          exp_s(KIND == HELD_LABELS ? args.label_temperature : args.temperature), exp_t(args.target_temperature),
          exp_p(args.label_temperature), has_own_p(KIND != HELD_LABELS && args.has_label_terms && !args.shares_softmax),
          sums{0, 0, 0, 0, 0, 0, 0, 0}, kl(0), target_distance(0), quads(operand::quads_of(args.columns)), in_slot(-1)
    {
        largest[0] = largest[1] = minus_infinity(0.0f);
        t.find(largest[1], 0, 0, 0);
    }

    /* Has the slice that begins with this quad in shared memory. */
    __device__ __forceinline__ void bring(int begin)
    {
        if (in_slot == begin)
            return;
        const int end = quads - begin < SLICE ? quads : begin + SLICE;
        x.fetch(k.predictions, predictions, k.columns, begin, end);
        if (KIND != HELD_LABELS)
            y.fetch(k.targets, targets, k.columns, begin, end);
        cp_async_wait_0();
        in_slot = begin;
    }
    /* Calls f(q) for the quads of this thread, in the slice that is there and in all of them. */
    template <class F> __device__ __forceinline__ void for_slice(const F &f) const
    {
        const int end = quads - in_slot < SLICE ? quads : in_slot + SLICE;
#pragma unroll 1
        for (int q = in_slot + own::rank(); q < end; q += own::size())
            f(q);
    }
    template <class F> __device__ __forceinline__ void for_quads(const F &f)
    {
#pragma unroll 1
        for (int begin = (quads - 1) / SLICE * SLICE; begin >= 0; begin -= SLICE) {
            bring(begin);
            for_slice(f);
        }
    }

    /* The largest v, with those of the slice that is there. What is known so far goes along. */
    __device__ __forceinline__ void find_largest()
    {
        for_slice([&](int q) {
            quad v;
            x.load(q, v);
#pragma unroll
            for (int i = 0; i < QUAD; i++)
                largest[0] = larger(largest[0], v[i]);
            if (KIND == HELD_LABELS)
                return;
            y.load(q, v);
#pragma unroll
            for (int i = 0; i < QUAD; i++)
                largest[1] = larger(largest[1], v[i]);
        });
        own::largest(largest);
    }
    __device__ __forceinline__ void raise_sums()
    {
        double factor = 1, factor_t = 1;
        const double of_s = exp_s.sum(), rise_s = exp_s.template raise<own::HAS_SLICES>(largest[0], factor);
        double of_p = of_s, rise_p = rise_s;
        if (has_own_p) {
            of_p = exp_p.sum();
            rise_p = exp_p.template raise<own::HAS_SLICES>(largest[0], factor);
        }
        if (own::HAS_SLICES && of_p != 0)
            sums.entropy = factor * (sums.entropy + of_p * rise_p);
        if (own::HAS_SLICES && sums.class_weights != 0)
            sums.smoothing += sums.class_weights * rise_p;
        if (KIND == HELD_LABELS)
            return;
        const double of_t = exp_t.sum(), rise_t = exp_t.template raise<own::HAS_SLICES>(largest[1], factor_t);
        if (!own::HAS_SLICES || of_t == 0)
            return;
        kl = factor_t * (kl + of_t * (rise_s - rise_t));
        target_distance = factor_t * (target_distance + of_t * rise_t);
    }

    /* What label terms add up, beside the softmax: P (most - z), c (most - z), c. */
    __device__ __forceinline__ void add_label_sums(int q, const quad &d, const quad &e, bool is_smoothed)
    {
        quad a;
#pragma unroll
        for (int i = 0; i < QUAD; i++)
            a[i] = e[i] != 0 ? e[i] * -d[i] : 0.0f;
        sums.entropy += quad_sum(a);
        if (!is_smoothed)
            return;
        quad c;
#pragma unroll
        for (int i = 0; i < QUAD; i++) {
            const long long column = (long long)q * QUAD + i;
            c[i] = column < k.columns ? class_weight(column) : 0.0f;
            a[i] = c[i] != 0 ? c[i] * -d[i] : 0.0f;
        }
        sums.smoothing += quad_sum(a);
        sums.class_weights += quad_sum(c);
    }

    /* The sums of the slice that is there. */
    __device__ __forceinline__ void add_slice(bool has_label_sums, bool is_smoothed)
    {
        for_slice([&](int q) {
            quad v, d, e;
            x.load(q, v);
            exp_s.exponentials(v, d, e);
            exp_s.add(d, e);
            if (has_own_p) {
                quad d_p, e_p;
                exp_p.exponentials(v, d_p, e_p);
                exp_p.add(d_p, e_p);
                if (has_label_sums)
                    add_label_sums(q, d_p, e_p, is_smoothed);
            } else if (has_label_sums) {
                add_label_sums(q, d, e, is_smoothed);
            }
            if (KIND == HELD_LABELS)
                return;
            quad w, d_t, e_t;
            y.load(q, w);
            exp_t.exponentials(w, d_t, e_t);
            exp_t.add(d_t, e_t);
            if (KIND == HELD_KL) {
#pragma unroll
                for (int i = 0; i < QUAD; i++)
                    w[i] = e_t[i] != 0 ? e_t[i] * (d_t[i] - d[i]) : 0.0f;
                kl += quad_sum(w);
            }
            if (k.target_entropy.data) {
#pragma unroll
                for (int i = 0; i < QUAD; i++)
                    w[i] = e_t[i] != 0 ? e_t[i] * -d_t[i] : 0.0f;
                target_distance += quad_sum(w);
            }
        });
    }

    /* Sweep 1. */
    __device__ __forceinline__ void find_softmaxes(bool is_smoothed)
    {
        const bool has_label_sums = is_smoothed || k.entropy_bonus != 0 || k.entropy.data;
#pragma unroll 1
        for (int begin = 0; begin < quads; begin += SLICE) {
            bring(begin);
            find_largest();
            raise_sums();
            add_slice(has_label_sums, is_smoothed);
        }
        double of_s[2] = {exp_s.tail, exp_s.ties};
        own::sum(of_s);
        s.find(largest[0], exp_s.most, of_s[0], of_s[1]);
        p = s;
        if (KIND != HELD_LABELS) {
            double of_t[4] = {exp_t.tail, exp_t.ties, kl, target_distance};
            own::sum(of_t);
            t.find(largest[1], exp_t.most, of_t[0], of_t[1]);
            sums.value = of_t[2] * t.one_over_sum + (s.log_sum - t.log_sum);
            sums.target_entropy = t.log_sum + of_t[3] * t.one_over_sum;
        }
        if (has_own_p || has_label_sums) {
            double of_p[5] = {exp_p.tail, exp_p.ties, sums.entropy, sums.smoothing, sums.class_weights};
            own::sum(of_p);
            if (has_own_p)
                p.find(largest[0], exp_p.most, of_p[0], of_p[1]);
            sums.entropy = of_p[2] * p.one_over_sum;
            sums.smoothing = of_p[3] + (of_p[4] != 0 ? of_p[4] * p.log_sum : 0.0);
            sums.class_weights = of_p[4];
        }
    }

    /* What gradients are made from. */
    struct facts {
        softmax_scale<float> of_s, of_t, of_p;
        label_slopes<float> slopes;
        float shift, s_factor, t_factor, p_factor, factor, entropy, value;
    };
    static __device__ __forceinline__ softmax_scale<float> scale_of(const held_softmax &exps, const known_softmax &known)
    {
        return softmax_scale<float>(exps.most, (float)known.one_over_sum, (float)known.log_sum, known.rest());
    }
    __device__ __forceinline__ facts facts_of(double scale) const
    {
        facts f = {scale_of(exp_s, s), scale_of(exp_t, t), scale_of(has_own_p ? exp_p : exp_s, p),
                   label_slopes<float>(*this, sums.class_weights, p.lse)};
        f.shift = (float)(s.log_sum - t.log_sum);
        f.s_factor = (float)(k.weight / k.temperature);
        f.t_factor = (float)(k.weight / k.target_temperature * scale);
        f.p_factor = (float)(1 / k.label_temperature);
        f.factor = (float)scale;
        f.entropy = (float)(p.log_sum + sums.entropy);
        f.value = (float)sums.value;
        return f;
    }

    /* A quad of both sides. In delta the difference of logits below their maxima comes first: see loss_row. */
    struct both_sides {
        quad d_s, s, d_t, t, delta;
    };
    __device__ __forceinline__ both_sides both_of(const facts &f, const quad &v, const quad &w) const
    {
        both_sides c;
        exp_s.exponentials(v, c.d_s, c.s);
        exp_t.exponentials(w, c.d_t, c.t);
#pragma unroll
        for (int i = 0; i < QUAD; i++) {
            c.s[i] *= f.of_s.one_over_sum;
            c.t[i] *= f.of_t.one_over_sum;
            c.delta[i] = (c.d_s[i] - c.d_t[i]) - f.shift;
        }
        return c;
    }

    /* Sweep 2. */
    __device__ __forceinline__ void add_divergence()
    {
        const facts f = facts_of(0);
        double of[3] = {0, 0, 0};
        for_quads([&](int q) {
            quad v, w, s_phi;
            x.load(q, v);
            y.load(q, w);
            const both_sides c = both_of(f, v, w);
#pragma unroll
            for (int i = 0; i < QUAD; i++) {
                const column_terms<float> terms = divergence_of<float>(k, c.s[i], c.t[i], c.delta[i]);
                v[i] = terms.value;
                s_phi[i] = terms.s_phi;
                w[i] = terms.t_psi;
            }
            of[0] += quad_sum(v);
            of[1] += quad_sum(s_phi);
            of[2] += quad_sum(w);
        });
        own::sum(of);
        sums.value = of[0];
        sums.s_phi = of[1];
        sums.t_psi = of[2];
    }

    /* The slopes of the divergence to z, and to w where that is asked for. */
    template <bool IS_NEAR>
    __device__ __forceinline__ double divergence_slopes(const facts &f, const both_sides &c, quad &dx, quad &dy) const
    {
        quad value;
#pragma unroll
        for (int i = 0; i < QUAD; i++) {
            value[i] = dy[i] = 0;
            if (KIND == HELD_MIXED) {
                const column_terms<float> terms = divergence_of<float>(k, c.s[i], c.t[i], c.delta[i]);
                dx[i] = f.of_s.through(terms.s_phi, f.of_s.most + c.d_s[i], c.s[i], sums.s_phi);
                if (k.grad_targets.data)
                    dy[i] = f.of_t.through(terms.t_psi, f.of_t.most + c.d_t[i], c.t[i], sums.t_psi);
                continue;
            }
            dx[i] = IS_NEAR ? near_kl_slope(c.s[i], c.t[i], c.delta[i], value[i]) : c.s[i] - c.t[i];
            if (k.grad_targets.data)
                dy[i] = c.t[i] != 0 ? c.t[i] * (-c.delta[i] - f.value) : c.t[i];
        }
        return IS_NEAR ? quad_sum(value) : 0;
    }

    /* Adds the slope of the label terms. */
    __device__ __forceinline__ void add_label_slopes(int q, const facts &f, const quad &d, const quad &e,
                                                     quad &dx) const
    {
        const float everywhere = f.slopes.at_label + f.slopes.besides, own_share = f.of_p.one_over_sum;
        quad slope;
#pragma unroll
        for (int i = 0; i < QUAD; i++)
            slope[i] = everywhere * (e[i] * own_share);
        if (f.slopes.has_label && label / QUAD == q) {
#pragma unroll
            for (int i = 0; i < QUAD; i++) {
                const float of = e[i] * own_share, rest = d[i] == 0 ? f.of_p.rest : 1 - of;
                if (label % QUAD == i)
                    slope[i] = f.slopes.besides * of - f.slopes.at_label * rest;
            }
        }
        if (f.slopes.spread != 0) {
#pragma unroll
            for (int i = 0; i < QUAD; i++) {
                const long long column = (long long)q * QUAD + i;
                slope[i] -= column < k.columns ? f.slopes.spread * class_weight(column) : 0.0f;
            }
        }
        if (k.entropy_bonus != 0) {
#pragma unroll
            for (int i = 0; i < QUAD; i++) {
                const float of = e[i] * own_share;
                slope[i] += of != 0 ? (float)k.entropy_bonus * of * ((d[i] - f.of_p.log_sum) + f.entropy) : of;
            }
        }
#pragma unroll
        for (int i = 0; i < QUAD; i++)
            dx[i] = fmaf(slope[i], f.p_factor, dx[i]);
    }

    /* Sweep 3; IS_NEAR: it also adds up the value. */
    template <bool IS_NEAR> __device__ __forceinline__ void write_gradients(double scale, bool has_gradients)
    {
        const facts f = facts_of(scale);
        char *to_predictions = has_gradients ? row_of(k.grad_predictions, k.rows, row) : 0;
        char *to_targets = has_gradients ? row_of(k.grad_targets, k.rows, row) : 0;
        double value[1] = {0};
        for_quads([&](int q) {
            quad v, dx, dy;
            x.load(q, v);
            if (KIND == HELD_LABELS) {
                quad d, e;
                exp_s.exponentials(v, d, e);
#pragma unroll
                for (int i = 0; i < QUAD; i++)
                    dx[i] = 0;
                add_label_slopes(q, f, d, e, dx);
            } else {
                quad w;
                y.load(q, w);
                const both_sides c = both_of(f, v, w);
                value[0] += divergence_slopes<IS_NEAR>(f, c, dx, dy);
#pragma unroll
                for (int i = 0; i < QUAD; i++)
                    dx[i] *= f.s_factor;
                if (k.has_label_terms) {
                    quad d, e;
                    if (has_own_p)
                        exp_p.exponentials(v, d, e);
                    else
                        exp_s.exponentials(v, d, e);
                    add_label_slopes(q, f, d, e, dx);
                }
                if (to_targets)
                    y.store_gradient(k.grad_targets, to_targets, k.columns, q, dy, f.t_factor);
            }
            if (to_predictions)
                x.store_gradient(k.grad_predictions, to_predictions, k.columns, q, dx, f.factor);
        });
        if (IS_NEAR) {
            own::sum(value);
            sums.value = value[0];
        }
    }

    /* The first column with the largest v, or the first NaN, or else the first +inf. */
    __device__ __forceinline__ long long argmax()
    {
        long long found[3] = {k.columns, k.columns, k.columns}; /* NaN, +inf, the largest */
        for_quads([&](int q) {
            quad v;
            x.load(q, v);
#pragma unroll
            for (int i = QUAD - 1; i >= 0; i--) {
                const long long column = (long long)q * QUAD + i;
                const int which = v[i] != v[i] ? 0 : v[i] == -minus_infinity(v[i]) ? 1 : v[i] == largest[0] ? 2 : 3;
#pragma unroll
                for (int n = 0; n < 3; n++)
                    if (which == n && column < found[n])
                        found[n] = column;
            }
        });
        /* Columns as floats are exact up to ONEP_LOGITS_MAX_COLUMNS. */
        float first[3] = {-(float)found[0], -(float)found[1], -(float)found[2]};
        own::largest(first);
#pragma unroll
        for (int n = 0; n < 3; n++)
            if ((long long)-first[n] < k.columns)
                return (long long)-first[n];
        return 0;
    }

    /* Everything of the row; returns its weighted value, in every thread. */
    __device__ __forceinline__ double run(double upstream_one, double divisor)
    {
        if (!takes_part()) {
            fill(0);
            store_results(0, 0, 0, 0, 0, 0);
            return 0;
        }
        const double weight = number_of(k.weights, row_of(k.weights, k.rows, row), 1);
        const double upstream = frame::upstream_of_row(upstream_one);
        const bool bad_label = has_bad_label(), is_bad = bad_label && k.label_weight != 0;
        float z_label = 0;
        if (k.labels.data && !bad_label)
            z_label = exp_p.z_of(
                x.capped(load_any<float>(k.predictions.type, predictions + label * k.predictions.col_stride)));
        find_softmaxes(label >= 0 && k.label_weight != 0 && k.smoothing != 0);
        const bool has_no_mass =
            largest[0] == minus_infinity(0.0f) || (KIND != HELD_LABELS && largest[1] == minus_infinity(0.0f));
        const long long largest_column = k.argmax.data ? argmax() : 0;
        own::sync(); /* between reading the label's logit and writing gradients, which may lie over it */
        if (has_no_mass) {
            const double number = k.finite ? 0 : not_a_number();
            fill((float)number);
            store_results(p.lse, number, number, t.lse, number, largest_column);
            return weight * number;
        }
        const double most_p = has_own_p ? (double)exp_p.most : (double)exp_s.most;
        const double nll = bad_label ? not_a_number() : (most_p - (double)z_label) + p.log_sum;
        const double entropy = p.log_sum + sums.entropy;
        double value = is_bad ? not_a_number() : k.has_label_terms ? label_terms(sums, nll, p.lse, entropy) : 0;
        store_results(p.lse, entropy, -nll, t.lse, sums.target_entropy, largest_column);

        if (KIND == HELD_MIXED)
            add_divergence();
        const bool has_gradients = (k.grad_predictions.data || k.grad_targets.data) && !is_bad;
        const double scale = weight * upstream / divisor;
        if (KIND == HELD_KL && sums.value < 1.0 / 128) {
            /* Gradients to targets need the value first. */
            for (int again = k.grad_targets.data ? 1 : 0; again >= 0; again--)
                write_gradients<true>(scale, has_gradients && again == 0);
        } else if (has_gradients) {
            write_gradients<false>(scale, true);
        }
        if (is_bad)
            fill((float)not_a_number());
        else
            fill_beyond();
        if (KIND != HELD_LABELS)
            value += k.weight * sums.value;
        return weight * value;
    }
};

/* Rows of one kind whose operands are of one type: of few columns by octets, of more by blocks. `blocks`: as many per
 * multiprocessor as registers allow without spilling. */
#define ONEP_LOGITS_OCTET(kind, KIND, name, T, blocks)                                                                 \
    extern "C" __global__ void __launch_bounds__(ONEP_LOGITS_OCTETS * 8, blocks)                                       \
        onep_logits_##kind##_octet_##name(const __grid_constant__ onep_logits_loss_args k)                             \
    {                                                                                                                  \
        logits_loss<held_row<T, KIND, octet>>(k);                                                                      \
    }
#define ONEP_LOGITS_BLOCK(kind, KIND, name, T, blocks)                                                                 \
    extern "C" __global__ void __launch_bounds__(ONEP_LOGITS_MAX_WARPS * 32, blocks)                                   \
        onep_logits_##kind##_block_##name(const __grid_constant__ onep_logits_loss_args k)                             \
    {                                                                                                                  \
        logits_loss<held_row<T, KIND, whole_block>>(k);                                                                \
    }

#endif
