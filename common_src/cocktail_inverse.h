// Hyperbolic and inverse functions, and the cube root. Those of f32 are branch-free and call no library, like
// those of cocktail_elementary.h; their polynomials are weighted minimax fits made for this file.
#ifndef COCKTAIL_INVERSE_H
#define COCKTAIL_INVERSE_H

#include "cocktail_elementary.h"

// ---- hyperbolic functions ---------------------------------------------------------------------------------

// exp(a) / 2 for a >= 0. Larger than exp(a) may be: the halves of a sum overflow later than exp does.
CK_INLINE f32 ck_half_exp(f32 a) {
  i32 n;
  f32 r = ck_reduce_exp(ck_limit(a, 0.0f, 90.0f), &n);
  return ck_scale(ck_exp_of_rest(r), n - 1);
}

CK_INLINE f32 ck_sinh(f32 x) {
  f32 a = __builtin_fabsf(x);
  f32 half = ck_half_exp(a);
  f32 big = half - ck_quotient(0.25f, half);
  f32 s = a * a;
  f32 p = ck_horner(s, 2.81695134e-6f, 1.98361595e-4f, 8.3333496e-3f, 1.66666672e-1f);
  f32 small = ck_fma(p * s, a, a);
  return ck_copysign(a < 1.0f ? small : big, x);
}
CK_INLINE f32 ck_cosh(f32 x) {
  f32 half = ck_half_exp(__builtin_fabsf(x));
  return half + ck_quotient(0.25f, half);
}

// From 2^27 on the square of x is lost beside x, or overflows: asinh(x) = acosh(x) = log(2 x).
CK_INLINE f32 ck_asinh(f32 x) {
  f32 a = __builtin_fabsf(x), s = a * a;
  f32 more = a + ck_quotient(s, 1.0f + __builtin_sqrtf(1.0f + s));  // exp(asinh(a)) - 1
  bool large = a > 134217728.0f;
  f32 value = ck_log1p(large ? a : more);
  return ck_copysign(large ? value + 0.693147182f : value, x);
}
CK_INLINE f32 ck_acosh(f32 x) {
  f32 t = x - 1.0f;
  f32 more = t + __builtin_sqrtf(ck_fma(t, t, 2.0f * t));
  bool large = x > 134217728.0f;
  f32 value = ck_log1p(large ? x : more);
  value = large ? value + 0.693147182f : value;
  return x < 1.0f ? ck_nan() : value;
}
CK_INLINE f32 ck_atanh(f32 x) {
  f32 a = __builtin_fabsf(x);
  return ck_copysign(0.5f * ck_log1p(ck_quotient(2.0f * a, 1.0f - a)), x);
}

// ---- inverse trigonometric functions ----------------------------------------------------------------------

// atan(z) for 0 <= z <= 1.
CK_INLINE f32 ck_atan_below_one(f32 z) {
  f32 s = z * z;
  f32 p = ck_horner(s, -1.79362029e-3f, 1.09145995e-2f, -3.11778337e-2f, 5.79575822e-2f, -8.40344951e-2f,
                    1.09521858e-1f, -1.42642424e-1f, 1.99985489e-1f, -3.33332986e-1f);
  return ck_fma(p * s, z, z);
}
// pi / 2 + x and pi + x.
CK_INLINE f32 ck_beside_half_pi(f32 x) { return 1.57079637f + (x - 4.37113883e-8f); }
CK_INLINE f32 ck_beside_pi(f32 x) { return 3.14159274f + (x - 8.74227766e-8f); }

CK_INLINE f32 ck_atan(f32 x) {
  f32 a = __builtin_fabsf(x);
  bool above = a > 1.0f;
  f32 value = ck_atan_below_one(above ? ck_quotient(1.0f, a) : a);
  return ck_copysign(above ? ck_beside_half_pi(-value) : value, x);
}
CK_INLINE f32 ck_atan2(f32 y, f32 x) {
  f32 a = __builtin_fabsf(x), b = __builtin_fabsf(y);
  bool steep = b > a, left = ck_bitcast<i32>(x) < 0;
  f32 low = steep ? a : b, high = steep ? b : a;
  f32 ratio = ck_quotient(low, high);
  ratio = low == high ? 1.0f : ratio;  // of infinities
  ratio = high == 0.0f ? 0.0f : ratio;
  f32 value = ck_atan_below_one(ratio);
  f32 turned = steep == left ? value : -value;
  value = steep ? ck_beside_half_pi(turned) : left ? ck_beside_pi(turned) : value;
  return ((x != x) | (y != y)) ? x + y : ck_copysign(value, y);
}

// asin(a) for 0 <= a <= 1/2. Above, the half of pi/2 - asin(a): asin(sqrt((1 - a) / 2)).
CK_INLINE f32 ck_asin_or_rest(f32 a, bool above) {
  f32 s = above ? 0.5f - 0.5f * a : a * a;
  f32 z = above ? __builtin_sqrtf(s) : a;
  f32 p = ck_horner(s, 4.21663076e-2f, 2.41795164e-2f, 4.54703756e-2f, 7.49529749e-2f, 1.66667521e-1f);
  return ck_fma(s * p, z, z);
}
CK_INLINE f32 ck_asin(f32 x) {
  f32 a = __builtin_fabsf(x);
  bool above = a > 0.5f;
  f32 value = ck_asin_or_rest(a, above);
  f32 far = (1.57079637f - 2.0f * value) - 4.37113883e-8f;  // the difference is exact where much cancels
  return ck_copysign(above ? far : value, x);
}
CK_INLINE f32 ck_acos(f32 x) {
  f32 a = __builtin_fabsf(x);
  bool above = a > 0.5f;
  f32 value = ck_asin_or_rest(a, above);
  f32 far = x < 0.0f ? ck_beside_pi(-2.0f * value) : 2.0f * value;
  return above ? far : ck_beside_half_pi(-ck_copysign(value, x));
}

// ---- the cube root ----------------------------------------------------------------------------------------

// A third of the exponent, a step of Halley, and a step of Newton whose error is computed in f64. Cubes of
// numbers on the way neither overflow nor underflow.
CK_INLINE f32 ck_cbrt(f32 x) {
  f32 a = __builtin_fabsf(x);
  bool small = a < 1e-36f, large = a > 1e36f;
  f32 scaled = small ? a * 16777216.0f : large ? a * 5.96046448e-8f : a;
  f32 root = ck_bitcast<f32>(ck_bitcast<u32>(scaled) / 3 + 709958130u);
  f32 cube = root * root * root;
  root *= ck_quotient(cube + 2.0f * scaled, 2.0f * cube + scaled);
  f64 wide = root;
  root -= ck_quotient(f32(wide * wide * wide - f64(scaled)), 3.0f * root * root);
  root = small ? root * 0.00390625f : large ? root * 256.0f : root;
  bool same = (a == 0.0f) | !(a < ck_infinity());
  return same ? x : ck_copysign(root, x);
}

// ---- f64: the C library -----------------------------------------------------------------------------------
CK_INLINE f64 ck_sinh(f64 x) { return __builtin_sinh(x); }
CK_INLINE f64 ck_cosh(f64 x) { return __builtin_cosh(x); }
CK_INLINE f64 ck_asinh(f64 x) { return __builtin_asinh(x); }
CK_INLINE f64 ck_acosh(f64 x) { return __builtin_acosh(x); }
CK_INLINE f64 ck_atanh(f64 x) { return __builtin_atanh(x); }
CK_INLINE f64 ck_asin(f64 x) { return __builtin_asin(x); }
CK_INLINE f64 ck_acos(f64 x) { return __builtin_acos(x); }
CK_INLINE f64 ck_atan(f64 x) { return __builtin_atan(x); }
CK_INLINE f64 ck_atan2(f64 y, f64 x) { return __builtin_atan2(y, x); }
CK_INLINE f64 ck_cbrt(f64 x) { return __builtin_cbrt(x); }

CK_HALF_1(ck_sinh)
CK_HALF_1(ck_cosh)
CK_HALF_1(ck_asinh)
CK_HALF_1(ck_acosh)
CK_HALF_1(ck_atanh)
CK_HALF_1(ck_asin)
CK_HALF_1(ck_acos)
CK_HALF_1(ck_atan)
CK_HALF_2(ck_atan2)
CK_HALF_1(ck_cbrt)

#endif  // COCKTAIL_INVERSE_H
