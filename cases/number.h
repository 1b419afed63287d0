/*
 * Numbers of the library's types seen from outside: one element to and from double, what rounding to a type costs, the
 * comparison every test and `onepass check` use, and random numbers that are the same on every machine.
 */
#ifndef CASES_NUMBER_H
#define CASES_NUMBER_H

#include <stddef.h>
#include <stdint.h>

#include "onepass.h"

/* ---- types ------------------------------------------------------------------------------------------------------- */

extern const onepass_dtype case_f16, case_bf16, case_f32, case_f64, case_i32, case_i64, case_u8, case_b8;

int case_same_type(onepass_dtype a, onepass_dtype b);
int case_is_float(onepass_dtype type);
size_t case_size(onepass_dtype type);
const char *case_type_name(onepass_dtype type); /* "float32" */

/* The wider of two floating-point types; float16 with bfloat16 gives float32. */
onepass_dtype case_promote(onepass_dtype a, onepass_dtype b);

/* The type a product of these types is computed in: float64 if one of them is, float32 otherwise. */
onepass_dtype case_computed(onepass_dtype promoted);

/* Every number of `other` is one of `type`. */
int case_holds(onepass_dtype type, onepass_dtype other);

double case_load(onepass_dtype type, const void *from);
void case_store(onepass_dtype type, void *to, double x); /* rounds to nearest, ties to even */

/* ---- comparison -------------------------------------------------------------------------------------------------- */

/* NaN meets NaN, an infinity the same infinity, a number one that is not farther than allowed. */
int case_close(double got, long double expected, long double allowed);

/* The same for a result stored in `type`: half a unit in its last place is added, and overflow gives infinity. */
int case_close_in(onepass_dtype type, double got, long double expected, long double allowed);

/* Half a unit in the last place of x in a type, its subnormals included. */
long double case_half_unit(onepass_dtype type, long double x);

/* What the arithmetic is off by as a share of what it is allowed: without the rounding that storing costs. Infinite for
 * a result that is not close and has no such share. */
double case_share(onepass_dtype type, double got, long double expected, long double allowed);

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

/* splitmix64. The same seed and stream give the same numbers on every machine. */
typedef struct case_random {
    uint64_t state;
} case_random;

case_random case_random_stream(uint64_t seed, uint64_t stream);
uint64_t case_random_bits(case_random *random);
double case_random_unit(case_random *random); /* in (0, 1) */
double case_random_between(case_random *random, double low, double high);
int64_t case_random_below(case_random *random, int64_t limit); /* 0 .. limit-1 */
double case_random_normal(case_random *random);                /* mean 0, deviation 1, at most 6 */

#endif
