/* The scheme of split_product.h, step by step. */
#include "split_product.h"

#include <math.h>

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int split_run(const float *x, int64_t count, int lo_scaled, uint16_t *hi, uint16_t *lo, int *exponent)
{
    int flags = 0;
    double largest = 0;
    for (int64_t k = 0; k < count; k++)
        if (isfinite(x[k]))
            largest = fmax(largest, fabs((double)x[k]));
        else
            flags |= SPLIT_SPECIAL;
    int length = 15 - 126;
    if (largest != 0)
        frexp(largest, &length);                       /* largest in [2^(length-1), 2^length) */
    *exponent = 15 - length < 126 ? 15 - length : 126; /* beyond it 2^s is no float; all bits of x are kept anyway */

    double scale = lo_scaled ? 0x1p11 : 1, smallest = largest * (lo_scaled ? 0x1p-29 : 0x1p-18);
    for (int64_t k = 0; k < count; k++) {
        if (!isfinite(x[k])) {
            hi[k] = onep_f16_from_f64((double)x[k]);
            lo[k] = 0;
            continue;
        }
        double scaled = ldexp((double)x[k], *exponent); /* exact, and so is the difference */
        hi[k] = onep_f16_from_f64(scaled);
        lo[k] = onep_f16_from_f64((scaled - (double)onep_f16_to_f32(hi[k])) * scale);
        if (x[k] != 0 && fabs((double)x[k]) < smallest)
            flags |= SPLIT_SMALL;
    }
    return flags;
}

/* The exponent that a row's sums have: its first chunk's, but none that would make them larger than 2^40 times w. */
int split_base(const split_row *row)
{
    return row->exponents[0] < SPLIT_BASE ? row->exponents[0] : SPLIT_BASE;
}

/* 2^n; 0 if it is smaller than a float that is not subnormal. */
static float power(int n)
{
    return n < -126 ? 0 : ldexpf(1, n);
}

void split_make(const split_scheme *scheme, int weight, const float *x, int64_t depth, split_row *row)
{
    if (!weight || !scheme->chunk_scaled) {
        row->flags = split_run(x, depth, scheme->lo_scaled, row->hi, row->lo, row->exponents);
        return;
    }
    row->flags = 0;
    for (int64_t k = 0; k < depth; k += SPLIT_CHUNK) {
        int *exponent = &row->exponents[k / SPLIT_CHUNK];
        row->flags |=
            split_run(x + k, smaller(SPLIT_CHUNK, depth - k), scheme->lo_scaled, row->hi + k, row->lo + k, exponent);
        if (split_base(row) - *exponent > SPLIT_ROOM)
            row->flags |= SPLIT_RANGE;
    }
}

float split_rescale(float x, int exponent)
{
    int second = exponent < -126 ? -126 : exponent > 126 ? 126 : exponent;
    int first = exponent - second;
    if (first < -126)
        first = -126; /* the result is 0 */
    return x * ldexpf(1, first) * ldexpf(1, second);
}

float split_product(const split_scheme *scheme, const float *x, const split_row *x_row, const float *w,
                    const split_row *w_row, int64_t depth)
{
    float main_sum = 0;
    if ((x_row->flags | w_row->flags) & (SPLIT_SPECIAL | SPLIT_RANGE)) {
        for (int64_t k = 0; k < depth; k++)
            main_sum = fmaf(x[k], w[k], main_sum);
        return main_sum;
    }
    const split_row *a = scheme->weight_first ? w_row : x_row, *b = scheme->weight_first ? x_row : w_row;
    float undo = scheme->lo_scaled ? 0x1p-11f : 1, chunk = 0, corrections = 0;
    for (int64_t k = 0; k < depth; k += SPLIT_CHUNK) {
        int64_t end = smaller(k + SPLIT_CHUNK, depth);
        float *into = scheme->corrections == SPLIT_APART ? &corrections : &chunk;
        for (int64_t j = k; j < end; j += SPLIT_STEP) {
            int64_t count = smaller(SPLIT_STEP, end - j);
            *into = tensor_core_dot(scheme->core, ONEP_F16, *into, a->hi + j, b->lo + j, count);
            *into = tensor_core_dot(scheme->core, ONEP_F16, *into, a->lo + j, b->hi + j, count);
        }
        if (scheme->corrections == SPLIT_FIRST)
            chunk *= undo;
        chunk = tensor_core_dot(scheme->core, ONEP_F16, chunk, a->hi + k, b->hi + k, end - k);
        if (end == depth || (scheme->promote != 0 && end % scheme->promote == 0)) {
            if (scheme->chunk_scaled)
                main_sum = fmaf(chunk, power(split_base(w_row) - w_row->exponents[k / SPLIT_CHUNK]), main_sum);
            else
                main_sum += chunk;
            chunk = 0;
        }
    }
    if (scheme->corrections == SPLIT_APART)
        main_sum = fmaf(corrections, undo, main_sum);
    return split_rescale(main_sum,
                         -x_row->exponents[0] - (scheme->chunk_scaled ? split_base(w_row) : w_row->exponents[0]));
}
