// Units: the threads that run one call of a program together, and the barrier between them.
//
// The barrier is split: `ck_arrive` publishes this unit's writes, and `ck_wait` returns when all units of the
// team have arrived. They alternate in every unit: arrive, wait, arrive, wait. Up to CK_FLAT_UNITS units read
// each other's counters (one cache line moves per neighbour). More units use a combining tree (Yew, Tzeng and
// Lawrie 1987), whose last unit notifies all. Counters only grow and are never reset.
#ifndef COCKTAIL_UNITS_H
#define COCKTAIL_UNITS_H

#include "cocktail_base.h"

// Programs and runtime share the layout below; a runtime refuses programs of another version.
enum : u32 { CK_UNITS_VERSION = 1 };
enum : i64 { CK_FLAT_UNITS = 8, CK_MOST_UNITS = 256 };

// Neighbouring lines are fetched in pairs: a counter has two of them to itself.
struct alignas(128) CkCounter {
  u64 value;
};

struct alignas(128) CkTeam {
  CkCounter* units;                // one per unit: how often it arrived
  CkCounter* groups;               // one per CK_FLAT_UNITS units: arrivals
  void (*yield)(u64 times);        // lends the core to others; `times`: how often it was called in this wait
  u64 spins;                       // polls before the first yield
  CkCounter root;                  // arrivals of whole groups
  CkCounter released;              // barriers that all units have reached
};

struct CkUnit {
  i64 index;  // 0 is the caller
  i64 count;
  u8* own;    // memory of this unit alone: ck_own_bytes, on a page border
  CkTeam* team;
};

#if defined(__x86_64__) || defined(__i386__)
CK_INLINE void ck_pause() { __builtin_ia32_pause(); }
#elif defined(__aarch64__)
CK_INLINE void ck_pause() { __asm__ volatile("isb" ::: "memory"); }
#else
CK_INLINE void ck_pause() {}
#endif

// Returns when the counter has reached `epoch`.
CK_INLINE void ck_await(const u64* counter, u64 epoch, const CkTeam* team) {
  for (u64 polls = 0; __atomic_load_n(counter, __ATOMIC_ACQUIRE) < epoch; ++polls) {
    if (polls < team->spins) {
      ck_pause();
    } else {
      team->yield(polls - team->spins);
    }
  }
}

CK_NOINLINE __attribute__((unused)) void ck_arrive_in_tree(const CkUnit* unit, u64 epoch) {
  CkTeam* team = unit->team;
  i64 group = unit->index / CK_FLAT_UNITS, first = group * CK_FLAT_UNITS;
  u64 members = u64(unit->count - first < CK_FLAT_UNITS ? unit->count - first : CK_FLAT_UNITS);
  u64 groups = u64((unit->count + CK_FLAT_UNITS - 1) / CK_FLAT_UNITS);
  if (__atomic_add_fetch(&team->groups[group].value, 1, __ATOMIC_ACQ_REL) != epoch * members) return;
  if (__atomic_add_fetch(&team->root.value, 1, __ATOMIC_ACQ_REL) != epoch * groups) return;
  __atomic_store_n(&team->released.value, epoch, __ATOMIC_RELEASE);
}

CK_NOINLINE __attribute__((unused)) void ck_wait_for_all(const CkUnit* unit) {
  const CkTeam* team = unit->team;
  const CkCounter* units = team->units;
  u64 epoch = __atomic_load_n(&units[unit->index].value, __ATOMIC_RELAXED);
  if (unit->count > CK_FLAT_UNITS) {
    ck_await(&team->released.value, epoch, team);
  } else {
    for (i64 other = 0; other < unit->count; ++other) ck_await(&units[other].value, epoch, team);
  }
}

CK_INLINE void ck_arrive(const CkUnit* unit) {
  if (unit->count == 1) return;
  u64* arrived = &unit->team->units[unit->index].value;
  u64 epoch = __atomic_load_n(arrived, __ATOMIC_RELAXED) + 1;
  __atomic_store_n(arrived, epoch, __ATOMIC_RELEASE);
  if (CK_UNLIKELY(unit->count > CK_FLAT_UNITS)) ck_arrive_in_tree(unit, epoch);
}

CK_INLINE void ck_wait(const CkUnit* unit) {
  if (unit->count != 1) ck_wait_for_all(unit);
}

// Read by the runtime before it calls the program.
CK_EXPORT const u32 ck_units_version;
const u32 ck_units_version __attribute__((used)) = CK_UNITS_VERSION;

#endif  // COCKTAIL_UNITS_H
