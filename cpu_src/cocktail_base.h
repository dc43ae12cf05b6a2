// Types, storage formats and compiler spellings that every emitted CPU program relies on.
// Freestanding: no standard header, so that a small program compiles in a few hundredths of a second.
#ifndef COCKTAIL_BASE_H
#define COCKTAIL_BASE_H

#include "cocktail_features.h"

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

struct CkUnit;  // one of the threads that run a program; cocktail_units.h

#define CK_EXPORT extern "C" __attribute__((visibility("default")))
#define CK_INLINE static inline __attribute__((always_inline))
#define CK_NOINLINE static __attribute__((noinline))
#define CK_RESTRICT __restrict__

// CK_LANES before a loop: its iterations are independent (no memory dependence between them).
#if defined(__clang__)
#define CK_LANES _Pragma("clang loop vectorize(assume_safety)")
#define CK_NO_UNROLL _Pragma("clang loop unroll(disable)")
#else
#define CK_LANES _Pragma("GCC ivdep")
#define CK_NO_UNROLL _Pragma("GCC unroll 1")
#endif

// Read by the runtime before it calls the program.
CK_EXPORT const u32 ck_required_features;
const u32 ck_required_features __attribute__((used)) = CK_COMPILED_FEATURES;

#define CK_LIKELY(x) __builtin_expect(!!(x), 1)
#define CK_UNLIKELY(x) __builtin_expect(!!(x), 0)

// Bytes of one vector register. 64 only where the compiler really has such registers: an emulated 64-byte
// vector type costs a factor of several.
#if defined(__AVX512F__)
#define CK_VECTOR_BYTES 64
#elif defined(__AVX__)
#define CK_VECTOR_BYTES 32
#else
#define CK_VECTOR_BYTES 16
#endif

// Same width reinterpretation.
template <class To, class From>
CK_INLINE To ck_bitcast(From x) {
  static_assert(sizeof(To) == sizeof(From), "bitcast needs equal widths");
  To to;
  __builtin_memcpy(&to, &x, sizeof(To));
  return to;
}

// a * b + c. One rounding where the machine has it; never a library call.
#if defined(__FMA__) || defined(__aarch64__)
CK_INLINE f32 ck_fma(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
CK_INLINE f64 ck_fma(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
#else
CK_INLINE f32 ck_fma(f32 a, f32 b, f32 c) { return a * b + c; }
CK_INLINE f64 ck_fma(f64 a, f64 b, f64 c) { return a * b + c; }
#endif

// ---- what a type is -------------------------------------------------------------------------------------

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

#endif  // COCKTAIL_BASE_H
