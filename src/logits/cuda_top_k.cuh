/*
 * Divergences from a teacher of k columns, any types, strides and widths: value and gradient of a row by one block. The
 * named columns are sorted and computed one by one, in double (cuda_top_k_set.cuh); a row is read for the softmaxes of
 * the columns in and outside of the set, again for sums where gradients or results need them, and again for gradients:
 * it comes from the second-level cache then. Only results are stored. The arithmetic is that of ref.c, in float or
 * double for the columns outside.
 */
#ifndef ONEP_LOGITS_TOP_K_CUH
#define ONEP_LOGITS_TOP_K_CUH

#include "cuda/shared.cuh"
#include "logits/cuda_around.cuh"
#include "logits/cuda_top_k_set.cuh"

template <class R> struct top_k_row : row_frame<R, team<true>> {
    typedef team<true> own;
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

    logit_scale<R> s_scale, p_scale;
    softmax_part<R> in_set, outside, all, p;
    top_k_set<ONEP_LOGITS_THREADS> set;

    static __device__ __forceinline__ unsigned char *memory_of()
    {
        ONEP_DYNAMIC_SHARED(memory);
        return memory;
    }
    __device__ __forceinline__ top_k_row(const onep_logits_loss_args &args, long long row_index)
        : frame(args, row_index), s_scale(args.softcap, args.temperature),
          p_scale(args.softcap, args.label_temperature),
          set(reinterpret_cast<const onep_logits_top_k_args &>(args), memory_of())
    {
        in_set.clear();
        outside.clear();
        p.clear();
    }

    /* The softmaxes of the row, in one sweep. */
    __device__ __forceinline__ void find_softmaxes()
    {
        const bool has_own_p = k.has_label_terms && !k.shares_softmax;
        for_columns<own>(k.columns, [&](long long column) {
            const R x = load_column<R>(k.predictions, predictions, column);
            if (set.find(column) >= 0)
                in_set.add(s_scale.z_of(x), column);
            else
                outside.add(s_scale.z_of(x), column);
            if (has_own_p)
                p.add(p_scale.z_of(x), column);
        });
        in_set = own::softmax(in_set);
        outside = own::softmax(outside);
        all = in_set;
        all.join(outside.most, outside.others, outside.first);
        all.add_undefined(outside.first_nan, outside.first_infinity);
        if (has_own_p)
            p = own::softmax(p);
        else
            p = all;
    }

    /* What gradients are made from, beside the label terms: of columns outside exp(z - most) times a slope, of others
     * their own slope. `factor` and `slope` are in double where R cannot hold their product. */
    struct tail_facts {
        R most, factor;
        double of_set, slope;
        bool is_wide;
    };
    __device__ __forceinline__ tail_facts tail_of(double scale) const
    {
        tail_facts f;
        f.of_set = k.weight / k.temperature * scale;
        f.slope = f.of_set * set.tail_slope;
        f.most = outside.most;
        f.factor = (R)f.slope;
        f.is_wide = !(magnitude(f.factor) < -minus_infinity((R)0));
        return f;
    }
    __device__ __forceinline__ R slope_of(const tail_facts &f, R x, long long column) const
    {
        const int at = set.find(column);
        if (at >= 0)
            return (R)(f.of_set * set.slopes[at]);
        const R z = s_scale.z_of(x);
        if (z == minus_infinity(z)) /* also where no column outside has mass */
            return 0;
        return f.is_wide ? (R)times(exp((double)z - (double)f.most), f.slope) : exp_of(z - f.most) * f.factor;
    }

    /* One sweep: adds to the label terms' sums, and writes gradients. `known` are the sums that gradients need. */
    template <bool GRADIENTS>
    __device__ __forceinline__ void sweep(row_sums &sums, const row_sums &known, double scale) const
    {
        const softmax_scale<R> of_p(p);
        const label_slopes<R> slopes(*this, known.class_weights, p.lse());
        const tail_facts tail = tail_of(scale);
        const R factor = (R)scale, entropy = (R)(p.log_sum() + known.entropy);
        char *to = row_of(k.grad_predictions, k.rows, row);
        for_columns<own>(k.columns, [&](long long column) {
            const R x = load_column<R>(k.predictions, predictions, column);
            R dx = GRADIENTS ? slope_of(tail, x, column) : (R)0;
            if (k.has_label_terms) {
                const R z = p_scale.z_of(x), of = of_p.probability(z), log_p = of_p.log_probability(z);
                sums.entropy += of != 0 ? (double)(of * (of_p.most - z)) : 0.0;
                if (slopes.spread != 0) {
                    const R c = class_weight(column);
                    sums.smoothing += c != 0 ? (double)(c * -log_p) : 0.0;
                    sums.class_weights += (double)c;
                }
                if (GRADIENTS) {
                    R slope = (slopes.at_label + slopes.besides) * of;
                    if (column == label && slopes.has_label)
                        slope = slopes.besides * of - slopes.at_label * of_p.rest_of(z, of);
                    if (slopes.spread != 0)
                        slope -= slopes.spread * class_weight(column);
                    if (k.entropy_bonus != 0 && of != 0)
                        slope += (R)k.entropy_bonus * of * (log_p + entropy);
                    dx += slope * (R)(1 / k.label_temperature) * factor;
                }
            }
            if (GRADIENTS)
                store_column<R>(k.grad_predictions, to, column, dx * p_scale.slope_of(x));
        });
    }
    __device__ __forceinline__ void add_up(row_sums &sums) const
    {
        sums.entropy = own::sum(sums.entropy);
        sums.smoothing = own::sum(sums.smoothing);
        sums.class_weights = own::sum(sums.class_weights);
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
        set.load(row);
        R z_label = 0;
        if (k.labels.data && !bad_label && k.has_label_terms)
            z_label = p_scale.z_of(load_column<R>(k.predictions, predictions, label));
        find_softmaxes(); /* its barriers come between reading the label's logit and writing gradients */

        const bool is_undefined = all.is_undefined();
        bool has_no_mass = k.columns > 0 && all.has_no_mass();
        if (!has_no_mass && !set.has_bad_index) {
            const bool is_subset = set.k.outside == OUTSIDE_SUBSET; /* which is computed in double */
            const logit_scale<double> exact_scale(k.softcap, k.temperature);
            const auto z_at = [&](long long column) {
                const double x = load_column<double>(k.predictions, predictions, column);
                return is_subset ? exact_scale.z_of(x) : (double)s_scale.z_of((R)x);
            };
            student named;
            if (is_subset)
                named = set.student_of_set(z_at);
            set.finish(student(all), student(outside), named, z_at);
            has_no_mass = set.lacks_mass;
        }
        const double lse = p.lse();
        const long long argmax = all.argmax();
        if (has_no_mass) {
            const double x = k.finite ? 0 : not_a_number();
            fill((R)x);
            store_results(lse, x, x, 0, 0, argmax);
            return weight * x;
        }
        const double nll =
            bad_label || is_undefined ? not_a_number() : ((double)p.most - (double)z_label) + p.log_sum();
        const bool is_bad = set.has_bad_index || is_undefined || (bad_label && k.label_weight != 0);
        const bool has_gradients = k.grad_predictions.data && !is_bad;
        row_sums sums = {0, 0, 0, 0, 0, 0, 0, 0};
        if (k.needs_sums || (!has_gradients && k.entropy.data)) {
            sweep<false>(sums, sums, 0);
            add_up(sums);
        }
        if (is_bad)
            fill((R)not_a_number());
        if (has_gradients) {
            row_sums again = {0, 0, 0, 0, 0, 0, 0, 0};
            sweep<true>(again, sums, weight * upstream / divisor);
            if (!k.needs_sums && k.entropy.data) { /* the same numbers in the same order */
                add_up(again);
                sums = again;
            }
            fill_beyond();
        }
        const double entropy = is_undefined ? not_a_number() : p.log_sum() + sums.entropy;
        double value = is_bad ? not_a_number() : k.weight * set.value;
        if (k.has_label_terms && !is_bad)
            value += label_terms(sums, nll, lse, entropy);
        store_results(lse, entropy, -nll, 0, 0, argmax);
        return weight * value;
    }
};

/* Rows of which the columns outside are computed in R. */
#define ONEP_LOGITS_TOP_K(name, R)                                                                                     \
    extern "C" __global__ void __launch_bounds__(ONEP_LOGITS_THREADS, 1)                                               \
        onep_top_k_##name(const __grid_constant__ onep_logits_top_k_args k)                                            \
    {                                                                                                                  \
        logits_loss<top_k_row<R>>(k.loss);                                                                             \
    }

#endif
