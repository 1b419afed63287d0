/*
 * Divergences and cross-entropy from logits: value and gradients of a row by one team. A row is read for its softmaxes,
 * again for its sums where gradients need them first, and again for value and gradients; it comes from the second-level
 * cache then. Only results are stored. The arithmetic is that of ref.c, in float or double.
 */
#ifndef ONEP_LOGITS_LOSS_CUH
#define ONEP_LOGITS_LOSS_CUH

#include "logits/cuda_around.cuh"
#include "logits/cuda_column.cuh"

template <class R, bool WIDE> struct loss_row : row_frame<R, team<WIDE>> {
    typedef team<WIDE> own;
    typedef row_frame<R, own> frame;
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

    logit_scale<R> s_scale, t_scale, p_scale;
    softmax_part<R> s, t, p;

    __device__ __forceinline__ loss_row(const onep_logits_loss_args &args, long long row_index)
        : frame(args, row_index), s_scale(args.softcap, args.temperature),
          t_scale(args.target_softcap, args.target_temperature), p_scale(args.softcap, args.label_temperature)
    {
        s.clear();
        t.clear();
        p.clear();
    }

    /* The softmaxes of the row, in one sweep. */
    __device__ __forceinline__ void find_softmaxes()
    {
        for_columns<own>(k.columns, [&](long long column) {
            const R x = load_column<R>(k.predictions, predictions, column);
            if (k.form != NO_TARGET)
                s.add(s_scale.z_of(x), column);
            if (k.has_label_terms && !k.shares_softmax)
                p.add(p_scale.z_of(x), column);
            if (k.form == TARGET_LOGITS)
                t.add(t_scale.z_of(load_column<R>(k.targets, targets, column)), column);
        });
        if (k.form != NO_TARGET)
            s = own::softmax(s);
        if (k.form == TARGET_LOGITS)
            t = own::softmax(t);
        if (k.shares_softmax)
            p = s;
        else if (k.has_label_terms)
            p = own::softmax(p);
    }

    /* S, T and delta = log(S/T) of a column. The difference of the logits below their maxima is formed first: where the
     * sides are near each other it is exact, and what the two normalisers are off by cancels in a sum over the row. */
    struct pair {
        R z, w; /* what S and T are the softmax of */
        R s, t, delta, log_t;
    };
    __device__ __forceinline__ pair pair_of(const softmax_scale<R> &of_s, const softmax_scale<R> &of_t, R shift, R x,
                                            R y) const
    {
        pair e;
        e.z = s_scale.z_of(x);
        e.s = of_s.probability(e.z);
        e.w = y;
        if (k.form == TARGET_LOGITS) {
            e.w = t_scale.z_of(y);
            e.t = of_t.probability(e.w);
            e.log_t = of_t.log_probability(e.w);
            e.delta = ((e.z - of_s.most) - (e.w - of_t.most)) - shift;
            return e;
        }
        const bool is_fine = y < -minus_infinity(y) && (k.form == TARGET_LOG_PROBS || y >= 0);
        y = is_fine ? y : (R)not_a_number();
        e.t = k.form == TARGET_PROBS ? y : exp_of(y);
        e.log_t = k.form == TARGET_PROBS ? log_of(y) : y;
        e.delta = of_s.log_probability(e.z) - e.log_t;
        return e;
    }

    /* log of the sum of S less that of T */
    __device__ __forceinline__ R shift_of() const
    {
        return s.is_undefined() || t.is_undefined() ? (R)not_a_number() : (R)(s.log_sum() - t.log_sum());
    }

    /* What a sweep knows before it begins. */
    struct sweep_facts {
        softmax_scale<R> of_s, of_t, of_p;
        label_slopes<R> slopes;
        R shift, s_factor, t_factor, factor, entropy;
    };
    __device__ __forceinline__ sweep_facts facts_of(const row_sums &known, double scale) const
    {
        sweep_facts f = {softmax_scale<R>(s), softmax_scale<R>(t), softmax_scale<R>(p),
                         label_slopes<R>(*this, known.class_weights, p.lse())};
        f.shift = shift_of();
        f.s_factor = (R)(k.weight / k.temperature);
        f.t_factor = (R)(k.form == TARGET_LOGITS ? k.weight / k.target_temperature : k.weight);
        f.factor = (R)scale;
        f.entropy = (R)(p.log_sum() + known.entropy);
        return f;
    }

    /* One sweep: adds to the sums, and writes gradients. `known` are the sums that gradients need. */
    template <bool GRADIENTS>
    __device__ __forceinline__ void sweep(row_sums &sums, const row_sums &known, double scale) const
    {
        const sweep_facts f = facts_of(known, scale);
        const bool is_kl = k.form == TARGET_LOGITS && k.q == 0 && !k.is_total_variation;
        char *to_predictions = row_of(k.grad_predictions, k.rows, row);
        char *to_targets = row_of(k.grad_targets, k.rows, row);
        for_columns<own>(k.columns, [&](long long column) {
            const R x = load_column<R>(k.predictions, predictions, column);
            R dx = 0, dy = 0;
            if (k.form != NO_TARGET) {
                const R y = load_column<R>(k.targets, targets, column);
                const pair e = pair_of(f.of_s, f.of_t, f.shift, x, y);
                const column_terms<R> terms = divergence_of<R>(k, e.s, e.t, e.delta);
                sums.value += (double)terms.value;
                sums.s_phi += (double)terms.s_phi;
                sums.t_psi += (double)terms.t_psi;
                sums.targets += (double)e.t;
                sums.target_entropy -= e.t != 0 ? (double)(e.t * e.log_t) : 0.0;
                if (GRADIENTS) {
                    R own_part = f.of_s.through(terms.s_phi, e.z, e.s, known.s_phi);
                    if (is_kl) /* S - T, without cancellation where they are near each other */
                        own_part = magnitude(e.delta) < (R)0.5 && e.t != 0 ? e.t * expm1_of(e.delta) : e.s - e.t;
                    dx = f.s_factor * own_part;
                    if (k.form == TARGET_LOGITS)
                        dy = f.of_t.through(terms.t_psi, e.w, e.t, known.t_psi) * t_scale.slope_of(y);
                    else
                        dy = k.form == TARGET_PROBS ? terms.psi : terms.t_psi;
                    dy *= f.t_factor * f.factor;
                }
            }
            if (k.has_label_terms) {
                const R z = p_scale.z_of(x), of = f.of_p.probability(z), log_p = f.of_p.log_probability(z);
                sums.entropy += of != 0 ? (double)(of * (f.of_p.most - z)) : 0.0;
                if (f.slopes.spread != 0) {
                    const R c = class_weight(column);
                    sums.smoothing += c != 0 ? (double)(c * -log_p) : 0.0;
                    sums.class_weights += (double)c;
                }
                if (GRADIENTS) {
                    R slope = (f.slopes.at_label + f.slopes.besides) * of;
                    if (column == label && f.slopes.has_label)
                        slope = f.slopes.besides * of - f.slopes.at_label * f.of_p.rest_of(z, of);
                    if (f.slopes.spread != 0)
                        slope -= f.slopes.spread * class_weight(column);
                    if (k.entropy_bonus != 0 && of != 0)
                        slope += (R)k.entropy_bonus * of * (log_p + f.entropy);
                    dx += slope * (R)(1 / k.label_temperature);
                }
            }
            if (GRADIENTS && to_predictions)
                store_column<R>(k.grad_predictions, to_predictions, column, dx * p_scale.slope_of(x) * f.factor);
            if (GRADIENTS && to_targets)
                store_column<R>(k.grad_targets, to_targets, column, dy);
        });
    }

    __device__ __forceinline__ void add_up(row_sums &sums) const
    {
        if (k.form != NO_TARGET) {
            sums.value = own::sum(sums.value);
            sums.s_phi = own::sum(sums.s_phi);
            sums.t_psi = own::sum(sums.t_psi);
            sums.targets = own::sum(sums.targets);
            sums.target_entropy = own::sum(sums.target_entropy);
        }
        if (k.has_label_terms) {
            sums.entropy = own::sum(sums.entropy);
            sums.smoothing = own::sum(sums.smoothing);
            sums.class_weights = own::sum(sums.class_weights);
        }
    }

    __device__ __forceinline__ double entropy_of_p(const row_sums &sums) const
    {
        return p.is_undefined() ? not_a_number() : p.log_sum() + sums.entropy;
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
        const bool bad_label = has_bad_label();
        R z_label = 0;
        if (k.labels.data && !bad_label && k.has_label_terms) {
            R x = load_any<R>(k.predictions.type, predictions + label * k.predictions.col_stride);
            z_label = p_scale.z_of(x);
        }
        find_softmaxes(); /* its barriers come between reading the label's logit and writing gradients */

        softmax_part<R> x_part = p; /* what is known of the predictions: a copy, or all three would have addresses */
        if (k.form != NO_TARGET)
            x_part = s;
        const bool has_no_mass = k.columns > 0 && (x_part.has_no_mass() || (k.form == TARGET_LOGITS && t.has_no_mass()));
        const double target_lse = t.lse(), lse = p.lse();
        const long long argmax = x_part.argmax();
        if (has_no_mass) {
            const double x = k.finite ? 0 : not_a_number();
            fill((R)x);
            store_results(lse, x, x, target_lse, x, argmax);
            return weight * x;
        }
        const double nll =
            bad_label || p.is_undefined() ? not_a_number() : ((double)p.most - (double)z_label) + p.log_sum();
        const bool is_bad = bad_label && k.label_weight != 0;
        const bool has_gradients = (k.grad_predictions.data || k.grad_targets.data) && !is_bad;
        /* Sums come first where gradients need them; of cross-entropy alone nothing is needed but the softmax. */
        const bool sums_first = k.needs_sums;
        row_sums sums = {0, 0, 0, 0, 0, 0, 0, 0};
        if (sums_first || (!has_gradients && (k.form != NO_TARGET || k.entropy.data))) {
            sweep<false>(sums, sums, 0);
            add_up(sums);
        }
        if (is_bad)
            fill((R)not_a_number());
        if (has_gradients) {
            row_sums again = {0, 0, 0, 0, 0, 0, 0, 0};
            sweep<true>(again, sums, weight * upstream / divisor);
            if (!sums_first) { /* the same numbers in the same order */
                add_up(again);
                sums = again;
            }
        }
        if (!is_bad)
            fill_beyond();

        double value = is_bad ? not_a_number() : 0;
        if (k.form != NO_TARGET) {
            value += sums.value;
            if (k.form != TARGET_LOGITS && !k.is_total_variation && k.columns > 0)
                value += (k.a * (1 - k.q) - k.b * k.q) * (sums.targets - 1);
            value *= k.weight;
        }
        if (k.has_label_terms && !is_bad)
            value += label_terms(sums, nll, lse, entropy_of_p(sums));
        store_results(lse, entropy_of_p(sums), -nll, target_lse, sums.target_entropy, argmax);
        return weight * value;
    }
};

/* Rows of up to ONEP_LOGITS_WARP_COLUMNS columns, and wider ones, computed in R. */
#define ONEP_LOGITS_LOSS(name, R)                                                                                      \
    extern "C" __global__ void __launch_bounds__(ONEP_LOGITS_WARPS * 32, 2)                                            \
        onep_logits_loss_narrow_##name(const __grid_constant__ onep_logits_loss_args k)                                \
    {                                                                                                                  \
        logits_loss<loss_row<R, false>>(k);                                                                                      \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(ONEP_LOGITS_THREADS, 1)                                               \
        onep_logits_loss_wide_##name(const __grid_constant__ onep_logits_loss_args k)                                  \
    {                                                                                                                  \
        logits_loss<loss_row<R, true>>(k);                                                                                       \
    }

#endif
