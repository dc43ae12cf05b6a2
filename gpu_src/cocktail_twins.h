// Twins in C++, for the emulation, of what the instructions of every GPU do: a target's own header has the
// instructions. Only the emulation includes this file.
#ifndef COCKTAIL_TWINS_H
#define COCKTAIL_TWINS_H

#include "cocktail_device.h"

// ---- threads --------------------------------------------------------------------------------------------

CK_INLINE void ck_block_barrier(CK_WHERE) { ck_emulation::meet_block(0, {CK_PLACED}); }
CK_INLINE void ck_release_barrier(CK_WHERE) { ck_emulation::meet_block(0, {CK_PLACED}); }
CK_INLINE u8* ck_arena() { return ck_emulation::here->arena; }

// ---- ordered and atomic access --------------------------------------------------------------------------

#define CK_SCOPED(T, NAME, ARGUMENTS, ...) \
  template <CkScope S = CK_GPU>            \
  CK_INLINE T NAME ARGUMENTS {             \
    return __VA_ARGS__;                    \
  }
#define CK_ACCESS(T)                                                                                 \
  CK_SCOPED(T, ck_load_acquire, (const T* at), __atomic_load_n(at, __ATOMIC_ACQUIRE))                \
  CK_SCOPED(T, ck_load_relaxed, (const T* at), __atomic_load_n(at, __ATOMIC_RELAXED))                \
  CK_SCOPED(void, ck_store_release, (T * at, T x), __atomic_store_n(at, x, __ATOMIC_RELEASE))        \
  CK_SCOPED(void, ck_store_relaxed, (T * at, T x), __atomic_store_n(at, x, __ATOMIC_RELAXED))        \
  CK_SCOPED(void, ck_add_release, (T * at, T x), (void)__atomic_fetch_add(at, x, __ATOMIC_RELEASE))  \
  CK_SCOPED(T, ck_fetch_add, (T * at, T x), __atomic_fetch_add(at, x, __ATOMIC_ACQ_REL))
CK_ACCESS(u32)
CK_ACCESS(u64)
#undef CK_ACCESS
#undef CK_SCOPED

// A second read, which acquires: ThreadSanitizer knows no fences.
#define CK_HAS_ACQUIRE_FENCE 1
template <CkScope S, class T>
CK_INLINE void ck_fence_acquire(const T* at) {
  (void)ck_load_acquire<S>(at);
}

// ---- quotients ------------------------------------------------------------------------------------------

// As far off as 2 ulp allow, up or down.
CK_INLINE f32 ck_quotient(f32 a, f32 b) {
  f32 near = a / b;
  u32 bits = ck_bitcast<u32>(near), size = bits & 0x7fffffffu;
  if (size < 2 || size >= 0x7f7fffffu) return near;
  f64 unit = f64(ck_bitcast<f32>(size + 1)) - f64(ck_bitcast<f32>(size));
  bool up = (ck_bitcast<u32>(a) ^ ck_bitcast<u32>(b)) % 2 == 0;
  return f32(f64(a) / f64(b) + (up ? 1.49 : -1.49) * unit);
}

// ---- copies ---------------------------------------------------------------------------------------------

struct alignas(16) CkWords {
  u32 words[4];
};

// ---- where memory is ------------------------------------------------------------------------------------

CK_INLINE bool ck_is_global(const void* at) { return ck_emulation::is_global(at); }
template <class T>
CK_INLINE T* ck_far(T* at CK_AND_WHERE) {
  if (!ck_is_global(at)) ck_emulation::fail("a pointer to global memory that is not", {CK_PLACED});
  return at;
}
// Of slices there is an address to count from, which may lie before all memory.
template <class T>
CK_INLINE T* ck_in_shared(T* at) {
  return at;
}

// ---- time, and giving up --------------------------------------------------------------------------------

CK_INLINE void ck_trap(CK_WHERE) { ck_emulation::fail("trap", {CK_PLACED}); }
CK_INLINE void ck_sleep(u32, CK_PLACE) { ck_emulation::rest({CK_PLACED}); }
CK_INLINE u64 ck_nanoseconds() { return u64(ck_emulation::ticks()); }

// ---- asynchronous copies --------------------------------------------------------------------------------

// The emulator copies at the moment of the wait, and no sooner.
template <int BYTES>
CK_INLINE void ck_async_copy(void* shared, const void* global, bool valid = true CK_AND_WHERE) {
  ck_emulation::defer_copy(shared, global, BYTES, valid, {CK_PLACED});
}
CK_INLINE void ck_async_commit() { ck_emulation::commit_copies(); }
template <int N>
CK_INLINE void ck_async_wait() {
  ck_emulation::Copy copy;
  while (ck_emulation::next_copy(N, &copy)) {
    for (i32 i = 0; i < copy.bytes / 4; ++i) {
      ((u32*)copy.to)[i] = copy.valid ? ((const u32*)copy.from)[i] : 0;
    }
  }
}

// ---- clusters -------------------------------------------------------------------------------------------

CK_INLINE i32 ck_cluster_rank() { return ck_emulation::here->cluster_rank; }
CK_INLINE i32 ck_cluster_size() { return ck_emulation::here->cluster_size; }
CK_INLINE void ck_cluster_arrive(CK_WHERE) { ck_emulation::arrive_cluster({CK_PLACED}); }
CK_INLINE void ck_cluster_wait(CK_WHERE) { ck_emulation::wait_cluster({CK_PLACED}); }
template <class T>
CK_INLINE T* ck_remote(T* mine, i32 rank CK_AND_WHERE) {
  return (T*)ck_emulation::remote((void*)mine, rank, {CK_PLACED});
}

// ---- values of other lanes ------------------------------------------------------------------------------

template <class W>
CK_INLINE W ck_word_of(const char* what, W word, i32 lane, ck_emulation::Place place) {
  return ck_emulation::shuffle<W>(what, ck_emulation::ALL_LANES, word, lane, place);
}
template <class W>
CK_INLINE W ck_word_from_partner(W word, i32 flip CK_AND_WHERE) {
  return ck_word_of("ck_word_from_partner", word, ck_warp_lane() ^ flip, {CK_PLACED});
}
template <class W>
CK_INLINE W ck_word_from_lane(W word, i32 lane CK_AND_WHERE) {
  return ck_word_of("ck_word_from_lane", word, lane % CK_WARP, {CK_PLACED});
}
template <class W>
CK_INLINE W ck_word_from_before(W word, i32 by CK_AND_WHERE) {
  i32 from = ck_warp_lane() - by;
  return ck_word_of("ck_word_from_before", word, from < 0 ? ck_warp_lane() : from, {CK_PLACED});
}
CK_INLINE u64 ck_lanes_where(bool said CK_AND_WHERE) {
  return ck_emulation::ballot("ck_lanes_where", ck_emulation::ALL_LANES, said, {CK_PLACED});
}
CK_INLINE i32 ck_lanes_in(u64 lanes) { return __builtin_popcountll(lanes); }
CK_INLINE u32 ck_count(u32* at, u32 n) { return __atomic_fetch_add(at, n, __ATOMIC_RELAXED); }
CK_INLINE u32 ck_warp_most(u32 word CK_AND_WHERE) {
  auto larger = [](u32 a, u32 b) { return a > b ? a : b; };
  return ck_emulation::fold("ck_warp_most", ck_emulation::ALL_LANES, word, larger, {CK_PLACED});
}
CK_INLINE u32 ck_warp_least(u32 word CK_AND_WHERE) {
  auto smaller = [](u32 a, u32 b) { return a < b ? a : b; };
  return ck_emulation::fold("ck_warp_least", ck_emulation::ALL_LANES, word, smaller, {CK_PLACED});
}

#endif  // COCKTAIL_TWINS_H
