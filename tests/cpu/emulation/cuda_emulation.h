// CUDA on a host compiler: a program's text sees here the names that nvcc gives it. Only what programs use is
// here. No standard header.
#ifndef CUDA_EMULATION_H
#define CUDA_EMULATION_H

#include "gpu_emulation.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline, unused))
#define __noinline__ __attribute__((noinline, unused))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)

struct alignas(8) float2 { float x, y; };
struct alignas(8) int2 { int x, y; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) double2 { double x, y; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline double2 make_double2(double x, double y) { return {x, y}; }

#define threadIdx (ck_emulation::here->thread)
#define blockIdx (ck_emulation::here->block)
#define blockDim (ck_emulation::here->threads)
#define gridDim (ck_emulation::here->blocks)

static inline void __syncthreads(CK_PLACE) { ck_emulation::meet_block(0, {CK_PLACED}); }
static inline int __syncthreads_count(int x, CK_PLACE) {
  return ck_emulation::meet_block(x != 0, {CK_PLACED});
}
static inline int __syncthreads_or(int x, CK_PLACE) {
  return ck_emulation::meet_block(x != 0, {CK_PLACED}) != 0;
}
static inline int __syncthreads_and(int x, CK_PLACE) {
  return ck_emulation::meet_block(x == 0, {CK_PLACED}) == 0;
}
static inline void __syncwarp(unsigned mask = ck_emulation::ALL_LANES, CK_PLACE) {
  ck_emulation::meet_warp(mask, {CK_PLACED});
}

// Shuffles take the types that CUDA has them for, and convert others as CUDA does: not at all.
#define CK_SHUFFLES(T) \
  static inline T __shfl_sync(unsigned mask, T x, int lane, int width = 32, CK_PLACE) { \
    int base = ck_emulation::lane() & ~(width - 1); \
    return ck_emulation::shuffle<T>("__shfl_sync", mask, x, base + (lane & (width - 1)), {CK_PLACED}); \
  } \
  static inline T __shfl_xor_sync(unsigned mask, T x, int flip, int width = 32, CK_PLACE) { \
    int mine = ck_emulation::lane(), from = mine ^ flip; \
    from = from / width > mine / width ? mine : from; \
    return ck_emulation::shuffle<T>("__shfl_xor_sync", mask, x, from, {CK_PLACED}); \
  } \
  static inline T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = 32, CK_PLACE) { \
    int mine = ck_emulation::lane(), from = mine + int(by); \
    from = from / width == mine / width ? from : mine; \
    return ck_emulation::shuffle<T>("__shfl_down_sync", mask, x, from, {CK_PLACED}); \
  } \
  static inline T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = 32, CK_PLACE) { \
    int mine = ck_emulation::lane(), from = mine - int(by); \
    from = from >= (mine & ~(width - 1)) ? from : mine; \
    return ck_emulation::shuffle<T>("__shfl_up_sync", mask, x, from, {CK_PLACED}); \
  }
CK_SHUFFLES(int)
CK_SHUFFLES(unsigned)
CK_SHUFFLES(long)
CK_SHUFFLES(unsigned long)
CK_SHUFFLES(long long)
CK_SHUFFLES(unsigned long long)
CK_SHUFFLES(float)
CK_SHUFFLES(double)
#undef CK_SHUFFLES

static inline unsigned __ballot_sync(unsigned mask, int x, CK_PLACE) {
  return unsigned(ck_emulation::ballot("__ballot_sync", mask, x != 0, {CK_PLACED}));
}
static inline int __any_sync(unsigned mask, int x, CK_PLACE) {
  return ck_emulation::ballot("__any_sync", mask, x != 0, {CK_PLACED}) != 0;
}
static inline int __all_sync(unsigned mask, int x, CK_PLACE) {
  return ck_emulation::ballot("__all_sync", mask, x == 0, {CK_PLACED}) == 0;
}
template <class T>
static inline unsigned __match_any_sync(unsigned mask, T x, CK_PLACE) {
  auto all = ck_emulation::gather("__match_any_sync", mask, &x, int(sizeof(T)), {CK_PLACED});
  unsigned same = 0;
  for (int i = 0; i < 32; ++i) {
    same |= unsigned((all.lanes >> i & 1) && !__builtin_memcmp(all.bytes[i], &x, sizeof(T))) << i;
  }
  return same;
}

#define CK_FOLD(NAME, T, VALUE)                                                                              \
  static inline T NAME(unsigned mask, T x, CK_PLACE) {                                                       \
    return ck_emulation::fold<T>(#NAME, mask, x, [](T a, T b) { return (T)(VALUE); }, {CK_PLACED}); \
  }
CK_FOLD(__reduce_add_sync, int, unsigned(a) + unsigned(b))
CK_FOLD(__reduce_add_sync, unsigned, a + b)
CK_FOLD(__reduce_min_sync, int, a < b ? a : b)
CK_FOLD(__reduce_min_sync, unsigned, a < b ? a : b)
CK_FOLD(__reduce_max_sync, int, a > b ? a : b)
CK_FOLD(__reduce_max_sync, unsigned, a > b ? a : b)
CK_FOLD(__reduce_and_sync, unsigned, a & b)
CK_FOLD(__reduce_or_sync, unsigned, a | b)
CK_FOLD(__reduce_xor_sync, unsigned, a ^ b)
#undef CK_FOLD

#define CK_ATOMIC(NAME, T, VALUE)                                                         \
  static inline T NAME(T* at, T x) {                                                      \
    return ck_emulation::update(at, [=](T old) -> T { return (void)old, (T)(VALUE); });     \
  }
#define CK_ATOMICS(T)                                       \
  CK_ATOMIC(atomicMin, T, x < old ? x : old)                \
  CK_ATOMIC(atomicMax, T, x > old ? x : old)                \
  CK_ATOMIC(atomicAnd, T, old & x)                          \
  CK_ATOMIC(atomicOr, T, old | x)                           \
  CK_ATOMIC(atomicXor, T, old ^ x)                          \
  CK_ATOMIC(atomicExch, T, x)                               \
  static inline T atomicCAS(T* at, T expected, T x) {       \
    return ck_emulation::update(at, [=](T old) { return old == expected ? x : old; }); \
  }
CK_ATOMICS(int)
CK_ATOMICS(unsigned)
CK_ATOMICS(unsigned long long)
CK_ATOMIC(atomicAdd, int, unsigned(old) + unsigned(x))
CK_ATOMIC(atomicAdd, unsigned, old + x)
CK_ATOMIC(atomicAdd, unsigned long long, old + x)
CK_ATOMIC(atomicAdd, float, old + x)
CK_ATOMIC(atomicAdd, double, old + x)
#undef CK_ATOMICS
#undef CK_ATOMIC

static inline void __nanosleep(unsigned, CK_PLACE) { ck_emulation::rest({CK_PLACED}); }
static inline long long clock64() { return ck_emulation::ticks(); }
template <class T>
static inline T __ldg(const T* at) {
  return *at;
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }

#endif  // CUDA_EMULATION_H
