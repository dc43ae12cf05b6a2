// Sine and cosine.
// Range reduction without branches, and without tables in memory, which some processors read lane by lane.
// The angle in quarter turns is |x| times 2/pi. For a large |x| = y 2^n, with y < 2^50 and n = 27, 54 or 79,
// it is y times (2^n 2/pi modulo 4): |x| times the sum of `high` and `low`, which is 2^-n times that number.
// The integer part is subtracted exactly, so that the angle is correct for all f32.
#ifndef COCKTAIL_TRIG_H
#define COCKTAIL_TRIG_H

#include "cocktail_elementary.h"

constexpr f64 kCkToInteger = 6755399441055744.0;  // 1.5 2^52: the low bits of a sum are the nearest integer

// a b + c minus the integer next to a b, which is `integer` modulo 2^32; |a b| < 2^51, and a has 24 bits.
// FUSED: fused multiply-adds round once. Otherwise both parts of b have so few bits that products are exact.
template <bool FUSED>
CK_INLINE f64 ck_fraction(f64 a, f64 b, f64 c, i32* integer) {
  if constexpr (FUSED) {
    f64 shifted = __builtin_fma(a, b, kCkToInteger);
    *integer = i32(u32(ck_bitcast<u64>(shifted)));
    return __builtin_fma(a, b, kCkToInteger - shifted) + c;
  } else {
    f64 upper = ck_bitcast<f64>(ck_bitcast<u64>(b) & ~u64(0xffffff));
    f64 large = a * upper, small = a * (b - upper);
    f64 shifted = large + kCkToInteger;
    large -= shifted - kCkToInteger;
    f64 again = (large + small) + kCkToInteger;
    *integer = i32(u32(ck_bitcast<u64>(shifted)) + u32(ck_bitcast<u64>(again)));
    return ((large - (again - kCkToInteger)) + small) + c;
  }
}

// |x| = (quadrant + 4 i) pi/2 + r with |r| <= 0.855: `low` may add a little to pi/4.
template <bool FUSED = kCkFuses>
CK_INLINE f64 ck_reduce_angle(f32 x, i32* quadrant) {
  f64 size = f64(ck_bitcast<f32>(ck_bitcast<u32>(x) & 0x7fffffffu));
  bool large = size >= 0x1p50, huge = size >= 0x1p77, vast = size >= 0x1p102;
  f64 high = large ? -0x1.1b1bbead603d9p-28 : 0x1.45f306dc9c883p-1;
  f64 low = large ? 0x1.5f47d4d377037p-82 : -0x1.6b01ec5417056p-55;
  high = huge ? 0x1.4a7f09d5f47d5p-54 : high;
  low = huge ? -0x1.6447e493ad4cep-109 : low;
  high = vast ? -0x1.505c1596447e5p-81 : high;
  low = vast ? 0x1.b14acc9e21c82p-135 : low;
  return ck_fraction<FUSED>(size, high, size * low, quadrant) * 1.5707963267948966;
}
CK_INLINE f32 ck_sin_or_cos(f64 r, i32 quadrant) {
  f64 s = r * r;
  f64 sine = ck_horner(s, 2.7115863827113437e-6, -1.9838570162930037e-4, 8.333326802068077e-3,
                       -0.1666666661732609);
  sine = ck_fma(sine * s, r, r);
  f64 cosine = ck_horner(s, 2.436831216774671e-5, -1.3886710431615674e-3, 4.166663238041219e-2);
  cosine = ck_fma(cosine * s, s, ck_fma(s, -0.5, 1.0));
  f32 value = quadrant & 1 ? f32(cosine) : f32(sine);
  return ck_bitcast<f32>(ck_bitcast<u32>(value) ^ (u32(quadrant & 2) << 30));
}

CK_INLINE f32 ck_sin(f32 x) {
  i32 quadrant;
  f64 r = ck_reduce_angle(x, &quadrant);
  f32 value = ck_sin_or_cos(r, quadrant);
  return ck_bitcast<f32>(ck_bitcast<u32>(value) ^ (ck_bitcast<u32>(x) & 0x80000000u));
}
CK_INLINE f32 ck_cos(f32 x) {
  i32 quadrant;
  f64 r = ck_reduce_angle(x, &quadrant);
  return ck_sin_or_cos(r, quadrant + 1);
}
CK_INLINE f64 ck_sin(f64 x) { return __builtin_sin(x); }
CK_INLINE f64 ck_cos(f64 x) { return __builtin_cos(x); }
CK_HALF_1(ck_sin)
CK_HALF_1(ck_cos)

#endif  // COCKTAIL_TRIG_H
