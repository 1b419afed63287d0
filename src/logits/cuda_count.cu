/*
 * The divisor of ONEPASS_VALID: how many rows take part, or the sum of the class weights of their labels. One block,
 * before the kernel that divides; nothing is read but masks, labels and class weights. The order of the sum is fixed.
 */
#include "logits/cuda_row.cuh"

extern "C" __global__ void __launch_bounds__(ONEP_LOGITS_THREADS) onep_logits_count(const __grid_constant__ onep_logits_loss_args k)
{
    double sum = 0;
    for (long long row = threadIdx.x; row < k.rows.count; row += ONEP_LOGITS_THREADS) {
        if (k.mask.data && *row_of(k.mask, k.rows, row) == 0)
            continue;
        double weight = 1;
        if (k.labels.data) {
            const long long label = integer_of(k.labels.type, row_of(k.labels, k.rows, row));
            if (label == k.ignore_index)
                continue;
            if (k.class_weights.data && label >= 0 && label < k.columns)
                weight = load_any<double>(k.class_weights.type, k.class_weights.data + label * k.class_weights.col_stride);
        }
        sum += weight;
    }
    sum = team<true>::sum(sum);
    if (threadIdx.x == 0)
        *k.counted = sum;
}
