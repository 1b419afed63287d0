/*
 * The divisor of ONEPASS_VALID: how many rows take part, or the sum of the class weights of their labels. Before the
 * kernel that divides; nothing is read but masks, labels and class weights. A block adds up a chunk of rows, the one
 * that is last the chunks in their order: the order of the sum is fixed.
 */
#include "logits/cuda_row.cuh"

extern "C" __global__ void __launch_bounds__(ONEP_LOGITS_THREADS) onep_logits_count(const __grid_constant__ onep_logits_loss_args k)
{
    enum { AHEAD = 8 }; /* rows of a thread whose labels are on their way at once */
    const long long first = blockIdx.x * k.rows.chunk;
    const long long last = first + k.rows.chunk < k.rows.count ? first + k.rows.chunk : k.rows.count;
    double sum = 0;
#pragma unroll 1
    for (long long row = first + threadIdx.x; row < last; row += AHEAD * ONEP_LOGITS_THREADS) {
        bool counts[AHEAD];
        long long label[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const long long at = row + i * ONEP_LOGITS_THREADS;
            counts[i] = at < last && (!k.mask.data || *row_of(k.mask, k.rows, at) != 0);
            label[i] = k.labels.data && at < last ? integer_of(k.labels.type, row_of(k.labels, k.rows, at)) : -1;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (!counts[i] || (k.labels.data && label[i] == k.ignore_index))
                continue;
            double weight = 1;
            if (k.class_weights.data && label[i] >= 0 && label[i] < k.columns)
                weight = load_any<double>(k.class_weights.type,
                                          k.class_weights.data + label[i] * k.class_weights.col_stride);
            sum += weight;
        }
    }
    __shared__ double room[32];
    sum = block_sum<ONEP_LOGITS_THREADS>(sum, room);
    if (threadIdx.x == 0)
        k.partial[blockIdx.x] = sum; /* one block at least, even of no rows */
    if (!last_block(k.ticket, gridDim.x))
        return;
    sum = sum_partials<ONEP_LOGITS_THREADS>(k.partial, k.rows.chunks, room);
    if (threadIdx.x == 0)
        *k.counted = sum;
}
