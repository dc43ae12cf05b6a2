// What the cocktail_base.h of every GPU has in common. Before this file it has the spellings of its compiler,
// CK_WARP, and ck_thread_number, ck_block_number, ck_block_count: where a thread is, as the hardware says.
#ifndef COCKTAIL_DEVICE_H
#define COCKTAIL_DEVICE_H

// a * b + c, rounded once.
constexpr bool kCkFuses = true;
CK_INLINE f32 ck_fma(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
CK_INLINE f64 ck_fma(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }

// True if threads may skip one of two ways to a number.
constexpr bool kCkSkipsWays = true;

// Numbers of a program, defined by its text before the first header: threads of a block (a multiple of the
// warp) and bytes at the beginning of a block's shared memory that templates use while they run.
#if !defined(CK_THREADS) || !defined(CK_SCRATCH_BYTES)
#error "the program defines CK_THREADS and CK_SCRATCH_BYTES"
#endif
static_assert(CK_THREADS % CK_WARP == 0 && CK_THREADS <= 1024, "a block is made of whole warps");

// This thread's number in the block, in its warp, and the warp's in the block. That the range is known
// shortens divisions by powers of two and first trips of loops.
CK_INLINE i32 ck_lane() {
  i32 lane = ck_thread_number();
  CK_ASSUME(lane >= 0 && lane < CK_THREADS);
  return lane;
}
CK_INLINE i32 ck_warp_lane() { return ck_lane() % CK_WARP; }
CK_INLINE i32 ck_warp() { return ck_lane() / CK_WARP; }
enum : i32 { CK_WARPS = CK_THREADS / CK_WARP };

// Whom an ordered access is ordered with: the units of a cluster, all units, or the host too.
enum CkScope { CK_CLUSTER, CK_GPU, CK_SYSTEM };

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

// What follows in a target's own header, for all that is below it:
//
// ck_block_barrier(): what any thread of the block wrote before it, every thread of the block sees after it.
// ck_release_barrier(): the same, and a release of one thread afterwards covers what the block wrote before.
// ck_arena(): the block's shared memory.
//
// Ordered access, for u32 and u64 in global memory, or in shared memory of the cluster; S: whom it is ordered
// with:
//   T ck_load_acquire<S>(const T* at)         T ck_load_relaxed<S>(const T* at)
//   void ck_store_release<S>(T* at, T x)      void ck_store_relaxed<S>(T* at, T x)
//   void ck_add_release<S>(T* at, T x)        T ck_fetch_add<S>(T* at, T x)  (acquires and releases; the old)
// ck_fence_acquire<S>(at), if CK_HAS_ACQUIRE_FENCE: after ck_load_relaxed<S>(at) has read what a release
// wrote, what the writer did before is visible.
//
// Words from other lanes of the warp, all of which take part, numbers of 32 or 64 bits:
// ck_word_from_partner(word, flip), whose number differs in the bits of `flip`;
// ck_word_from_lane(word, lane); ck_word_from_before(word, by), which is `by` lanes before this one (in the
// first ones, their own). If CK_HAS_WARP_EXTREMES: ck_warp_most(word), ck_warp_least(word).
//
// ck_lanes_where(said): a bit for each lane of the warp that says so, all of which take part;
// ck_lanes_in(lanes): how many bits are there. ck_count(at, n): adds to a number in the block's shared memory
// and returns the old one, ordered with nothing.
//
// ck_is_global(at): whether an address is in global memory. ck_far(at), ck_in_shared(at): the same pointer,
// of which the compiler knows that it is into global memory, or into shared memory: accesses are then not
// those of an address that may be either. The emulation holds programs to the former.
//
// CkWords: 16 bytes that are moved at once.
//
// ck_trap(), ck_sleep(nanoseconds), ck_nanoseconds(); ck_pause(): between two polls in vain.
//
// Copies from global to shared memory: ck_async_copy<BYTES> (4, 8 or 16; both addresses on borders of as
// many) moves words past the registers, zeros if not `valid`; ck_async_commit closes a group of a thread's
// copies; ck_async_wait<N> returns when all its groups but the last N have arrived, for this thread:
// ck_block_barrier shows them to the others.
//
// Blocks of a cluster read and write each other's shared memory: ck_remote(p, rank) is the address, in the
// block of that rank, of what p is in one's own; ck_cluster_rank, ck_cluster_size. Every thread of the
// cluster arrives and waits (ck_cluster_arrive, ck_cluster_wait), in turn; a block must not end while others
// may still use its memory. Where there are no clusters, these trap.
//
// ck_quotient(a, b) of f32 is within 2 ulp, as under stock XLA. Infinities, NaN, zeros and denormals are
// those of the quotient.

#endif  // COCKTAIL_DEVICE_H
