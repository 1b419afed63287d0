/*
 * Refuses to compile under flags that change results: sums would be reordered and tests for NaN removed, without a
 * word. Included by the headers that every file of the library includes one of.
 */
#ifndef ONEP_STRICT_MATH_H
#define ONEP_STRICT_MATH_H

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ > 0) ||                           \
    defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__)
#error "onepass: NaN, infinities and rounding are part of the results: compile without -ffast-math, -Ofast and the like"
#endif

#endif
