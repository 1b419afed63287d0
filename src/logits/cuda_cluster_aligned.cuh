/*
 * The losses of cuda_cluster_loss.cuh and cuda_cluster_mixed.cuh where nothing is in the way: rows that lie one after
 * the other at multiples of 16 bytes, of all their columns, with nothing that differs from row to row but labels, and
 * the loss and the gradient to the predictions as the only results. Bits are those of the other kernels, whose
 * arithmetic this is; what is left out is the asking: of 1486 instructions a warp spent on a row of cross-entropy
 * there, 950 were about strides, edges and options.
 *
 * Rows that need columns once more by other functions (near each other, infinite, no number) read one side again from
 * memory, in loops that are not unrolled: such code is long.
 */
#ifndef ONEP_LOGITS_CLUSTER_ALIGNED_CUH
#define ONEP_LOGITS_CLUSTER_ALIGNED_CUH

#include "logits/cuda_cluster_mixed.cuh"

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/*
 * One warp's part. Operand 0 is taken into registers, and its slot is free for the next row's slice then. Operand 1, if
 * there is one, is read where it lies as often as it is needed, and its slices take turns at two slots.
 */
template <class T, int OPERANDS, int PLANES> struct aligned_warp : cluster_rows<PLANES> {
    typedef cluster_rows<PLANES> base;
    typedef slice_of<T> slice_type;
    enum { LANES = element<T>::lanes, SLOTS = 2 * OPERANDS - 1 };
    using base::lane;
    using base::row;
    using base::slice;

    int first_column, vectors; /* of this slice, vectors of 16 bytes */
    int in_block;              /* which of its warps this is */
    int slots;                 /* where this warp's begin, in vectors */
    unsigned filled;           /* mbarriers, one per slot */
    unsigned turn;             /* rows so far, modulo 4: parities of the mbarriers, and whose turn a slot is */

    __device__ __forceinline__ aligned_warp(const onep_logits_loss_args &k, exchange<PLANES> &states,
                                            unsigned long long *barriers)
        : base(k.rows, (int)((k.columns + slice_type::COLUMNS - 1) / slice_type::COLUMNS), k.ticket + 1, states),
          first_column(slice * slice_type::COLUMNS),
          vectors(min((int)k.columns - first_column, (int)slice_type::COLUMNS) / LANES),
          in_block(from_lane_0((int)(threadIdx.x >> 5))), turn(0)
    {
        slots = in_block * SLOTS * 32 * VECTORS;
        filled = shared_address(barriers + in_block * SLOTS);
        pack<T> none;
#pragma unroll
        for (int i = 0; i < LANES; i++)
            narrow(none.at[i], minus_infinity(0.0f));
        /* Copies end where columns do: what is behind them stays. */
        for (int i = 0; i < SLOTS; i++)
            for (int j = max(vectors, 0) + lane; j < 32 * VECTORS; j += 32)
                slot(i)[j] = none;
    }
    __device__ __forceinline__ pack<T> *slot(int i) const
    {
        ONEP_DYNAMIC_SHARED(memory);
        return reinterpret_cast<pack<T> *>(memory) + slots + i * 32 * VECTORS;
    }
    __device__ __forceinline__ char *slice_at(const onep_logits_operand &o, int of_row) const
    {
        return o.data + of_row * o.row_stride[0] + first_column * (int)sizeof(T);
    }
    __device__ __forceinline__ void begin(int *claims)
    {
        base::begin(claims, filled, SLOTS);
        if (slice >= base::slices)
            row = -1;
    }
    __device__ __forceinline__ void copy(int to, const onep_logits_operand &o, int of_row) const
    {
        if (of_row < 0 || lane != 0)
            return;
        mbarrier_arrive_expect_tx(filled + 8 * to, 16 * vectors);
        copy_bulk(shared_address(slot(to)), slice_at(o, of_row), 16 * vectors, filled + 8 * to);
    }
    /* Begin to copy a row's slice: of operand 0 once the one before has been taken, of operand 1 for this row before
     * the first one, and for the next row at any time. */
    __device__ __forceinline__ void request(const onep_logits_operand &o, int of_row) const
    {
        __syncwarp(); /* every lane has taken what it needs */
        copy(0, o, of_row);
    }
    __device__ __forceinline__ void request_held(const onep_logits_operand &o, int of_row, bool is_ahead) const
    {
        __syncwarp(); /* every lane is done with the row before this one */
        copy(1 + ((turn ^ (unsigned)is_ahead) & 1), o, of_row);
    }
    __device__ __forceinline__ void take(slice_type &x) const
    {
        mbarrier_wait_together(filled, turn & 1);
        const pack<T> *from = slot(0) + lane;
#pragma unroll
        for (int j = 0; j < VECTORS; j++)
            x.at[j] = from[32 * j];
    }
    /* This lane's vectors of operand 1 are at [32 j]. */
    __device__ __forceinline__ const pack<T> *held() const
    {
        const unsigned of = 1 + (turn & 1);
        mbarrier_wait_together(filled + 8 * of, turn >> 1);
        return slot((int)of) + lane;
    }
    /* Whether there is such a result. Opaque, as has_results. */
    __device__ __forceinline__ bool wants(const onep_logits_operand &o) const
    {
        return opaque(o.data != 0) != 0;
    }
    /* The gradients of this row's slice: make(j, made) makes vector j. */
    template <class F> __device__ __forceinline__ void put(const onep_logits_operand &o, const F &make) const
    {
        pack<T> *to = reinterpret_cast<pack<T> *>(slice_at(o, row)) + lane;
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            float made[LANES];
            make(j, made);
            if (32 * j + lane < vectors)
                to[32 * j] = packed(T(), made);
        }
    }
    __device__ __forceinline__ void put_all(const onep_logits_operand &o, float x) const
    {
        float made[LANES];
#pragma unroll
        for (int i = 0; i < LANES; i++)
            made[i] = x;
        pack<T> *to = reinterpret_cast<pack<T> *>(slice_at(o, row)), all = packed(T(), made);
#pragma unroll 1
        for (int i = lane; i < vectors; i += 32)
            to[i] = all;
    }
    /* f(column, v, w) for columns of this lane, one after the other, the next one's w on its way. */
    template <class F> __device__ __forceinline__ void for_columns(const T *v, const T *w, const F &f) const
    {
        const int count = vectors * LANES;
        T ahead = w[min(lane, count - 1)];
#pragma unroll 1
        for (int i = lane; i < count; i += 32) {
            const T here = ahead;
            ahead = w[min(i + 32, count - 1)];
            f(i, widen(v[i]), widen(here));
        }
    }
    __device__ __forceinline__ void step(int next_claim)
    {
        turn = (turn + 1) & 3;
        base::step(next_claim);
    }
};

/* The largest element of a slice in shared memory, of which `at` is this lane's first vector. */
template <class T> __device__ __forceinline__ float largest_at(const pack<T> *at)
{
    slice_of<T> x;
#pragma unroll
    for (int j = 0; j < VECTORS; j++)
        x.at[j] = at[32 * j];
    const float largest = largest_of(x);
    asm volatile("" ::: "memory"); /* read again by the sweeps: registers are for exponentials */
    return largest;
}
/* ---- cross-entropy ----------------------------------------------------------------------------------------------- */

/* Nothing of it is looked at before the next row. */
__device__ __forceinline__ long long label_of(const onep_logits_loss_args &k, int row)
{
    return row < 0 ? -1 : integer_of(k.labels.type, k.labels.data + row * k.labels.row_stride[0]);
}

template <class T> __device__ __forceinline__ void aligned_labels(const onep_logits_loss_args &k)
{
    enum { LANES = element<T>::lanes };
    __shared__ exchange<1> states;
    __shared__ unsigned long long barriers[ONEP_LOGITS_MAX_WARPS];
    __shared__ int claims[2];
    __shared__ row_ledger<label_record> ledger;
    __shared__ loss_facts facts;
    if (has_gradients_already(k))
        return;
    if (threadIdx.x == 0)
        facts.find(k, k.label_temperature, 1, 1);
    aligned_warp<T, 1, 1> warp(k, states, barriers);
    warp.begin(claims);
    warp.request(k.predictions, warp.row);
    double sum = 0;
    int rows_kept = 0;
    const auto settle = [&](const label_record *record) {
        const double value = record ? label_results(k, facts, *record) : 0;
        add_values(k, sum, record != 0, record ? record->row : 0, record && record->ends_a_chunk, value);
    };
    const float scale = (float)(facts.upstream * facts.to_s), of_own = (float)k.label_weight;
    long long label = label_of(k, warp.row);
    for (;;) {
        if (warp.has_results())
            ledger.settle(rows_kept, warp.lane, warp.row < 0, settle);
        if (warp.row < 0)
            break;
        const long long label_ahead = label_of(k, warp.next);
        const bool takes_part = label != k.ignore_index, is_bad = label < 0 || label >= k.columns;
        const int from_here = is_bad ? -1 : (int)label - warp.first_column;
        const bool is_here = (unsigned)from_here < (unsigned)(warp.vectors * LANES);
        slice_of<T> x;
        warp.take(x);
        const float v_label = is_here ? widen(reinterpret_cast<const T *>(warp.slot(0))[from_here]) : 0.0f;
        const slice_softmax of(facts.k_s, largest_of(x));
        warp.request(k.predictions, warp.next);

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
        const softmax_state mine = state_of(of, ties, warp_sum((double)sum_of(tails)));
        warp.send(0, 1, make_float4(mine.m, mine.ties, mine.tail, warp.slice == 0 ? warp.claim_word() : v_label));
        warp.receive();

        const float4 *got = warp.received(0);
        const int next_claim = __float_as_int(got[0].w);
        const merged_softmax all(warp, facts.k_s, got);
        if (warp.wants(k.grad_predictions)) {
            if (!takes_part || is_bad || all.has_no_mass()) {
                const bool is_zero = !takes_part || (all.has_no_mass() && k.finite);
                warp.put_all(k.grad_predictions, is_zero ? 0.0f : (float)not_a_number());
            } else {
                const label_slice slopes(all, of, v_label, of_own, 0, scale);
                warp.put(k.grad_predictions, [&](int j, float(&made)[LANES]) {
#pragma unroll
                    for (int i = 0; i < LANES; i++)
                        made[i] = e[j][i] * slopes.factor;
                });
                /* By the lane that has written the vector. */
                if (is_here && (from_here / LANES & 31) == warp.lane)
                    narrow(reinterpret_cast<T *>(warp.slice_at(k.grad_predictions, warp.row))[from_here],
                           slopes.at_label);
            }
        }
        if (warp.has_results()) {
            label_record record = {warp.row, warp.ends_a_chunk, all.m, v_label, all.exact_others(), 0, 0};
            if (!is_here && !is_bad)
                record.v_label = got[(int)label / slice_of<T>::COLUMNS].w;
            ledger.add(rows_kept, warp.lane, record);
        }
        label = label_ahead;
        warp.step(next_claim);
    }
    finish_loss(k, facts.divisor);
}

/* ---- KL ---------------------------------------------------------------------------------------------------------- */

template <class T> __device__ __forceinline__ void aligned_kl(const onep_logits_loss_args &k)
{
    enum { LANES = element<T>::lanes };
    __shared__ exchange<2> states;
    __shared__ unsigned long long barriers[3 * ONEP_LOGITS_MAX_WARPS];
    __shared__ int claims[2];
    __shared__ row_ledger<divergence_record> ledger;
    __shared__ loss_facts facts;
    if (has_gradients_already(k))
        return;
    if (threadIdx.x == 0)
        facts.find(k, k.temperature, k.target_temperature, k.weight);
    aligned_warp<T, 2, 2> warp(k, states, barriers);
    warp.begin(claims);
    warp.request(k.predictions, warp.row);
    warp.request_held(k.targets, warp.row, false);
    double sum = 0;
    int rows_kept = 0;
    const auto settle = [&](const divergence_record *record) {
        const double value = record ? divergence_results(k, facts, *record) : 0;
        add_values(k, sum, record != 0, record ? record->row : 0, record && record->ends_a_chunk, value);
    };
    for (;;) {
        if (warp.has_results())
            ledger.settle(rows_kept, warp.lane, warp.row < 0, settle);
        if (warp.row < 0)
            break;
        warp.request_held(k.targets, warp.next, true);
        slice_of<T> x;
        warp.take(x);
        const slice_softmax of_s(facts.k_s, largest_of(x));
        warp.request(k.predictions, warp.next);
        const pack<T> *y = warp.held();
        const slice_softmax of_t(facts.k_t, largest_at(y));

        float e_s[VECTORS][LANES];
        int ties_s = 0, ties_t = 0;
        float tails_s[PARTS] = {0}, tails_t[PARTS] = {0}, kl[PARTS] = {0};
#pragma unroll
        for (int turn = 0; turn < VECTORS; turn++) {
            const int j = in_turn(turn);
            float v[LANES], w[LANES];
            unpack(x.at[j], v);
            unpack(y[32 * j], w);
#pragma unroll
            for (int i = 0; i < LANES; i++) {
                const float d_s = of_s.exponent(v[i]), d_t = of_t.exponent(w[i]), e_t = exp2_of(d_t);
                e_s[j][i] = exp2_of(d_s);
                add_exponential(v[i], of_s.m, e_s[j][i], ties_s, tails_s[j % PARTS]);
                add_exponential(w[i], of_t.m, e_t, ties_t, tails_t[j % PARTS]);
                add_product(e_t, d_t - d_s, kl[j % PARTS]);
            }
        }
        double sums[3] = {(double)sum_of(tails_s), (double)sum_of(tails_t), (double)sum_of(kl)};
        sum_over_warp(sums);
        const softmax_state mine_s = state_of(of_s, ties_s, sums[0]), mine_t = state_of(of_t, ties_t, sums[1]);
        warp.send(0, 2, make_float4(mine_s.m, mine_s.ties, mine_s.tail, cross_sum_of(sums[2], of_t, mine_t, of_s)));
        warp.send(1, 2, make_float4(mine_t.m, mine_t.ties, mine_t.tail, warp.claim_word()));
        warp.receive();

        const float4 *got_s = warp.received(0), *got_t = warp.received(1);
        const int next_claim = __float_as_int(got_t[0].w);
        merged_softmax all_s, all_t;
        double sum_of_kl;
        merge_both<1>(warp, facts.k_s, facts.k_t, got_s, got_t, all_s, all_t, sum_of_kl);
        const float others_s = all_s.others(), others_t = all_t.others();
        const float inverse_s = __frcp_rn(1 + others_s), inverse_t = __frcp_rn(1 + others_t);
        const float share_s = __fmul_rn(inverse_s, of_s.factor(all_s.m));
        const float share_t = __fmul_rn(inverse_t, of_t.factor(all_t.m));
        const float to_s = facts.to_s_of_all;
        const bool has_no_mass = all_s.has_no_mass() || all_t.has_no_mass();
        const bool is_near = __any_sync(~0u, !has_no_mass && is_near_row(sum_of_kl, inverse_t, others_s, others_t));
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
        if (is_near) { /* value and gradient from columns that may be near each other */
            const kl_columns columns = {
                all_s.m,
                all_t.m,
                facts.over_s,
                facts.over_t,
                log_of_sums(all_s.exact_others(), all_t.exact_others(), all_t.inverse(inverse_t)),
                k.temperature == k.target_temperature};
            float value = 0;
            const pack<T> *from = reinterpret_cast<const pack<T> *>(warp.slice_at(k.predictions, warp.row)) + warp.lane;
            pack<T> *to = reinterpret_cast<pack<T> *>(warp.slice_at(k.grad_predictions, warp.row)) + warp.lane;
#pragma unroll 1
            for (int j = 0; j < 32 * VECTORS && j + warp.lane < warp.vectors; j += 32) {
                float v[LANES], w[LANES], made[LANES], terms[LANES];
                unpack(from[j], v);
                unpack(y[j], w);
#pragma unroll
                for (int i = 0; i < LANES; i++) {
                    made[i] = near_kl_slope(__fmul_rn(exp2_of(of_s.exponent(v[i])), share_s),
                                            __fmul_rn(exp2_of(of_t.exponent(w[i])), share_t), columns.delta(v[i], w[i]),
                                            terms[i]) *
                              to_s;
                }
                value += sum_of(terms);
                if (warp.wants(k.grad_predictions))
                    to[j] = packed(T(), made);
            }
            warp.send(0, 1, make_float4((float)warp_sum((double)value), 0, 0, 0));
            warp.receive();
            double total = 0;
            warp.for_slices([&](int of) { total += (double)warp.received(0)[of].x; });
            record.value = warp_sum(total);
        } else if (warp.wants(k.grad_predictions)) {
            if (has_no_mass) {
                warp.put_all(k.grad_predictions, k.finite ? 0.0f : (float)not_a_number());
            } else {
                const float of_e_s = __fmul_rn(share_s, to_s), of_e_t = __fmul_rn(share_t, to_s);
                warp.put(k.grad_predictions, [&](int j, float(&made)[LANES]) {
                    float w[LANES];
                    unpack(y[32 * j], w);
#pragma unroll
                    for (int i = 0; i < LANES; i++)
                        made[i] = fmaf(e_s[j][i], of_e_s, -__fmul_rn(exp2_of(of_t.exponent(w[i])), of_e_t));
                });
            }
        }
        if (warp.has_results())
            ledger.add(rows_kept, warp.lane, record);
        warp.step(next_claim);
    }
    finish_loss(k, facts.divisor);
}

/* ---- divergences other than KL ----------------------------------------------------------------------------------- */

template <class T, mixed_kind KIND> __device__ __forceinline__ void aligned_mixed(const onep_logits_loss_args &k)
{
    enum { LANES = element<T>::lanes };
    __shared__ exchange<2> states;
    __shared__ unsigned long long barriers[3 * ONEP_LOGITS_MAX_WARPS];
    __shared__ int claims[2];
    __shared__ row_ledger<divergence_record> ledger;
    __shared__ loss_facts facts;
    __shared__ mixed_row<KIND> rows_seen[ONEP_LOGITS_MAX_WARPS];
    if (has_gradients_already(k))
        return;
    if (threadIdx.x == 0)
        facts.find(k, k.temperature, k.target_temperature, k.weight);
    aligned_warp<T, 2, 2> warp(k, states, barriers);
    warp.begin(claims);
    warp.request(k.targets, warp.row);
    warp.request_held(k.predictions, warp.row, false);
    double sum = 0;
    int rows_kept = 0;
    const auto settle = [&](const divergence_record *record) {
        const double value = record ? divergence_results(k, facts, *record) : 0;
        add_values(k, sum, record != 0, record ? record->row : 0, record && record->ends_a_chunk, value);
    };
    for (;;) {
        if (warp.has_results())
            ledger.settle(rows_kept, warp.lane, warp.row < 0, settle);
        if (warp.row < 0)
            break;
        warp.request_held(k.predictions, warp.next, true);
        slice_of<T> y;
        warp.take(y);
        const slice_softmax of_t(facts.k_t, largest_of(y));
        warp.request(k.targets, warp.next);
        const pack<T> *x = warp.held();
        const slice_softmax of_s(facts.k_s, largest_at(x));

        mixed_sweep first;
#pragma unroll
        for (int turn = 0; turn < VECTORS; turn++) {
            float v[LANES], w[LANES];
            unpack(x[32 * in_turn(turn)], v);
            unpack(y.at[in_turn(turn)], w);
            first.template add<KIND>(turn, of_s, of_t, v, w);
        }
        double sums[3] = {(double)first.tails_s.all, (double)first.tails_t.all, (double)first.products.all};
        sum_over_warp(sums);
        const softmax_state mine_s = state_of(of_s, first.ties_s, sums[0]);
        const softmax_state mine_t = state_of(of_t, first.ties_t, sums[1]);
        warp.send(0, 2, make_float4(mine_s.m, mine_s.ties, mine_s.tail, cross_sum_of(sums[2], of_s, mine_s, of_t)));
        warp.send(1, 2, make_float4(mine_t.m, mine_t.ties, mine_t.tail, warp.claim_word()));
        forget(y);
        warp.receive();

        const float4 *got_s = warp.received(0), *got_t = warp.received(1);
        const int next_claim = __float_as_int(got_t[0].w);
        const mixed_row<KIND> whole(warp, facts, got_s, got_t);
        const mixed_columns columns = whole.columns_of(k, of_s, of_t);
        const float to_s = facts.to_s_of_all;
        const bool has_no_mass = whole.has_no_mass;
        if (warp.lane == 0) /* for rows that need it again: not in registers while there are sums to wait for */
            rows_seen[warp.in_block] = whole;
        if (warp.has_results()) {
            const divergence_record record = {warp.row,
                                              warp.ends_a_chunk,
                                              KIND == REVERSE_KL ? -1 : 0,
                                              whole.s.m,
                                              whole.t.m,
                                              0,
                                              whole.s.exact_others(),
                                              whole.t.exact_others(),
                                              KIND == REVERSE_KL ? whole.cross : 0,
                                              0,
                                              0,
                                              0};
            ledger.add(rows_kept, warp.lane, record);
        }
        float kept[KIND == REVERSE_KL ? 1 : VECTORS][LANES]; /* s_phi */
        double of_row[3] = {0, 0, 0};
        bool has_ties = false;
        if (KIND == REVERSE_KL) {
            of_row[0] = whole.reverse_value();
        } else if (!has_no_mass) {
            lane_sum values, of_s_phi;
#pragma unroll
            for (int turn = 0; turn < VECTORS; turn++) {
                const int j = in_turn(turn);
                float v[LANES], w[LANES];
                unpack(x[32 * j], v);
                unpack(y.at[j], w);
#pragma unroll
                for (int i = 0; i < LANES; i++) {
                    const mixed_terms one = columns.terms<KIND>(v[i], w[i]);
                    values.add(one.value);
                    of_s_phi.add(one.s_phi);
                    has_ties |= one.is_tie;
                    kept[KIND == REVERSE_KL ? 0 : j][i] = one.s_phi;
                }
                values.end_of_vector(turn);
                of_s_phi.end_of_vector(turn);
            }
            of_row[0] = (double)values.all * value_in_units<KIND>();
            of_row[1] = (double)(of_s_phi.all * slope_in_units<KIND>());
            has_ties = exchange_sums(warp, of_row, has_ties);
        }
        const bool is_exact = __any_sync(
            ~0u, !has_no_mass && (has_ties || columns.is_undefined() || !(of_row[0] >= 1.0 / 128 && of_row[0] < 1e30)));
        if (is_exact) {
            __syncwarp(); /* lane 0 has written the row */
            const mixed_row<KIND> &again = rows_seen[warp.in_block];
            const mixed_columns seen = again.columns_of(k, of_s, of_t);
            const exact_columns<KIND> exact(k, facts, again, seen);
            const T *v = reinterpret_cast<const T *>(x - warp.lane);
            const T *w = reinterpret_cast<const T *>(warp.slice_at(k.targets, warp.row));
            T *to = reinterpret_cast<T *>(warp.slice_at(k.grad_predictions, warp.row));
            of_row[0] = of_row[1] = of_row[2] = 0;
            warp.for_columns(v, w, [&](int, float one_v, float one_w) {
                const column_terms<float> one = exact.terms(one_v, one_w);
                of_row[0] += (double)one.value;
                of_row[1] += (double)one.s_phi;
                of_row[2] += (double)one.t_psi;
            });
            exchange_sums(warp, of_row, false);
            if (warp.wants(k.grad_predictions))
                warp.for_columns(v, w, [&](int i, float one_v, float one_w) {
                    float dx, dy;
                    exact.slopes(one_v, one_w, of_row, dx, dy);
                    narrow(to[i], dx * to_s);
                });
        } else if (warp.wants(k.grad_predictions)) {
            if (has_no_mass) {
                warp.put_all(k.grad_predictions, k.finite ? 0.0f : (float)not_a_number());
            } else {
                const float value = (float)(of_row[0] * 1.44269504088896341), s_sum = (float)of_row[1];
                warp.put(k.grad_predictions, [&](int j, float(&made)[LANES]) {
                    float v[LANES], w[LANES];
                    if (KIND != VARIATION)
                        unpack(x[32 * j], v);
                    if (KIND == REVERSE_KL)
                        unpack(y.at[j], w);
#pragma unroll
                    for (int i = 0; i < LANES; i++)
                        made[i] = KIND == REVERSE_KL
                                      ? columns.reverse_slope(v[i], w[i], value, to_s)
                                      : columns.slope_s<KIND>(v[i], kept[KIND == REVERSE_KL ? 0 : j][i], s_sum, to_s);
                });
            }
        }
        if (warp.has_results() && (KIND != REVERSE_KL || is_exact))
            ledger.set_value(rows_kept, warp.lane, of_row[0]);
        warp.step(next_claim);
    }
    finish_loss(k, facts.divisor);
}

#define ONEP_LOGITS_CLUSTER_ALIGNED(name, T)                                                                           \
    ONEP_LOGITS_ALIGNED(labels, aligned_labels<T>, name)                                                               \
    ONEP_LOGITS_ALIGNED(kl, aligned_kl<T>, name)                                                                       \
    ONEP_LOGITS_ALIGNED(reverse_kl, (aligned_mixed<T, REVERSE_KL>), name)                                              \
    ONEP_LOGITS_ALIGNED(mixture, (aligned_mixed<T, MIXTURE>), name)                                                    \
    ONEP_LOGITS_ALIGNED(js, (aligned_mixed<T, JENSEN_SHANNON>), name)                                                  \
    ONEP_LOGITS_ALIGNED(variation, (aligned_mixed<T, VARIATION>), name)
/* As there: 128 registers per thread. */
#define ONEP_LOGITS_ALIGNED(kind, function, name)                                                                      \
    extern "C" __global__ void __launch_bounds__(ONEP_LOGITS_MAX_WARPS * 32, ONEP_LOGITS_CLUSTER_BLOCKS)               \
        onep_logits_##kind##_cluster_aligned_##name(const __grid_constant__ onep_logits_loss_args k)                   \
    {                                                                                                                  \
        function(k);                                                                                                   \
    }

#endif
