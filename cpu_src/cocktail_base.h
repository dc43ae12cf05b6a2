// Types, storage formats and compiler-specific macros for all emitted CPU programs.
// Freestanding: without standard headers, a small program compiles in a few hundredths of a second.
#ifndef COCKTAIL_BASE_H
#define COCKTAIL_BASE_H

struct CkUnit;  // one of the threads that run a program; cocktail_units.h

#define CK_EXPORT extern "C" __attribute__((visibility("default")))
#define CK_INLINE static inline __attribute__((always_inline))
#define CK_NOINLINE static __attribute__((noinline))
#define CK_INLINED __attribute__((always_inline))  // of a lambda
#define CK_TABLE static const

// A long program is compiled in parts, side by side. Each has some of its functions, and part 0 what the
// runtime reads.
#ifdef CK_PART_NUMBER
#define CK_IN_PART(number) (CK_PART_NUMBER == (number))
#define CK_FUNCTION __attribute__((noinline, visibility("hidden")))
#else
#define CK_IN_PART(number) 1
#define CK_FUNCTION CK_NOINLINE
#endif

#include "cocktail_features.h"
#include "cocktail_types.h"

// CK_LANES before a loop: its iterations are independent (no memory dependence between them).
#if defined(__clang__)
#define CK_LANES _Pragma("clang loop vectorize(assume_safety)")
#define CK_NO_UNROLL _Pragma("clang loop unroll(disable)")
#else
#define CK_LANES _Pragma("GCC ivdep")
#define CK_NO_UNROLL _Pragma("GCC unroll 1")
#endif

// A unit is one thread: what the threads of a block share on a GPU are plain loops. Compilers unroll a short
// loop before they vectorise it, and then fail to.
#define CK_FOR_LANES(name, count) CK_LANES CK_NO_UNROLL for (i64 name = 0; name < (count); ++name)
#define CK_FOR_ROWS(GROUP, name, count) for (i64 name = 0; name < (count); ++name)
#define CK_FOR_GROUP_LANES(GROUP, name, count) CK_FOR_LANES(name, count)
CK_INLINE void ck_block_barrier() {}

// Where a loop over the elements k .. N-1 of a row begins. Work on elements before k is in vain: loops of
// constant length, or over whole vectors, are faster.
template <i32 N>
constexpr i32 ck_row_start(i32 k) {
  return N <= 32 ? 0 : k / 16 * 16;
}

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
#if defined(__AVX512F__) || defined(__aarch64__)
#define CK_VECTOR_REGISTERS 32
#else
#define CK_VECTOR_REGISTERS 16
#endif

// a * b + c. One rounding where the machine has it; never a library call.
#if defined(__FMA__) || defined(__aarch64__)
constexpr bool kCkFuses = true;
CK_INLINE f32 ck_fma(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
CK_INLINE f64 ck_fma(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
#else
constexpr bool kCkFuses = false;
CK_INLINE f32 ck_fma(f32 a, f32 b, f32 c) { return a * b + c; }
CK_INLINE f64 ck_fma(f64 a, f64 b, f64 c) { return a * b + c; }
#endif

// a / b. Correctly rounded; other targets may err by 2 ulp in f32.
template <class T>
CK_INLINE T ck_quotient(T a, T b) {
  return a / b;
}

// True if threads may skip one of two ways to a number. Here the lanes of a vector take both.
constexpr bool kCkSkipsWays = false;

// lgamma writes a global sign; the reentrant one does not.
extern "C" double lgamma_r(double, int*);
CK_INLINE f64 ck_log_gamma(f64 x) {
  int sign;
  return lgamma_r(x, &sign);
}

#endif  // COCKTAIL_BASE_H
