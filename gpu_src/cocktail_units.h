// Units: the thread blocks that run one launch of a program together, how they meet, and the kernels'
// entries.
//
// A barrier has two halves: ck_arrive publishes what this unit wrote, ck_wait returns when every unit has
// arrived. They alternate: arrive, wait, arrive, wait; both are called by every thread of the block. The
// counters of arrivals only grow, so nothing is reset in between, and comparisons are of differences, so they
// may wrap. All blocks of a launch must be on the card at once: who launches more than one sees to that.
// Units that are one cluster meet by its barrier in hardware instead, and use no header.
#ifndef COCKTAIL_UNITS_H
#define COCKTAIL_UNITS_H

#include "cocktail_base.h"

// What a program may define besides what cocktail_base.h asks for: how many signals and 32-bit words of
// tagged exchanges (all exchanges together) it uses; how many units its resident kernel needs at least;
// whether they are one cluster; whether they never meet at all; how many launch parameters it has, and
// which of them is the size of own memory, in place of CK_OWN_BYTES, which is then 0; and how many dies
// the device has, each with a second-level cache.
#if !defined(CK_SIGNALS)
#define CK_SIGNALS 0
#endif
#if !defined(CK_TAGGED_WORDS)
#define CK_TAGGED_WORDS 0
#endif
#if !defined(CK_SIZES)
#define CK_SIZES 0
#endif
#if !defined(CK_RESIDENT_UNITS)
#define CK_RESIDENT_UNITS 1
#endif
#if !defined(CK_ONE_CLUSTER)
#define CK_ONE_CLUSTER 0
#endif
#if !defined(CK_NOTHING_CROSSES)
#define CK_NOTHING_CROSSES 0
#endif
#if !defined(CK_DIES)
#define CK_DIES 1
#endif
#define CK_DIE_LINES (CK_DIES > 1 ? 2 * CK_DIES : 0)
static_assert(!CK_ONE_CLUSTER || (CK_SIGNALS == 0 && CK_MOST_UNITS <= 16),
              "a cluster has at most 16 units, and nothing in the header");
static_assert(!CK_NOTHING_CROSSES || (!CK_ONE_CLUSTER && CK_SIGNALS == 0 && CK_TAGGED_WORDS == 0),
              "signals, tagged words and what a cluster shares cross");
// The tagged words of a unit of a cluster, in its shared memory.
#define CK_NEAR_WORDS_BYTES (CK_ONE_CLUSTER ? (16 * CK_TAGGED_WORDS + 255) / 256 * 256 : 0)
// The header at the beginning of the workspace, all zeros when a launch begins: a line of 128 bytes for the
// counter, each signal, and two of each die, since one that is polled should not slow down others; tagged
// words are 8 bytes, twice.
#define CK_FRONT_BYTES \
  ((128 * (1 + CK_DIE_LINES + CK_SIGNALS) + 16 * CK_TAGGED_WORDS + 255) / 256 * 256)
// Where nothing crosses there is no header, so that a launch has nothing to clear. Its place stays free: nvcc
// needs more registers for own memory that begins where the workspace does, and attention/64 spilled.
#define CK_HEADER_BYTES (CK_NOTHING_CROSSES ? 0 : CK_FRONT_BYTES)
static_assert(CK_FRONT_BYTES <= 65536, "the header takes at most 64 KB: use fewer tagged words");
static_assert(CK_SCRATCH_BYTES % 16 == 0 && CK_OWN_BYTES % 16 == 0, "memory is divided at borders of 16");
static_assert(CK_SCRATCH_BYTES >= 1024, "templates count on 1024 bytes of scratch memory");

struct alignas(128) CkLine {
  u32 value;
};

struct CkDie {
  CkLine arrived;   // blocks of the die, at all barriers together
  CkLine released;  // barriers that all units have reached
};

struct CkHeader {
  CkLine arrived;
#if CK_DIES > 1
  CkDie dies[CK_DIES];
#endif
  CkLine signals[CK_SIGNALS + 1];  // the last one is not there: no array is empty
};

struct CkUnit {
  i32 index;     // 0 <= index < count
  i32 count;     // units of the launch
  u8* own;       // CK_OWN_BYTES of this unit alone
  u8* scratch;   // CK_SCRATCH_BYTES of shared memory for templates while they run
  u8* resident;  // CK_RESIDENT_BYTES of shared memory; null in the portable kernel
  CkHeader* header;  // null where nothing crosses, and tagged too
  u64* tagged;   // 2 * CK_TAGGED_WORDS tagged words: of all units, or of this one in a cluster
  bool cluster;  // all units are one
  u32 epoch;     // what ck_awaited reaches at the barrier at hand
  u32 step;      // exchanges so far (cocktail_exchange.h)
  u32* error;    // the error word in pinned host memory, or null
  const i64* sizes;  // CK_SIZES launch parameters; for the program's function alone
};

// A loop whose trips the threads of all units share: the first trip of this thread, and how far its next one
// is. A warp takes a run of trips, so that its accesses coalesce, and units take warps in turn, so that a few
// trips are spread over all units.
CK_INLINE i32 ck_first_trip(const CkUnit* unit) {
  return (ck_warp() * unit->count + unit->index) * CK_WARP + ck_warp_lane();
}
CK_INLINE i32 ck_next_trip(const CkUnit* unit) { return unit->count * CK_THREADS; }

// The only parameter of a kernel: operands, results, workspace, error word; and the launch parameters.
struct CkLaunch {
  void* pointers[CK_OPERANDS + CK_RESULTS + 2];
#if CK_SIZES > 0
  i64 sizes[CK_SIZES];
#endif
};

// The block's shared memory: scratch, and in the resident kernel own memory, tagged words and resident memory
// behind it.
CK_INLINE u8* ck_scratch() { return ck_arena(); }

// Where nothing crosses, a text that has the units meet does not compile: there is no header to meet in.
#if !CK_NOTHING_CROSSES

// ---- the barrier of all units ----------------------------------------------------------------------------

// The threads of a unit that meet others: the first one. Its arrival releases, and its wait acquires.
#if CK_DIES > 1
// Blocks of one die count themselves, the last of them counts the die, and the last of all tells every die:
// few blocks wait for each line, and only one of a die crosses to the common one. The dispatcher deals blocks
// out to the dies in turn. Where it does not, a barrier takes longer. (Counters for groups of blocks: the
// tree of Xiao and Feng, IPDPS'10.)
CK_INLINE u32 ck_next_epoch(u32 epoch, i32) { return epoch + 1; }
CK_INLINE void ck_come(CkHeader* header, i32 count, u32 epoch) {
  const i32 number = ck_block_number() % CK_DIES, dies = count < CK_DIES ? count : CK_DIES;
  const u32 members = u32((count - number + CK_DIES - 1) / CK_DIES);
  if (ck_fetch_add(&header->dies[number].arrived.value, 1u) + 1 != epoch * members) return;
  if (ck_fetch_add(&header->arrived.value, 1u) + 1 != epoch * u32(dies)) return;
  for (i32 die = 0; die < dies; ++die) ck_store_release(&header->dies[die].released.value, epoch);
}
CK_INLINE const u32* ck_awaited(const CkHeader* header) {
  return &header->dies[ck_block_number() % CK_DIES].released.value;
}
CK_INLINE u32 ck_barrier_number(u32 epoch, i32) { return epoch; }
#else
CK_INLINE u32 ck_next_epoch(u32 epoch, i32 count) { return epoch + u32(count); }
CK_INLINE void ck_come(CkHeader* header, i32, u32) { ck_add_release(&header->arrived.value, 1u); }
CK_INLINE const u32* ck_awaited(const CkHeader* header) { return &header->arrived.value; }
CK_INLINE u32 ck_barrier_number(u32 epoch, i32 count) { return epoch / u32(count); }
#endif

// Begins with a barrier of the block, so that one release covers the block; alone, a unit has nobody to
// tell. In a cluster every thread arrives and waits, but what the block does in between is ordered by no more
// than its meetings.
CK_INLINE void ck_arrive(CkUnit* unit CK_AND_WHERE) {
  if (unit->count == 1) return;
  if (unit->cluster) {
    ck_block_barrier(CK_HERE);
    return ck_cluster_arrive(CK_HERE);
  }
  ck_release_barrier(CK_HERE);
  unit->epoch = ck_next_epoch(unit->epoch, unit->count);
  if (ck_lane() == 0) ck_come(unit->header, unit->count, unit->epoch);
}

// Ends with a ck_block_barrier, for one unit too: a barrier shows a block's writes to all its threads.
CK_INLINE void ck_wait(CkUnit* unit CK_AND_WHERE) {
  if (unit->count != 1 && unit->cluster) {
    ck_cluster_wait(CK_HERE);
  } else if (unit->count != 1 && ck_lane() == 0) {
    u32 epoch = unit->epoch, barrier = ck_barrier_number(epoch, unit->count);
    ck_poll(ck_awaited(unit->header), [=](u32 seen) { return i32(seen - epoch) >= 0; },
            CkWatch{unit->error, barrier, "the barrier of units"} CK_AND_HERE);
  }
  ck_block_barrier(CK_HERE);
}

// ---- signals --------------------------------------------------------------------------------------------

// Tells those who await it that this unit wrote what step `value` needs. One writer per signal; values grow
// from 1.
CK_INLINE void ck_signal(CkUnit* unit, i32 signal, u32 value CK_AND_WHERE) {
  ck_release_barrier(CK_HERE);
  if (ck_lane() == 0) ck_store_release(&unit->header->signals[signal].value, value);
}

CK_INLINE void ck_await_signal(CkUnit* unit, i32 signal, u32 value CK_AND_WHERE) {
  if (ck_lane() == 0) {
    ck_poll(&unit->header->signals[signal].value, [=](u32 seen) { return i32(seen - value) >= 0; },
            CkWatch{unit->error, value, "a signal"} CK_AND_HERE);
  }
  ck_block_barrier(CK_HERE);
}

// ---- tagged words ---------------------------------------------------------------------------------------
//
// Small values cross units without a barrier: each 32-bit word travels with the number of its step in one
// 64-bit word, which its readers poll. Two buffers take turns, so a writer may be one step ahead: every
// writer of an exchange must have received all of step s (and met: see below) before it sends step s + 1.
// Steps count from 1.
//
// The words lie in the header, once for all units, or, in a cluster, in the shared memory of each: then who
// sends stores a word to each of them, and who receives polls its own. A unit ends after it has received all
// that is sent to it, so no word comes to the memory of one that is gone.

// The exchange that begins at word `first` of CK_TAGGED_WORDS and is `words` long: 2 * words tagged words.
CK_INLINE u64* ck_exchange(CkUnit* unit, i32 first) { return unit->tagged + 2 * i64(first); }

// How often the words are there, and where copy `number` of the word at `at` is.
CK_INLINE i32 ck_word_copies(const CkUnit* unit) { return unit->cluster ? unit->count : 1; }
CK_INLINE u64* ck_word_copy(const CkUnit* unit, u64* at, i32 number CK_AND_WHERE) {
  return unit->cluster ? ck_remote(at, number CK_AND_HERE) : at;
}

// Values are of any type of 32 bits.

// Sends `count` words of values to [first, first + count) of an exchange of `words` words. Begins with values
// that the block sees, hence after a ck_block_barrier that follows its last ck_receive_tagged.
template <class T>
CK_INLINE void ck_send_tagged(u64* exchange, i32 words, i32 first, const T* values, i32 count, u32 step) {
  u64* to = exchange + (step & 1u) * u32(words) + first;
  u64 tag = u64(step) << 32;
  CK_NO_UNROLL
  for (i32 i = ck_lane(); i < count; i += CK_THREADS) {
    ck_store_relaxed(to + i, tag | ck_bitcast<u32>(values[i]));
  }
}

// What a lane receives at a time: its loads are under way together.
template <i32 AT_ONCE>
struct CkTagged {
  u64 words[AT_ONCE];
};

// Receives [first, first + count) of the exchange into values; a ck_block_barrier shows them to the other
// threads. AT_ONCE: most words of a lane that are under way together. A lane polls words of its own only: a
// word that many lanes poll is late for all of them.
template <i32 AT_ONCE = 4, class T>
CK_INLINE void ck_receive_tagged(CkUnit* unit, T* values, const u64* exchange, i32 words, i32 first,
                                 i32 count, u32 step CK_AND_WHERE) {
  const u64* from = exchange + (step & 1u) * u32(words) + first;
  CK_NO_UNROLL
  for (i32 base = ck_lane(); base < count; base += AT_ONCE * CK_THREADS) {
    auto read = [=] {
      CkTagged<AT_ONCE> seen;
#pragma unroll
      for (i32 i = 0; i < AT_ONCE; ++i) {
        const i32 at = base + i * CK_THREADS;
        seen.words[i] = u64(step) << 32;
        if (i == 0 || at < count) seen.words[i] = ck_load_relaxed(from + at);
      }
      return seen;
    };
    auto done = [=](const CkTagged<AT_ONCE>& seen) {
      bool all = true;
#pragma unroll
      for (i32 i = 0; i < AT_ONCE; ++i) all &= u32(seen.words[i] >> 32) == step;
      return all;
    };
    const auto seen = ck_poll_with(read, done, CkWatch{unit->error, step, "tagged words"} CK_AND_HERE);
#pragma unroll
    for (i32 i = 0; i < AT_ONCE; ++i) {
      const i32 at = base + i * CK_THREADS;
      if (i == 0 || at < count) values[at] = ck_bitcast<T>(u32(seen.words[i]));
    }
  }
}

#endif  // !CK_NOTHING_CROSSES

// ---- clusters -------------------------------------------------------------------------------------------

// The barrier of the blocks of a cluster, up to 16: what any of them wrote, to shared memory of any of them
// (ck_remote) or to global memory, all see.
CK_INLINE void ck_cluster_barrier(CK_WHERE) {
  ck_cluster_arrive(CK_HERE);
  ck_cluster_wait(CK_HERE);
}

// ---- failure --------------------------------------------------------------------------------------------

// Notes that the program failed, with 0 < code < CK_SPUN; the first code noted stays. The unit goes on.
CK_INLINE void ck_fail(CkUnit* unit, u32 code) {
  u32* word = unit->error;
  if (word && ck_load_relaxed<CK_SYSTEM>(word) == 0) ck_store_relaxed<CK_SYSTEM>(word, code);
}

// ---- entries --------------------------------------------------------------------------------------------

CK_INLINE u8* ck_workspace(const CkLaunch& launch) { return (u8*)launch.pointers[CK_OPERANDS + CK_RESULTS]; }

// In the portable kernel the own memory of all units lies behind what they share. If that follows from launch
// parameters (CK_SHARED_BYTES is 0), it lies in front of it.
constexpr bool kCkOwnFirst = CK_SIZES > 0 && CK_SHARED_BYTES == 0;

#if defined(CK_OWN_SIZE)
static_assert(CK_OWN_BYTES == 0 && CK_OWN_SIZE < CK_SIZES, "a launch parameter is its size");
CK_INLINE i64 ck_own_bytes(const CkLaunch& launch) { return launch.sizes[CK_OWN_SIZE]; }
#else
CK_INLINE constexpr i64 ck_own_bytes(const CkLaunch&) { return CK_OWN_BYTES; }
#endif

// Bytes of the workspace in front of what all units share.
template <bool RESIDENT>
CK_INLINE i64 ck_front_bytes(i64 own_bytes = CK_OWN_BYTES) {
  if (RESIDENT || !kCkOwnFirst) return CK_FRONT_BYTES;
  return CK_FRONT_BYTES + (i64(ck_block_count()) * own_bytes + 255) / 256 * 256;
}

template <bool RESIDENT>
CK_INLINE CkUnit ck_unit(const CkLaunch& launch) {
  constexpr bool CLUSTER = RESIDENT && CK_ONE_CLUSTER;
  i32 index = ck_block_number();
  u8* near = ck_arena() + CK_SCRATCH_BYTES + ck_own_bytes(launch);
  u8* own_of_all = ck_workspace(launch) + CK_FRONT_BYTES + CK_SHARED_BYTES;
  CkUnit unit;
  unit.index = index;
  unit.count = RESIDENT && CK_RESIDENT_UNITS == CK_MOST_UNITS ? CK_MOST_UNITS : ck_block_count();
  unit.own = RESIDENT ? ck_arena() + CK_SCRATCH_BYTES : own_of_all + i64(index) * ck_own_bytes(launch);
  unit.scratch = ck_arena();
  unit.resident = RESIDENT ? near + CK_NEAR_WORDS_BYTES : nullptr;
#if CK_NOTHING_CROSSES
  unit.header = nullptr;
  unit.tagged = nullptr;
#else
  unit.header = (CkHeader*)ck_workspace(launch);
  unit.tagged = CLUSTER ? (u64*)near : (u64*)&unit.header->signals[CK_SIGNALS];
#endif
  unit.cluster = CLUSTER;
  unit.epoch = 0;
  unit.step = 0;
  unit.error = (u32*)launch.pointers[CK_OPERANDS + CK_RESULTS + 1];
#if CK_SIZES > 0
  unit.sizes = launch.sizes;
#endif
  return unit;
}

// Clears the tagged words of a unit of a cluster before another may send to them.
template <bool RESIDENT>
CK_INLINE void ck_begin(CkUnit* unit CK_AND_WHERE) {
  if constexpr (RESIDENT && CK_ONE_CLUSTER && CK_TAGGED_WORDS > 0) {
    CK_NO_UNROLL
    for (i32 i = ck_lane(); i < 2 * CK_TAGGED_WORDS; i += CK_THREADS) unit->tagged[i] = 0;
    ck_cluster_barrier(CK_HERE);
  }
}

// Resident: one block per unit, own and resident memory in its shared memory, so the grid has CK_MOST_UNITS
// blocks, and is one cluster if the program says so. Portable: any grid up to that, own memory in the
// workspace.
#define CK_KERNEL(NAME, RESIDENT)                                                              \
  CK_KERNEL_HEAD NAME(CK_KERNEL_CONSTANT CkLaunch launch) {                                    \
    i64 front_bytes = ck_front_bytes<RESIDENT>(ck_own_bytes(launch));                          \
    CkUnit unit = ck_unit<RESIDENT>(launch);                                                   \
    ck_begin<RESIDENT>(&unit);                                                                 \
    ck_body<RESIDENT>((const void* const*)launch.pointers, launch.pointers + CK_OPERANDS,      \
                      ck_workspace(launch) + front_bytes, &unit);                              \
  }

#if defined(CK_EMULATED)
#if defined(CK_OWN_SIZE)
#define CK_OWN_PLACE CK_OWN_SIZE
#else
#define CK_OWN_PLACE -1
#endif
#define CK_DESCRIBE                                                                              \
  static void ck_run_resident(const void* launch) { ck_resident(*(const CkLaunch*)launch); }     \
  static void ck_run_portable(const void* launch) { ck_portable(*(const CkLaunch*)launch); }     \
  extern "C" const ck_emulation::Program ck_emulation::ck_emulation_program = {                  \
      CK_THREADS,      CK_OPERANDS,    CK_RESULTS,      CK_MOST_UNITS, CK_RESIDENT_UNITS,        \
      CK_SIZES,        CK_OWN_PLACE,   CK_HEADER_BYTES, CK_FRONT_BYTES, CK_SHARED_BYTES,         \
      CK_OWN_BYTES,    CK_SCRATCH_BYTES, CK_NEAR_WORDS_BYTES + CK_RESIDENT_BYTES,                \
      {ck_run_resident, ck_run_portable}};
#else
#define CK_DESCRIBE
#endif

// Stands behind ck_body. The kernels may be compiled side by side, each as a part of the text.
#if !defined(CK_PART_NUMBER)
#define CK_ENTRIES              \
  CK_KERNEL(ck_resident, true)  \
  CK_KERNEL(ck_portable, false) \
  CK_DESCRIBE
#elif CK_PART_NUMBER == 0
#define CK_ENTRIES CK_KERNEL(ck_resident, true)
#else
#define CK_ENTRIES CK_KERNEL(ck_portable, false)
#endif

#endif  // COCKTAIL_UNITS_H
