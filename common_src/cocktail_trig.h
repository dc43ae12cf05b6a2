// Sine and cosine.
// Range reduction without branches: x = m 2^e with a 24-bit m and e >= 0. The product of m and the tabulated
// value of 2^e 2/pi modulo 4 (29 exact bits and 53 more) is the angle in quarter turns, correct for all f32.
#ifndef COCKTAIL_TRIG_H
#define COCKTAIL_TRIG_H

#include "cocktail_elementary.h"

// 2^e 2/pi modulo 4, e = 0 .. 104: the multiple of 2^-27 below it, and the rest.
CK_TABLE f64 ck_quarter_turns_high[105] = {
    0x1.45f306c000000p-1, 0x1.45f306c000000p+0, 0x1.45f306d000000p+1, 0x1.17cc1b6000000p+0,
    0x1.17cc1b7000000p+1, 0x1.7cc1b7p-2, 0x1.7cc1b7p-1, 0x1.7cc1b72000000p+0, 0x1.7cc1b72000000p+1,
    0x1.f306dc8000000p+0, 0x1.f306dc9000000p+1, 0x1.e60db93000000p+1, 0x1.cc1b727000000p+1,
    0x1.9836e4e000000p+1, 0x1.306dc9c000000p+1, 0x1.836e4e4000000p-1, 0x1.836e4e4000000p+0,
    0x1.836e4e4000000p+1, 0x1.06dc9c8000000p+1, 0x1.b72722p-4, 0x1.b72722p-3, 0x1.b72722p-2, 0x1.b72722p-1,
    0x1.b72722p+0, 0x1.b72722p+1, 0x1.6e4e441000000p+1, 0x1.b939104000000p+0, 0x1.b939105000000p+1,
    0x1.727220a000000p+1, 0x1.c9c882a000000p+0, 0x1.c9c882a000000p+1, 0x1.9391054000000p+1,
    0x1.27220a9000000p+1, 0x1.3910548000000p-1, 0x1.391054a000000p+0, 0x1.391054a000000p+1, 0x1.c882a5p-1,
    0x1.c882a52000000p+0, 0x1.c882a53000000p+1, 0x1.91054a7000000p+1, 0x1.220a94f000000p+1,
    0x1.1054a7c000000p-1, 0x1.1054a7e000000p+0, 0x1.1054a7f000000p+1, 0x1.054a7fp-2, 0x1.054a7fp-1,
    0x1.054a7fp+0, 0x1.054a7fp+1, 0x1.529fc2p-4, 0x1.529fc2p-3, 0x1.529fc2p-2, 0x1.529fc24000000p-1,
    0x1.529fc26000000p+0, 0x1.529fc27000000p+1, 0x1.4a7f09c000000p+0, 0x1.4a7f09d000000p+1,
    0x1.29fc274000000p+0, 0x1.29fc275000000p+1, 0x1.4fe13a8000000p-1, 0x1.4fe13aa000000p+0,
    0x1.4fe13ab000000p+1, 0x1.3f84eae000000p+0, 0x1.3f84eaf000000p+1, 0x1.fc2757c000000p-1,
    0x1.fc2757c000000p+0, 0x1.fc2757d000000p+1, 0x1.f84eafa000000p+1, 0x1.f09d5f4000000p+1,
    0x1.e13abe8000000p+1, 0x1.c2757d1000000p+1, 0x1.84eafa3000000p+1, 0x1.09d5f47000000p+1, 0x1.3abe8fp-3,
    0x1.3abe8f8000000p-2, 0x1.3abe8f8000000p-1, 0x1.3abe8fa000000p+0, 0x1.3abe8fa000000p+1,
    0x1.d5f47d4000000p-1, 0x1.d5f47d4000000p+0, 0x1.d5f47d4000000p+1, 0x1.abe8fa9000000p+1,
    0x1.57d1f53000000p+1, 0x1.5f47d4c000000p+0, 0x1.5f47d4d000000p+1, 0x1.7d1f534000000p+0,
    0x1.7d1f534000000p+1, 0x1.f47d4d2000000p+0, 0x1.f47d4d3000000p+1, 0x1.e8fa9a6000000p+1,
    0x1.d1f534d000000p+1, 0x1.a3ea69b000000p+1, 0x1.47d4d37000000p+1, 0x1.1f534dc000000p+0,
    0x1.1f534dd000000p+1, 0x1.f534dd8000000p-2, 0x1.f534ddc000000p-1, 0x1.f534ddc000000p+0,
    0x1.f534ddc000000p+1, 0x1.ea69bb8000000p+1, 0x1.d4d377p+1, 0x1.a9a6eep+1, 0x1.534ddcp+1,
    0x1.4d37702000000p+0, 0x1.4d37703000000p+1, 0x1.34ddc0c000000p+0,
};
CK_TABLE f64 ck_quarter_turns_low[105] = {
    0x1.c9c882a53f84fp-29, 0x1.c9c882a53f84fp-28, 0x1.9391054a7f09dp-28, 0x1.27220a94fe13bp-28,
    0x1.391054a7f09d6p-30, 0x1.391054a7f09d6p-29, 0x1.391054a7f09d6p-28, 0x1.c882a53f84eb0p-30,
    0x1.c882a53f84eb0p-29, 0x1.c882a53f84eb0p-28, 0x1.91054a7f09d5fp-28, 0x1.220a94fe13abfp-28,
    0x1.1054a7f09d5f4p-30, 0x1.1054a7f09d5f4p-29, 0x1.1054a7f09d5f4p-28, 0x1.054a7f09d5f48p-31,
    0x1.054a7f09d5f48p-30, 0x1.054a7f09d5f48p-29, 0x1.054a7f09d5f48p-28, 0x1.529fc2757d1f5p-33,
    0x1.529fc2757d1f5p-32, 0x1.529fc2757d1f5p-31, 0x1.529fc2757d1f5p-30, 0x1.529fc2757d1f5p-29,
    0x1.529fc2757d1f5p-28, 0x1.4a7f09d5f47d5p-29, 0x1.4a7f09d5f47d5p-28, 0x1.29fc2757d1f53p-29,
    0x1.29fc2757d1f53p-28, 0x1.4fe13abe8fa9ap-30, 0x1.4fe13abe8fa9ap-29, 0x1.4fe13abe8fa9ap-28,
    0x1.3f84eafa3ea6ap-29, 0x1.3f84eafa3ea6ap-28, 0x1.fc2757d1f534ep-30, 0x1.fc2757d1f534ep-29,
    0x1.fc2757d1f534ep-28, 0x1.f84eafa3ea69cp-28, 0x1.f09d5f47d4d37p-28, 0x1.e13abe8fa9a6fp-28,
    0x1.c2757d1f534dep-28, 0x1.84eafa3ea69bcp-28, 0x1.09d5f47d4d377p-28, 0x1.3abe8fa9a6ee0p-32,
    0x1.3abe8fa9a6ee0p-31, 0x1.3abe8fa9a6ee0p-30, 0x1.3abe8fa9a6ee0p-29, 0x1.3abe8fa9a6ee0p-28,
    0x1.d5f47d4d37703p-30, 0x1.d5f47d4d37703p-29, 0x1.d5f47d4d37703p-28, 0x1.abe8fa9a6ee07p-28,
    0x1.57d1f534ddc0ep-28, 0x1.5f47d4d377037p-29, 0x1.5f47d4d377037p-28, 0x1.7d1f534ddc0dbp-29,
    0x1.7d1f534ddc0dbp-28, 0x1.f47d4d377036ep-29, 0x1.f47d4d377036ep-28, 0x1.e8fa9a6ee06dbp-28,
    0x1.d1f534ddc0db6p-28, 0x1.a3ea69bb81b6cp-28, 0x1.47d4d377036d9p-28, 0x1.1f534ddc0db63p-29,
    0x1.1f534ddc0db63p-28, 0x1.f534ddc0db629p-31, 0x1.f534ddc0db629p-30, 0x1.f534ddc0db629p-29,
    0x1.f534ddc0db629p-28, 0x1.ea69bb81b6c53p-28, 0x1.d4d377036d8a5p-28, 0x1.a9a6ee06db14bp-28,
    0x1.534ddc0db6296p-28, 0x1.4d377036d8a56p-29, 0x1.4d377036d8a56p-28, 0x1.34ddc0db6295ap-29,
    0x1.34ddc0db6295ap-28, 0x1.a6ee06db14acdp-30, 0x1.a6ee06db14acdp-29, 0x1.a6ee06db14acdp-28,
    0x1.4ddc0db629599p-28, 0x1.377036d8a5665p-29, 0x1.377036d8a5665p-28, 0x1.bb81b6c52b328p-30,
    0x1.bb81b6c52b328p-29, 0x1.bb81b6c52b328p-28, 0x1.77036d8a5664fp-28, 0x1.dc0db6295993cp-29,
    0x1.dc0db6295993cp-28, 0x1.b81b6c52b3279p-28, 0x1.7036d8a5664f1p-28, 0x1.c0db6295993c4p-29,
    0x1.c0db6295993c4p-28, 0x1.81b6c52b32788p-28, 0x1.036d8a5664f11p-28, 0x1.b6c52b3278872p-34,
    0x1.b6c52b3278872p-33, 0x1.b6c52b3278872p-32, 0x1.b6c52b3278872p-31, 0x1.b6c52b3278872p-30,
    0x1.b6c52b3278872p-29, 0x1.b6c52b3278872p-28, 0x1.6d8a5664f10e4p-28, 0x1.b6295993c4390p-29,
    0x1.b6295993c4390p-28,
};

// |x| = (quadrant + 4 i) pi/2 + r with |r| <= pi/4.
CK_INLINE f64 ck_reduce_angle(f32 x, i32* quadrant) {
  u32 bits = ck_bitcast<u32>(x) & 0x7fffffffu;
  i32 e = i32(bits >> 23) - 150;
  e = e < 0 ? 0 : e;
  e = e > 104 ? 104 : e;
  f64 m = f64(ck_bitcast<f32>(bits)) * f64(ck_power_of_two(-e));
  f64 high = m * ck_quarter_turns_high[e];  // exact
  f64 low = m * ck_quarter_turns_low[e];
  f64 shifted = (high + low) + 6755399441055744.0;
  *quadrant = i32(u32(ck_bitcast<u64>(shifted)));
  return ((high - (shifted - 6755399441055744.0)) + low) * 1.5707963267948966;
}
CK_INLINE f32 ck_sin_or_cos(f64 r, i32 quadrant) {
  f64 s = r * r;
  f64 sine = ck_horner(s, -1.9514630858788476e-4, 8.3321560442113484e-3, -0.16666654536422426);
  sine = ck_fma(sine * s, r, r);
  f64 cosine = ck_horner(s, 2.4432411169847206e-5, -1.3887309848289241e-3, 4.1666645554020311e-2);
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
