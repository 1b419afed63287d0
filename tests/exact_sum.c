/* Fixed-point addition of products of floats. */
#include "exact_sum.h"

#include <math.h>
#include <stdlib.h>

enum { LOWEST = -352 };

/* sum += part 2^exponent, |part| < 2^24. */
static void add_part(exact_sum *sum, int64_t part, int exponent)
{
    int digit = (exponent - LOWEST) / 32, shift = (exponent - LOWEST) % 32;
    int64_t sign = part < 0 ? -1 : 1, placed = llabs(part) << shift; /* under 2^56 */
    sum->digits[digit] += sign * (placed & 0xffffffff);
    sum->digits[digit + 1] += sign * (placed >> 32);
}

void exact_add(exact_sum *sum, float a, float b)
{
    int a_exponent, b_exponent;
    int64_t x = (int64_t)ldexpf(frexpf(a, &a_exponent), 24), y = (int64_t)ldexpf(frexpf(b, &b_exponent), 24);
    int64_t product = x * y; /* under 2^48 */
    int exponent = a_exponent + b_exponent - 48;
    if (product == 0)
        return;
    add_part(sum, product % (1 << 24), exponent);
    add_part(sum, product / (1 << 24), exponent + 24);
}

double exact_value(const exact_sum *sum)
{
    /* Digits in [0, 2^32), but for the last one, which carries the sign. */
    int64_t digits[EXACT_DIGITS], carry = 0;
    for (int i = 0; i < EXACT_DIGITS; i++) {
        int64_t digit = sum->digits[i] + carry;
        digits[i] = i + 1 < EXACT_DIGITS ? digit & 0xffffffff : digit;
        carry = (digit - digits[i]) / (INT64_C(1) << 32);
    }
    /* A negative number: the magnitude, so that leading digits are not all ones. */
    int negative = digits[EXACT_DIGITS - 1] < 0;
    carry = 0;
    for (int i = 0; negative && i < EXACT_DIGITS; i++) {
        int64_t digit = carry - digits[i];
        digits[i] = i + 1 < EXACT_DIGITS ? digit & 0xffffffff : digit;
        carry = (digit - digits[i]) / (INT64_C(1) << 32);
    }
    int top = EXACT_DIGITS - 1;
    while (top > 2 && digits[top] == 0)
        top--;
    double value = 0;
    for (int i = top - 2; i <= top; i++)
        value += ldexp((double)digits[i], 32 * i + LOWEST);
    return negative ? -value : value;
}
