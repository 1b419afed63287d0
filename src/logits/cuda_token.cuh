/*
 * Token log-probabilities: log P at some indices, entropy and LSE of each row, and the gradient to the logits from those
 * of the three. A row is read once for its softmax, again for its entropy where that is asked for, and once more for the
 * gradient. The arithmetic is that of token_ref.c, in float or double.
 */
#ifndef ONEP_LOGITS_TOKEN_CUH
#define ONEP_LOGITS_TOKEN_CUH

#include "logits/cuda_row.cuh"

template <class R, bool WIDE> struct token_row {
    typedef team<WIDE> own;

    const onep_logits_token_args &k;
    const long long row;
    const char *logits, *indices;
    logit_scale<R> scale;
    softmax_part<R> p;

    __device__ __forceinline__ token_row(const onep_logits_token_args &args, long long row_index)
        : k(args), row(row_index), logits(row_of(args.logits, args.rows, row_index)),
          indices(row_of(args.indices, args.rows, row_index)), scale(args.softcap, args.temperature)
    {
        p.clear();
    }

    __device__ __forceinline__ void find_softmax()
    {
        for_columns<own>(k.columns, [&](long long column) {
            p.add(scale.z_of(load_column<R>(k.logits, logits, column)), column);
        });
        p = own::softmax(p);
    }

    __device__ __forceinline__ bool has_no_mass() const
    {
        return k.columns > 0 && p.has_no_mass();
    }

    __device__ __forceinline__ double entropy_of()
    {
        const softmax_scale<R> of(p);
        double sum = 0;
        for_columns<own>(k.columns, [&](long long column) {
            const R z = scale.z_of(load_column<R>(k.logits, logits, column)), probability = of.probability(z);
            sum += probability != 0 ? (double)(probability * (of.most - z)) : 0.0;
        });
        return p.is_undefined() ? not_a_number() : p.log_sum() + own::sum(sum);
    }

    __device__ __forceinline__ long long index_of(long long i) const
    {
        return integer_of(k.indices.type, indices + i * k.indices.col_stride);
    }
    __device__ __forceinline__ bool is_outside(long long index) const
    {
        return index < 0 || index >= k.columns;
    }

    __device__ __forceinline__ void forward()
    {
        const double undefined = k.finite ? 0 : not_a_number();
        const double entropy = !k.entropy.data ? 0 : has_no_mass() ? undefined : entropy_of();
        char *to = row_of(k.log_prob, k.rows, row);
        for (long long i = own::rank(); i < k.count && to; i += own::size()) {
            const long long index = index_of(i);
            double x = index == k.ignore_index ? 0 : not_a_number();
            if (index != k.ignore_index && !is_outside(index)) {
                const R z = scale.z_of(load_any<R>(k.logits.type, logits + index * k.logits.col_stride));
                x = has_no_mass()   ? undefined
                    : p.is_undefined() ? not_a_number()
                                     : ((double)z - (double)p.most) - p.log_sum();
            }
            store_any<double>(k.log_prob.type, to + i * k.log_prob.col_stride, x);
        }
        if (own::rank() == 0) {
            store_number(k.entropy, k.rows, row, entropy);
            store_number(k.lse, k.rows, row, p.lse());
        }
    }

    /* The gradients of this column's log-probabilities, added up; all: those of every index, NaN if one is outside. */
    __device__ __forceinline__ double upstream_at(const char *g, long long column) const
    {
        double here = 0;
        for (long long i = 0; i < k.count; i++)
            if (index_of(i) == column && column != k.ignore_index)
                here += load_any<double>(k.grad_log_prob.type, g + i * k.grad_log_prob.col_stride);
        return here;
    }
    __device__ __forceinline__ double upstream_of_all(const char *g) const
    {
        double sum = 0;
        for (long long i = own::rank(); i < k.count; i += own::size()) {
            const long long index = index_of(i);
            if (index != k.ignore_index)
                sum += is_outside(index) ? not_a_number()
                                         : load_any<double>(k.grad_log_prob.type, g + i * k.grad_log_prob.col_stride);
        }
        return own::sum(sum);
    }

    __device__ __forceinline__ void backward()
    {
        char *to = row_of(k.grad_logits, k.rows, row);
        const char *g = row_of(k.grad_log_prob, k.rows, row);
        const double g_entropy = number_of(k.grad_entropy, row_of(k.grad_entropy, k.rows, row), 0);
        const double g_lse = number_of(k.grad_lse, row_of(k.grad_lse, k.rows, row), 0);
        fill_columns<R, own>(k.grad_logits, to, k.columns, k.width, (R)0);
        if (has_no_mass() || p.is_undefined()) {
            fill_columns<R, own>(k.grad_logits, to, 0, k.columns,
                                  k.finite && !p.is_undefined() ? (R)0 : (R)not_a_number());
            return;
        }
        const double all = g ? upstream_of_all(g) : 0;
        const R entropy = g_entropy != 0 ? (R)entropy_of() : (R)0;
        const softmax_scale<R> of(p);
        const R everywhere = (R)(g_lse - all), bonus = (R)g_entropy, one_over_temperature = (R)(1 / k.temperature);
        for_columns<own>(k.columns, [&](long long column) {
            const R x = load_column<R>(k.logits, logits, column), z = scale.z_of(x), probability = of.probability(z);
            const double here = g ? upstream_at(g, column) : 0;
            R slope = everywhere * probability;
            if (here != 0) /* here (1 - P) - (all - here) P: without cancellation where P is nearly 1 */
                slope = (R)here * of.rest_of(z, probability) + (R)(g_lse - (all - here)) * probability;
            if (bonus != 0 && probability != 0)
                slope -= bonus * probability * (of.log_probability(z) + entropy);
            store_column<R>(k.grad_logits, to, column, slope * scale.slope_of(x) * one_over_temperature);
        });
    }

    __device__ __forceinline__ void clear()
    {
        char *log_prob = row_of(k.log_prob, k.rows, row);
        for (long long i = own::rank(); i < k.count && log_prob; i += own::size())
            store_any<double>(k.log_prob.type, log_prob + i * k.log_prob.col_stride, 0.0);
        fill_columns<R, own>(k.grad_logits, row_of(k.grad_logits, k.rows, row), 0, k.width, (R)0);
        if (own::rank() == 0) {
            store_number(k.entropy, k.rows, row, 0);
            store_number(k.lse, k.rows, row, 0);
        }
    }
};

template <class R, bool WIDE> __device__ __forceinline__ void logits_token(const onep_logits_token_args &k)
{
    const long long first = team<WIDE>::index() * k.rows.chunk;
    const long long last = first + k.rows.chunk < k.rows.count ? first + k.rows.chunk : k.rows.count;
    for (long long row = first; row < last; row++) {
        token_row<R, WIDE> one(k, row);
        if (k.mask.data && *row_of(k.mask, k.rows, row) == 0) {
            one.clear();
            continue;
        }
        one.find_softmax();
        if (k.is_backward)
            one.backward();
        else
            one.forward();
    }
}

/* Rows of up to ONEP_LOGITS_WARP_COLUMNS columns, and wider ones, computed in R. */
#define ONEP_LOGITS_TOKEN(name, R)                                                                                     \
    extern "C" __global__ void __launch_bounds__(ONEP_LOGITS_WARPS * 32, 4)                                            \
        onep_logits_token_narrow_##name(const __grid_constant__ onep_logits_token_args k)                              \
    {                                                                                                                  \
        logits_token<R, false>(k);                                                                                     \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(ONEP_LOGITS_THREADS, 2)                                               \
        onep_logits_token_wide_##name(const __grid_constant__ onep_logits_token_args k)                                \
    {                                                                                                                  \
        logits_token<R, true>(k);                                                                                      \
    }

#endif
