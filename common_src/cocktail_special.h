// Special functions: from the C library in f64, rounded once for smaller types, and those that it lacks.
#ifndef COCKTAIL_SPECIAL_H
#define COCKTAIL_SPECIAL_H

#include "cocktail_elementary.h"

#define CK_LIBRARY(NAME, FUNCTION)                         \
  CK_INLINE f64 NAME(f64 x) { return FUNCTION(x); }        \
  CK_INLINE f32 NAME(f32 x) { return f32(FUNCTION(f64(x))); } \
  CK_HALF_1(NAME)
CK_LIBRARY(ck_tan, __builtin_tan)
CK_LIBRARY(ck_erfc, __builtin_erfc)

CK_LIBRARY(ck_lgamma, ck_log_gamma)

// Reflection for x <= 0, recurrence up to 10, then the asymptotic series. NaN at the poles, as in XLA.
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
CK_INLINE f64 ck_digamma_f64(f64 x) { return ck_psi<f64>(x); }
CK_LIBRARY(ck_digamma, ck_digamma_f64)

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
// Chebyshev series: on [0, 8] in x / 4 - 1 (order 1 divided by x), above in 16 / x - 1 times sqrt(x).

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
CK_INLINE f64 ck_bessel_i0e_f64(f64 x) {
  f64 a = __builtin_fabs(x);
  if (!(a > 8)) return ck_chebyshev(a * 0.25 - 1, ck_bessel_0_small);
  return ck_chebyshev(16 / a - 1, ck_bessel_0_large) / __builtin_sqrt(a);
}
CK_INLINE f64 ck_bessel_i1e_f64(f64 x) {
  f64 a = __builtin_fabs(x);
  if (!(a > 8)) return ck_chebyshev(a * 0.25 - 1, ck_bessel_1_small) * x;
  return __builtin_copysign(ck_chebyshev(16 / a - 1, ck_bessel_1_large) / __builtin_sqrt(a), x);
}
CK_LIBRARY(ck_bessel_i0e, ck_bessel_i0e_f64)
CK_LIBRARY(ck_bessel_i1e, ck_bessel_i1e_f64)
#undef CK_LIBRARY

#endif  // COCKTAIL_SPECIAL_H
