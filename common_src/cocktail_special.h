// Special functions. f64: from the C library, and those that it lacks. f32: branch-free and without a library
// like those of cocktail_elementary.h, except for tan; coefficients are minimax fits made for this file.
#ifndef COCKTAIL_SPECIAL_H
#define COCKTAIL_SPECIAL_H

#include "cocktail_elementary.h"

CK_INLINE f64 ck_tan(f64 x) { return __builtin_tan(x); }
CK_INLINE f32 ck_tan(f32 x) { return f32(__builtin_tan(f64(x))); }
CK_HALF_1(ck_tan)

// factor exp(r) for |r| <= ln 2 / 2.
CK_INLINE f32 ck_times_exp_of_rest(f32 factor, f32 r) {
  return ck_fma(ck_exp_of_rest_minus_one(r), factor, factor);
}

// ---- complement of the error function --------------------------------------------------------------------

// From 0.5 on exp(-a^2) / (a + 2) times a polynomial in (a - 2) / (a + 2). What rounding takes from a^2 and
// from 1 / (a + 2) is added again.
CK_INLINE f32 ck_erfc(f32 x) {
  f32 a = __builtin_fabsf(x);
  f32 s = a * a;
  f32 p = ck_horner(s, 0.00472004618f, -0.0267585162f, 0.112828523f, -0.376126111f, 0.128379166f);
  f32 small = 1.0f - ck_fma(p, x, x);
  a = a > 10.2f ? 10.2f : a;
  s = a * a;
  i32 n;
  f32 r = ck_reduce_exp(-s, &n) - ck_fma(a, a, -s);
  f32 sum = a + 2.0f;
  f32 quotient = ck_quotient(1.0f, sum);
  f32 rest = quotient * (ck_fma(-quotient, sum, 1.0f) - quotient * (a - (sum - 2.0f)));
  f32 t = ck_fma(rest, -4.0f, ck_fma(quotient, -4.0f, 1.0f));
  f32 q = ck_horner(t, -4.58159775e-4f, -8.08205106e-4f, 0.00299082627f, 0.00647419691f, -0.0214912519f,
                    -0.0364421979f, 0.279470742f, -0.687160671f, 1.02158272f);
  f32 big = ck_scale(ck_times_exp_of_rest(ck_fma(q, quotient, q * rest), r), n);
  big = x < 0.0f ? 2.0f - big : big;
  return a < 0.5f ? small : big;
}
CK_INLINE f64 ck_erfc(f64 x) { return __builtin_erfc(x); }
CK_HALF_1(ck_erfc)

// ---- gamma and digamma function --------------------------------------------------------------------------
// f32: arithmetic in f64. From 8 on the asymptotic series of z = a; below, that of z = a + 8 and recurrence.
// Its factors a, a + 1 ... a + 7 make pairs with the products s = a (a + 7), s + 6, s + 10 and s + 12.
// Reflection for negative numbers.

CK_INLINE f32 ck_lgamma(f32 x) {
  f64 a = __builtin_fabs(f64(x));
  bool shifted = a < 8.0, negative = x < 0.0f;
  f64 s = ck_fma(a, a, 7.0 * a);
  f64 product = shifted ? s * (s + 6.0) * ((s + 10.0) * (s + 12.0)) : 1.0;
  f64 z = shifted ? a + 8.0 : a;
  f64 w = 1.0 / z;
  f64 series = ck_horner(w * w, 7.7280607940135898e-4, -5.9432242900322031e-4, 7.9364576343906299e-4,
                         -0.0027777777680607213, 0.083333333333330331);
  f64 f = a - __builtin_rint(a);
  // sin(pi f) / (pi f)
  f64 sine = ck_horner(f * f, 1.4234827058551481e-4, -0.0023439655704363461, 0.026147480329142395,
                       -0.19075179114979524, 0.81174242386431383, -1.6449340668250985, 0.99999999999993761);
  f64 argument = product / (negative ? a * __builtin_fabs(f) * sine : 1.0);
  const f64 ln2 = 0.69314718055994531;
  f64 value = ck_fma(z - 0.5, ck_log2_f64(z) * ln2, ck_fma(series, w, 0.91893853320467274 - z));
  value = ck_fma(ck_log2_f64(argument), -ln2, value);
  value = negative ? -value : value;
  value = ((a == 1.0) | (a == 2.0)) ? 0.0 : value;
  bool pole = (x <= 0.0f) & (f == 0.0);
  return (pole | (a == ck_infinity())) ? ck_infinity() : f32(value);
}
CK_INLINE f64 ck_lgamma(f64 x) { return ck_log_gamma(x); }
CK_HALF_1(ck_lgamma)

// NaN at the poles, as in XLA.
CK_INLINE f32 ck_digamma(f32 x) {
  f64 wide = f64(x);
  bool negative = x <= 0.0f;
  f64 a = negative ? 1.0 - wide : wide;
  bool shifted = a < 8.0;
  // the sum of 1 / (a + i) is the derivative of the product over the product
  f64 s = ck_fma(a, a, 7.0 * a);
  f64 product = shifted ? s * (s + 6.0) * ((s + 10.0) * (s + 12.0)) : 1.0;
  f64 derivative = shifted ? ck_fma(2.0, a, 7.0) * ck_horner(s, 4.0, 84.0, 504.0, 720.0) : 0.0;
  f64 z = shifted ? a + 8.0 : a;
  f64 f = wide - __builtin_rint(wide);  // exact, also close to a pole
  f64 y = f * f;
  // pi / tan(pi f) = cosine / sine
  f64 even = ck_horner(y, -3.1684288593541409e-5, -9.5471961083676816e-5, -3.9955103210905115e-4,
                       -0.0016410306688065858, -0.0070431357772809912, -0.034250868347170109,
                       -0.28986813369844083, 1.000000000000004);
  f64 cosine = negative ? even * ck_fma(y, -4.0, 1.0) : 0.0;
  f64 sine = negative ? ck_fma(-y, f, f) : 1.0;
  f64 fraction = ck_fma(derivative, sine, cosine * product) / (product * sine);
  f64 w = 1.0 / z;
  f64 v = w * w;
  f64 series = ck_fma(v, ck_horner(v, 0.0068282174709157675, -0.0041567892444745822, 0.0039681998563162327,
                                   -0.0083333332290047579, 0.083333333333301104), 0.5 * w);
  f64 value = ck_log2_f64(z) * 0.69314718055994531 - series - fraction;
  value = (negative & (f == 0.0)) ? f64(ck_nan()) : value;
  return wide == f64(ck_infinity()) ? ck_infinity() : f32(value);
}

// f64: reflection for x <= 0, recurrence up to 10, then the asymptotic series.
template <class T>
CK_NOINLINE T ck_psi(T x) {
  T reflected = T(0);
  if (x <= T(0)) {
    T fraction = x - __builtin_rint(x);  // exact, also close to a pole
    if (!(fraction != T(0))) return T(__builtin_nan(""));
    const T pi = T(3.14159265358979323846);
    reflected = __builtin_fabs(fraction) == T(0.5) ? T(0) : pi / __builtin_tan(pi * fraction);
    x = T(1) - x;
  }
  T below = T(0);
  for (; x < T(10); x += T(1)) below += T(1) / x;
  T z = T(1) / (x * x);
  T series = ck_horner(z, T(-1.0 / 12), T(691.0 / 32760), T(-1.0 / 132), T(1.0 / 240), T(-1.0 / 252),
                       T(1.0 / 120), T(-1.0 / 12));
  return __builtin_log(x) - T(0.5) / x + series * z - below - reflected;
}
CK_INLINE f64 ck_digamma(f64 x) { return ck_psi<f64>(x); }
CK_HALF_1(ck_digamma)

// ---- inverse error function in f64: Winitzki's closed form, then Halley steps on erfc --------------------

template <class T>
CK_NOINLINE T ck_erf_inv_steps(T x) {
  T a = __builtin_fabs(x);
  if (!(a < T(1))) return a == T(1) ? x * T(__builtin_inf()) : T(__builtin_nan(""));
  T logarithm = __builtin_log1p(-a) + __builtin_log1p(a);
  T middle = T(4.3307467508) + T(0.5) * logarithm;
  T y = __builtin_sqrt(__builtin_sqrt(middle * middle - logarithm * T(6.8027210884)) - middle);
  if (a < T(1e-4)) y = a * T(0.886226925452758);
  for (int step = 0; step < 3; ++step) {
    T error = a > T(0.5) ? (T(1) - a) - __builtin_erfc(y) : __builtin_erf(y) - a;
    T newton = error * T(0.886226925452758014) * __builtin_exp(y * y);
    y -= newton / (T(1) + y * newton);
  }
  return __builtin_copysign(y, x);
}
CK_INLINE f64 ck_erf_inv(f64 x) { return ck_erf_inv_steps<f64>(x); }

// ---- exponentially scaled modified Bessel functions of order 0 and 1 -------------------------------------
// f32: up to 5 exp(-|x|) times a polynomial in x^2, whose terms have one sign; above, the root of u times a
// polynomial in u = 7.875 / |x|. With this factor, the constant coefficient is almost a float.

// factor exp(-a) for |a| < 80.
CK_INLINE f32 ck_times_exp_minus(f32 factor, f32 a) {
  i32 n;
  f32 r = ck_reduce_exp(-a, &n);
  return ck_times_exp_of_rest(factor * ck_power_of_two(n), r);
}
CK_INLINE f32 ck_bessel_i0e(f32 x) {
  f32 a = __builtin_fabsf(x);
  f32 p = ck_horner(x * x, 3.41815313e-12f, 4.32155645e-10f, 6.85474646e-8f, 6.77442313e-6f, 4.34064656e-4f,
                    0.0156249162f, 0.25000006f, 1.0f);
  f32 small = ck_times_exp_minus(p, a);
  f32 u = ck_quotient(7.875f, a);
  f32 q = ck_horner(u, -1.97879808e-6f, 7.27635097e-6f, -6.27302688e-6f, -5.88617922e-7f, 1.01369233e-5f,
                    1.78611645e-5f, 1.61943128e-4f, 0.00225649402f, 0.142162412f);
  return a < 5.0f ? small : q * __builtin_sqrtf(u);
}
CK_INLINE f32 ck_bessel_i1e(f32 x) {
  f32 a = __builtin_fabsf(x);
  f32 p = ck_horner(x * x, 2.1118136e-13f, 3.10961118e-11f, 5.70409453e-9f, 6.77586058e-7f, 5.42568123e-5f,
                    0.0026041579f, 0.0625000075f, 0.5f);
  f32 small = ck_times_exp_minus(p, a) * x;
  f32 u = ck_quotient(7.875f, a);
  f32 q = ck_horner(u, 2.30472938e-6f, -8.86280668e-6f, 8.87788156e-6f, -1.75764546e-6f, -1.05885665e-5f,
                    -2.64288956e-5f, -2.69428536e-4f, -0.00676958216f, 0.142162412f);
  return a < 5.0f ? small : ck_copysign(q * __builtin_sqrtf(u), x);
}

// f64: Chebyshev series: on [0, 8] in x / 4 - 1 (order 1 divided by x), above in 16 / x - 1 times sqrt(x).

CK_TABLE f64 ck_bessel_0_small[29] = {
    0.33839763720473803, -0.3046826723431984, 0.17162090152220877, -0.094901097048047639,
    0.049305284239670712, -0.023737414805899471, 0.010546460394594998, -0.0043243099950505759,
    0.001639475616941336, -0.00057637557453858246, 0.00018850288509584168, -5.7541950100821135e-05,
    1.6448448070728974e-05, -4.4167383584588259e-06, 1.1173875391200401e-06, -2.6707938539407633e-07,
    6.0469950225517866e-08, -1.3000250099798953e-08, 2.659823724631508e-09, -5.1897956011665708e-10,
    9.6758090343369244e-11, -1.7268262864917016e-11, 2.9550524489408217e-12, -4.8564446102448749e-13,
    7.6761441531828886e-14, -1.1685151544288397e-14, 1.7154788874151894e-15, -2.43062315789568e-16,
    3.3610267347050637e-17,
};
CK_TABLE f64 ck_bessel_0_large[23] = {
    0.40224520550705439, 0.0033691164782556943, 6.8897583469168259e-05, 2.8913705208347109e-06,
    2.0489185894692904e-07, 2.2666689904963632e-08, 3.3962320257483319e-09, 4.9406023890086193e-10,
    1.1889147096580774e-11, -3.1499165342036008e-11, -1.3215811897528824e-11, -1.7941785752408068e-12,
    7.1801246351798579e-13, 3.8527774178474807e-13, 1.5400917879589226e-14, -4.1505770446027127e-14,
    -9.5548237019887217e-15, 3.8118108929702244e-15, 1.7725897450706318e-15, -3.4263499155973154e-16,
    -2.8278703163853169e-16, 3.4634838400049438e-17, 4.4486678609564205e-17,
};
CK_TABLE f64 ck_bessel_1_small[28] = {
    0.12629359322181682, -0.17641651835783406, 0.10264365868984709, -0.052945981208094989,
    0.024726449030626516, -0.010564084894626197, 0.0041564229443128882, -0.0015135724506312529,
    0.00051228595616857565, -0.00016176081582589661, 4.781565107550038e-05, -1.3273163656039307e-05,
    3.4702513081375497e-06, -8.5687202646942583e-07, 2.0032947535503489e-07, -4.4450591287830171e-08,
    9.3815373864008784e-09, -1.8872497515537161e-09, 3.6255902799527134e-10, -6.6634897089022234e-11,
    1.1736186164792243e-11, -1.98397424948971e-12, 3.2237911793923702e-13, -5.0421650994349428e-14,
    7.6003927543949468e-15, -1.105409618730226e-15, 1.5529276179507742e-16, -2.0989476432961562e-17,
};
CK_TABLE f64 ck_bessel_1_large[23] = {
    0.38928811750914005, -0.0097610974913614687, -0.0001105889387626237, -3.8825648088777338e-06,
    -2.5122362378700685e-07, -2.6314688468927423e-08, -3.8353803859270618e-09, -5.5897434614467745e-10,
    -1.8974958123103694e-11, 3.2526035792686259e-11, 1.4125807392285223e-11, 2.0356285016995268e-12,
    -7.1985517234449605e-13, -4.0835522084007453e-13, -2.1015353120093592e-14, 4.2724332372737897e-14,
    1.0420300961076073e-14, -3.8142747424071975e-15, -1.8803238656319062e-15, 3.3074129372756557e-16,
    2.962257175664895e-16, -3.2065279251258794e-17, -4.6666941415796774e-17,
};

// Clenshaw's recurrence.
template <int N>
CK_NOINLINE f64 ck_chebyshev(f64 t, const f64 (&coefficient)[N]) {
  f64 next = 0, after = 0;
  for (int i = N - 1; i > 0; --i) {
    f64 value = coefficient[i] + 2 * t * next - after;
    after = next;
    next = value;
  }
  return coefficient[0] + t * next - after;
}
CK_INLINE f64 ck_bessel_i0e(f64 x) {
  f64 a = __builtin_fabs(x);
  if (!(a > 8)) return ck_chebyshev(a * 0.25 - 1, ck_bessel_0_small);
  return ck_chebyshev(16 / a - 1, ck_bessel_0_large) / __builtin_sqrt(a);
}
CK_INLINE f64 ck_bessel_i1e(f64 x) {
  f64 a = __builtin_fabs(x);
  if (!(a > 8)) return ck_chebyshev(a * 0.25 - 1, ck_bessel_1_small) * x;
  return __builtin_copysign(ck_chebyshev(16 / a - 1, ck_bessel_1_large) / __builtin_sqrt(a), x);
}
CK_HALF_1(ck_bessel_i0e)
CK_HALF_1(ck_bessel_i1e)

#endif  // COCKTAIL_SPECIAL_H
