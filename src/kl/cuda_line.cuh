/*
 * KL divergence along a line: elements of one type, one after the other, 16 bytes of each input at a time. Both kinds of
 * kernel are made of this; they differ in how lines are dealt out to threads and in what becomes of the sums.
 */
#ifndef ONEP_KL_LINE_CUH
#define ONEP_KL_LINE_CUH

#include "kl/cuda_args.h"
#include "kl/cuda_terms.cuh"

template <class T> struct kl_line {
    typedef typename element<T>::real R;
    const T *predictions, *targets;
    const R *upstream; /* one per element; NULL: 1 */
    R *value;
    T *grad_predictions, *grad_targets;
    R value_scale, grad_scale;
    int outputs, finite;
};

template <class T> __device__ __forceinline__ pack<T> load_elements(const T *from, bool aligned)
{
    if (aligned)
        return load_pack(from);
    pack<T> p;
#pragma unroll
    for (int i = 0; i < element<T>::lanes; i++)
        p.at[i] = from[i];
    return p;
}

template <class T> __device__ __forceinline__ void store_elements(T *to, const pack<T> &p, bool aligned)
{
    if (aligned) {
        store_pack(to, p);
        return;
    }
#pragma unroll
    for (int i = 0; i < element<T>::lanes; i++)
        to[i] = p.at[i];
}

/* ---- are all elements of two packs ordinary probabilities? --------------------------------------------------------- */

/* Half types: the smallest and the largest of all, two elements an instruction, instead of a test of each. */
template <class T> struct extremes;
template <> struct extremes<f16> {
    static __device__ __forceinline__ unsigned least(unsigned a, unsigned b)
    {
        unsigned c;
        asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
        return c;
    }
    static __device__ __forceinline__ unsigned most(unsigned a, unsigned b)
    {
        unsigned c;
        asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
        return c;
    }
    static __device__ __forceinline__ bool ordinary(unsigned short least_bits, unsigned short most_bits)
    {
        f16 low = {least_bits};
        f16 high = {most_bits};
        return widen(low) > 0.0f && widen(high) < 0x1p64f; /* false for NaN */
    }
};
template <> struct extremes<bf16> {
    static __device__ __forceinline__ unsigned least(unsigned a, unsigned b)
    {
        unsigned c;
        asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
        return c;
    }
    static __device__ __forceinline__ unsigned most(unsigned a, unsigned b)
    {
        unsigned c;
        asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
        return c;
    }
    static __device__ __forceinline__ bool ordinary(unsigned short least_bits, unsigned short most_bits)
    {
        bf16 low = {least_bits};
        bf16 high = {most_bits};
        return widen(low) >= 0x1p-124f && widen(high) < 0x1p64f;
    }
};

template <class T> __device__ __forceinline__ bool halves_ordinary(const pack<T> &a, const pack<T> &b)
{
    typedef extremes<T> X;
    const uint4 x = *reinterpret_cast<const uint4 *>(&a);
    const uint4 y = *reinterpret_cast<const uint4 *>(&b);
    unsigned least = X::least(X::least(X::least(x.x, x.y), X::least(x.z, x.w)),
                              X::least(X::least(y.x, y.y), X::least(y.z, y.w)));
    unsigned most =
        X::most(X::most(X::most(x.x, x.y), X::most(x.z, x.w)), X::most(X::most(y.x, y.y), X::most(y.z, y.w)));
    return X::ordinary((unsigned short)(least & 0xffff), (unsigned short)(most & 0xffff)) &&
           X::ordinary((unsigned short)(least >> 16), (unsigned short)(most >> 16));
}

/* Whether a type's probabilities are tested together; then the test of each element is dropped by the compiler. */
template <class T> struct tested_together {
    enum { value = 0 };
    static __device__ __forceinline__ bool ordinary(const pack<T> &, const pack<T> &)
    {
        return true;
    }
};
template <> struct tested_together<f16> {
    enum { value = 1 };
    static __device__ __forceinline__ bool ordinary(const pack<f16> &a, const pack<f16> &b)
    {
        return halves_ordinary(a, b);
    }
};
template <> struct tested_together<bf16> {
    enum { value = 1 };
    static __device__ __forceinline__ bool ordinary(const pack<bf16> &a, const pack<bf16> &b)
    {
        return halves_ordinary(a, b);
    }
};

/* ---- packs and elements ------------------------------------------------------------------------------------------------ */

/*
 * One pack of each input, from element `at` on. Adds to the sums and stores what is asked for, unless some element is
 * not ordinary: then it does neither and returns false. OUTPUTS is known at compile time, or 0: as the line says.
 */
template <class T, int FORM, int OUTPUTS, bool ZEROS>
__device__ __forceinline__ bool line_pack(const kl_line<T> &line, const pack<T> &predictions, const pack<T> &targets,
                                          long long at, bool aligned, kl_sums<typename element<T>::real> &sums)
{
    typedef typename element<T>::real R;
    const int lanes = element<T>::lanes;
    const int outputs = OUTPUTS ? OUTPUTS : line.outputs;
    const bool together = FORM == 0 && !ZEROS && tested_together<T>::value;
    const R d_target_at_zero = line.finite ? (R)0 : (R)ONEP_KL_NAN;
    R linear = 0;
    R rest = 0;
    R binades = 0;
    R value[lanes];
    pack<T> grad_predictions;
    pack<T> grad_targets;
    bool ordinary = true;
    if (together && !tested_together<T>::ordinary(predictions, targets))
        return false;
    R p[lanes];
    R t[lanes];
    unpack(predictions, p);
    unpack(targets, t);
#pragma unroll
    for (int i = 0; i < lanes; i++) {
        kl_terms<R> terms = terms_of<FORM, ZEROS, tested_together<T>::value != 0, R>(p[i], t[i], d_target_at_zero);
        if (!together)
            ordinary &= terms.ordinary;
        linear += terms.linear;
        rest += terms.rest;
        binades += terms.binades;
        R scale = line.grad_scale;
        if (!OUTPUTS && line.upstream)
            scale *= line.upstream[at + i];
        value[i] = terms.value() * line.value_scale;
        if (together && (outputs & ONEP_CUDA_VALUE)) /* known to be ordinary: no need to hold it back */
            line.value[at + i] = value[i];
        narrow(grad_predictions.at[i], terms.d_prediction * scale);
        narrow(grad_targets.at[i], terms.d_target * scale);
    }
    if (!ordinary)
        return false;
    if (outputs & ONEP_CUDA_SUM) {
        sums.linear += linear;
        sums.rest += rest;
        sums.binades += binades;
    }
    if (!together && (outputs & ONEP_CUDA_VALUE)) {
#pragma unroll
        for (int i = 0; i < lanes; i++)
            line.value[at + i] = value[i];
    }
    if (outputs & ONEP_CUDA_GRAD_PREDICTIONS)
        store_elements(line.grad_predictions + at, grad_predictions, aligned);
    if (outputs & ONEP_CUDA_GRAD_TARGETS)
        store_elements(line.grad_targets + at, grad_targets, aligned);
    return true;
}

/* One element by the definition, in double. */
template <class T, int FORM>
__device__ __forceinline__ void line_element(const kl_line<T> &line, int outputs, long long at,
                                             kl_sums<typename element<T>::real> &sums)
{
    typedef typename element<T>::real R;
    onep_kl_element e =
        by_definition<FORM, R>(widen(line.predictions[at]), widen(line.targets[at]), line.finite);
    sums.special += (double)(R)e.value;
    double scale = (double)line.grad_scale;
    if (line.upstream)
        scale *= (double)line.upstream[at];
    if (outputs & ONEP_CUDA_VALUE)
        line.value[at] = (R)(e.value * (double)line.value_scale);
    if (outputs & ONEP_CUDA_GRAD_PREDICTIONS)
        narrow(line.grad_predictions[at], (R)(e.d_prediction * scale));
    if (outputs & ONEP_CUDA_GRAD_TARGETS)
        narrow(line.grad_targets[at], (R)(e.d_target * scale));
}

/*
 * A pack that was left: one with zeros or special values, or one that `end` cuts short. Its inputs are read again;
 * nothing has been stored over them. Kept out of the unrolled loops, once per kernel.
 */
template <class T, int FORM, int OUTPUTS>
__device__ __forceinline__ void line_left(const kl_line<T> &line, long long at, long long end, bool aligned,
                                          kl_sums<typename element<T>::real> &sums)
{
    const int lanes = element<T>::lanes;
    const int outputs = OUTPUTS ? OUTPUTS : line.outputs;
    if (at + lanes <= end &&
        line_pack<T, FORM, OUTPUTS, true>(line, load_elements(line.predictions + at, aligned),
                                          load_elements(line.targets + at, aligned), at, aligned, sums))
        return;
#pragma unroll 1
    for (long long one = at; one < at + lanes && one < end; one++)
        line_element<T, FORM>(line, outputs, one, sums);
}

#endif
