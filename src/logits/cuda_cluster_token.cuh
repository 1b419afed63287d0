/*
 * Token log-probabilities with a row in the registers of a cluster (cuda_cluster.cuh), for one index per row: forward,
 * which reads every logit once, and the gradient, which reads it once and writes it once. The arithmetic is that of
 * cuda_held_token.cuh and cuda_token.cuh; those have softcaps and more indices.
 */
#ifndef ONEP_LOGITS_CLUSTER_TOKEN_CUH
#define ONEP_LOGITS_CLUSTER_TOKEN_CUH

#include "logits/cuda_cluster.cuh"

/* What a row's results and gradients are made from; in every lane. */
struct token_facts {
    long long index;
    bool takes_part, is_outside;
    /* Upstream gradients over the temperature: of the log-probability (0: ignored, NaN: outside), the entropy, LSE, and
     * of LSE less that of the log-probability. */
    float of_log_prob, of_entropy, of_lse, everywhere;

    __device__ __forceinline__ token_facts(const onep_logits_token_args &k, long long row, float over_temperature)
    {
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
    cluster_warp<T, 1, 2> warp(k.rows, k.columns, k.ticket + 1, states, barriers);
    warp.begin(claims);
    if (warp.slice >= warp.slices)
        warp.row = -1;
    warp.request(0, k.logits, warp.row);
    while (warp.row >= 0) {
        warp.put_beyond(k.grad_logits, k.columns, k.width);
        const float over_temperature = scales[0], k2 = scales[1];
        const token_facts facts(k, warp.row, over_temperature);
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
        const softmax_state mine = state_of(of, ties, tails);
        warp.send(0, 2, make_float4(mine.m, mine.ties, mine.tail, warp.slice == 0 ? warp.claim_word() : v_index));
        warp.send(1, 2,
                  make_float4((float)warp_sum((double)(distance[0] + distance[1])) * exp2_of(-of.error), 0, 0, 0));
        if (IS_BACKWARD)
            forget(x);
        warp.receive();

        const float4 *got = warp.received(0), *more = warp.received(1);
        const auto read = [&](int s) {
            const softmax_state one = {got[s].x, got[s].y, got[s].z};
            return one;
        };
        const int next_claim = __float_as_int(got[0].w);
        const merged_softmax all(warp, k2, read);
        const float others = all.others(), inverse = __frcp_rn(1 + others);
        const auto entropy_of = [&](double log_sum) {
            return log_sum +
                   merged_distance(warp, k2, all.m, all.inverse(inverse), read, [&](int s) { return more[s].x; });
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
                    entropy = (float)entropy_of((double)log_sum);
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
        } else if (warp.slice == 0) {
            const double log_sum = log1p(all.exact_others()), none = facts.takes_part ? no_number : 0;
            const bool has_numbers = facts.takes_part && !all.has_no_mass();
            const double entropy = k.entropy.data && has_numbers ? entropy_of(log_sum) : none;
            if (here < 0 && facts.index >= 0 && facts.index < k.columns)
                v_index = got[facts.index / slice_of<T>::COLUMNS].w;
            const double log_prob =
                ((double)__fmul_rn(v_index, over_temperature) - (double)__fmul_rn(all.m, over_temperature)) - log_sum;
            if (warp.lane == 0) {
                const bool is_ignored = !facts.takes_part || facts.index == k.ignore_index;
                store_number(k.log_prob, k.rows, warp.row,
                             is_ignored         ? 0
                             : facts.is_outside ? not_a_number()
                             : has_numbers      ? log_prob
                                                : none);
                store_number(k.entropy, k.rows, warp.row, entropy);
                store_number(k.lse, k.rows, warp.row,
                             facts.takes_part ? all.lse(__fmul_rn(all.m, over_temperature), log_sum) : 0);
            }
        }
        warp.step(next_claim);
    }
    cluster_sync(); /* no block may end while others send it states */
    if (last_block(k.ticket, gridDim.x) && threadIdx.x == 0)
        k.ticket[1] = 0;
}

#define ONEP_LOGITS_CLUSTER_TOKEN(name, T)                                                                             \
    extern "C" __global__ void __launch_bounds__(ONEP_LOGITS_MAX_WARPS * 32, 2)                                        \
        onep_logits_token_cluster_##name(const __grid_constant__ onep_logits_token_args k)                             \
    {                                                                                                                  \
        cluster_token<T, false>(k);                                                                                    \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(ONEP_LOGITS_MAX_WARPS * 32, 2)                                        \
        onep_logits_token_cluster_backward_##name(const __grid_constant__ onep_logits_token_args k)                    \
    {                                                                                                                  \
        cluster_token<T, true>(k);                                                                                     \
    }

#endif
