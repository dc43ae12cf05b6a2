// Compiler spellings of a program for AMD GPUs. The same text compiles with hipcc, with hiprtc, with a plain
// clang without ROCm (CK_FREESTANDING) and, with CK_EMULATED defined, with a host compiler that runs the
// blocks of threads on fibers (tests/cpu/emulation). No standard header and no header of ROCm: attributes and
// builtins of clang are all that it takes.
#ifndef COCKTAIL_BASE_H
#define COCKTAIL_BASE_H

#if defined(CK_EMULATED)
#include "gpu_emulation.h"
#define CK_DEVICE
#define CK_KERNEL_HEAD extern "C" void
#define CK_ASSUME(x)
#else
#define CK_DEVICE __attribute__((device))
// Vector units of a compute unit: a thread may have all registers that its block leaves it. On RDNA a block
// runs on a pair of compute units, but clang spills more where it is told so.
#define CK_VECTOR_UNITS (CK_WARP == 64 ? 4 : 2)
// Blocks of one wave hide each other's latency: registers leave room for so many.
#define CK_BLOCKS_TOGETHER (CK_THREADS == CK_WARP ? 16 : 1)
#define CK_KERNEL_WAVES \
  ((CK_BLOCKS_TOGETHER * CK_THREADS / CK_WARP + CK_VECTOR_UNITS - 1) / CK_VECTOR_UNITS)
#define CK_KERNEL_HEAD                                                                                  \
  extern "C" __attribute__((global, amdgpu_flat_work_group_size(CK_THREADS, CK_THREADS),                \
                            amdgpu_waves_per_eu(CK_KERNEL_WAVES, CK_KERNEL_WAVES))) void
#define CK_ASSUME(x) __builtin_assume(x)
#include "cocktail_ocml.h"
#endif

#define CK_MEMBER CK_DEVICE inline __attribute__((always_inline))
#define CK_INLINE static CK_MEMBER __attribute__((unused))
#define CK_NOINLINE static CK_DEVICE __attribute__((noinline))
#define CK_TABLE static CK_DEVICE const
#define CK_KERNEL_CONSTANT const
#define CK_NO_UNROLL _Pragma("unroll 1")
#define CK_LIKELY(x) __builtin_expect(!!(x), 1)
#define CK_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define CK_HAS_WARP_EXTREMES 0

// The lanes of a wave: the program's text says what the card runs.
#if !defined(CK_WARP) || (CK_WARP != 32 && CK_WARP != 64)
#error "the program defines CK_WARP, 32 or 64"
#elif defined(__AMDGCN_WAVEFRONT_SIZE__)
static_assert(CK_WARP == __AMDGCN_WAVEFRONT_SIZE__, "the program was made for waves of another size");
#endif

#include "cocktail_types.h"

#if defined(CK_EMULATED)
CK_INLINE i32 ck_thread_number() { return i32(ck_emulation::here->thread.x); }
CK_INLINE i32 ck_block_number() { return i32(ck_emulation::here->block.x); }
CK_INLINE i32 ck_block_count() { return i32(ck_emulation::here->blocks.x); }
#else
CK_INLINE i32 ck_thread_number() { return i32(__builtin_amdgcn_workitem_id_x()); }
CK_INLINE i32 ck_block_number() { return i32(__builtin_amdgcn_workgroup_id_x()); }
CK_INLINE i32 ck_block_count() { return i32(__builtin_amdgcn_grid_size_x()) / CK_THREADS; }
#endif

// a / b, correctly rounded: there is no branch in it. The twin of f32 is as far off as any GPU's.
template <class T>
CK_INLINE T ck_quotient(T a, T b) {
  return a / b;
}
#if defined(CK_EMULATED)
CK_INLINE f32 ck_quotient(f32 a, f32 b);
#endif

CK_INLINE f64 ck_log_gamma(f64 x) { return __builtin_lgamma(x); }

#include "cocktail_device.h"
#if defined(CK_EMULATED)
#include "cocktail_twins.h"
#else
#include "cocktail_gcn.h"
#endif
#include "cocktail_fragments.h"
#include "cocktail_wait.h"

#endif  // COCKTAIL_BASE_H
