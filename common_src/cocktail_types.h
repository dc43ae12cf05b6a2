// The types of the IR in C++, for all targets: names, storage formats, type traits.
// The target's cocktail_base.h includes this file and defines CK_INLINE and CK_FMA. No standard header.
#ifndef COCKTAIL_TYPES_H
#define COCKTAIL_TYPES_H

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
static_assert(sizeof(i32) == 4 && sizeof(i64) == 8 && sizeof(f64) == 8, "unusual data model");

// Storage only; arithmetic happens in f32.
struct bf16 {
  u16 bits;
};
struct f16 {
  u16 bits;
};

// Same width reinterpretation.
template <class To, class From>
CK_INLINE To ck_bitcast(From x) {
  static_assert(sizeof(To) == sizeof(From), "bitcast needs equal widths");
  To to;
  __builtin_memcpy(&to, &x, sizeof(To));
  return to;
}

// ---- choices between types ------------------------------------------------------------------------------

template <class A, class B>
struct CkSame {
  static constexpr bool value = false;
};
template <class A>
struct CkSame<A, A> {
  static constexpr bool value = true;
};

template <bool CONDITION, class A, class B>
struct CkChoose {
  typedef A type;
};
template <class A, class B>
struct CkChoose<false, A, B> {
  typedef B type;
};

// ---- type traits ----------------------------------------------------------------------------------------

template <class T>
struct CkType {};
// MANTISSA: stored mantissa bits; 0 for integers.
#define CK_TYPE(T, U, COMPUTE, MANTISSA, SIGNED)       \
  template <>                                          \
  struct CkType<T> {                                   \
    typedef U bits;                                    \
    typedef COMPUTE compute;                           \
    static constexpr int mantissa = MANTISSA;          \
    static constexpr bool is_float = MANTISSA != 0;    \
    static constexpr bool is_signed = SIGNED;          \
    static constexpr bool is_half = sizeof(COMPUTE) != sizeof(T); \
    static constexpr int width = int(sizeof(T)) * 8;   \
  };
CK_TYPE(bool, u8, bool, 0, false)
CK_TYPE(i8, u8, i8, 0, true)
CK_TYPE(i16, u16, i16, 0, true)
CK_TYPE(i32, u32, i32, 0, true)
CK_TYPE(i64, u64, i64, 0, true)
CK_TYPE(long, unsigned long, long, 0, true)
CK_TYPE(u8, u8, u8, 0, false)
CK_TYPE(u16, u16, u16, 0, false)
CK_TYPE(u32, u32, u32, 0, false)
CK_TYPE(u64, u64, u64, 0, false)
CK_TYPE(unsigned long, unsigned long, unsigned long, 0, false)
CK_TYPE(bf16, u16, f32, 7, true)
CK_TYPE(f16, u16, f32, 10, true)
CK_TYPE(f32, u32, f32, 23, true)
CK_TYPE(f64, u64, f64, 52, true)
#undef CK_TYPE

// ---- 16-bit floats --------------------------------------------------------------------------------------
// Integer arithmetic or f32 arithmetic on normal numbers only: right whether or not denormals are flushed.

CK_INLINE f32 ck_up(bf16 x) { return ck_bitcast<f32>(u32(x.bits) << 16); }

CK_INLINE f32 ck_up(f16 x) {
  u32 sign = u32(x.bits & 0x8000u) << 16;
  u32 magnitude = u32(x.bits & 0x7fffu) << 13;
  u32 exponent = magnitude & 0x0f800000u;
  u32 normal = magnitude + 0x38000000u;                     // rebias 15 -> 127
  u32 special = magnitude + 0x70000000u;                    // inf, NaN
  f32 tiny = ck_bitcast<f32>(magnitude + 0x38800000u) - 6.103515625e-05f;
  u32 bits = exponent == 0x0f800000u ? special : normal;
  bits = exponent == 0 ? ck_bitcast<u32>(tiny) : bits;
  return ck_bitcast<f32>(bits | sign);
}

template <class T>
CK_INLINE T ck_up(T x) {
  return x;
}

CK_INLINE bf16 ck_to_bf16(f32 x) {
  u32 bits = ck_bitcast<u32>(x);
  u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  u32 quiet = (bits >> 16) | 0x40u;
  return bf16{u16((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded)};
}

CK_INLINE f16 ck_to_f16(f32 x) {
  u32 bits = ck_bitcast<u32>(x);
  u32 sign = (bits >> 16) & 0x8000u;
  bits &= 0x7fffffffu;
  u32 normal = (bits + 0xc8000000u + 0xfffu + ((bits >> 13) & 1u)) >> 13;  // 0xc8000000: rebias 127 -> 15
  u32 tiny = ck_bitcast<u32>(ck_bitcast<f32>(bits) + 0.5f) - 0x3f000000u;  // the adder rounds at 2^-24
  u32 special = bits > 0x7f800000u ? (0x7e00u | ((bits >> 13) & 0x1ffu)) : 0x7c00u;
  u32 half = bits < 0x38800000u ? tiny : normal;
  half = bits >= 0x47800000u ? special : half;
  return f16{u16(half | sign)};
}

// ck_down<T>(x): from the type that T is computed in to T (round to nearest even, NaN kept).
template <class T>
CK_INLINE T ck_down(typename CkType<T>::compute x) {
  if constexpr (!CkType<T>::is_half) {
    return x;
  } else if constexpr (CkType<T>::mantissa == 7) {
    return ck_to_bf16(x);
  } else {
    return ck_to_f16(x);
  }
}

#endif  // COCKTAIL_TYPES_H
