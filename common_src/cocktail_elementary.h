// Exponentials, logarithms, hyperbolic tangent, logistic, error function and powers.
// The f32 versions are branch-free and call no library, so that any compiler vectorises loops over them.
// Their polynomials are weighted minimax fits made for this file. Flushing of denormals changes only results
// with denormal arguments or denormal results.
#ifndef COCKTAIL_ELEMENTARY_H
#define COCKTAIL_ELEMENTARY_H

#include "cocktail_arith.h"

CK_INLINE f32 ck_infinity() { return __builtin_inff(); }
CK_INLINE f32 ck_nan() { return __builtin_nanf(""); }

// Horner's rule, highest coefficient first.
template <class T>
CK_INLINE T ck_horner(T, T value) {
  return value;
}
template <class T, class... Rest>
CK_INLINE T ck_horner(T x, T value, T next, Rest... rest) {
  return ck_horner(x, ck_fma(value, x, next), rest...);
}

// Nearest integer of |x| < 2^22, as a float and, in the low bits of `bits`, as an integer.
CK_INLINE f32 ck_nearest(f32 x, i32* integer) {
  f32 shifted = x + 12582912.0f;
  *integer = i32(ck_bitcast<u32>(shifted) - 0x4b400000u);
  return shifted - 12582912.0f;
}
// 2^n for -126 <= n <= 127.
CK_INLINE f32 ck_power_of_two(i32 n) { return ck_bitcast<f32>(u32(n + 127) << 23); }
// value * 2^n for -252 <= n <= 254, in two steps that both stay in the normal range.
CK_INLINE f32 ck_scale(f32 value, i32 n) {
  i32 half = n >> 1;
  return value * ck_power_of_two(half) * ck_power_of_two(n - half);
}
CK_INLINE f32 ck_limit(f32 x, f32 low, f32 high) {
  x = x > high ? high : x;
  return x < low ? low : x;  // NaN passes
}

// x - n ln 2.
CK_INLINE f32 ck_without_ln2(f32 x, f32 n) { return ck_fma(n, -1.42860677e-6f, ck_fma(n, -0.693145752f, x)); }
// x = n ln 2 + r with |r| <= ln 2 / 2.
CK_INLINE f32 ck_reduce_exp(f32 x, i32* n) { return ck_without_ln2(x, ck_nearest(x * 1.44269504f, n)); }

// exp(r) - 1, with an error that is small beside 1, and exp(r), for |r| <= ln 2 / 2.
CK_INLINE f32 ck_exp_of_rest_minus_one(f32 r) {
  f32 q = ck_horner(r, 1.38254452e-3f, 8.36938433e-3f, 4.16682288e-2f, 1.66665152e-1f, 4.9999994e-1f);
  return ck_fma(q, r * r, r);
}
CK_INLINE f32 ck_exp_of_rest(f32 r) { return ck_exp_of_rest_minus_one(r) + 1.0f; }
// x = n ln 2 + r. The integer n is at most 128, which gives infinity. It stays in the low bits of a float,
// from which both factors of 2^n are taken. Below -104 the result is 0, whatever these bits are.
CK_INLINE f32 ck_exp(f32 x) {
  i32 bits = ck_bitcast<i32>(ck_fma(x, 1.44269504f, 12582912.0f));
  bits = bits < 0x4b400080 ? bits : 0x4b400080;
  f32 r = ck_without_ln2(x, ck_bitcast<f32>(bits) - 12582912.0f);
  u32 half = (u32(bits) << 22) & 0xff800000u, rest = (u32(bits) << 23) - half;
  f32 value = ck_exp_of_rest(r) * ck_bitcast<f32>(half + 0x3f800000u);
  return x < -104.0f ? 0.0f : value * ck_bitcast<f32>(rest + 0x3f800000u);
}
// exp(x) for |x| < 80.
CK_INLINE f32 ck_exp_moderate(f32 x) {
  i32 n;
  f32 r = ck_reduce_exp(x, &n);
  return ck_exp_of_rest(r) * ck_power_of_two(n);
}

CK_INLINE f32 ck_exp2(f32 x) {
  i32 n;
  x = ck_limit(x, -151.0f, 129.0f);
  f32 r = x - ck_nearest(x, &n);
  f32 q = ck_horner(r, 1.51648332e-4f, 1.3392542e-3f, 9.61914752e-3f, 5.55035658e-2f, 2.40226418e-1f,
                    6.93147182e-1f);
  return ck_scale(ck_fma(q, r, 1.0f), n);
}

// exp(r) - 1 for |r| <= ln 2 / 2.
CK_INLINE f32 ck_expm1_of_rest(f32 r) {
  f32 q = ck_horner(r, 1.95675239e-4f, 1.39349082e-3f, 8.33390094e-3f, 4.16664667e-2f, 1.66666642e-1f, 0.5f);
  return ck_fma(q, r * r, r);
}
CK_INLINE f32 ck_expm1(f32 x) {
  i32 n;
  f32 p = ck_expm1_of_rest(ck_reduce_exp(ck_limit(x, -18.0f, 89.0f), &n));
  i32 half = n >> 1, rest = n - half;
  f32 scale = ck_power_of_two(half);
  f32 value = ck_fma(p, scale, scale - ck_power_of_two(-rest)) * ck_power_of_two(rest);
  return ck_copysign(value, x);  // -0
}

// log(1 + f) - f for 1 + f in [sqrt(1/2), sqrt(2)].
CK_INLINE f32 ck_log_tail(f32 f) {
  f32 p = ck_horner(f, 6.73301071e-2f, -1.16606608e-1f, 1.1886204e-1f, -1.24081969e-1f, 1.42202333e-1f,
                    -1.66678548e-1f, 2.0002073e-1f, -2.50000119e-1f, 3.33333135e-1f);
  f32 square = f * f;
  return ck_fma(p * f, square, -0.5f * square);
}
// x = 2^e m with m in [sqrt(1/2), sqrt(2)), for positive normal x.
CK_INLINE f32 ck_split(f32 x, i32* e) {
  u32 bits = ck_bitcast<u32>(x) - 0x3f3504f3u;
  *e = i32(bits) >> 23;
  return ck_bitcast<f32>((bits & 0x7fffffu) + 0x3f3504f3u);
}
CK_INLINE f32 ck_log_sum(f32 e, f32 f) {
  return ck_fma(e, 0.693145752f, ck_fma(e, 1.42860677e-6f, ck_log_tail(f)) + f);
}

CK_INLINE f32 ck_log(f32 x) {
  bool denormal = x < 1.17549435e-38f;
  i32 e;
  f32 m = ck_split(denormal ? x * 8388608.0f : x, &e);
  f32 value = ck_log_sum(f32(denormal ? e - 23 : e), m - 1.0f);
  value = x < ck_infinity() ? value : x;  // inf and NaN
  value = x == 0.0f ? -ck_infinity() : value;
  return x < 0.0f ? ck_nan() : value;
}

CK_INLINE f32 ck_log1p(f32 x) {
  f32 u = 1.0f + x;
  i32 e;
  f32 m = ck_split(u, &e);
  f32 scale = ck_power_of_two(-(e > 24 ? 24 : e));
  // 2^-e (1 + x) - 1 with one rounding; from 2^24 on the 1 no longer matters
  f32 f = e > 24 ? m - 1.0f : ck_fma(x, scale, scale - 1.0f);
  f32 value = ck_copysign(ck_log_sum(f32(e), f), x);
  value = x < ck_infinity() ? value : x;
  value = x == -1.0f ? -ck_infinity() : value;
  return x < -1.0f ? ck_nan() : value;
}

// tanh(a) for a < 0.625.
CK_INLINE f32 ck_tanh_small(f32 a) {
  f32 s = a * a;
  f32 p = ck_horner(s, -5.70009183e-3f, 2.06341185e-2f, -5.37379384e-2f, 1.33314162e-1f, -3.33332807e-1f);
  return ck_fma(p * s, a, a);
}
// From 9.02 on the result is 1. Threads skip one of two ways. The lanes of a vector would take both: they
// share one with few steps, by exp(2 |x|) - 1.
CK_INLINE f32 ck_tanh(f32 x) {
  f32 a = __builtin_fabsf(x), t = 2.0f * (a > 10.0f ? 10.0f : a);
  if constexpr (kCkSkipsWays) {
    f32 big = 1.0f - ck_quotient(2.0f, ck_exp_moderate(t) + 1.0f);
    return ck_copysign(a < 0.625f ? ck_tanh_small(a) : big, x);
  }
  i32 n;
  f32 p = ck_expm1_of_rest(ck_reduce_exp(t, &n));
  f32 scale = ck_power_of_two(n);
  f32 more = ck_fma(p, scale, scale - 1.0f);
  return a < 2.44140625e-4f ? x : ck_copysign(ck_quotient(more, more + 2.0f), x);
}

CK_INLINE f32 ck_logistic(f32 x) { return ck_quotient(1.0f, 1.0f + ck_exp(-x)); }

CK_INLINE f32 ck_erf(f32 x) {
  f32 a = __builtin_fabsf(x);
  f32 s = a * a;
  f32 p = ck_horner(s, 8.3922685e-5f, -8.14415806e-4f, 5.20072179e-3f, -2.68590227e-2f, 1.12836815e-1f,
                    -3.76126319e-1f, 1.28379166e-1f);
  f32 small = ck_fma(p, a, a);
  f32 t = (a > 4.0f ? 4.0f : a) - 2.0f;  // log(erfc(a))
  f32 q = ck_horner(t, -2.03878717e-5f, 1.39904601e-4f, -7.32012093e-4f, 3.56515823e-3f, -1.6468348e-2f,
                    -9.23750162e-1f, -4.41815996f, -5.36494112f);
  f32 big = 1.0f - ck_exp_moderate(q);
  f32 value = a < 0.9f ? small : big;
  return ck_copysign(a != a ? a : value, x);
}

// In the variable w = -log(1 - x^2) (after Giles, "Approximating the erfinv function", 2010; own fits).
CK_INLINE f32 ck_erf_inv(f32 x) {
  f32 a = __builtin_fabsf(x);
  f32 w = -ck_log((1.0f - a) * (1.0f + a));
  f32 t = w - 2.5f;
  f32 center = ck_horner(t, -8.60783711e-9f, 2.43165523e-8f, 4.63675548e-7f, -3.47762125e-6f, -4.95203358e-6f,
                         2.18412664e-4f, -1.25276088e-3f, -4.17750189e-3f, 2.46640295e-1f, 1.50140941f);
  f32 u = __builtin_sqrtf(w) - 3.0f;
  f32 tail = ck_horner(u, -2.11596664e-4f, 1.16879572e-4f, 1.36133423e-3f, -3.69027234e-3f, 5.7341028e-3f,
                       -7.61728454e-3f, 9.44017898e-3f, 1.0016737f, 2.83297682f);
  f32 value = (w < 5.0f ? center : tail) * x;
  return a == 1.0f ? ck_copysign(ck_infinity(), x) : value;
}

// log2 of a positive number, relative error 2e-16 before rounding: the f32 power needs about 2^-36.
CK_INLINE f64 ck_log2_f64(f64 x) {
  u64 bits = ck_bitcast<u64>(x) - 0x3fe6a09e667f3bcdull;
  f64 m = ck_bitcast<f64>((bits & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull);
  // exponent + 2^52 + 2^51 by bits: 64-bit integers convert slowly on most machines
  u64 biased = (bits + (2048ull << 52)) >> 52;
  f64 e = ck_bitcast<f64>((biased & 0xfffull) | 0x4330000000000000ull) - 4503599627372544.0;
  f64 s = (m - 1.0) / (m + 1.0);
  f64 z = s * s;
  f64 p = ck_horner(z, 0.24289034069126988, 0.26144691429576561, 0.32061628191793068, 0.41219840408522512,
                    0.57707801722725893, 0.96179669392441158, 2.8853900817779272);
  return ck_fma(p, s, e);
}
// 2^x for |x| < 1000, relative error 8e-13.
CK_INLINE f64 ck_exp2_f64(f64 x) {
  f64 shifted = x + 6755399441055744.0;
  f64 r = x - (shifted - 6755399441055744.0);
  f64 p = ck_horner(r, 1.3175853376417132e-06, 1.5309737421455027e-05, 1.5403851774111764e-4,
                    1.3333452062243526e-3, 9.6181285428179261e-3, 5.5504109393417336e-2, 0.24022650698880649,
                    0.69314718054651414, 0.9999999999997623);
  return p * ck_bitcast<f64>((ck_bitcast<u64>(shifted) << 52) + 0x3ff0000000000000ull);
}

CK_INLINE f32 ck_pow(f32 x, f32 y) {
  f32 a = __builtin_fabsf(x);
  f64 logarithm = ck_log2_f64(f64(a));
  logarithm = a == 0.0f ? f64(-ck_infinity()) : logarithm;
  logarithm = a < ck_infinity() ? logarithm : f64(a);
  f64 t = f64(y) * logarithm;
  t = t > 200.0 ? 200.0 : t;
  t = t < -200.0 ? -200.0 : t;
  f32 value = f32(ck_exp2_f64(t));
  value = t != t ? ck_nan() : value;
  f32 half = y * 0.5f;
  bool whole = y == __builtin_floorf(y);
  bool odd = whole & (half != __builtin_floorf(half));
  bool negative = (ck_bitcast<u32>(x) >> 31) != 0;
  value = (negative & odd) ? -value : value;
  value = ((x < 0.0f) & (x > -ck_infinity()) & !whole) ? ck_nan() : value;
  f32 size = __builtin_fabsf(y);
  bool one = (x == 1.0f) | (y == 0.0f) | ((a == 1.0f) & (size == ck_infinity()));
  return one ? 1.0f : value;
}

// f64: the C library.
CK_INLINE f64 ck_exp(f64 x) { return __builtin_exp(x); }
CK_INLINE f64 ck_exp2(f64 x) { return __builtin_exp2(x); }
CK_INLINE f64 ck_expm1(f64 x) { return __builtin_expm1(x); }
CK_INLINE f64 ck_log(f64 x) { return __builtin_log(x); }
CK_INLINE f64 ck_log1p(f64 x) { return __builtin_log1p(x); }
CK_INLINE f64 ck_tanh(f64 x) { return __builtin_tanh(x); }
CK_INLINE f64 ck_logistic(f64 x) { return 1.0 / (1.0 + __builtin_exp(-x)); }
CK_INLINE f64 ck_erf(f64 x) { return __builtin_erf(x); }
CK_INLINE f64 ck_pow(f64 x, f64 y) { return __builtin_pow(x, y); }

CK_HALF_1(ck_exp)
CK_HALF_1(ck_exp2)
CK_HALF_1(ck_expm1)
CK_HALF_1(ck_log)
CK_HALF_1(ck_log1p)
CK_HALF_1(ck_tanh)
CK_HALF_1(ck_logistic)
CK_HALF_1(ck_erf)
CK_HALF_1(ck_erf_inv)
CK_HALF_2(ck_pow)

// log(exp(x0) + exp(x1) + ...) of the numbers so far: their maximum, and the sum of exp(x - maximum).
template <class T>
struct CkLogSum {
  T most;
  f64 sum;
};

// Takes one more number and returns the logarithm. Equal infinities add no NaN.
template <class T>
CK_INLINE T ck_log_sum(CkLogSum<T>* total, T x) {
  T most = total->most, gap = most - x;
  bool higher = x > most;
  f64 ratio = x == most ? 1.0 : f64(ck_exp(higher ? gap : -gap));
  total->sum = higher ? total->sum * ratio + 1.0 : total->sum + ratio;
  total->most = higher ? x : most;
  return total->most + ck_log(T(total->sum));
}

#endif  // COCKTAIL_ELEMENTARY_H
