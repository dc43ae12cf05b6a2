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
#define CK_MEMBER __device__ __forceinline__
#define CK_NOINLINE static __device__ __noinline__
#define CK_TABLE static __device__ const
#define CK_KERNEL_HEAD extern "C" __global__ void __launch_bounds__(CK_THREADS, CK_BLOCKS_TOGETHER)
// The blocks that registers leave room for on a multiprocessor: those of one warp hide each other's latency.
#define CK_BLOCKS_TOGETHER (CK_THREADS == CK_WARP ? 16 : 1)
#define CK_KERNEL_CONSTANT const __grid_constant__
#define CK_NO_UNROLL _Pragma("unroll 1")
#define CK_LIKELY(x) __builtin_expect(!!(x), 1)
#define CK_UNLIKELY(x) __builtin_expect(!!(x), 0)
#if defined(CK_EMULATED)
#define CK_ASSUME(x)
#else
#define CK_ASSUME(x) __builtin_assume(x)
#endif
#define CK_WARP 32
#define CK_HAS_WARP_EXTREMES 1

#include "cocktail_types.h"

CK_INLINE i32 ck_thread_number() { return i32(threadIdx.x); }
CK_INLINE i32 ck_block_number() { return i32(blockIdx.x); }
CK_INLINE i32 ck_block_count() { return i32(gridDim.x); }

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

#include "cocktail_device.h"
#include "cocktail_ptx.h"
#include "cocktail_wait.h"

#endif  // COCKTAIL_BASE_H
