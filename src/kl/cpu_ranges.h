/* Which elements the vector code of KL divergence takes; all others go to the definition (define.h). */
#ifndef ONEP_KL_RANGES_H
#define ONEP_KL_RANGES_H

#include "cpu/vec_math.h"

/* Probabilities in [low, high): a factor of 1.5 either way stays a normal number. Logarithms in (-high, high). */
static const float vf_kl_low = 0x1p-125f;
static const float vf_kl_high = 0x1p+126f;
static const double vd_kl_low = 0x1p-1021;
static const double vd_kl_high = 0x1p+1022;

/*
 * The same range on bit patterns. Half a binade is taken off the predictions' origin, so that the difference of the two
 * distances is rounded to a whole number of binades by cutting off its fraction.
 */
static const int32_t vf_kl_target_origin = 0x01000000;
static const int64_t vd_kl_target_origin = 0x0020000000000000;
static const int32_t vf_kl_prediction_origin = 0x01000000 + 0x400000;
static const int64_t vd_kl_prediction_origin = 0x0020000000000000 + 0x8000000000000;
static const int32_t vf_kl_span = 0x7d800000;
static const int64_t vd_kl_span = 0x7fa0000000000000;

/*
 * 2 (atanh(s) / s - 1) / s^2 for |s| <= 0.2012, as in vec_math.h, but with one term less in float: what is missing is
 * under 1e-8 of an element's value, a sixth of its rounding error. In double it is the series of vec_math.h.
 */
enum { vf_kl_series_terms = 3, vd_kl_series_terms = vd_atanh_terms };
static const float vf_kl_series[vf_kl_series_terms] = {0x1.555566p-1f, 0x1.9960c0p-2f, 0x1.32f896p-2f};
#define vd_kl_series vd_atanh

/* Logarithms of targets up to here: exp does not overflow. */
static const float vf_kl_exp_high = 88.0f;
static const double vd_kl_exp_high = 709.0;

#endif
