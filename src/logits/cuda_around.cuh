/*
 * What the loss kernels do around a row, however they read it: which rows take part, results that are the same number
 * in every column, the label terms' value, and the sum over all rows.
 */
#ifndef ONEP_LOGITS_AROUND_CUH
#define ONEP_LOGITS_AROUND_CUH

#include "logits/cuda_row.cuh"

/* What the sweeps of a row add up. */
struct row_sums {
    double value, s_phi, t_psi, targets, target_entropy; /* of the divergence */
    double entropy, smoothing, class_weights;            /* of P: sum of P (most - z), of c (lse - z), of c */
};

template <class R, class TEAM> struct row_frame {
    typedef TEAM own;

    const onep_logits_loss_args &k;
    const long long row;
    long long label; /* -1: no labels */
    const char *predictions, *targets;

    __device__ __forceinline__ row_frame(const onep_logits_loss_args &args, long long row_index)
        : k(args), row(row_index), label(-1), predictions(row_of(args.predictions, args.rows, row_index)),
          targets(row_of(args.targets, args.rows, row_index))
    {
    }

    __device__ __forceinline__ bool takes_part()
    {
        if (k.mask.data && *row_of(k.mask, k.rows, row) == 0)
            return false;
        if (!k.labels.data)
            return true;
        label = integer_of(k.labels.type, row_of(k.labels, k.rows, row));
        return label != k.ignore_index;
    }

    __device__ __forceinline__ R class_weight(long long column) const
    {
        return k.class_weights.data
                   ? load_any<R>(k.class_weights.type, k.class_weights.data + column * k.class_weights.col_stride)
                   : (R)1;
    }

    /* Gradients of every column, and zeros beyond. */
    __device__ __forceinline__ void fill(R x) const
    {
        fill_columns<R, own>(k.grad_predictions, row_of(k.grad_predictions, k.rows, row), 0, k.columns, x);
        fill_columns<R, own>(k.grad_targets, row_of(k.grad_targets, k.rows, row), 0, k.columns, x);
        fill_beyond();
    }
    __device__ __forceinline__ void fill_beyond() const
    {
        fill_columns<R, own>(k.grad_predictions, row_of(k.grad_predictions, k.rows, row), k.columns, k.width, (R)0);
        fill_columns<R, own>(k.grad_targets, row_of(k.grad_targets, k.rows, row), k.columns, k.width, (R)0);
    }

    __device__ __forceinline__ void store_results(double lse, double entropy, double log_prob, double target_lse,
                                                  double target_entropy, long long argmax) const
    {
        if (own::rank() != 0)
            return;
        store_number(k.lse, k.rows, row, lse);
        store_number(k.entropy, k.rows, row, entropy);
        store_number(k.log_prob, k.rows, row, log_prob);
        store_number(k.target_lse, k.rows, row, target_lse);
        store_number(k.target_entropy, k.rows, row, target_entropy);
        if (k.argmax.data)
            *reinterpret_cast<long long *>(row_of(k.argmax, k.rows, row)) = argmax;
    }

    /* Whether the label's own term is defined: there is none, or it is among the columns. */
    __device__ __forceinline__ bool has_bad_label() const
    {
        return k.labels.data && (label < 0 || label >= k.columns);
    }
    __device__ __forceinline__ double upstream_of_row(double upstream_one) const
    {
        return k.per_row ? number_of(k.grad_value, row_of(k.grad_value, k.rows, row), 1) : upstream_one;
    }

    /* label_weight NLL + z_loss lse^2 - entropy_bonus H of the row, from P's sums. */
    __device__ __forceinline__ double label_terms(const row_sums &sums, double nll_of_label, double lse,
                                                  double entropy) const
    {
        double value = 0;
        if (label >= 0 && k.label_weight != 0) {
            double of_label = (double)class_weight(label) * nll_of_label;
            value += k.smoothing == 1 ? 0 : (1 - k.smoothing) * of_label;
            value += k.smoothing == 0 ? 0 : k.smoothing * sums.smoothing / (double)k.columns;
            value *= k.label_weight;
        }
        value += k.z_loss == 0 ? 0 : k.z_loss * lse * lse;
        return value - (k.entropy_bonus == 0 ? 0 : k.entropy_bonus * entropy);
    }
};

/* What label terms weigh in the gradient of a row: slopes of the label's own term, of all columns, of the smoothing. */
template <class R> struct label_slopes {
    R at_label, besides, spread;
    bool has_label;

    template <class TEAM>
    __device__ __forceinline__ label_slopes(const row_frame<R, TEAM> &of, double class_weights, double lse)
    {
        const onep_logits_loss_args &k = of.k;
        has_label = of.label >= 0 && of.label < k.columns && k.label_weight != 0;
        at_label = has_label ? (R)(k.label_weight * (1 - k.smoothing)) * of.class_weight(of.label) : (R)0;
        spread = has_label ? (R)(k.label_weight * k.smoothing / (double)k.columns) : (R)0;
        besides = spread != 0 ? spread * (R)class_weights : (R)0;
        if (k.z_loss != 0)
            besides += (R)(2 * k.z_loss * lse);
    }
};

/* ---- all rows ---------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ double upstream_of(const onep_logits_loss_args &k)
{
    return k.per_row ? 1.0 : number_of(k.grad_value, k.grad_value.data, 1);
}

/* ROW: row_frame with `double run(upstream, divisor)`, everything of a row; its weighted value, in every thread. */
template <class ROW> __device__ __forceinline__ void logits_loss(const onep_logits_loss_args &k)
{
    typedef typename ROW::own own;
    const double upstream_one = upstream_of(k);
    if (k.made_for.data && upstream_one == load_any<double>(k.made_for.type, k.made_for.data))
        return; /* the gradients in memory are the ones asked for: no block gets further */
    const double divisor = k.counted ? __ldcg(k.counted) : number_of(k.divisor_from, k.divisor_from.data, k.divisor);
    const long long chunk = own::index();
    const long long first = chunk * k.rows.chunk;
    const long long last = first + k.rows.chunk < k.rows.count ? first + k.rows.chunk : k.rows.count;
    double sum = 0;
    for (long long row = first; row < last; row++) {
        ROW one(k, row);
        const double value = one.run(upstream_one, divisor);
        if (k.per_row && k.value.data && own::rank() == 0)
            store_number(k.value, k.rows, row, value);
        sum += value;
    }
    if (k.per_row || !k.value.data)
        return;
    if (own::rank() == 0 && chunk < k.rows.chunks)
        k.partial[chunk] = sum;
    if (!last_block(k.ticket, gridDim.x))
        return;
    __shared__ double room[32];
    const double total = sum_partials(k.partial, k.rows.chunks, room);
    if (threadIdx.x == 0) {
        const bool is_none = k.counted && k.finite && divisor == 0;
        store_any<double>(k.value.type, k.value.data, is_none ? 0.0 : total / divisor);
    }
}

#endif
