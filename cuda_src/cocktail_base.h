// Compiler spellings of a program for NVIDIA GPUs. The same text compiles with nvcc, with NVRTC and, with
// CK_EMULATED defined, with a host compiler that runs the blocks of threads on fibers (tests/cpu/emulation).
// No standard header and no header of the CUDA toolkit.
#ifndef COCKTAIL_BASE_H
#define COCKTAIL_BASE_H

#if defined(CK_EMULATED)
#include "cuda_emulation.h"
#elif defined(__CUDACC_RTC__)
#include "cocktail_nvrtc.h"
#endif

#define CK_INLINE static __device__ __forceinline__
#define CK_NOINLINE static __device__ __noinline__
#define CK_TABLE static __device__ const
#define CK_NO_UNROLL _Pragma("unroll 1")
#define CK_LIKELY(x) __builtin_expect(!!(x), 1)
#define CK_UNLIKELY(x) __builtin_expect(!!(x), 0)

#include "cocktail_types.h"

// a * b + c, rounded once.
CK_INLINE f32 ck_fma(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
CK_INLINE f64 ck_fma(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }

// True if threads may skip one of two ways to a number.
constexpr bool kCkSkipsWays = true;

// a / b, for f32 as cocktail_ptx.h says.
template <class T>
CK_INLINE T ck_quotient(T a, T b) {
  return a / b;
}
CK_INLINE f32 ck_quotient(f32 a, f32 b);

#if !defined(CK_EMULATED)
// One instruction each, instead of the templates of these names.
CK_INLINE f32 ck_max(f32 a, f32 b);
CK_INLINE f32 ck_min(f32 a, f32 b);
#endif

CK_INLINE f64 ck_log_gamma(f64 x) { return __builtin_lgamma(x); }

// Numbers of a program, defined by its text before the first header: threads of a block (a multiple of the
// warp) and bytes at the beginning of a block's shared memory that templates use while they run.
#if !defined(CK_THREADS) || !defined(CK_SCRATCH_BYTES)
#error "the program defines CK_THREADS and CK_SCRATCH_BYTES"
#endif
#if !defined(CK_WARP)
#define CK_WARP 32
#endif
static_assert(CK_THREADS % CK_WARP == 0 && CK_THREADS <= 1024, "a block is made of whole warps");

// This thread's number in the block, in its warp, and the warp's in the block. That the range is known
// shortens divisions by powers of two and first trips of loops.
#if defined(CK_EMULATED)
#define CK_ASSUME(x)
#else
#define CK_ASSUME(x) __builtin_assume(x)
#endif
CK_INLINE i32 ck_lane() {
  i32 lane = i32(threadIdx.x);
  CK_ASSUME(lane >= 0 && lane < CK_THREADS);
  return lane;
}
CK_INLINE i32 ck_warp_lane() { return ck_lane() % CK_WARP; }
CK_INLINE i32 ck_warp() { return ck_lane() / CK_WARP; }
enum : i32 { CK_WARPS = CK_THREADS / CK_WARP };
enum : u32 { CK_ALL_LANES = 0xffffffffu };  // of a warp, as shuffles name them

// The emulator tells where in a program threads wait: what waits takes the place of its call.
#if defined(CK_EMULATED)
#define CK_WHERE CK_PLACE
#define CK_AND_WHERE , CK_PLACE
#define CK_HERE CK_PLACED
#define CK_AND_HERE , CK_PLACED
#else
#define CK_WHERE
#define CK_AND_WHERE
#define CK_HERE
#define CK_AND_HERE
#endif

// The unit barrier: what any thread of the block wrote before it, every thread of the block sees after it.
CK_INLINE void ck_block_barrier(CK_WHERE) { __syncthreads(CK_HERE); }

#include "cocktail_ptx.h"

#endif  // COCKTAIL_BASE_H
