// What AMD GPUs do by builtins of clang: what cocktail_device.h lists. The twins in C++ for the emulator are
// in cocktail_twins.h. No other file of a program has assembly or a fence.
#ifndef COCKTAIL_GCN_H
#define COCKTAIL_GCN_H

#include "cocktail_base.h"

// Dies with a second-level cache each: there a release writes it back, and an acquire empties it of what
// other dies may have written.
#if defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__)
#define CK_SEVERAL_CACHES 1
#else
#define CK_SEVERAL_CACHES 0
#endif

// ---- threads --------------------------------------------------------------------------------------------

extern __attribute__((shared, aligned(128))) u8 ck_shared_memory[];
CK_INLINE u8* ck_arena() { return ck_shared_memory; }

CK_INLINE void ck_block_barrier() {
  if constexpr (CK_WARPS == 1) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
  } else {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
  }
}

// Every wave waits until its own stores have arrived, so that the release of one covers those of all. Where
// dies have caches of their own, a release by each wave would write the cache back as often.
CK_INLINE void ck_release_barrier() {
#if CK_SEVERAL_CACHES
  asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
#else
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
#endif
  ck_block_barrier();
}

// ---- ordered and atomic access --------------------------------------------------------------------------

template <CkScope S>
constexpr int kCkScope = S == CK_SYSTEM ? __HIP_MEMORY_SCOPE_SYSTEM : __HIP_MEMORY_SCOPE_AGENT;

#define CK_SCOPED(T, NAME, ARGUMENTS, ...) \
  template <CkScope S = CK_GPU>            \
  CK_INLINE T NAME ARGUMENTS {             \
    return __VA_ARGS__;                    \
  }
#define CK_ACCESS(T)                                                                                     \
  CK_SCOPED(T, ck_load_acquire, (const T* at), __hip_atomic_load(at, __ATOMIC_ACQUIRE, kCkScope<S>))     \
  CK_SCOPED(T, ck_load_relaxed, (const T* at), __hip_atomic_load(at, __ATOMIC_RELAXED, kCkScope<S>))     \
  CK_SCOPED(void, ck_store_release, (T * at, T x),                                                       \
            __hip_atomic_store(at, x, __ATOMIC_RELEASE, kCkScope<S>))                                    \
  CK_SCOPED(void, ck_store_relaxed, (T * at, T x),                                                       \
            __hip_atomic_store(at, x, __ATOMIC_RELAXED, kCkScope<S>))                                    \
  CK_SCOPED(void, ck_add_release, (T * at, T x),                                                         \
            (void)__hip_atomic_fetch_add(at, x, __ATOMIC_RELEASE, kCkScope<S>))                          \
  CK_SCOPED(T, ck_fetch_add, (T * at, T x),                                                              \
            __hip_atomic_fetch_add(at, x, __ATOMIC_ACQ_REL, kCkScope<S>))
CK_ACCESS(u32)
CK_ACCESS(u64)
#undef CK_ACCESS
#undef CK_SCOPED

#define CK_HAS_ACQUIRE_FENCE 1
template <CkScope S, class T>
CK_INLINE void ck_fence_acquire(const T*) {
  if constexpr (S == CK_SYSTEM) {
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "");
  } else {
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
  }
}

// ---- values of other lanes ------------------------------------------------------------------------------

// DPP moves words within rows of 16 lanes as part of an instruction, a swizzle within 32, and a permutation
// anywhere; the last two go through the crossbar of shared memory. `flip` is a constant where loops unroll.
CK_INLINE u32 ck_permuted(u32 word, i32 lane) {
  return u32(__builtin_amdgcn_ds_bpermute(lane * 4, i32(word)));
}
#define CK_DPP(CONTROL) u32(__builtin_amdgcn_update_dpp(0, i32(word), CONTROL, 0xf, 0xf, true))
#define CK_SWIZZLE(FLIP) u32(__builtin_amdgcn_ds_swizzle(i32(word), (FLIP) << 10 | 0x1f))
CK_INLINE u32 ck_flipped(u32 word, i32 flip) {
  switch (flip) {
    case 1: return CK_DPP(0xb1);   // quads: lanes 1, 0, 3, 2
    case 2: return CK_DPP(0x4e);   // quads: lanes 2, 3, 0, 1
    case 4: return CK_SWIZZLE(4);
    case 8: return CK_DPP(0x128);  // rows, turned by 8
    case 16: return CK_SWIZZLE(16);
    default: return ck_permuted(word, ck_warp_lane() ^ flip);
  }
}
#undef CK_DPP
#undef CK_SWIZZLE
CK_INLINE u32 ck_chosen(u32 word, i32 lane) {
  if (__builtin_constant_p(lane)) return u32(__builtin_amdgcn_readlane(i32(word), lane));
  return ck_permuted(word, lane);
}
CK_INLINE u32 ck_shifted(u32 word, i32 by) {
  const i32 lane = ck_warp_lane();
  return ck_permuted(word, lane < by ? lane : lane - by);
}
#define CK_WORD(NAME, HOW)                                                                      \
  template <class W>                                                                            \
  CK_INLINE W NAME(W word, i32 which) {                                                         \
    if constexpr (sizeof(W) == 8) {                                                             \
      const u64 bits = __builtin_bit_cast(u64, word);                                           \
      const u64 low = HOW(u32(bits), which), high = HOW(u32(bits >> 32), which);                \
      return __builtin_bit_cast(W, high << 32 | low);                                           \
    } else {                                                                                    \
      return __builtin_bit_cast(W, HOW(__builtin_bit_cast(u32, word), which));                  \
    }                                                                                           \
  }
CK_WORD(ck_word_from_partner, ck_flipped)
CK_WORD(ck_word_from_lane, ck_chosen)
CK_WORD(ck_word_from_before, ck_shifted)
#undef CK_WORD
CK_INLINE u64 ck_lanes_where(bool said) {
#if !__has_builtin(__builtin_amdgcn_ballot_w64)  // before clang 15
  return __builtin_amdgcn_uicmp(u32(said), 0u, 33);  // not equal
#elif CK_WARP == 64
  return __builtin_amdgcn_ballot_w64(said);
#else
  return __builtin_amdgcn_ballot_w32(said);
#endif
}
CK_INLINE i32 ck_lanes_in(u64 lanes) { return __builtin_popcountll(lanes); }
CK_INLINE u32 ck_count(u32* at, u32 n) {
  return __hip_atomic_fetch_add(at, n, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

// ---- where memory is ------------------------------------------------------------------------------------

CK_INLINE bool ck_is_global(const void* at) {
  return !__builtin_amdgcn_is_shared(at) && !__builtin_amdgcn_is_private(at);
}
// What functions get comes in vector registers. All lanes get the same, so it moves to scalar ones: the
// addresses of a loop then take one vector register together.
CK_INLINE u64 ck_uniform(u64 word) {
  const u32 low = u32(__builtin_amdgcn_readfirstlane(i32(u32(word))));
  const u32 high = u32(__builtin_amdgcn_readfirstlane(i32(u32(word >> 32))));
  return u64(high) << 32 | low;
}
// By way of an integer: two casts between kinds of pointers would cancel before the compiler asks what they
// point to.
template <class T>
CK_INLINE T* ck_far(T* at) {
  return (T*)(__attribute__((address_space(1))) T*)ck_uniform(u64(at));
}
template <class T>
CK_INLINE T* ck_in_shared(T* at) {
  CK_ASSUME(__builtin_amdgcn_is_shared(at));
  return at;
}

// ---- time, and giving up --------------------------------------------------------------------------------

CK_INLINE void ck_trap() { __builtin_trap(); }
// A counter of 25 MHz on MI100 and MI250X, of 100 MHz on later cards.
#if defined(__gfx908__) || defined(__gfx90a__)
constexpr u64 kCkTickNanoseconds = 40;
#else
constexpr u64 kCkTickNanoseconds = 10;
#endif
CK_INLINE u64 ck_nanoseconds() {
#if __has_builtin(__builtin_readsteadycounter)
  return kCkTickNanoseconds * u64(__builtin_readsteadycounter());
#else
  return kCkTickNanoseconds * u64(__builtin_amdgcn_s_memrealtime());
#endif
}
// Between two polls in vain: 64 clocks in which the wave takes no turn.
CK_INLINE void ck_pause() { __builtin_amdgcn_s_sleep(1); }
CK_INLINE void ck_sleep(u32 nanoseconds) {
  for (u64 start = ck_nanoseconds(); ck_nanoseconds() - start < nanoseconds;) ck_pause();
}

// ---- copies from global to shared memory ----------------------------------------------------------------

// Vectors: an array of structures that is copied stays in private memory, even where nothing reads it.
template <int BYTES>
using CkWordsOf = u32 __attribute__((vector_size(BYTES), may_alias));
using CkWords = CkWordsOf<16>;

// Through registers: the compiler keeps several loads under way.
template <int BYTES>
CK_INLINE void ck_async_copy(void* shared, const void* global, bool valid = true) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "asynchronous copies move 4, 8 or 16 bytes");
  CkWordsOf<BYTES> found = {};
  if (valid) found = *(const CkWordsOf<BYTES>*)global;
  *(CkWordsOf<BYTES>*)shared = found;
}
CK_INLINE void ck_async_commit() {}
template <int N>
CK_INLINE void ck_async_wait() {}

// ---- clusters: there are none ---------------------------------------------------------------------------

CK_INLINE i32 ck_cluster_rank() { return 0; }
CK_INLINE i32 ck_cluster_size() { return 1; }
CK_INLINE void ck_cluster_arrive() { ck_trap(); }
CK_INLINE void ck_cluster_wait() { ck_trap(); }
template <class T>
CK_INLINE T* ck_remote(T* mine, i32) {
  ck_trap();
  return mine;
}

#endif  // COCKTAIL_GCN_H
