/*
 * Losses from logits with a row in the registers of a cluster (cuda_cluster.cuh), for what people train with: cross-
 * entropy of labels with class weights and z-loss, and KL of logits from logits. cuda_held.cuh has every other option
 * and the same formulas: labels by (maximum, columns at it, sum of the others), KL by sums of both sides, and by T
 * h(delta) in a second exchange where that sum is below 2^-7 and would cancel.
 */
#ifndef ONEP_LOGITS_CLUSTER_LOSS_CUH
#define ONEP_LOGITS_CLUSTER_LOSS_CUH

#include "logits/cuda_around.cuh"
#include "logits/cuda_cluster_merge.cuh"

/* A lane that has the results of a row to itself. */
struct lone_lane {
    static __device__ __forceinline__ int rank()
    {
        return 0;
    }
};
typedef row_frame<float, lone_lane> lane_frame;

/* ---- all rows ---------------------------------------------------------------------------------------------------- */

/* What a block knows of all rows. In shared memory: registers are for slices. */
struct loss_facts {
    float over_s, over_t, k_s, k_t; /* 1 / temperature of both sides; times log2(e) */
    double upstream, divisor;
    double to_s, to_t; /* what gradients are multiplied by, beside a row's weight and upstream gradient */
    float to_s_of_all; /* to_s times the one upstream gradient */

    /* By thread 0; a barrier follows. */
    __device__ __forceinline__ void find(const onep_logits_loss_args &k, double temperature_s, double temperature_t,
                                         double weight)
    {
        over_s = (float)(1 / temperature_s);
        over_t = (float)(1 / temperature_t);
        k_s = (float)(1.44269504088896341 / temperature_s);
        k_t = (float)(1.44269504088896341 / temperature_t);
        upstream = upstream_of(k);
        divisor = k.counted ? __ldcg(k.counted) : number_of(k.divisor_from, k.divisor_from.data, k.divisor);
        to_s = weight / temperature_s / divisor;
        to_t = weight / temperature_t / divisor;
        to_s_of_all = __fmul_rn((float)upstream, (float)to_s);
    }
    __device__ __forceinline__ float z_of_s(float v) const
    {
        return __fmul_rn(v, over_s);
    }
    __device__ __forceinline__ float z_of_t(float v) const
    {
        return __fmul_rn(v, over_t);
    }
};

/*
 * Values of rows that follow each other in chunks, one per lane, the lanes without one behind those with one: stored,
 * or added up in order. `sum`: of the chunk so far, in every lane.
 */
__device__ __forceinline__ void add_values(const onep_logits_loss_args &k, double &sum, bool has_row, int row,
                                           bool ends_a_chunk, double value)
{
    if (!k.value.data)
        return;
    if (k.per_row || k.rows.chunk == 1) {
        if (has_row && k.per_row)
            store_number(k.value, k.rows, row, value);
        else if (has_row)
            k.partial[row] = value;
        return;
    }
    const int count = __popc(__ballot_sync(~0u, has_row));
#pragma unroll 1
    for (int i = 0; i < count; i++) {
        sum += __shfl_sync(~0u, value, i);
        if (!__shfl_sync(~0u, (int)ends_a_chunk, i))
            continue;
        if ((threadIdx.x & 31) == i)
            k.partial[row / (int)k.rows.chunk] = sum;
        sum = 0;
    }
}

/* The whole loss, by the block that is last; the counter is 0 again. */
__device__ __forceinline__ void finish_loss(const onep_logits_loss_args &k, double divisor)
{
    cluster_sync(); /* no block may end while others send it states */
    if (!last_block(k.ticket, gridDim.x))
        return;
    if (threadIdx.x == 0)
        k.ticket[1] = 0;
    if (k.per_row || !k.value.data)
        return;
    __shared__ double room[32];
    const double total = sum_partials(k.partial, k.rows.chunks, room);
    if (threadIdx.x == 0) {
        const bool is_none = k.counted && k.finite && divisor == 0;
        store_any<double>(k.value.type, k.value.data, is_none ? 0.0 : total / divisor);
    }
}

__device__ __forceinline__ bool has_gradients_already(const onep_logits_loss_args &k)
{
    return k.made_for.data && upstream_of(k) == load_any<double>(k.made_for.type, k.made_for.data);
}

/* ---- cross-entropy ----------------------------------------------------------------------------------------------- */

/* Of a row, before its logits are there: found while states of the row before it are on their way. */
struct label_row {
    int label; /* -1: none that is a column */
    float scale, at_label;
    bool takes_part, is_bad;

    __device__ __forceinline__ void find(const onep_logits_loss_args &k, const loss_facts &facts, int row)
    {
        label = -1;
        takes_part = is_bad = false;
        if (row < 0)
            return;
        lane_frame frame(k, row);
        takes_part = frame.takes_part();
        is_bad = frame.has_bad_label() && k.label_weight != 0;
        if (!frame.has_bad_label())
            label = (int)frame.label;
        const double weight = number_of(k.weights, row_of(k.weights, k.rows, row), 1);
        scale = (float)(weight * frame.upstream_of_row(facts.upstream) * facts.to_s);
        at_label = label >= 0 && k.label_weight != 0 ? (float)k.label_weight * frame.class_weight(label) : 0.0f;
    }
};

/* What the results of a row are made from. */
struct label_record {
    int row;
    bool ends_a_chunk;
    float m, v_label;
    double others, distance; /* distance: sum of P (most - z) */
    long long first;         /* column with the maximum */
};

/* A lane's row: everything but gradients. Returns its weighted value. */
__device__ __forceinline__ double label_results(const onep_logits_loss_args &k, const loss_facts &facts,
                                                const label_record &of)
{
    lane_frame frame(k, of.row);
    const bool takes_part = frame.takes_part(), has_no_mass = of.m == minus_infinity(0.0f);
    const double none = takes_part && !(has_no_mass && k.finite) ? not_a_number() : 0;
    const bool has_numbers = takes_part && !has_no_mass, bad_label = frame.has_bad_label();
    known_softmax p;
    p.find(of.m, facts.z_of_s(of.m), of.others);
    const double nll =
        bad_label ? not_a_number() : ((double)facts.z_of_s(of.m) - (double)facts.z_of_s(of.v_label)) + p.log_sum;
    frame.store_results(takes_part ? p.lse : 0, has_numbers ? p.log_sum + of.distance : none, has_numbers ? -nll : none,
                        0, 0, takes_part ? of.first : 0);
    if (!takes_part)
        return 0;
    const row_sums no_sums = {0, 0, 0, 0, 0, 0, 0, 0};
    const double value = !has_numbers                       ? none
                         : bad_label && k.label_weight != 0 ? not_a_number()
                                                            : frame.label_terms(no_sums, nll, p.lse, 0);
    return value * number_of(k.weights, row_of(k.weights, k.rows, of.row), 1);
}

/*
 * What a slice's gradients are made from: exponentials times `factor`, and `at_label` where the label is. `besides` is
 * the slope of all terms but the label's own. Products and sums are spelled out: kernels must round alike.
 */
struct label_slice {
    float factor, at_label;

    __device__ __forceinline__ label_slice(const merged_softmax &all, const slice_softmax &of, float v_label,
                                           float of_own, float besides, float scale)
    {
        const float others = all.others(), inverse = __frcp_rn(1 + others);
        const float probability = __fmul_rn(inverse, of.factor(all.m)), e_label = exp2_of(of.exponent(v_label));
        const float rest = v_label == all.m ? __fmul_rn(others, inverse) : fmaf(-e_label, probability, 1.0f);
        factor = __fmul_rn(__fmul_rn(of_own + besides, scale), probability);
        at_label = __fmul_rn(fmaf(besides, __fmul_rn(e_label, probability), -__fmul_rn(of_own, rest)), scale);
    }
};

template <class T, bool MORE> __device__ __forceinline__ void cluster_labels(const onep_logits_loss_args &k)
{
    enum { LANES = element<T>::lanes };
    __shared__ exchange<2> states;
    __shared__ unsigned long long barriers[ONEP_LOGITS_MAX_WARPS];
    __shared__ int claims[2];
    __shared__ row_ledger<label_record> ledger;
    if (has_gradients_already(k))
        return;
    __shared__ loss_facts facts;
    if (threadIdx.x == 0)
        facts.find(k, k.label_temperature, 1, 1);
    const int planes = MORE ? 2 : 1;
    cluster_warp<T, 1, 2> warp(k.rows, k.columns, k.ticket + 1, states, barriers);
    warp.begin(claims);
    if (warp.slice >= warp.slices)
        warp.row = -1;
    warp.request(0, k.predictions, warp.row);
    double sum = 0;
    int rows_kept = 0;
    const auto settle = [&](const label_record *record) {
        const double value = record ? label_results(k, facts, *record) : 0;
        add_values(k, sum, record != 0, record ? record->row : 0, record && record->ends_a_chunk, value);
    };
    label_row here, ahead;
    ahead.find(k, facts, warp.row);
    for (;;) {
        if (warp.has_results())
            ledger.settle(rows_kept, warp.lane, warp.row < 0, settle);
        if (warp.row < 0)
            break;
        here = ahead;
        warp.put_beyond(k.grad_predictions, k.columns, k.width);
        const float k2 = facts.k_s;
        const int from_here = here.label - warp.first_column;
        const int label_here = here.label >= 0 && from_here >= 0 && from_here < warp.columns ? from_here : -1;
        slice_of<T> x;
        const int shift = warp.await(0, k.predictions);
        warp.take(0, shift, x);
        const float v_label = label_here >= 0 ? widen(*warp.element_at(0, shift, label_here)) : 0.0f;
        const slice_softmax of(k2, largest_of(x));
        if (MORE)
            warp.send(
                1, planes,
                make_float4(distance_of(warp.element_at(0, shift, 0), warp.columns, warp.lane, of),
                            first_at(warp.element_at(0, shift, 0), warp.columns, warp.lane, of.m, warp.first_column), 0,
                            0));
        __syncwarp(); /* every lane has read from the slot what it needs */
        warp.request(0, k.predictions, warp.next);

        float tails[PARTS] = {0};
        int ties = 0;
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            float v[LANES];
            unpack(x.at[j], v);
#pragma unroll
            for (int i = 0; i < LANES; i++) {
                add_exponential(v[i], of.m, exp2_of(of.exponent(v[i])), ties, tails[j % PARTS]);
            }
        }
        const softmax_state mine = state_of(of, ties, warp_sum((double)sum_of(tails)));
        warp.send(0, planes, make_float4(mine.m, mine.ties, mine.tail, warp.slice == 0 ? warp.claim_word() : v_label));
        ahead.find(k, facts, warp.next);
        forget(x);
        warp.receive();

        const float4 *got = warp.received(0), *more = warp.received(1);
        const int next_claim = __float_as_int(got[0].w);
        const merged_softmax all(warp, k2, got);
        if (k.grad_predictions.data) {
            if (!here.takes_part || all.has_no_mass() || here.is_bad) {
                const bool is_zero = !here.takes_part || (all.has_no_mass() && k.finite);
                warp.put_all(k.grad_predictions, is_zero ? 0.0f : (float)not_a_number());
            } else {
                const float besides =
                    k.z_loss != 0 ? (float)(2 * k.z_loss) * (facts.z_of_s(all.m) + log1pf(all.others())) : 0.0f;
                const label_slice slopes(all, of, v_label, here.at_label, besides, here.scale);
                warp.put(
                    k.grad_predictions,
                    [&](int j, float(&made)[LANES]) {
                        float v[LANES];
                        unpack(x.at[j], v);
#pragma unroll
                        for (int i = 0; i < LANES; i++)
                            made[i] = exp2_of(of.exponent(v[i])) * slopes.factor;
                    },
                    k.label_weight != 0 ? label_here : -1, slopes.at_label);
            }
        }
        if (warp.has_results()) {
            label_record record = {warp.row, warp.ends_a_chunk, all.m, v_label, all.exact_others(), 0, 0};
            if (label_here < 0 && here.label >= 0)
                record.v_label = got[here.label / slice_of<T>::COLUMNS].w;
            if (MORE) {
                const float inverse = __frcp_rn(1 + all.others());
                record.distance =
                    merged_distance(warp, k2, all.m, all.inverse(inverse), got, [&](int s) { return more[s].x; });
                record.first = merged_first(warp, all.m, got, [&](int s) { return more[s].y; });
            }
            ledger.add(rows_kept, warp.lane, record);
        }
        warp.step(next_claim);
    }
    finish_loss(k, facts.divisor);
}

/* ---- KL ---------------------------------------------------------------------------------------------------------- */

/* The row seen from one slice, both sides: what its columns are made from. */
struct kl_columns {
    float m_s, m_t, one_over_s, one_over_t, shift; /* of the row */
    bool same_temperature;

    /* log(S / T): of logits below their maxima the difference comes first, so that it is exact where S and T are near.
     */
    __device__ __forceinline__ float delta(float v, float w) const
    {
        const float d_s = v - m_s, d_t = w - m_t;
        return same_temperature ? fmaf(d_s - d_t, one_over_s, -shift)
                                : fmaf(d_s, one_over_s, -__fmul_rn(d_t, one_over_t)) - shift;
    }
};

/* Of a row, before its logits are there, as label_row. */
struct kl_row {
    int label;
    float scale;
    bool takes_part;

    __device__ __forceinline__ void find(const onep_logits_loss_args &k, const loss_facts &facts, int row)
    {
        label = -1;
        takes_part = false;
        if (row < 0)
            return;
        lane_frame frame(k, row);
        takes_part = frame.takes_part();
        if (!frame.has_bad_label())
            label = (int)frame.label;
        scale =
            (float)(number_of(k.weights, row_of(k.weights, k.rows, row), 1) * frame.upstream_of_row(facts.upstream));
    }
};

/* What the results of a row are made from. */
struct divergence_record {
    int row;
    bool ends_a_chunk;
    int direction; /* 1: KL, to be made from sums over T; -1: reverse KL, over S; 0: the value is known */
    float m_s, m_t, v_label;
    double others_s, others_t;
    double value;                  /* or the sum of exp(d_t) (d_t - d_s), of exp(d_s) (d_s - d_t) */
    double distance_s, distance_t; /* sums of P (most - z) */
    long long first;
};

/* A lane's row: everything but gradients. Returns its weighted value. */
__device__ __forceinline__ double divergence_results(const onep_logits_loss_args &k, const loss_facts &facts,
                                                     const divergence_record &of)
{
    lane_frame frame(k, of.row);
    const bool takes_part = frame.takes_part();
    const bool has_no_mass = of.m_s == minus_infinity(0.0f) || of.m_t == minus_infinity(0.0f);
    const bool has_numbers = takes_part && !has_no_mass;
    const double none = takes_part && !k.finite ? not_a_number() : 0;
    known_softmax s, t;
    s.find(of.m_s, facts.z_of_s(of.m_s), of.others_s);
    t.find(of.m_t, facts.z_of_t(of.m_t), of.others_t);
    const double log_prob = ((double)facts.z_of_s(of.v_label) - (double)facts.z_of_s(of.m_s)) - s.log_sum;
    frame.store_results(takes_part ? s.lse : 0, has_numbers ? s.log_sum + of.distance_s : none,
                        !has_numbers            ? none
                        : frame.has_bad_label() ? not_a_number()
                                                : log_prob,
                        takes_part ? t.lse : 0, has_numbers ? t.log_sum + of.distance_t : none,
                        takes_part ? of.first : 0);
    if (!takes_part)
        return 0;
    double value = of.value;
    if (of.direction > 0)
        value = value * t.one_over_sum + (s.log_sum - t.log_sum);
    else if (of.direction < 0)
        value = value * s.one_over_sum - (s.log_sum - t.log_sum);
    return (has_no_mass ? none : k.weight * value) * number_of(k.weights, row_of(k.weights, k.rows, of.row), 1);
}

/* A slice's sum of exp(d_t) (d_t - d_s), in units of log 2, from the sum against rounded maxima. */
__device__ __forceinline__ float cross_sum_of(double sum, const slice_softmax &of_t, const softmax_state &t,
                                              const slice_softmax &of_s)
{
    return fmaf(t.ties != 0 ? of_s.error - of_t.error : 0.0f, t.ties + t.tail,
                __fmul_rn((float)sum, exp2_of(-of_t.error)));
}

/* Near enough for the question whether S and T are near each other: is KL below 2^-7? */
__device__ __forceinline__ bool is_near_row(double sum_of_kl, float inverse_t, float others_s, float others_t)
{
    const float logs = log2_of(1 + others_s) - log2_of(1 + others_t);
    return fmaf((float)sum_of_kl, inverse_t, __fmul_rn(logs, LN_2)) < 1.0f / 128;
}

/* log((1 + x) / (1 + y)), with one_over_sum = 1 / (1 + y): exactly 0 where x is y. */
__device__ __forceinline__ float log_of_sums(double x, double y, double one_over_sum)
{
    const double change = (x - y) * one_over_sum;
    return magnitude(change) < 0.5 ? log1pf((float)change) : logf((float)(1 + change));
}

/* What a slice adds to the row's sum of exp(d_t) (d_t - d_s), in units of log 2; `cross`: its own sum. */
__device__ __forceinline__ double cross_term(const float4 &of_t, float m_t, float k_t, const float4 &of_s, float m_s,
                                             float k_s, float cross)
{
    const float weight = weight_of(of_t, m_t, k_t), mass = of_t.y + of_t.z;
    const float apart = __fmul_rn(of_t.x - m_t, k_t) - __fmul_rn(of_s.x - m_s, k_s);
    return (double)(__fmul_rn(weight, mass) != 0 ? __fmul_rn(weight, fmaf(mass, apart, cross)) : 0.0f);
}

/*
 * Both softmaxes of a row at once. DIRECTION 1: and the sum of exp(d_t) (d_t - d_s), of which the states of S have a
 * slice's; -1: of exp(d_s) (d_s - d_t) instead; 0: neither.
 */
template <int DIRECTION, class WARP>
__device__ __forceinline__ void merge_both(const WARP &warp, float k_s, float k_t, const float4 *of_s,
                                           const float4 *of_t, merged_softmax &s, merged_softmax &t, double &kl)
{
    s.m = t.m = minus_infinity(0.0f);
    warp.for_states([&](int i) {
        s.m = larger(s.m, of_s[i].x);
        t.m = larger(t.m, of_t[i].x);
    });
    s.m = largest_of_warp(s.m);
    t.m = largest_of_warp(t.m);
    int ties_s = 0, ties_t = 0;
    kl = s.tail = t.tail = 0;
    warp.for_states([&](int i) {
        const float4 a = of_s[i], b = of_t[i];
        s.add(a, k_s, ties_s);
        t.add(b, k_t, ties_t);
        if (DIRECTION > 0)
            kl += cross_term(b, t.m, k_t, a, s.m, k_s, a.w);
        if (DIRECTION < 0)
            kl += cross_term(a, s.m, k_s, b, t.m, k_t, a.w);
    });
    s.ties = (float)__reduce_add_sync(~0u, ties_s);
    t.ties = (float)__reduce_add_sync(~0u, ties_t);
    double sums[3] = {s.tail, t.tail, kl};
    sum_over_warp(sums);
    s.tail = sums[0];
    t.tail = sums[1];
    kl = sums[2] * 0.693147180559945309;
}

template <class T, bool MORE> __device__ __forceinline__ void cluster_kl(const onep_logits_loss_args &k)
{
    enum { LANES = element<T>::lanes };
    __shared__ exchange<3> states;
    __shared__ unsigned long long barriers[2 * ONEP_LOGITS_MAX_WARPS];
    __shared__ int claims[2];
    __shared__ row_ledger<divergence_record> ledger;
    if (has_gradients_already(k))
        return;
    __shared__ loss_facts facts;
    if (threadIdx.x == 0)
        facts.find(k, k.temperature, k.target_temperature, k.weight);
    const int planes = MORE ? 3 : 2;
    cluster_warp<T, 2, 3> warp(k.rows, k.columns, k.ticket + 1, states, barriers);
    warp.begin(claims);
    if (warp.slice >= warp.slices)
        warp.row = -1;
    warp.request(0, k.predictions, warp.row);
    warp.request(1, k.targets, warp.row);
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
        const float k_s = facts.k_s, k_t = facts.k_t;
        slice_of<T> x, y;
        int shift = warp.await(0, k.predictions);
        warp.take(0, shift, x);
        const slice_softmax of_s(k_s, largest_of(x));
        float distance_s = 0, first_s = 0, v_label = 0;
        if (MORE) {
            const T *slice = warp.element_at(0, shift, 0);
            const int from_here = here.label - warp.first_column;
            if (here.label >= 0 && from_here >= 0 && from_here < warp.columns)
                v_label = widen(slice[from_here]);
            distance_s = distance_of(slice, warp.columns, warp.lane, of_s);
            first_s = first_at(slice, warp.columns, warp.lane, of_s.m, warp.first_column);
        }
        __syncwarp(); /* every lane has read from the slot what it needs */
        warp.request(0, k.predictions, warp.next);
        shift = warp.await(1, k.targets);
        warp.take(1, shift, y);
        const slice_softmax of_t(k_t, largest_of(y));
        if (MORE)
            warp.send(2, planes,
                      make_float4(distance_s, distance_of(warp.element_at(1, shift, 0), warp.columns, warp.lane, of_t),
                                  first_s, v_label));
        __syncwarp(); /* as above */
        warp.request(1, k.targets, warp.next);

        int ties_s = 0, ties_t = 0;
        float tails_s[PARTS] = {0}, tails_t[PARTS] = {0}, kl[PARTS] = {0};
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            float v[LANES], w[LANES];
            unpack(x.at[j], v);
            unpack(y.at[j], w);
#pragma unroll
            for (int i = 0; i < LANES; i++) {
                const float d_s = of_s.exponent(v[i]), d_t = of_t.exponent(w[i]), e_t = exp2_of(d_t);
                add_exponential(v[i], of_s.m, exp2_of(d_s), ties_s, tails_s[j % PARTS]);
                add_exponential(w[i], of_t.m, e_t, ties_t, tails_t[j % PARTS]);
                add_product(e_t, d_t - d_s, kl[j % PARTS]);
            }
        }
        double sums[3] = {(double)sum_of(tails_s), (double)sum_of(tails_t), (double)sum_of(kl)};
        sum_over_warp(sums);
        const softmax_state mine_s = state_of(of_s, ties_s, sums[0]), mine_t = state_of(of_t, ties_t, sums[1]);
        warp.send(0, planes,
                  make_float4(mine_s.m, mine_s.ties, mine_s.tail, cross_sum_of(sums[2], of_t, mine_t, of_s)));
        warp.send(1, planes, make_float4(mine_t.m, mine_t.ties, mine_t.tail, warp.claim_word()));
        ahead.find(k, facts, warp.next);
        forget(x);
        forget(y);
        warp.receive();

        const float4 *got_s = warp.received(0), *got_t = warp.received(1), *more = warp.received(2);
        const int next_claim = __float_as_int(got_t[0].w);
        merged_softmax all_s, all_t;
        double sum_of_kl;
        merge_both<1>(warp, k_s, k_t, got_s, got_t, all_s, all_t, sum_of_kl);
        const float others_s = all_s.others(), others_t = all_t.others();
        const float inverse_s = __frcp_rn(1 + others_s), inverse_t = __frcp_rn(1 + others_t);
        const bool has_no_mass = all_s.has_no_mass() || all_t.has_no_mass();
        const bool is_filled = !here.takes_part || has_no_mass;
        const float filled = !here.takes_part || k.finite ? 0.0f : (float)not_a_number();
        const bool is_near = __any_sync(~0u, !is_filled && is_near_row(sum_of_kl, inverse_t, others_s, others_t));
        float shift_of_logs = 0;
        double kl_of_row = 0;
        if (is_near || k.grad_targets.data) {
            const double one_over_sum = all_t.inverse(inverse_t);
            shift_of_logs = log_of_sums(all_s.exact_others(), all_t.exact_others(), one_over_sum);
            kl_of_row = fma(sum_of_kl, one_over_sum, (double)shift_of_logs);
        }
        divergence_record record = {warp.row,
                                    warp.ends_a_chunk,
                                    is_near ? 0 : 1,
                                    all_s.m,
                                    all_t.m,
                                    0,
                                    all_s.exact_others(),
                                    all_t.exact_others(),
                                    sum_of_kl,
                                    0,
                                    0,
                                    0};
        if (MORE && warp.has_results()) { /* while the states are there */
            record.distance_s = merged_distance(warp, k_s, all_s.m, all_s.inverse(inverse_s), got_s,
                                                [&](int of) { return more[of].x; });
            record.distance_t = merged_distance(warp, k_t, all_t.m, all_t.inverse(inverse_t), got_t,
                                                [&](int of) { return more[of].y; });
            record.first = merged_first(warp, all_s.m, got_s, [&](int of) { return more[of].z; });
            if (here.label >= 0)
                record.v_label = more[here.label / slice_of<T>::COLUMNS].w;
        }

        const float share_s = __fmul_rn(inverse_s, of_s.factor(all_s.m));
        const float share_t = __fmul_rn(inverse_t, of_t.factor(all_t.m));
        const float to_s = __fmul_rn(here.scale, (float)facts.to_s);
        const kl_columns columns = {all_s.m,      all_t.m,       facts.over_s,
                                    facts.over_t, shift_of_logs, k.temperature == k.target_temperature};
        if (is_near) { /* value and gradient from columns that may be near each other */
            float value = 0;
            const auto slopes = [&](int j, float(&made)[LANES]) {
                float v[LANES], w[LANES], terms[LANES];
                unpack(x.at[j], v);
                unpack(y.at[j], w);
#pragma unroll
                for (int i = 0; i < LANES; i++) {
                    made[i] = near_kl_slope(__fmul_rn(exp2_of(of_s.exponent(v[i])), share_s),
                                            __fmul_rn(exp2_of(of_t.exponent(w[i])), share_t), columns.delta(v[i], w[i]),
                                            terms[i]) *
                              to_s;
                }
                value += sum_of(terms);
            };
            warp.put(k.grad_predictions, slopes, -1, 0);
            warp.send(0, 1, make_float4((float)warp_sum((double)value), 0, 0, 0));
            warp.receive();
            double total = 0;
            warp.for_slices([&](int of) { total += (double)warp.received(0)[of].x; });
            kl_of_row = record.value = warp_sum(total);
        } else if (k.grad_predictions.data) {
            if (is_filled)
                warp.put_all(k.grad_predictions, filled);
            else
                warp.put(
                    k.grad_predictions,
                    [&](int j, float(&made)[LANES]) {
                        const float of_e_s = share_s * to_s, of_e_t = share_t * to_s;
                        float v[LANES], w[LANES];
                        unpack(x.at[j], v);
                        unpack(y.at[j], w);
#pragma unroll
                        for (int i = 0; i < LANES; i++)
                            made[i] =
                                fmaf(exp2_of(of_s.exponent(v[i])), of_e_s, -(exp2_of(of_t.exponent(w[i])) * of_e_t));
                    },
                    -1, 0);
        }
        if (k.grad_targets.data) {
            const float value = (float)kl_of_row, to_t = here.scale * (float)facts.to_t;
            if (is_filled)
                warp.put_all(k.grad_targets, filled);
            else
                warp.put(
                    k.grad_targets,
                    [&](int j, float(&made)[LANES]) {
                        float v[LANES], w[LANES];
                        unpack(x.at[j], v);
                        unpack(y.at[j], w);
#pragma unroll
                        for (int i = 0; i < LANES; i++) {
                            const float of = exp2_of(of_t.exponent(w[i])) * share_t;
                            made[i] = of != 0 ? of * (-columns.delta(v[i], w[i]) - value) * to_t : of;
                        }
                    },
                    -1, 0);
        }
        if (warp.has_results())
            ledger.add(rows_kept, warp.lane, record);
        warp.step(next_claim);
    }
    finish_loss(k, facts.divisor);
}

/* With 128 registers per thread two blocks of eight warps share a multiprocessor. MORE: for more results than loss, LSE
 * and gradients. */
#define ONEP_LOGITS_CLUSTER(kind, name, T, MORE, blocks)                                                               \
    extern "C" __global__ void __launch_bounds__(ONEP_LOGITS_MAX_WARPS * 32, blocks)                                   \
        onep_logits_##kind##_##name(const __grid_constant__ onep_logits_loss_args k)                                   \
    {                                                                                                                  \
        cluster_##kind<T, MORE>(k);                                                                                    \
    }
#define ONEP_LOGITS_CLUSTER_LOSS(name, T)                                                                              \
    ONEP_LOGITS_CLUSTER(labels, cluster_##name, T, false, ONEP_LOGITS_CLUSTER_BLOCKS)                                  \
    ONEP_LOGITS_CLUSTER(labels, cluster_more_##name, T, true, 1)                                                       \
    ONEP_LOGITS_CLUSTER(kl, cluster_##name, T, false, ONEP_LOGITS_CLUSTER_BLOCKS)                                      \
    ONEP_LOGITS_CLUSTER(kl, cluster_more_##name, T, true, 1)

#endif
