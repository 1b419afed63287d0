/*
 * Losses from logits by the lanes of a part of a warp (cuda_narrow.cuh), for what people train with: cross-entropy of
 * labels with class weights and z-loss, and KL of logits from logits. Nothing is stored but results.
 */
#ifndef ONEP_LOGITS_NARROW_LOSS_CUH
#define ONEP_LOGITS_NARROW_LOSS_CUH

#include "logits/cuda_around.cuh"
#include "logits/cuda_narrow.cuh"

/* ---- all rows ---------------------------------------------------------------------------------------------------- */

/*
 * What a thread knows of all rows: the host's facts, and what of them is in memory. PLAIN: rows of one dimension that
 * are read and written four columns at a time, nothing but their sum and gradients to predictions, and of what flags
 * stand for nothing but a counted divisor. Instructions for the rest would cost narrow rows as much as their own.
 */
template <bool PLAIN> struct narrow_facts {
    const onep_logits_loss_args &k;
    double to_s, to_t; /* what gradients are multiplied by, beside a row's weight and upstream gradient */

    __device__ __forceinline__ narrow_facts(const onep_logits_loss_args &args)
        : k(args), to_s(args.narrow.to_s), to_t(args.narrow.to_t)
    {
        if (!(k.narrow.flags & ONEP_LOGITS_SCALED))
            return;
        const double factor = (PLAIN ? 1 : upstream_of(k)) / divisor();
        to_s *= factor;
        to_t *= factor;
    }
    __device__ __forceinline__ bool has(int flag) const
    {
        return !PLAIN && (k.narrow.flags & flag) != 0;
    }
    __device__ __forceinline__ double divisor() const
    {
        if (PLAIN)
            return k.counted ? __ldcg(k.counted) : k.divisor;
        return k.counted ? __ldcg(k.counted) : number_of(k.divisor_from, k.divisor_from.data, k.divisor);
    }
    __device__ __forceinline__ char *row_at(const onep_logits_operand &o, long long row) const
    {
        return has(ONEP_LOGITS_RANKS) ? row_of(o, k.rows, row) : o.data + row * o.row_stride[0];
    }
    __device__ __forceinline__ bool has_total() const
    {
        return (k.narrow.flags & ONEP_LOGITS_TOTAL) != 0;
    }
    __device__ __forceinline__ const char *predictions_of(long long row) const
    {
        return PLAIN ? k.narrow.predictions + row * k.narrow.predictions_stride : row_at(k.predictions, row);
    }
    __device__ __forceinline__ const char *targets_of(long long row) const
    {
        return PLAIN ? k.narrow.targets + row * k.narrow.targets_stride : row_at(k.targets, row);
    }
    __device__ __forceinline__ long long label_of(long long row) const
    {
        return PLAIN ? integer_of(k.narrow.label_type, k.narrow.labels + row * k.narrow.labels_stride)
                     : integer_of(k.labels.type, row_at(k.labels, row));
    }
    /* NULL: not asked for. */
    __device__ __forceinline__ char *gradients_of(long long row) const
    {
        if (!k.narrow.gradients)
            return 0;
        return PLAIN ? k.narrow.gradients + row * k.narrow.gradients_stride : row_at(k.grad_predictions, row);
    }
};

/* Of a block: sums of its warps, how many of them are there, and whether the block is the last one. */
struct narrow_sums {
    double of_warp[ONEP_LOGITS_NARROW_THREADS / 32];
    unsigned arrived;
    int is_last;

    /* By thread 0; a barrier follows. */
    __device__ __forceinline__ void begin()
    {
        arrived = 0;
        is_last = 0;
    }
};

/*
 * The sum of a block's rows, and of all. The warp that is last adds the block's up, stores it and counts it among those
 * that are there, all as soon as it is known: gradients are stored while that is on its way.
 */
template <bool PLAIN> struct narrow_total {
    enum { WARPS = ONEP_LOGITS_NARROW_THREADS / 32 };
    const narrow_facts<PLAIN> &facts;
    const onep_logits_loss_args &k;
    narrow_sums &sums;
    double sum;

    __device__ __forceinline__ narrow_total(const narrow_facts<PLAIN> &known, narrow_sums &shared_sums)
        : facts(known), k(known.k), sums(shared_sums), sum(0)
    {
    }
    /* By every lane of a warp, each with its part of the values of the rows that are worked on, perhaps the last ones.
     */
    __device__ __forceinline__ void add(double value, bool is_ending)
    {
        sum += value;
        if (!is_ending || !facts.has_total())
            return;
        sum = warp_sum(sum);
        if ((threadIdx.x & 31) != 0)
            return;
        sums.of_warp[threadIdx.x / 32] = sum;
        __threadfence_block(); /* this sum before the count, and the count before others' sums */
        if (atomicInc(&sums.arrived, WARPS - 1) != WARPS - 1)
            return;
        __threadfence_block();
        sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            sum += *(volatile const double *)&sums.of_warp[w];
        k.partial[blockIdx.x] = sum;
        __threadfence(); /* likewise, of blocks: see last_block */
        if (atomicInc(k.ticket, gridDim.x - 1) == gridDim.x - 1)
            sums.is_last = 1;
    }
    __device__ __forceinline__ void finish() const
    {
        if (!facts.has_total())
            return;
        __syncthreads(); /* every warp has added what it has */
        if (!sums.is_last)
            return;
        __threadfence();
        __shared__ double room[32];
        const double total = sum_partials(k.partial, k.rows.chunks, room);
        if (threadIdx.x == 0) {
            const double divisor = facts.divisor();
            const bool is_none = k.counted && k.finite && divisor == 0;
            store_any<double>(k.value.type, k.value.data, is_none ? 0.0 : total / divisor);
        }
    }
};

/* The rows of a block's chunk, as many at a time as there are teams; once where there are none. */
template <int LANES> struct narrow_chunk {
    enum { TEAMS = ONEP_LOGITS_NARROW_THREADS / LANES };
    long long row, last;

    __device__ __forceinline__ narrow_chunk(const onep_logits_rows &rows)
        : row(blockIdx.x * rows.chunk), last(row + rows.chunk < rows.count ? row + rows.chunk : rows.count)
    {
    }
    /* This team's. */
    __device__ __forceinline__ long long index() const
    {
        return row + lanes<LANES>::in_block();
    }
    __device__ __forceinline__ bool is_there() const
    {
        return index() < last;
    }
    __device__ __forceinline__ bool is_ending() const
    {
        return last - row <= TEAMS;
    }
    __device__ __forceinline__ bool next()
    {
        row += TEAMS;
        return row < last;
    }
};

__device__ __forceinline__ bool has_gradients_already(const onep_logits_loss_args &k)
{
    return k.made_for.data && upstream_of(k) == load_any<double>(k.made_for.type, k.made_for.data);
}

/* A row by LANES lanes with up to QUADS quads each. */
template <class T, int LANES, int QUADS, bool PLAIN> struct narrow_row {
    typedef lanes<LANES> own;
    typedef narrow_operand<T, LANES, QUADS> operand;

    const narrow_facts<PLAIN> &facts;
    const onep_logits_loss_args &k;
    const long long row;
    const int columns; /* 0: there is no row */
    const char *predictions;
    long long label;       /* -1: no labels */
    bool counts;           /* the row takes part */
    double weight, factor; /* the latter with the row's upstream gradient */

    __device__ __forceinline__ narrow_row(const narrow_facts<PLAIN> &known, long long index, bool is_there)
        : facts(known), k(known.k), row(is_there ? index : 0), columns(is_there ? (int)known.k.columns : 0),
          predictions(known.predictions_of(is_there ? index : 0)), label(-1), counts(is_there), weight(1), factor(1)
    {
    }
    /* What else there is to be loaded of a row. */
    __device__ __forceinline__ void load_scalars()
    {
        if (k.narrow.labels && columns) {
            label = facts.label_of(row);
            counts = counts && label != k.ignore_index;
        }
        if (!facts.has(ONEP_LOGITS_BY_ROW) || !columns)
            return;
        if (k.mask.data)
            counts = counts && *facts.row_at(k.mask, row) != 0;
        if (k.weights.data)
            weight = load_any<double>(k.weights.type, facts.row_at(k.weights, row));
        factor = weight;
        if (k.per_row && k.grad_value.data)
            factor *= load_any<double>(k.grad_value.type, facts.row_at(k.grad_value, row));
    }
    __device__ __forceinline__ float scale_of(double to) const
    {
        return (float)(facts.has(ONEP_LOGITS_BY_ROW) ? factor * to : to);
    }
    __device__ __forceinline__ bool has_bad_label() const
    {
        return k.narrow.labels && (label < 0 || label >= k.columns);
    }
    __device__ __forceinline__ float class_weight() const
    {
        return load_any<float>(k.class_weights.type, k.class_weights.data + label * k.class_weights.col_stride);
    }
    __device__ __forceinline__ void fill_beyond() const
    {
        if (!columns)
            return;
        fill_columns<float, own>(k.grad_predictions, row_of(k.grad_predictions, k.rows, row), columns, k.width, 0.0f);
        fill_columns<float, own>(k.grad_targets, row_of(k.grad_targets, k.rows, row), columns, k.width, 0.0f);
    }
    /* v at the label, 0 without one among the columns. */
    __device__ __forceinline__ float load_label() const
    {
        if (!columns || label < 0 || label >= k.columns)
            return 0;
        return widen(*reinterpret_cast<const T *>(predictions +
                                                  label * (PLAIN ? (long long)sizeof(T) : k.predictions.col_stride)));
    }
    __device__ __forceinline__ void store_result(const onep_logits_operand &o, double x) const
    {
        if (own::rank() == 0 && columns)
            store_number(o, k.rows, row, x);
    }
    __device__ __forceinline__ void store_first(int column) const
    {
        if (own::rank() == 0 && columns)
            *reinterpret_cast<long long *>(row_of(k.argmax, k.rows, row)) = column;
    }
    /* The row's part of the sum, in the first lane; a value per row is stored. */
    __device__ __forceinline__ double weighted(double value) const
    {
        if (facts.has(ONEP_LOGITS_BY_ROW))
            value *= weight;
        value = counts ? value : 0.0;
        if (!PLAIN && k.per_row && k.value.data)
            store_result(k.value, value);
        return own::rank() == 0 && columns ? value : 0.0;
    }
};

/* ---- cross-entropy ----------------------------------------------------------------------------------------------- */

template <class T, int LANES, int QUADS, bool PLAIN>
__device__ __forceinline__ void narrow_labels(const onep_logits_loss_args &k)
{
    typedef narrow_row<T, LANES, QUADS, PLAIN> row_type;
    typedef typename row_type::operand operand;
    __shared__ narrow_sums sums;
    if (!PLAIN && has_gradients_already(k))
        return;
    if (threadIdx.x == 0)
        sums.begin();
    __syncthreads();
    const narrow_facts<PLAIN> facts(k);
    narrow_total<PLAIN> total(facts, sums);
    narrow_chunk<LANES> rows(k.rows);
#pragma unroll 1
    do {
        row_type row(facts, rows.index(), rows.is_there());
        operand x;
        x.template load<PLAIN>(k.predictions, row.predictions, k.narrow.unit, row.columns);
        row.load_scalars();
        const float v_label = row.load_label();
        if (!row.counts)
            x.clear();
        narrow_softmax of(k.narrow.k_s, x.largest());
        parts<QUADS> tail;
        int ties = 0;
        operand::for_quads(k.columns, [&](int j) {
            float v[COLUMNS];
            unpack(x.at[j], v);
#pragma unroll
            for (int i = 0; i < COLUMNS; i++)
                of.add(v[i], power_of_2(of.exponent(v[i])), ties, tail.at[tail.of(j, i)]);
        });
        x.forget();
        of.find(row_type::own::sum(ties), tail.template sum<LANES>());
        const float log_sum = log1pf(of.others), lse = of.lse(k.narrow.over_s, log_sum);
        const bool bad_label = row.has_bad_label(), is_bad = bad_label && k.narrow.at_label != 0;
        const bool has_numbers = row.counts && !of.has_no_mass(), has_label = row.label >= 0 && !bad_label;
        const float nan = (float)not_a_number(), none = row.counts && !k.finite ? nan : 0.0f;
        const float nll = bad_label ? nan : fmaf(of.m - v_label, k.narrow.over_s, log_sum);
        float at_label = has_label ? k.narrow.at_label : 0.0f;
        if (facts.has(ONEP_LOGITS_CLASSES) && has_label)
            at_label *= row.class_weight();
        if (facts.has(ONEP_LOGITS_RESULTS)) {
            row.store_result(k.lse, row.counts ? lse : 0);
            row.store_result(k.log_prob, has_numbers ? -nll : none);
            if (k.entropy.data) {
                const float entropy = log_sum + of.distance(x);
                row.store_result(k.entropy, has_numbers ? entropy : none);
            }
            if (k.argmax.data) {
                x.forget();
                const int first = of.first(x, (int)k.columns);
                row.store_first(row.counts ? first : 0);
            }
            x.forget();
        }
        double value = row.label >= 0 && k.narrow.at_label != 0 ? (double)at_label * (double)nll : 0.0;
        if (k.narrow.z_slope != 0)
            value = fma(k.z_loss * (double)lse, (double)lse, value);
        total.add(row.weighted(!has_numbers ? (double)none : is_bad ? not_a_number() : value), rows.is_ending());
        if (k.narrow.gradients) {
            const float scale = row.scale_of(facts.to_s), share = of.share(),
                        besides = __fmul_rn(k.narrow.z_slope, lse);
            const float of_label = __fmul_rn(power_of_2(of.exponent(v_label)), share);
            const float rest = v_label == of.m ? of.others * of.inverse : 1 - of_label;
            float to_all = (at_label + besides) * scale * share;
            float to_label = fmaf(besides, of_label, -__fmul_rn(at_label, rest)) * scale;
            if (!has_numbers || is_bad) /* exponentials are finite there, or NaN as the gradient is */
                to_all = to_label = has_numbers ? nan : none;
            const int label_here = at_label != 0 ? (int)row.label - operand::first_column() : -1;
            const auto slopes = [&](int j, float(&v)[COLUMNS]) {
                unpack(x.at[j], v);
#pragma unroll
                for (int i = 0; i < COLUMNS; i++)
                    v[i] = power_of_2(of.exponent(v[i])) * to_all;
                const unsigned from_here = (unsigned)(label_here - j * operand::STEP);
                if (from_here >= COLUMNS)
                    return;
#pragma unroll
                for (int i = 0; i < COLUMNS; i++)
                    v[i] = from_here == (unsigned)i ? to_label : v[i];
            };
            operand::template put<PLAIN, LANES == 32>(k, k.grad_predictions, facts.gradients_of(row.row), row.columns,
                                                      x, slopes);
        }
        if (facts.has(ONEP_LOGITS_RESULTS))
            row.fill_beyond();
    } while (rows.next());
    total.finish();
}

/* ---- KL ---------------------------------------------------------------------------------------------------------- */

/* log(S / T) of a column: of logits below their maxima the difference comes first, so that it is exact where S and T
 * are near each other. */
struct narrow_delta {
    float m_s, m_t, over_s, over_t, shift;
    bool same_temperature;

    __device__ __forceinline__ float of(float v, float w) const
    {
        const float d_s = v - m_s, d_t = w - m_t;
        return same_temperature ? fmaf(d_s - d_t, over_s, -shift) : fmaf(d_s, over_s, -__fmul_rn(d_t, over_t)) - shift;
    }
};

template <class T, int LANES, int QUADS, bool PLAIN>
__device__ __forceinline__ void narrow_kl(const onep_logits_loss_args &k)
{
    typedef narrow_row<T, LANES, QUADS, PLAIN> row_type;
    typedef typename row_type::operand operand;
    __shared__ narrow_sums sums;
    if (!PLAIN && has_gradients_already(k))
        return;
    if (threadIdx.x == 0)
        sums.begin();
    __syncthreads();
    const narrow_facts<PLAIN> facts(k);
    narrow_total<PLAIN> total(facts, sums);
    narrow_chunk<LANES> rows(k.rows);
#pragma unroll 1
    do {
        row_type row(facts, rows.index(), rows.is_there());
        operand x, y;
        x.template load<PLAIN>(k.predictions, row.predictions, k.narrow.unit, row.columns);
        y.template load<PLAIN>(k.targets, facts.targets_of(row.row), k.narrow.unit, row.columns);
        row.load_scalars();
        const float v_label = facts.has(ONEP_LOGITS_RESULTS) && k.log_prob.data ? row.load_label() : 0.0f;
        if (!row.counts) {
            x.clear();
            y.clear();
        }
        narrow_softmax s(k.narrow.k_s, x.largest()), t(k.narrow.k_t, y.largest());
        parts<QUADS> tail_s, tail_t, products;
        int ties_s = 0, ties_t = 0;
        operand::for_quads(k.columns, [&](int j) {
            float v[COLUMNS], w[COLUMNS];
            unpack(x.at[j], v);
            unpack(y.at[j], w);
#pragma unroll
            for (int i = 0; i < COLUMNS; i++) {
                const int part = products.of(j, i);
                const float d_s = s.exponent(v[i]), d_t = t.exponent(w[i]);
                const float of_s = power_of_2(d_s), of_t = power_of_2(d_t);
                s.add(v[i], of_s, ties_s, tail_s.at[part]);
                t.add(w[i], of_t, ties_t, tail_t.at[part]);
                if (of_t != 0)
                    products.at[part] = fmaf(of_t, d_t - d_s, products.at[part]);
            }
        });
        x.forget();
        y.forget();
        const int ties = row_type::own::sum(ties_s | ties_t << 16); /* neither side has more than 4096 columns */
        s.find(ties & 0xffff, tail_s.template sum<LANES>());
        t.find(ties >> 16, tail_t.template sum<LANES>());
        /* sum of exp(d_t) (d_t - d_s), in units of log 2 */
        const float product =
            fmaf(s.error - t.error, 1 + t.others, products.template sum<LANES>() * power_of_2(-t.error));
        /* log(sum_s / sum_t): one logarithm of what is no less than 1, so that its error is a share of itself */
        const bool is_larger = s.others >= t.others;
        const float ratio = fabsf(s.others - t.others) * (is_larger ? t.inverse : s.inverse), log_ratio = log1pf(ratio);
        const float shift = is_larger ? log_ratio : -log_ratio;
        float kl = fmaf(product * 0.693147181f, t.inverse, shift);
        const bool has_no_mass = s.has_no_mass() || t.has_no_mass(), has_numbers = row.counts && !has_no_mass;
        const float none = row.counts && !k.finite ? (float)not_a_number() : 0.0f;
        const float scale_s = row.scale_of(facts.to_s);
        float share_s = s.share(), share_t = t.share();
        if (facts.has(ONEP_LOGITS_RESULTS)) {
            const float log_s = log1pf(s.others), log_t = log1pf(t.others);
            row.store_result(k.lse, row.counts ? s.lse(k.narrow.over_s, log_s) : 0);
            row.store_result(k.target_lse, row.counts ? t.lse(k.narrow.over_t, log_t) : 0);
            if (k.entropy.data) {
                const float entropy = log_s + s.distance(x);
                row.store_result(k.entropy, has_numbers ? entropy : none);
            }
            if (k.target_entropy.data) {
                const float entropy = log_t + t.distance(y);
                row.store_result(k.target_entropy, has_numbers ? entropy : none);
            }
            const float log_prob = -fmaf(s.m - v_label, k.narrow.over_s, log_s);
            row.store_result(k.log_prob, !has_numbers ? none : row.has_bad_label() ? (float)not_a_number() : log_prob);
            if (k.argmax.data) {
                x.forget();
                const int first = s.first(x, (int)k.columns);
                row.store_first(row.counts ? first : 0);
            }
            x.forget();
            y.forget();
        }
        if (!has_numbers) { /* of columns without mass every gradient is `none` */
            x.clear();
            y.clear();
            s.r = t.r = share_s = share_t = 0; /* the other side's may be NaN */
        }
        const bool is_near = has_numbers && kl < 1.0f / 128;
        const narrow_delta delta = {
            s.m, t.m, k.narrow.over_s, k.narrow.over_t, shift, k.narrow.over_s == k.narrow.over_t};
        if (__any_sync(~0u, is_near)) { /* value and gradient from columns that may be near each other */
            parts<QUADS> values;
            operand made;
            char *to = facts.gradients_of(row.row);
            const auto near_slopes = [&](int j, float(&v)[COLUMNS]) {
                float w[COLUMNS], value;
                unpack(x.at[j], v);
                unpack(y.at[j], w);
#pragma unroll
                for (int i = 0; i < COLUMNS; i++) {
                    v[i] = near_kl_slope(power_of_2(s.exponent(v[i])) * share_s, power_of_2(t.exponent(w[i])) * share_t,
                                         delta.of(v[i], w[i]), value) *
                           scale_s;
                    values.at[values.of(j, i)] = __fadd_rn(values.at[values.of(j, i)], value);
                }
            };
            if (is_near)
                operand::template put<PLAIN, true>(k, k.grad_predictions, to, row.columns, made, near_slopes);
            const float value = values.template sum<LANES>();
            kl = is_near ? value : kl;
        }
        total.add(row.weighted(has_numbers ? k.weight * (double)kl : (double)none), rows.is_ending());
        if (!PLAIN && k.grad_targets.data) {
            const float scale_t = has_numbers ? row.scale_of(facts.to_t) : none;
            operand made;
            const auto target_slopes = [&](int j, float(&w)[COLUMNS]) {
                float v[COLUMNS];
                unpack(x.at[j], v);
                unpack(y.at[j], w);
#pragma unroll
                for (int i = 0; i < COLUMNS; i++) {
                    const float of = power_of_2(t.exponent(w[i])) * share_t;
                    w[i] = (of != 0 ? of * (-delta.of(v[i], w[i]) - kl) : of) * scale_t;
                }
            };
            operand::template put<false, false>(k, k.grad_targets, facts.row_at(k.grad_targets, row.row), row.columns,
                                                made, target_slopes);
        }
        if (k.narrow.gradients && !is_near) {
            const float of_e_s = has_numbers ? share_s * scale_s : none;
            const float of_e_t = has_numbers ? share_t * scale_s : none;
            const auto slopes = [&](int j, float(&v)[COLUMNS]) {
                float w[COLUMNS];
                unpack(x.at[j], v);
                unpack(y.at[j], w);
#pragma unroll
                for (int i = 0; i < COLUMNS; i++) {
                    const float of_s = power_of_2(s.exponent(v[i]));
                    const float of_t = power_of_2(t.exponent(w[i]));
                    v[i] = fmaf(of_s, of_e_s, -__fmul_rn(of_t, of_e_t));
                }
            };
            operand::template put<PLAIN, true>(k, k.grad_predictions, facts.gradients_of(row.row), row.columns, x,
                                               slopes);
        }
        if (facts.has(ONEP_LOGITS_RESULTS))
            row.fill_beyond();
    } while (rows.next());
    total.finish();
}

/* Blocks per multiprocessor: as many as registers allow without spilling. */
#define ONEP_LOGITS_NARROW(kind, name, LANES, QUADS, blocks, ...)                                                      \
    extern "C" __global__ void __launch_bounds__(ONEP_LOGITS_NARROW_THREADS, blocks)                                   \
        onep_logits_##kind##_##LANES##x##QUADS##_##name(const __grid_constant__ onep_logits_loss_args k)               \
    {                                                                                                                  \
        narrow_##__VA_ARGS__(k);                                                                                       \
    }

#endif
