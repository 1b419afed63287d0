/*
 * KL divergence along a line: elements of one type, one after the other, 16 bytes of each input at a time. Both kinds
 * of kernel are made of this; they differ in how lines are dealt out to threads and in what becomes of the sums.
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

    __device__ __forceinline__ void move(long long elements)
    {
        predictions += elements;
        targets += elements;
        if (upstream)
            upstream += elements;
        value += elements;
        grad_predictions += elements;
        grad_targets += elements;
    }
};

template <class T> __device__ __forceinline__ void store_elements(T *to, const pack<T> &p, bool aligned)
{
    if (aligned || reinterpret_cast<unsigned long long>(to) % 16 == 0) {
        store_pack(to, p);
        return;
    }
#pragma unroll
    for (int i = 0; i < element<T>::lanes; i++)
        to[i] = p.at[i];
}

/* ---- are all elements of two packs ordinary probabilities? ---------------------------------------------------------
 */

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
    unsigned least =
        X::least(X::least(X::least(x.x, x.y), X::least(x.z, x.w)), X::least(X::least(y.x, y.y), X::least(y.z, y.w)));
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

/* ---- 16 bytes at any address
 * ------------------------------------------------------------------------------------------ */

/* The 16 bytes from byte `shift` of two neighbouring packs on. `shift` is a multiple of the element's size. */
template <class T> __device__ __forceinline__ pack<T> cut_pack(const uint4 &low, const uint4 &high, unsigned shift)
{
    const bool two = (shift & 8) != 0;
    unsigned a[6] = {two ? low.z : low.x,  two ? low.w : low.y,   two ? high.x : low.z,
                     two ? high.y : low.w, two ? high.z : high.x, two ? high.w : high.y};
    if (sizeof(T) < 8) {
        const bool one = (shift & 4) != 0;
#pragma unroll
        for (int i = 0; i < 5; i++)
            a[i] = one ? a[i + 1] : a[i];
    }
    if (sizeof(T) < 4) {
        const unsigned bits = (shift & 2) * 8;
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = __funnelshift_r(a[i], a[i + 1], bits);
    }
    const uint4 words = make_uint4(a[0], a[1], a[2], a[3]);
    pack<T> p;
    *reinterpret_cast<uint4 *>(&p) = words;
    return p;
}

/* ---- packs and elements
 * ------------------------------------------------------------------------------------------------ */

/*
 * One pack of each input, from element `at` on. Adds to the sums and stores what is asked for, unless some element is
 * not ordinary: then it does neither and returns false. OUTPUTS is known at compile time, or 0: as the line says. SOME:
 * only its elements [from, to) are asked for; the others have values and differences of 0.
 */
template <class T, int FORM, int OUTPUTS, bool ZEROS, bool SOME>
__device__ __forceinline__ bool line_pack(const kl_line<T> &line, const pack<T> &predictions, const pack<T> &targets,
                                          long long at, int from, int to, bool aligned,
                                          kl_sums<typename element<T>::real> &sums)
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
        const bool asked = !SOME || (i >= from && i < to);
        kl_terms<R> terms = terms_of<FORM, ZEROS, tested_together<T>::value != 0, R>(p[i], t[i], d_target_at_zero);
        if (!together)
            ordinary &= terms.ordinary;
        linear += terms.linear;
        rest += terms.rest;
        binades += terms.binades;
        R scale = line.grad_scale;
        if (!OUTPUTS && line.upstream && asked)
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
            if (!SOME || (i >= from && i < to))
                line.value[at + i] = value[i];
    }
    if (SOME && to - from < lanes) {
#pragma unroll
        for (int i = 0; i < lanes; i++) {
            if (i < from || i >= to)
                continue;
            if (outputs & ONEP_CUDA_GRAD_PREDICTIONS)
                line.grad_predictions[at + i] = grad_predictions.at[i];
            if (outputs & ONEP_CUDA_GRAD_TARGETS)
                line.grad_targets[at + i] = grad_targets.at[i];
        }
        return true;
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
    onep_kl_element e = by_definition<FORM, R>(widen(line.predictions[at]), widen(line.targets[at]), line.finite);
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

/* A pack of the elements [from, to) of those from `at` on; in the place of the others 1, or 0 for its logarithm. */
template <class T> __device__ __forceinline__ pack<T> load_some(const T *at, int from, int to, bool logarithms)
{
    pack<T> p;
#pragma unroll
    for (int i = 0; i < element<T>::lanes; i++) {
        narrow(p.at[i], (typename element<T>::real)(logarithms ? 0 : 1));
        if (i >= from && i < to)
            p.at[i] = at[i];
    }
    return p;
}

/*
 * A pack that was left: one with zeros or special values, one of which only the elements in [begin, end) are asked for,
 * or one at the edge of what may be read 16 bytes at a time. Inputs that were read are read again; nothing has been
 * stored over them. Kept out of the unrolled loops, once per kernel.
 */
template <class T, int FORM, int OUTPUTS>
__device__ __forceinline__ void line_left(const kl_line<T> &line, long long at, long long begin, long long end,
                                          bool aligned, kl_sums<typename element<T>::real> &sums)
{
    const int lanes = element<T>::lanes;
    const int outputs = OUTPUTS ? OUTPUTS : line.outputs;
    const int from = at < begin ? (int)(begin - at) : 0;
    const int to = end - at < lanes ? (int)(end - at) : lanes;
    pack<T> p;
    pack<T> t;
    if (aligned && to - from == lanes) {
        p = load_pack(line.predictions + at);
        t = load_pack(line.targets + at);
    } else {
        p = load_some(line.predictions + at, from, to, (FORM & 1) != 0);
        t = load_some(line.targets + at, from, to, (FORM & 2) != 0);
    }
    if (line_pack<T, FORM, OUTPUTS, true, true>(line, p, t, at, from, to, aligned, sums))
        return;
#pragma unroll 1
    for (int i = from; i < to; i++)
        line_element<T, FORM>(line, outputs, at + i, sums);
}

#endif
