/*
 * Constants of exp and log for both families; the functions are in vec_math.inc. Polynomials are minimax fits (Remez),
 * rounded to the type; the error beside each is that of the fit before rounding. tests/test_vec_math.c holds the
 * bounds.
 */
#ifndef ONEP_VEC_MATH_H
#define ONEP_VEC_MATH_H

#include <stdint.h>

enum { vf_fraction_bits = 23, vd_fraction_bits = 52 };

/* log 2 = high + low; high has so few digits that e * high is exact for every exponent e. */
static const float vf_ln2 = 0x1.62e430p-1f;
static const float vf_ln2_high = 0x1.62e4p-1f;
static const float vf_ln2_low = 0x1.7f7d1cp-20f;
static const double vd_ln2 = 0x1.62e42fefa39efp-1;
static const double vd_ln2_high = 0x1.62e42fefa38p-1;
static const double vd_ln2_low = 0x1.ef35793c76730p-45;

static const float vf_log2e = 0x1.715476p+0f;
static const double vd_log2e = 0x1.71547652b82fep+0;

/* Adding 1.5 * 2^fraction_bits rounds to an integer, which then stands in the last bits of the sum. */
static const float vf_round = 0x1.8p+23f;
static const double vd_round = 0x1.8p+52;

/* ... and with the exponent's bias added, those bits shifted up are 2^n. */
static const float vf_round_biased = 0x1.8p+23f + 127.0f;
static const double vd_round_biased = 0x1.8p+52 + 1023.0;

/* Bits of 2/3, where the range [2/3, 4/3) of a reduced mantissa begins; and of everything above the fraction. */
static const int32_t vf_two_thirds = 0x3f2aaaab;
static const int64_t vd_two_thirds = 0x3fe5555555555555;
static const int32_t vf_above_fraction = -0x800000;
static const int64_t vd_above_fraction = -0x10000000000000;

/* 2 (atanh(s) / s - 1) / s^2 = 2/3 + 2/5 w + 2/7 w^2 + ..., w = s^2 in [0, 0.0405]: 4.2e-9, 2.8e-17 */
enum { vf_atanh_terms = 4, vd_atanh_terms = 8 };
static const float vf_atanh[vf_atanh_terms] = {0x1.555556p-1f, 0x1.999a74p-2f, 0x1.2429b0p-2f, 0x1.e6d3b8p-3f};
static const double vd_atanh[vd_atanh_terms] = {
    0x1.5555555555555p-1, 0x1.9999999999fb0p-2, 0x1.24924923ce009p-2, 0x1.c71c72f45688fp-3,
    0x1.745ca5ed94e3fp-3, 0x1.3b2ac9f54771dp-3, 0x1.0e7962b7d28c7p-3, 0x1.172c250ac45f7p-3,
};

/* (exp(r) - 1 - r) / r^2 = 1/2 + r/6 + ..., |r| <= log(2)/2; error of exp itself: 3.2e-9, 3.5e-18 */
enum { vf_exp_terms = 5, vd_exp_terms = 10 };
static const float vf_exp_series[vf_exp_terms] = {0x1.000000p-1f, 0x1.55548ep-3f, 0x1.55545ep-5f, 0x1.123b92p-7f,
                                                  0x1.6db47ep-10f};
static const double vd_exp_series[vd_exp_terms] = {
    0x1.000000000000cp-1,  0x1.5555555555561p-3,  0x1.555555554ffeap-5,  0x1.111111110d60bp-7,  0x1.6c16c185b7122p-10,
    0x1.a01a01baf22a3p-13, 0x1.a0199667d65dcp-16, 0x1.71dddfa837efap-19, 0x1.28b072c354dcap-22, 0x1.af85c067c1586p-26,
};

/* (exp(x) - 1 - x) / x^2 = 1/2! + x/3! + ..., |x| <= 1/2, the Taylor series: 5e-10, 1.7e-19 */
enum { vf_exp_rest_terms = 8, vd_exp_rest_terms = 15 };
static const float vf_exp_rest_series[vf_exp_rest_terms] = {
    0.5f, 1 / 6.0f, 1 / 24.0f, 1 / 120.0f, 1 / 720.0f, 1 / 5040.0f, 1 / 40320.0f, 1 / 362880.0f,
};
static const double vd_exp_rest_series[vd_exp_rest_terms] = {
    0.5,
    1 / 6.0,
    1 / 24.0,
    1 / 120.0,
    1 / 720.0,
    1 / 5040.0,
    1 / 40320.0,
    1 / 362880.0,
    1 / 3628800.0,
    1 / 39916800.0,
    1 / 479001600.0,
    1 / 6227020800.0,
    1 / 87178291200.0,
    1 / 1307674368000.0,
    1 / 20922789888000.0,
};

/* Beyond these exp is inf or 0 whatever the argument, and the exponent of the result would leave its field. */
static const float vf_exp_limit = 104.5f;
static const double vd_exp_limit = 746.0;
static const float vf_lowest_exponent = -126.0f;
static const float vf_highest_exponent = 127.0f;
static const double vd_lowest_exponent = -1022.0;
static const double vd_highest_exponent = 1023.0;

#endif
