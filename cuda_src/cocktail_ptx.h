// What CUDA C++ has no words for, or none without headers of the toolkit: every instruction that a program
// spells as assembly. The twins in C++ for the emulator are in cocktail_twins.h, and here for matrix tiles.
// No other file of a program has assembly or a fence. Everything here runs on sm_80; the functions of
// clusters need sm_90 and trap before it.
#ifndef COCKTAIL_PTX_H
#define COCKTAIL_PTX_H

#include "cocktail_base.h"
#if defined(CK_EMULATED)
#include "cocktail_twins.h"
#endif

#if !defined(CK_EMULATED)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define CK_HAS_CLUSTERS 1
#else
#define CK_HAS_CLUSTERS 0
#endif

// ---- ordered and atomic access --------------------------------------------------------------------------

// Assembly is text, so each scope is spelled. R: the kind of register; W: the type in PTX.
#define CK_ASM_LOAD(R, W, ORDER, SCOPE) \
  asm volatile("ld." ORDER "." SCOPE "." W " %0, [%1];" : "=" R(x) : "l"(at) : "memory")
#define CK_ASM_STORE(R, W, ORDER, SCOPE) \
  asm volatile("st." ORDER "." SCOPE "." W " [%0], %1;" ::"l"(at), R(x) : "memory")
#define CK_ASM_RED(R, W, ORDER, SCOPE) \
  asm volatile("red." ORDER "." SCOPE ".add." W " [%0], %1;" ::"l"(at), R(x) : "memory")
#define CK_ASM_ATOM(R, W, ORDER, SCOPE) \
  asm volatile("atom." ORDER "." SCOPE ".add." W " %0, [%1], %2;" : "=" R(old) : "l"(at), R(x) : "memory")
#if CK_HAS_CLUSTERS
#define CK_NEAREST "cluster"
#else
#define CK_NEAREST "gpu"
#endif
#define CK_SCOPED(WHAT, R, W, ORDER)                         \
  if constexpr (S == CK_CLUSTER) WHAT(R, W, ORDER, CK_NEAREST); \
  if constexpr (S == CK_GPU) WHAT(R, W, ORDER, "gpu");       \
  if constexpr (S == CK_SYSTEM) WHAT(R, W, ORDER, "sys")
#define CK_ACCESS_LOAD(NAME, T, R, W, ORDER) \
  template <CkScope S = CK_GPU>              \
  CK_INLINE T NAME(const T* at) {            \
    T x;                                     \
    CK_SCOPED(CK_ASM_LOAD, R, W, ORDER);     \
    return x;                                \
  }
#define CK_ACCESS_STORE(NAME, T, R, W, ORDER, WHAT) \
  template <CkScope S = CK_GPU>                     \
  CK_INLINE void NAME(T* at, T x) {                 \
    CK_SCOPED(WHAT, R, W, ORDER);                   \
  }
#define CK_ACCESS(T, R, W)                                            \
  CK_ACCESS_LOAD(ck_load_acquire, T, R, W, "acquire")                 \
  CK_ACCESS_LOAD(ck_load_relaxed, T, R, W, "relaxed")                 \
  CK_ACCESS_STORE(ck_store_release, T, R, W, "release", CK_ASM_STORE) \
  CK_ACCESS_STORE(ck_store_relaxed, T, R, W, "relaxed", CK_ASM_STORE) \
  CK_ACCESS_STORE(ck_add_release, T, R, W, "release", CK_ASM_RED)     \
  template <CkScope S = CK_GPU>                                       \
  CK_INLINE T ck_fetch_add(T* at, T x) {                              \
    T old;                                                            \
    CK_SCOPED(CK_ASM_ATOM, R, W, "acq_rel");                          \
    return old;                                                       \
  }
CK_ACCESS(u32, "r", "u32")
CK_ACCESS(u64, "l", "u64")

// From sm_90 and CUDA 13 on; any other fence also waits for the thread's own stores.
#if CK_HAS_CLUSTERS && defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ >= 13
#define CK_HAS_ACQUIRE_FENCE 1
template <CkScope S, class T>
CK_INLINE void ck_fence_acquire(const T*) {
  if constexpr (S == CK_CLUSTER) asm volatile("fence.acquire.cluster;" ::: "memory");
  if constexpr (S == CK_GPU) asm volatile("fence.acquire.gpu;" ::: "memory");
  if constexpr (S == CK_SYSTEM) asm volatile("fence.acquire.sys;" ::: "memory");
}
#else
#define CK_HAS_ACQUIRE_FENCE 0
#endif

// ---- values of other lanes ------------------------------------------------------------------------------

enum : u32 { CK_ALL_LANES = 0xffffffffu };
template <class W>
CK_INLINE W ck_word_from_partner(W word, i32 flip) {
  return __shfl_xor_sync(CK_ALL_LANES, word, flip);
}
template <class W>
CK_INLINE W ck_word_from_lane(W word, i32 lane) {
  return __shfl_sync(CK_ALL_LANES, word, lane);
}
template <class W>
CK_INLINE W ck_word_from_before(W word, i32 by) {
  return __shfl_up_sync(CK_ALL_LANES, word, u32(by));
}
CK_INLINE u64 ck_lanes_where(bool said) { return __ballot_sync(CK_ALL_LANES, said); }
CK_INLINE i32 ck_lanes_in(u64 lanes) { return __popc(u32(lanes)); }
CK_INLINE u32 ck_count(u32* at, u32 n) { return atomicAdd(at, n); }
CK_INLINE u32 ck_warp_most(u32 word) { return __reduce_max_sync(CK_ALL_LANES, word); }
CK_INLINE u32 ck_warp_least(u32 word) { return __reduce_min_sync(CK_ALL_LANES, word); }

// ---- quotients ------------------------------------------------------------------------------------------

// The correctly rounded one branches to a slow path, over which the compiler moves no load and no other
// quotient.
CK_INLINE f32 ck_quotient(f32 a, f32 b) {
  f32 quotient;
  asm("div.full.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a), "f"(b));
  return quotient;
}

// ---- order ----------------------------------------------------------------------------------------------

// NaN wins; +0 is larger than -0.
CK_INLINE f32 ck_max(f32 a, f32 b) {
  f32 larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
CK_INLINE f32 ck_min(f32 a, f32 b) {
  f32 smaller;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
  return smaller;
}

// ---- where memory is -----------------------------------------------------------------------------------

extern __shared__ __align__(128) u8 ck_shared_memory[];
CK_INLINE u8* ck_arena() { return ck_shared_memory; }

CK_INLINE bool ck_is_global(const void* at) { return __isGlobal(at); }
template <class T>
CK_INLINE T* ck_far(T* at) {
  CK_ASSUME(__isGlobal(at));
  return at;
}
template <class T>
CK_INLINE T* ck_in_shared(T* at) {
  CK_ASSUME(__isShared(at));
  return at;
}

// ---- threads, time, and giving up -----------------------------------------------------------------------

CK_INLINE void ck_block_barrier() {
  if constexpr (CK_WARPS == 1) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}
CK_INLINE void ck_release_barrier() { ck_block_barrier(); }
CK_INLINE void ck_trap() { asm volatile("trap;"); }
CK_INLINE void ck_sleep(u32 nanoseconds) { asm volatile("nanosleep.u32 %0;" ::"r"(nanoseconds)); }
CK_INLINE u64 ck_nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
// Between two polls in vain: another read is the best pause.
CK_INLINE void ck_pause() {}

// ---- copies ---------------------------------------------------------------------------------------------

struct alignas(16) CkWords {
  u32 words[4];
};

CK_INLINE u32 ck_shared_address(const void* shared) { return u32(__cvta_generic_to_shared(shared)); }
template <int BYTES>
CK_INLINE void ck_async_copy(void* shared, const void* global, bool valid = true) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "asynchronous copies move 4, 8 or 16 bytes");
#define CK_ASM_COPY(CACHE)                                                             \
  asm volatile("cp.async." CACHE ".shared.global [%0], [%1], %2, %3;" ::"r"(ck_shared_address(shared)), \
               "l"(__cvta_generic_to_global(global)), "n"(BYTES), "r"(valid ? BYTES : 0) \
               : "memory")
  if constexpr (BYTES == 16) CK_ASM_COPY("cg");
  else CK_ASM_COPY("ca");
}
CK_INLINE void ck_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
CK_INLINE void ck_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// ---- clusters -------------------------------------------------------------------------------------------

#if CK_HAS_CLUSTERS
CK_INLINE i32 ck_cluster_rank() {
  i32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
CK_INLINE i32 ck_cluster_size() {
  i32 size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}
CK_INLINE void ck_cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
CK_INLINE void ck_cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
template <class T>
CK_INLINE T* ck_remote(T* mine, i32 rank) {
  u64 theirs;
  asm("mapa.u64 %0, %1, %2;" : "=l"(theirs) : "l"(mine), "r"(rank));
  return (T*)theirs;
}
#else
CK_INLINE i32 ck_cluster_rank() { return 0; }
CK_INLINE i32 ck_cluster_size() { return 1; }
CK_INLINE void ck_cluster_arrive() { ck_trap(); }
CK_INLINE void ck_cluster_wait() { ck_trap(); }
template <class T>
CK_INLINE T* ck_remote(T* mine, i32) {
  ck_trap();
  return mine;
}
#endif
#endif  // not emulated

// ---- matrix tiles of a warp -----------------------------------------------------------------------------
//
// c += a b by a whole warp, for tiles of 16 x K, K x 8 and 16 x 8 that its 32 lanes hold together.
// With g = lane / 4 and t = lane % 4, a lane holds
//   c[i]        f32 (row g + 8 (i / 2), column 2 t + i % 2)
// ck_mma_tf32 (K = 8): words of ck_to_tf32, which rounds to 10 bits of mantissa (ties away from zero)
//   a[i]        (row g + 8 (i % 2), k = t + 4 (i / 2))
//   b[i]        (k = t + 4 i, column g)
// ck_mma_bf16, ck_mma_f16 (K = 16): pairs of values, the first in the low half
//   a[i]        (row g + 8 (i % 2), k = 2 t + 8 (i / 2) and the next k)
//   b[i]        (k = 2 t + 8 i and the next k, column g)
// Products are exact and sums are f32. In which order and how the hardware rounds sums is its own affair (it
// truncates); the twin adds in the order of k, rounding to nearest.
//
// ck_load_tiles<TURNED>(r, row): four 8 x 8 tiles of 16-bit words from shared memory. `row` of lane l is the
// address (on a border of 16) of row l % 8 of tile l / 8; r[i] is the pair at (row g, columns
// 2 t and 2 t + 1) of tile i, or with TURNED of its transpose.

// Without the instruction, of which a warp can have only one under way. Tensor cores do not read the low 13
// bits, which stay as they come; only a NaN could carry beyond its exponent.
constexpr u32 kCkHalfTf32 = 0x1000;
constexpr bool kCkMatrixTakesF32 = true, kCkRoundsTf32 = true;
constexpr i32 kCkCellColumns = 8;
CK_INLINE u32 ck_to_tf32(f32 x) { return x == x ? ck_bitcast<u32>(x) + kCkHalfTf32 : 0x7fffffffu; }

#if defined(CK_EMULATED)
template <class T>
CK_INLINE f32 ck_tile_value(u32 word, i32 half) {
  if constexpr (sizeof(T) == 4) return ck_bitcast<f32>(word & ~0x1fffu);  // the hardware looks at no more
  else return ck_up(T{u16(word >> 16 * half)});
}

template <class T>
CK_INLINE void ck_mma(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2], ck_emulation::Place place) {
  u32 mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  auto all = ck_emulation::gather("mma", ck_emulation::ALL_LANES, mine, sizeof mine, place);
  auto word = [&](i32 lane, i32 i) { return ((const u32*)all.bytes[lane])[i]; };
  constexpr i32 pack = 4 / sizeof(T), K = 8 * pack;
  i32 lane = ck_warp_lane();
  for (i32 i = 0; i < 4; ++i) {
    i32 row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
    for (i32 k = 0; k < K; ++k) {
      i32 t = k / pack % 4, upper = k / (4 * pack), half = k % pack;
      f32 x = ck_tile_value<T>(word(row % 8 * 4 + t, row / 8 + 2 * upper), half);
      f32 y = ck_tile_value<T>(word(column * 4 + t, 4 + upper), half);
      c[i] = ck_fma(x, y, c[i]);
    }
  }
}

#define CK_MMA(NAME, T, SHAPE)                                                                     \
  CK_INLINE void NAME(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2] CK_AND_WHERE) {            \
    ck_mma<T>(c, a, b, {CK_PLACED});                                                                     \
  }

template <bool TURNED = false>
CK_INLINE void ck_load_tiles(u32 (&r)[4], const void* row CK_AND_WHERE) {
  auto all = ck_emulation::gather("ldmatrix", ck_emulation::ALL_LANES, &row, sizeof row, {CK_PLACED});
  i32 g = ck_warp_lane() / 4, t = ck_warp_lane() % 4;
  for (i32 tile = 0; tile < 4; ++tile) {
    auto at = [&](i32 i, i32 j) { return u32((*(const u16* const*)all.bytes[8 * tile + i])[j]); };
    r[tile] = TURNED ? at(2 * t, g) | at(2 * t + 1, g) << 16 : at(g, 2 * t) | at(g, 2 * t + 1) << 16;
  }
}
#else
#define CK_MMA(NAME, T, SHAPE)                                                                             \
  CK_INLINE void NAME(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {                                 \
    asm volatile("mma.sync.aligned." SHAPE                                                                 \
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                 \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                   \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                               \
  }

template <bool TURNED = false>
CK_INLINE void ck_load_tiles(u32 (&r)[4], const void* row) {
  u32 at = ck_shared_address(row);
#define CK_ASM_TILES(KIND)                                                         \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4" KIND ".shared.b16 {%0, %1, %2, %3}, [%4];" \
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                     \
               : "r"(at)                                                           \
               : "memory")
  if constexpr (TURNED) CK_ASM_TILES(".trans");
  else CK_ASM_TILES("");
}
#endif

CK_MMA(ck_mma_tf32, f32, "m16n8k8.row.col.f32.tf32.tf32.f32")
CK_MMA(ck_mma_bf16, bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
CK_MMA(ck_mma_f16, f16, "m16n8k16.row.col.f32.f16.f16.f32")

#endif  // COCKTAIL_PTX_H
