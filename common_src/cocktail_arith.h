// Arithmetic, comparisons, logic, shifts, rounding and conversions, with the edge semantics of XLA.
// Each function is defined for all dtypes of the IR for which the operator makes sense; bool is C++ bool.
#ifndef COCKTAIL_ARITH_H
#define COCKTAIL_ARITH_H

#include "cocktail_base.h"

// The 16-bit floats of a function that is defined for f32.
#define CK_HALF_1(NAME)                                                           \
  CK_INLINE bf16 NAME(bf16 x) { return ck_to_bf16(NAME(ck_up(x))); }              \
  CK_INLINE f16 NAME(f16 x) { return ck_to_f16(NAME(ck_up(x))); }
#define CK_HALF_2(NAME)                                                           \
  CK_INLINE bf16 NAME(bf16 x, bf16 y) { return ck_to_bf16(NAME(ck_up(x), ck_up(y))); } \
  CK_INLINE f16 NAME(f16 x, f16 y) { return ck_to_f16(NAME(ck_up(x), ck_up(y))); }
#define CK_HALF_COMPARE(NAME)                                                     \
  CK_INLINE bool NAME(bf16 x, bf16 y) { return NAME(ck_up(x), ck_up(y)); }        \
  CK_INLINE bool NAME(f16 x, f16 y) { return NAME(ck_up(x), ck_up(y)); }

template <class T>
struct CkIsBool {
  static constexpr bool value = false;
};
template <>
struct CkIsBool<bool> {
  static constexpr bool value = true;
};

template <class T>
CK_INLINE constexpr typename CkType<T>::bits ck_sign_mask() {
  typedef typename CkType<T>::bits Bits;
  return Bits(Bits(1) << (CkType<T>::width - 1));
}
// Smallest and largest value of an integer type.
template <class T>
CK_INLINE constexpr T ck_lowest() {
  return CkType<T>::is_signed ? T(ck_sign_mask<T>()) : T(0);
}
template <class T>
CK_INLINE constexpr T ck_highest() {
  return CkIsBool<T>::value ? T(true) : T(~ck_lowest<T>());
}

// ---- sums and products ----------------------------------------------------------------------------------
// Integers wrap (-fwrapv); the sum of two bools is "or", the product "and".

template <class T>
CK_INLINE T ck_add(T a, T b) {
  return T(a + b);
}
template <class T>
CK_INLINE T ck_sub(T a, T b) {
  return T(a - b);
}
template <class T>
CK_INLINE T ck_mul(T a, T b) {
  return T(a * b);
}
CK_INLINE bool ck_add(bool a, bool b) { return a | b; }
CK_INLINE bool ck_sub(bool a, bool b) { return a ^ b; }
CK_INLINE bool ck_mul(bool a, bool b) { return a & b; }
CK_HALF_2(ck_add)
CK_HALF_2(ck_sub)
CK_HALF_2(ck_mul)

// Truncating; x / 0 has all bits set, MIN / -1 = MIN.
template <class T>
CK_INLINE T ck_div(T a, T b) {
  if constexpr (CkType<T>::is_float) {
    return ck_quotient(a, b);
  } else if constexpr (CkType<T>::is_signed) {
    bool wraps = b == T(-1);
    T safe = (b == 0 || wraps) ? T(1) : b;
    T quotient = T(a / safe);
    return b == 0 ? T(-1) : wraps ? T(-a) : quotient;
  } else {
    return b == 0 ? ck_highest<T>() : T(a / (b == 0 ? T(1) : b));
  }
}
CK_INLINE f32 ck_fmod(f32 a, f32 b) { return __builtin_fmodf(a, b); }
CK_INLINE f64 ck_fmod(f64 a, f64 b) { return __builtin_fmod(a, b); }

// The sign follows the dividend; x % 0 = x for integers, MIN % -1 = 0.
template <class T>
CK_INLINE T ck_rem(T a, T b) {
  if constexpr (CkType<T>::is_float) {
    return ck_fmod(a, b);
  } else {
    bool wraps = CkType<T>::is_signed && b == T(-1);
    T safe = (b == 0 || wraps) ? T(1) : b;
    T remainder = T(a % safe);
    return b == 0 ? a : remainder;
  }
}
CK_HALF_2(ck_div)
CK_HALF_2(ck_rem)

template <class T>
CK_INLINE T ck_neg(T x) {
  return T(-x);
}
CK_INLINE bf16 ck_neg(bf16 x) { return bf16{u16(x.bits ^ 0x8000u)}; }
CK_INLINE f16 ck_neg(f16 x) { return f16{u16(x.bits ^ 0x8000u)}; }

template <class T>
CK_INLINE T ck_abs(T x) {
  if constexpr (!CkType<T>::is_signed) {
    return x;
  } else {
    return x < 0 ? T(-x) : x;
  }
}
CK_INLINE f32 ck_abs(f32 x) { return __builtin_fabsf(x); }
CK_INLINE f64 ck_abs(f64 x) { return __builtin_fabs(x); }
CK_INLINE bf16 ck_abs(bf16 x) { return bf16{u16(x.bits & 0x7fffu)}; }
CK_INLINE f16 ck_abs(f16 x) { return f16{u16(x.bits & 0x7fffu)}; }

CK_INLINE f32 ck_copysign(f32 magnitude, f32 sign) { return __builtin_copysignf(magnitude, sign); }
CK_INLINE f64 ck_copysign(f64 magnitude, f64 sign) { return __builtin_copysign(magnitude, sign); }

// Zeros keep their sign, NaN stays. What equals zero gives zero: denormals too, if the thread flushes them.
template <class T>
CK_INLINE T ck_sign(T x) {
  if constexpr (CkType<T>::is_float) {
    T size = x == T(0) ? T(0) : T(1);
    return x != x ? x : ck_copysign(size, x);
  } else {
    return T(int(x > 0) - int(CkType<T>::is_signed && x < T(0)));
  }
}
CK_HALF_1(ck_sign)

// ---- order ----------------------------------------------------------------------------------------------

#define CK_COMPARE(NAME, SYMBOL)    \
  template <class T>                \
  CK_INLINE bool NAME(T a, T b) {   \
    return a SYMBOL b;              \
  }                                 \
  CK_HALF_COMPARE(NAME)
CK_COMPARE(ck_eq, ==)
CK_COMPARE(ck_ne, !=)
CK_COMPARE(ck_lt, <)
CK_COMPARE(ck_le, <=)
CK_COMPARE(ck_gt, >)
CK_COMPARE(ck_ge, >=)
#undef CK_COMPARE

// NaN wins; +0 is larger than -0. Adding zero makes a denormal zero if the thread flushes them, as x86's own
// maximum does, which XLA uses. It also makes -0 positive, but two negative operands have a negative maximum.
template <class T>
CK_INLINE T ck_max(T a, T b) {
  T larger = a > b ? a : b;
  if constexpr (CkType<T>::is_float) {
    typedef typename CkType<T>::bits Bits;
    Bits sign = Bits(ck_bitcast<Bits>(a) & ck_bitcast<Bits>(b) & ck_sign_mask<T>());
    return a != a ? a : ck_bitcast<T>(Bits(ck_bitcast<Bits>(T(larger + T(0))) | sign));
  } else {
    return larger;
  }
}
template <class T>
CK_INLINE T ck_min(T a, T b) {
  T smaller = a < b ? a : b;
  if constexpr (CkType<T>::is_float) {
    typedef typename CkType<T>::bits Bits;
    Bits sign = Bits((ck_bitcast<Bits>(a) | ck_bitcast<Bits>(b)) & ck_sign_mask<T>());
    return a != a ? a : ck_bitcast<T>(Bits(ck_bitcast<Bits>(T(smaller + T(0))) | sign));
  } else {
    return smaller;
  }
}
CK_HALF_2(ck_max)
CK_HALF_2(ck_min)

template <class T>
CK_INLINE T ck_clamp(T low, T x, T high) {
  return ck_min(ck_max(x, low), high);
}
template <class T>
CK_INLINE T ck_select(bool condition, T on_true, T on_false) {
  return condition ? on_true : on_false;
}

// ---- bits -----------------------------------------------------------------------------------------------

template <class T>
CK_INLINE T ck_and(T a, T b) {
  return T(a & b);
}
template <class T>
CK_INLINE T ck_or(T a, T b) {
  return T(a | b);
}
template <class T>
CK_INLINE T ck_xor(T a, T b) {
  return T(a ^ b);
}
template <class T>
CK_INLINE T ck_not(T x) {
  return T(~x);
}
CK_INLINE bool ck_not(bool x) { return !x; }

// A count outside 0 .. width-1 (also a negative one) shifts everything out.
template <class T>
CK_INLINE T ck_shift_left(T x, T count) {
  typedef typename CkType<T>::bits Bits;
  bool inside = Bits(count) < Bits(CkType<T>::width);
  return inside ? T(Bits(x) << (Bits(count) & (CkType<T>::width - 1))) : T(0);
}
template <class T>
CK_INLINE T ck_shift_right_logical(T x, T count) {
  typedef typename CkType<T>::bits Bits;
  bool inside = Bits(count) < Bits(CkType<T>::width);
  return inside ? T(Bits(x) >> (Bits(count) & (CkType<T>::width - 1))) : T(0);
}
// The top bit fills, of unsigned types too.
template <class T>
CK_INLINE T ck_shift_right_arithmetic(T x, T count) {
  typedef typename CkType<T>::bits Bits;
  bool inside = Bits(count) < Bits(CkType<T>::width);
  int safe = inside ? int(count) : CkType<T>::width - 1;
  if constexpr (sizeof(T) == 8) {
    return T(i64(x) >> safe);
  } else if constexpr (sizeof(T) == 4) {
    return T(i32(x) >> safe);
  } else if constexpr (sizeof(T) == 2) {
    return T(i16(x) >> safe);
  } else {
    return T(i8(x) >> safe);
  }
}

template <class T>
CK_INLINE T ck_population_count(T x) {
  return T(__builtin_popcountll(u64(typename CkType<T>::bits(x))));
}
template <class T>
CK_INLINE T ck_clz(T x) {
  u64 bits = u64(typename CkType<T>::bits(x));
  return bits == 0 ? T(CkType<T>::width) : T(__builtin_clzll(bits | (bits == 0)) - (64 - CkType<T>::width));
}

// ---- rounding -------------------------------------------------------------------------------------------

CK_INLINE f32 ck_floor(f32 x) { return __builtin_floorf(x); }
CK_INLINE f64 ck_floor(f64 x) { return __builtin_floor(x); }
CK_INLINE f32 ck_ceil(f32 x) { return __builtin_ceilf(x); }
CK_INLINE f64 ck_ceil(f64 x) { return __builtin_ceil(x); }
CK_INLINE f32 ck_trunc(f32 x) { return __builtin_truncf(x); }
CK_INLINE f64 ck_trunc(f64 x) { return __builtin_trunc(x); }
CK_INLINE f32 ck_round_even(f32 x) { return __builtin_rintf(x); }
CK_INLINE f64 ck_round_even(f64 x) { return __builtin_rint(x); }
template <class T>
CK_INLINE T ck_round_away_float(T x) {
  T magnitude = ck_abs(x);
  T whole = ck_trunc(magnitude);
  return ck_copysign(magnitude - whole >= T(0.5) ? whole + T(1) : whole, x);
}
CK_INLINE f32 ck_round_away(f32 x) { return ck_round_away_float(x); }
CK_INLINE f64 ck_round_away(f64 x) { return ck_round_away_float(x); }
CK_HALF_1(ck_floor)
CK_HALF_1(ck_ceil)
CK_HALF_1(ck_round_even)
CK_HALF_1(ck_round_away)

CK_INLINE bool ck_is_finite(f32 x) { return __builtin_fabsf(x) <= 3.40282347e+38f; }
CK_INLINE bool ck_is_finite(f64 x) { return __builtin_fabs(x) <= 1.79769313486231571e+308; }
CK_INLINE bool ck_is_finite(bf16 x) { return (x.bits & 0x7f80u) != 0x7f80u; }
CK_INLINE bool ck_is_finite(f16 x) { return (x.bits & 0x7c00u) != 0x7c00u; }

CK_INLINE f32 ck_sqrt(f32 x) { return __builtin_sqrtf(x); }
CK_INLINE f64 ck_sqrt(f64 x) { return __builtin_sqrt(x); }
CK_INLINE f32 ck_rsqrt(f32 x) { return 1.0f / __builtin_sqrtf(x); }
CK_INLINE f64 ck_rsqrt(f64 x) { return 1.0 / __builtin_sqrt(x); }
CK_HALF_1(ck_sqrt)
CK_HALF_1(ck_rsqrt)

// x multiplied by itself by repeated squaring; 1 / x^-N for negative N.
template <int N, class T>
CK_INLINE T ck_integer_pow(T x) {
  if constexpr (CkType<T>::is_half) {
    return ck_down<T>(ck_integer_pow<N>(ck_up(x)));
  } else if constexpr (N < 0) {
    return ck_div(T(1), ck_integer_pow<-N>(x));
  } else if constexpr (N == 0) {
    return T(1);
  } else if constexpr (N == 1) {
    return x;
  } else if constexpr (N % 2 == 1) {
    return ck_mul(x, ck_integer_pow<N / 2>(ck_mul(x, x)));
  } else {
    return ck_integer_pow<N / 2>(ck_mul(x, x));
  }
}

// Next representable value after x towards `to`, in integer arithmetic: exact for denormals too. But equality
// is that of floats, as in XLA: where denormals are flushed, two of them are equal.
template <class T>
CK_INLINE T ck_nextafter(T x, T to) {
  typedef typename CkType<T>::bits Bits;
  typedef i64 Key;  // monotone in the float's value; both zeros are 0
  constexpr Bits sign = ck_sign_mask<T>();
  Bits from = ck_bitcast<Bits>(x), goal = ck_bitcast<Bits>(to);
  Key from_magnitude = Key(Bits(from & ~sign)), goal_magnitude = Key(Bits(goal & ~sign));
  Key from_key = from & sign ? -from_magnitude : from_magnitude;
  Key goal_key = goal & sign ? -goal_magnitude : goal_magnitude;
  Key next = from_key + (from_key < goal_key ? 1 : -1);
  Bits magnitude = Bits(next < 0 ? -next : next);
  Bits bits = Bits(magnitude | (next < 0 || (next == 0 && (from & sign)) ? sign : Bits(0)));
  bits = ck_up(x) == ck_up(to) ? goal : bits;
  constexpr int mantissa = CkType<T>::mantissa;
  constexpr Key infinity = Key(Bits(~sign) >> mantissa) << mantissa;
  constexpr Bits quiet = Bits(infinity | (Key(1) << (mantissa - 1)));
  bool is_nan = from_magnitude > infinity || goal_magnitude > infinity;
  return ck_bitcast<T>(is_nan ? quiet : bits);
}

// Rounded to EXPONENT and MANTISSA bits (to nearest even; overflow -> inf, underflow -> signed zero).
template <int EXPONENT, int MANTISSA, class T>
CK_INLINE T ck_reduce_precision(T x) {
  typedef typename CkType<T>::bits Bits;
  constexpr int mantissa = CkType<T>::mantissa;
  constexpr int exponent = CkType<T>::width - 1 - mantissa;
  constexpr Bits sign = ck_sign_mask<T>();
  constexpr Bits infinity = Bits(Bits(Bits(1) << exponent) - 1) << mantissa;
  Bits bits = ck_bitcast<Bits>(x);
  Bits magnitude = Bits(bits & ~sign);
  bool is_nan = magnitude > infinity;
  if constexpr (MANTISSA < mantissa) {
    constexpr int drop = mantissa - MANTISSA;
    constexpr Bits unit = Bits(Bits(1) << drop);
    magnitude = Bits(magnitude + Bits((unit >> 1) - 1) + Bits((magnitude >> drop) & 1));
    magnitude = Bits(magnitude & Bits(~Bits(unit - 1)));
  }
  if constexpr (EXPONENT < exponent) {
    constexpr int bias = (1 << (exponent - 1)) - 1;
    constexpr int reduced = EXPONENT > 0 ? (1 << (EXPONENT - 1)) - 1 : 0;
    constexpr Bits largest = Bits(Bits(bias + reduced) << mantissa);       // exponent of the largest number
    constexpr Bits smallest = Bits(Bits(bias - reduced + 1) << mantissa);  // smallest normal number
    bool overflows = Bits(magnitude & infinity) > largest;
    bool underflows = magnitude < smallest;
    magnitude = overflows ? infinity : magnitude;
    magnitude = underflows ? Bits(0) : magnitude;
  }
  return is_nan ? x : ck_bitcast<T>(Bits((bits & sign) | magnitude));
}

// ---- conversions ----------------------------------------------------------------------------------------

// f64 to f32 with the last bit made sticky, so that a second rounding to 16 bits is the only one that counts.
CK_INLINE f32 ck_round_to_odd(f64 x) {
  f32 nearest = f32(x);
  f64 error = x - f64(nearest);
  u32 bits = ck_bitcast<u32>(nearest);
  bool away = (error < 0) == (x > 0);  // nearest lies beyond x, seen from zero
  u32 odd = (away ? bits - 1 : bits) | 1u;
  return (error != 0 && ck_is_finite(nearest)) ? ck_bitcast<f32>(odd) : nearest;
}

// x limited to an integer type of at most 16 bits. The bits of floats of one sign are ordered as integers:
// negative numbers are below all positive ones if signed, and beyond them if unsigned.
template <class To>
CK_INLINE f32 ck_limited(f32 x) {
  i32 bits = ck_bitcast<i32>(x), high = ck_bitcast<i32>(f32(ck_highest<To>()));
  bits = bits < high ? bits : high;
  if constexpr (CkType<To>::is_signed) {
    u32 size = u32(bits), low = ck_bitcast<u32>(f32(ck_lowest<To>()));
    return ck_bitcast<f32>(size < low ? size : low);
  } else {
    return ck_bitcast<f32>(bits > 0 ? bits : 0);
  }
}

template <class To, class From>
CK_INLINE To ck_float_to_int(From x) {
  if constexpr (sizeof(To) <= 2 && sizeof(From) == 4) {
    return To(x == x ? i32(ck_limited<To>(x)) : 0);
  }
  constexpr int bits = CkType<To>::width - (CkType<To>::is_signed ? 1 : 0);
  const From above = From(2) * From(u64(1) << (bits - 1));
  const From below = CkType<To>::is_signed ? -above : From(0);
  bool inside = (x > below - From(1) || x >= below) & (x < above);
  To value = To(inside ? x : From(0));
  value = x >= above ? ck_highest<To>() : value;
  return x < below ? ck_lowest<To>() : value;
}

// Floats to integers truncate and saturate, NaN gives 0; integers wrap; anything to bool is x != 0.
template <class To, class From>
CK_INLINE To ck_convert(From x) {
  if constexpr (CkType<From>::is_half) {
    return ck_convert<To>(ck_up(x));
  } else if constexpr (CkType<To>::is_half) {
    if constexpr (sizeof(From) == 8 && CkType<From>::is_float) {
      return ck_down<To>(ck_round_to_odd(x));
    } else {
      return ck_down<To>(f32(x));
    }
  } else if constexpr (CkIsBool<To>::value) {
    return x != From(0);
  } else if constexpr (CkType<From>::is_float && !CkType<To>::is_float) {
    return ck_float_to_int<To>(x);
  } else {
    return To(x);
  }
}
template <class From>
CK_INLINE bool ck_convert_bool(From x) {
  return ck_convert<bool>(x);
}

// Integers in the total order of the floats: -NaN, -inf ... -0, +0 ... +inf, +NaN.
CK_INLINE i32 ck_total_order(f32 x) {
  i32 bits = ck_bitcast<i32>(x);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
CK_INLINE i64 ck_total_order(f64 x) {
  i64 bits = ck_bitcast<i64>(x);
  return bits ^ ((bits >> 63) & 0x7fffffffffffffff);
}

#endif  // COCKTAIL_ARITH_H
