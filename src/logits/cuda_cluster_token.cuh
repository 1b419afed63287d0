/*
 * Token log-probabilities with a row in the registers of a cluster (cuda_cluster.cuh), for one index per row: forward,
 * which reads every logit once, and the gradient, which reads it once and writes it once. The arithmetic is that of
 * cuda_held_token.cuh and cuda_token.cuh; those have softcaps and more indices.
 */
#ifndef ONEP_LOGITS_CLUSTER_TOKEN_CUH
#define ONEP_LOGITS_CLUSTER_TOKEN_CUH

#include "logits/cuda_cluster_merge.cuh"
#include "logits/cuda_slot.cuh"

/* Of a row, before its logits are there: found while states of the row before it are on their way. */
struct token_facts {
    long long index;
    bool takes_part, is_outside;
    /* Upstream gradients over the temperature: of the log-probability (0: ignored, NaN: outside), the entropy, LSE, and
     * of LSE less that of the log-probability. */
    float of_log_prob, of_entropy, of_lse, everywhere;

    __device__ __forceinline__ void find(const onep_logits_token_args &k, long long row, float over_temperature)
    {
        if (row < 0)
            return;
        takes_part = !k.mask.data || *row_of(k.mask, k.rows, row) != 0;
        index = integer_of(k.indices.type, row_of(k.indices, k.rows, row));
        is_outside = index != k.ignore_index && (index < 0 || index >= k.columns);
        double log_prob = number_of(k.grad_log_prob, row_of(k.grad_log_prob, k.rows, row), 0);
        if (index == k.ignore_index)
            log_prob = 0;
        else if (is_outside && k.grad_log_prob.data)
            log_prob = not_a_number();
        const double lse = number_of(k.grad_lse, row_of(k.grad_lse, k.rows, row), 0);
        of_entropy = (float)number_of(k.grad_entropy, row_of(k.grad_entropy, k.rows, row), 0) * over_temperature;
        of_log_prob = (float)log_prob * over_temperature;
        of_lse = (float)lse * over_temperature;
        everywhere = (float)(lse - log_prob) * over_temperature;
    }
};

/* What the results of a row are made from. */
struct token_record {
    int row;
    float m, v_index;
    double others, distance; /* distance: sum of P (most - z) */
};

/* A lane's row. */
__device__ __forceinline__ void token_results(const onep_logits_token_args &k, float over_temperature,
                                              const token_record &of)
{
    const char *mask = row_of(k.mask, k.rows, of.row);
    const bool takes_part = !mask || *mask != 0, has_no_mass = of.m == minus_infinity(0.0f);
    const long long index = integer_of(k.indices.type, row_of(k.indices, k.rows, of.row));
    const bool is_ignored = !takes_part || index == k.ignore_index;
    const double none = takes_part && !(has_no_mass && k.finite) ? not_a_number() : 0;
    const double most = (double)__fmul_rn(of.m, over_temperature);
    known_softmax p;
    p.find(of.m, (float)most, of.others);
    const double log_prob = ((double)__fmul_rn(of.v_index, over_temperature) - most) - p.log_sum;
    store_number(k.log_prob, k.rows, of.row,
                 is_ignored                        ? 0
                 : index < 0 || index >= k.columns ? not_a_number()
                 : has_no_mass                     ? none
                                                   : log_prob);
    store_number(k.entropy, k.rows, of.row, takes_part && !has_no_mass ? p.log_sum + of.distance : none);
    store_number(k.lse, k.rows, of.row, takes_part ? p.lse : 0);
}

template <class T, bool IS_BACKWARD> __device__ __forceinline__ void cluster_token(const onep_logits_token_args &k)
{
    enum { LANES = element<T>::lanes };
    __shared__ exchange<2> states;
    __shared__ unsigned long long barriers[ONEP_LOGITS_MAX_WARPS];
    __shared__ int claims[2];
    __shared__ float scales[2]; /* 1 / temperature, and log2(e) times that: registers are few */
    if (threadIdx.x == 0) {
        scales[0] = (float)(1 / k.temperature);
        scales[1] = (float)(1.44269504088896341 / k.temperature);
    }
    __shared__ row_ledger<token_record> ledger;
    const auto settle = [&](const token_record *record) {
        if (record)
            token_results(k, scales[0], *record);
    };
    int rows_kept = 0;
    cluster_warp<T, 1, 2> warp(k.rows, k.columns, k.ticket + 1, states, barriers);
    warp.begin(claims);
    if (warp.slice >= warp.slices)
        warp.row = -1;
    warp.request(0, k.logits, warp.row);
    token_facts facts, ahead;
    ahead.find(k, warp.row, scales[0]);
    for (;;) {
        if (!IS_BACKWARD && warp.has_results())
            ledger.settle(rows_kept, warp.lane, warp.row < 0, settle);
        if (warp.row < 0)
            break;
        warp.put_beyond(k.grad_logits, k.columns, k.width);
        const float k2 = scales[1];
        facts = ahead;
        slice_of<T> x;
        const int shift = warp.await(0, k.logits);
        warp.take(0, shift, x);
        const long long from_here = facts.index - warp.first_column;
        const int here =
            facts.index != k.ignore_index && from_here >= 0 && from_here < warp.columns ? (int)from_here : -1;
        float v_index = here >= 0 ? widen(*warp.element_at(0, shift, here)) : 0.0f;
        const slice_softmax of(k2, largest_of(x));
        __syncwarp(); /* every lane has read from the slot what it needs */
        warp.request(0, k.logits, warp.next);

        int ties = 0;
        float tails[PARTS] = {0}, distance[2] = {0};
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            float v[LANES];
            unpack(x.at[j], v);
#pragma unroll
            for (int i = 0; i < LANES; i++) {
                const float d = of.exponent(v[i]), e = exp2_of(d);
                add_exponential(v[i], of.m, e, ties, tails[j % PARTS]);
                add_product(e, of.error - d, distance[j % 2]);
            }
        }
        const softmax_state mine = state_of(of, ties, warp_sum((double)sum_of(tails)));
        warp.send(0, 2, make_float4(mine.m, mine.ties, mine.tail, warp.slice == 0 ? warp.claim_word() : v_index));
        warp.send(1, 2,
                  make_float4((float)warp_sum((double)(distance[0] + distance[1])) * exp2_of(-of.error), 0, 0, 0));
        if (IS_BACKWARD)
            forget(x);
        ahead.find(k, warp.next, scales[0]);
        warp.receive();

        const float4 *got = warp.received(0), *more = warp.received(1);
        const int next_claim = __float_as_int(got[0].w);
        const merged_softmax all(warp, k2, got);
        const float others = all.others(), inverse = __frcp_rn(1 + others);
        const auto mean_distance = [&] {
            return merged_distance(warp, k2, all.m, all.inverse(inverse), got, [&](int s) { return more[s].x; });
        };
        const double no_number = all.has_no_mass() && k.finite ? 0 : not_a_number();
        if (IS_BACKWARD) {
            if (!facts.takes_part || all.has_no_mass()) {
                warp.put_all(k.grad_logits, facts.takes_part ? (float)no_number : 0.0f);
            } else {
                const float probability = inverse * of.factor(all.m);
                const float everywhere = facts.everywhere, bonus = facts.of_entropy;
                float entropy = 0, log_sum = 0;
                if (bonus != 0) {
                    log_sum = log1pf(others);
                    entropy = (float)((double)log_sum + mean_distance());
                }
                /* P (everywhere - bonus (log P + H)), where log P = LN_2 (v k - r) + rest */
                const float rest_of_log = ((of.m - all.m) * k2 - of.error) * LN_2 - log_sum;
                const float constant = -bonus * (rest_of_log + entropy), slope = -bonus * LN_2;
                const float d_index = of.exponent(v_index), p_index = exp2_of(d_index) * probability;
                const float rest = v_index == all.m ? others * inverse : 1 - p_index;
                float at_index = facts.of_log_prob * rest + facts.of_lse * p_index;
                if (bonus != 0 && p_index != 0)
                    at_index -= bonus * p_index * (LN_2 * d_index + rest_of_log + entropy);
                warp.put(
                    k.grad_logits,
                    [&](int j, float(&made)[LANES]) {
                        float v[LANES];
                        unpack(x.at[j], v);
#pragma unroll
                        for (int i = 0; i < LANES; i++) {
                            const float d = of.exponent(v[i]), p = exp2_of(d) * probability;
                            made[i] = p * everywhere;
                            add_product(p, fmaf(d, slope, constant), made[i]);
                        }
                    },
                    facts.of_log_prob != 0 ? here : -1, at_index);
            }
        } else if (warp.has_results()) {
            token_record record = {warp.row, all.m, v_index, all.exact_others(), k.entropy.data ? mean_distance() : 0};
            if (here < 0 && facts.index >= 0 && facts.index < k.columns)
                record.v_index = got[facts.index / slice_of<T>::COLUMNS].w;
            ledger.add(rows_kept, warp.lane, record);
        }
        warp.step(next_claim);
    }
    cluster_sync(); /* no block may end while others send it states */
    if (last_block(k.ticket, gridDim.x) && threadIdx.x == 0)
        k.ticket[1] = 0;
}

#define ONEP_LOGITS_CLUSTER_TOKEN(name, T)                                                                             \
    extern "C" __global__ void __launch_bounds__(ONEP_LOGITS_MAX_WARPS * 32, ONEP_LOGITS_CLUSTER_BLOCKS)               \
        onep_logits_token_cluster_##name(const __grid_constant__ onep_logits_token_args k)                             \
    {                                                                                                                  \
        cluster_token<T, false>(k);                                                                                    \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(ONEP_LOGITS_MAX_WARPS * 32, ONEP_LOGITS_CLUSTER_BLOCKS)               \
        onep_logits_token_cluster_backward_##name(const __grid_constant__ onep_logits_token_args k)                    \
    {                                                                                                                  \
        cluster_token<T, true>(k);                                                                                     \
    }

#endif
