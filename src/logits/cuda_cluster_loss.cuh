/*
 * Losses from logits with a row in the registers of a cluster (cuda_cluster.cuh), for what people train with: cross-
 * entropy of labels with class weights and z-loss, and KL of logits from logits. cuda_held.cuh has every other option
 * and the same formulas: labels by (maximum, columns at it, sum of the others), KL by sums of both sides, and by T
 * h(delta) in a second exchange where that sum is below 2^-7 and would cancel.
 */
#ifndef ONEP_LOGITS_CLUSTER_LOSS_CUH
#define ONEP_LOGITS_CLUSTER_LOSS_CUH

#include "logits/cuda_around.cuh"
#include "logits/cuda_cluster.cuh"

typedef row_frame<float, slice_team> slice_frame;

/* ---- all rows ---------------------------------------------------------------------------------------------------- */

/* What a block knows of all rows. In shared memory: registers are for slices. */
struct loss_facts {
    float over_s, over_t, k_s, k_t; /* 1 / temperature of both sides; times log2(e) */
    double upstream, divisor;
    double to_s, to_t; /* what gradients are multiplied by, beside a row's weight and upstream gradient */
    double sum;        /* of a chunk so far, by slice 0 */

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
        sum = 0;
    }
    __device__ __forceinline__ float z_of_s(float v) const
    {
        return __fmul_rn(v, over_s);
    }
    __device__ __forceinline__ float z_of_t(float v) const
    {
        return __fmul_rn(v, over_t);
    }
    /* Of a row, by one thread. */
    template <class WARP>
    __device__ __forceinline__ void add(const onep_logits_loss_args &k, const WARP &warp, double value)
    {
        if (!k.value.data)
            return;
        if (k.per_row) {
            store_number(k.value, k.rows, warp.row, value);
            return;
        }
        sum += value;
        if (!warp.ends_a_chunk)
            return;
        k.partial[warp.row / (int)k.rows.chunk] = sum;
        sum = 0;
    }
};

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

template <class WARP>
__device__ __forceinline__ void store_result(const onep_logits_operand &o, const onep_logits_loss_args &k,
                                             const WARP &warp, double x)
{
    if (warp.lane == 0)
        store_number(o, k.rows, warp.row, x);
}
template <class WARP>
__device__ __forceinline__ void store_first(const onep_logits_loss_args &k, const WARP &warp, long long column)
{
    if (warp.lane == 0)
        *reinterpret_cast<long long *>(row_of(k.argmax, k.rows, warp.row)) = column;
}

/* Of a row, loaded while the one before it is worked on; -1: no labels, or no row. */
__device__ __forceinline__ long long label_of(const onep_logits_loss_args &k, int row)
{
    return k.labels.data && row >= 0 ? integer_of(k.labels.type, row_of(k.labels, k.rows, row)) : -1;
}
__device__ __forceinline__ bool is_unmasked(const onep_logits_loss_args &k, int row)
{
    return !k.mask.data || *row_of(k.mask, k.rows, row) != 0;
}

/* ---- cross-entropy ----------------------------------------------------------------------------------------------- */

template <class T, bool MORE> __device__ __forceinline__ void cluster_labels(const onep_logits_loss_args &k)
{
    enum { LANES = element<T>::lanes };
    __shared__ exchange<2> states;
    __shared__ unsigned long long barriers[ONEP_LOGITS_MAX_WARPS];
    __shared__ int claims[2];
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
    long long label_ahead = label_of(k, warp.row);
    while (warp.row >= 0) {
        warp.put_beyond(k.grad_predictions, k.columns, k.width);
        slice_frame frame(k, warp.row);
        const float k2 = facts.k_s;
        frame.label = label_ahead;
        const bool takes_part = is_unmasked(k, warp.row) && (!k.labels.data || frame.label != k.ignore_index);
        const double weight = number_of(k.weights, row_of(k.weights, k.rows, warp.row), 1);
        const float scale = (float)(weight * frame.upstream_of_row(facts.upstream) * facts.to_s);
        const long long from_here = frame.label - warp.first_column;
        const int label_here = frame.label >= 0 && from_here >= 0 && from_here < warp.columns ? (int)from_here : -1;
        slice_of<T> x;
        const int shift = warp.await(0, k.predictions);
        warp.take(0, shift, x);
        float v_label = label_here >= 0 ? widen(*warp.element_at(0, shift, label_here)) : 0.0f;
        const slice_softmax of(k2, largest_of(x));
        if (MORE)
            warp.send(
                1, planes,
                make_float4(distance_of(warp.element_at(0, shift, 0), warp.columns, warp.lane, of),
                            first_at(warp.element_at(0, shift, 0), warp.columns, warp.lane, of.m, warp.first_column), 0,
                            0));
        __syncwarp(); /* every lane has read from the slot what it needs */
        warp.request(0, k.predictions, warp.next);
        label_ahead = label_of(k, warp.next);

        float e[VECTORS][LANES], tails[PARTS] = {0};
        int ties = 0;
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            float v[LANES];
            unpack(x.at[j], v);
#pragma unroll
            for (int i = 0; i < LANES; i++) {
                e[j][i] = exp2_of(of.exponent(v[i]));
                add_exponential(v[i], of.m, e[j][i], ties, tails[j % PARTS]);
            }
        }
        const softmax_state mine = state_of(of, ties, tails);
        warp.send(0, planes, make_float4(mine.m, mine.ties, mine.tail, warp.slice == 0 ? warp.claim_word() : v_label));
        warp.receive();

        const float4 *got = warp.received(0), *more = warp.received(1);
        const auto read = [&](int s) {
            const softmax_state one = {got[s].x, got[s].y, got[s].z};
            return one;
        };
        const int next_claim = __float_as_int(got[0].w);
        const merged_softmax all(warp, k2, read);
        const bool bad_label = frame.has_bad_label(), is_bad = bad_label && k.label_weight != 0;
        const double no_number = all.has_no_mass() && k.finite ? 0 : not_a_number();
        const bool is_filled = !takes_part || all.has_no_mass() || is_bad;
        if (k.grad_predictions.data) {
            if (is_filled) {
                warp.put_all(k.grad_predictions, takes_part ? (float)no_number : 0.0f);
            } else {
                const float others = all.others(), inverse = __frcp_rn(1 + others);
                const label_slopes<float> slopes(frame, 0, k.z_loss != 0 ? facts.z_of_s(all.m) + log1pf(others) : 0.0f);
                const float probability = inverse * of.factor(all.m);
                const float factor = (slopes.at_label + slopes.besides) * scale * probability;
                const float of_label = exp2_of(of.exponent(v_label)) * probability;
                const float rest = v_label == all.m ? others * inverse : 1 - of_label;
                warp.put(
                    k.grad_predictions,
                    [&](int j, float(&made)[LANES]) {
#pragma unroll
                        for (int i = 0; i < LANES; i++)
                            made[i] = e[j][i] * factor;
                    },
                    slopes.has_label ? label_here : -1, (slopes.besides * of_label - slopes.at_label * rest) * scale);
            }
        }
        if (warp.slice == 0) { /* one result after the other, for registers are few */
            const bool has_numbers = takes_part && !all.has_no_mass();
            const double none = takes_part ? no_number : 0;
            known_softmax p;
            p.find(all.m, facts.z_of_s(all.m), all.tail, (double)all.ties);
            store_result(k.lse, k, warp, takes_part ? p.lse : 0);
            double entropy = none;
            if (MORE && k.entropy.data && has_numbers)
                entropy = p.log_sum +
                          merged_distance(warp, k2, all.m, p.one_over_sum, read, [&](int s) { return more[s].x; });
            store_result(k.entropy, k, warp, entropy);
            if (MORE && k.argmax.data)
                store_first(k, warp,
                            takes_part ? merged_first(warp, all.m, read, [&](int s) { return more[s].y; }) : 0);
            if (label_here < 0 && frame.label >= 0 && !bad_label)
                v_label = got[frame.label / slice_of<T>::COLUMNS].w;
            const double nll =
                bad_label ? not_a_number() : ((double)facts.z_of_s(all.m) - (double)facts.z_of_s(v_label)) + p.log_sum;
            store_result(k.log_prob, k, warp, has_numbers ? -nll : none);
            if (warp.lane == 0) {
                const row_sums no_sums = {0, 0, 0, 0, 0, 0, 0, 0};
                double value = !has_numbers ? none
                               : is_bad     ? not_a_number()
                                            : frame.label_terms(no_sums, nll, p.lse, 0);
                if (takes_part)
                    value *= number_of(k.weights, row_of(k.weights, k.rows, warp.row), 1);
                facts.add(k, warp, value);
            }
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
        return (same_temperature ? (d_s - d_t) * one_over_s : d_s * one_over_s - d_t * one_over_t) - shift;
    }
};

template <class T, bool MORE> __device__ __forceinline__ void cluster_kl(const onep_logits_loss_args &k)
{
    enum { LANES = element<T>::lanes };
    __shared__ exchange<3> states;
    __shared__ unsigned long long barriers[2 * ONEP_LOGITS_MAX_WARPS];
    __shared__ int claims[2];
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
    while (warp.row >= 0) {
        warp.put_beyond(k.grad_predictions, k.columns, k.width);
        warp.put_beyond(k.grad_targets, k.columns, k.width);
        slice_frame frame(k, warp.row);
        const float k_s = facts.k_s, k_t = facts.k_t;
        const bool takes_part = frame.takes_part();
        const float scale = (float)(number_of(k.weights, row_of(k.weights, k.rows, warp.row), 1) *
                                    frame.upstream_of_row(facts.upstream));
        const long long from_here = frame.label - warp.first_column;
        const int label_here = frame.label >= 0 && from_here >= 0 && from_here < warp.columns ? (int)from_here : -1;
        slice_of<T> x, y;
        int shift = warp.await(0, k.predictions);
        warp.take(0, shift, x);
        const float v_label = MORE && label_here >= 0 ? widen(*warp.element_at(0, shift, label_here)) : 0.0f;
        const slice_softmax of_s(k_s, largest_of(x));
        float distance_s = 0, first_s = 0;
        if (MORE) {
            const T *slice = warp.element_at(0, shift, 0);
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
        const softmax_state mine_s = state_of(of_s, ties_s, tails_s), mine_t = state_of(of_t, ties_t, tails_t);
        /* sum of exp(d_t) (d_t - d_s), in units of log 2 */
        float mine_kl = (float)warp_sum((double)sum_of(kl)) * exp2_of(-of_t.error);
        mine_kl += mine_t.ties != 0 ? (of_s.error - of_t.error) * (mine_t.ties + mine_t.tail) : 0.0f;
        warp.send(0, planes, make_float4(mine_s.m, mine_s.ties, mine_s.tail, mine_kl));
        warp.send(1, planes, make_float4(mine_t.m, mine_t.ties, mine_t.tail, warp.claim_word()));
        forget(x);
        forget(y);
        warp.receive();

        const float4 *got_s = warp.received(0), *got_t = warp.received(1), *more = warp.received(2);
        const auto read_s = [&](int s) {
            const softmax_state one = {got_s[s].x, got_s[s].y, got_s[s].z};
            return one;
        };
        const auto read_t = [&](int s) {
            const softmax_state one = {got_t[s].x, got_t[s].y, got_t[s].z};
            return one;
        };
        const int next_claim = __float_as_int(got_t[0].w);
        const merged_softmax all_s(warp, k_s, read_s), all_t(warp, k_t, read_t);
        double of_kl = 0;
        warp.for_states([&](int s) {
            const float below = (got_t[s].x - all_t.m) * k_t, share = got_t[s].y + got_t[s].z;
            if (exp2_of(below) * share != 0)
                of_kl += (double)(exp2_of(below) * (share * (below - (got_s[s].x - all_s.m) * k_s) + got_s[s].w));
        });
        const double sum_of_kl = warp_sum(of_kl) * 0.693147180559945309;
        const float others_s = all_s.others(), others_t = all_t.others();
        const float inverse_s = __frcp_rn(1 + others_s), inverse_t = __frcp_rn(1 + others_t);
        const bool has_no_mass = all_s.has_no_mass() || all_t.has_no_mass();
        const double no_number = k.finite ? 0 : not_a_number();
        const bool is_filled = !takes_part || has_no_mass;
        /* Near enough for the question whether S and T are near each other. */
        const bool is_near =
            __any_sync(~0u, !is_filled && (float)sum_of_kl * inverse_t + (__logf(1 + others_s) - __logf(1 + others_t)) <
                                              1.0f / 128);
        /* The logarithms in double: long, and not needed by every warp. */
        double kl_of_row = 0;
        float shift_of_logs = 0;
        if (warp.slice == 0 || is_near || k.grad_targets.data) {
            const double log_s = log1p(all_s.exact_others()), log_t = log1p(all_t.exact_others());
            shift_of_logs = (float)(log_s - log_t);
            kl_of_row = sum_of_kl * all_t.inverse(inverse_t) + (log_s - log_t);
            if (warp.slice == 0) { /* while the states are there; one result after the other, for registers are few */
                store_result(k.lse, k, warp, takes_part ? all_s.lse(facts.z_of_s(all_s.m), log_s) : 0);
                store_result(k.target_lse, k, warp, takes_part ? all_t.lse(facts.z_of_t(all_t.m), log_t) : 0);
                const bool has_numbers = takes_part && !has_no_mass;
                const double none = takes_part ? no_number : 0;
                if (MORE && k.entropy.data)
                    store_result(k.entropy, k, warp,
                                 has_numbers ? log_s + merged_distance(warp, k_s, all_s.m, all_s.inverse(inverse_s),
                                                                       read_s, [&](int of) { return more[of].x; })
                                             : none);
                if (MORE && k.target_entropy.data)
                    store_result(k.target_entropy, k, warp,
                                 has_numbers ? log_t + merged_distance(warp, k_t, all_t.m, all_t.inverse(inverse_t),
                                                                       read_t, [&](int of) { return more[of].y; })
                                             : none);
                if (MORE && k.argmax.data)
                    store_first(k, warp,
                                takes_part ? merged_first(warp, all_s.m, read_s, [&](int of) { return more[of].z; })
                                           : 0);
                if (MORE && k.log_prob.data) {
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
        }

        const float share_s = inverse_s * of_s.factor(all_s.m);
        const float share_t = inverse_t * of_t.factor(all_t.m);
        const float to_s = scale * (float)facts.to_s;
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
                    made[i] =
                        near_kl_slope(exp2_of(of_s.exponent(v[i])) * share_s, exp2_of(of_t.exponent(w[i])) * share_t,
                                      columns.delta(v[i], w[i]), terms[i]) *
                        to_s;
                }
                value += sum_of(terms);
            };
            warp.put(k.grad_predictions, slopes, -1, 0);
            warp.send(0, 1, make_float4((float)warp_sum((double)value), 0, 0, 0));
            warp.receive();
            double total = 0;
            warp.for_states([&](int of) { total += (double)warp.received(0)[of].x; });
            kl_of_row = warp_sum(total);
        } else if (k.grad_predictions.data) {
            if (is_filled)
                warp.put_all(k.grad_predictions, takes_part ? (float)no_number : 0.0f);
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
            const float value = (float)kl_of_row, to_t = scale * (float)facts.to_t;
            if (is_filled)
                warp.put_all(k.grad_targets, takes_part ? (float)no_number : 0.0f);
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
        if (warp.slice == 0 && warp.lane == 0) {
            const double value = has_no_mass ? no_number : k.weight * kl_of_row;
            if (!takes_part)
                facts.add(k, warp, 0);
            else
                facts.add(k, warp, value * number_of(k.weights, row_of(k.weights, k.rows, warp.row), 1));
        }
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
    ONEP_LOGITS_CLUSTER(labels, cluster_##name, T, false, 2)                                                           \
    ONEP_LOGITS_CLUSTER(labels, cluster_more_##name, T, true, 1)                                                       \
    ONEP_LOGITS_CLUSTER(kl, cluster_##name, T, false, 2)                                                               \
    ONEP_LOGITS_CLUSTER(kl, cluster_more_##name, T, true, 1)

#endif
