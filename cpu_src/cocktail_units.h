// Units: the threads that run one call of a program together, and the barrier between them.
//
// Units may leave at a barrier: the runtime dismisses those that have lost their core. The others get new
// indices, and share the remaining work. So a program keeps nothing in a unit's own memory from one barrier
// to the next that another unit does not have too.
//
// The barrier is split: `ck_arrive` publishes this unit's writes, and `ck_wait` returns when all units of the
// team have arrived. They alternate in every unit: arrive, wait, arrive, wait. Up to CK_FLAT_UNITS units read
// each other's counters (one cache line moves per neighbour). More units use a combining tree (Yew, Tzeng and
// Lawrie 1987), whose last unit notifies all. Counters only grow and are never reset.
#ifndef COCKTAIL_UNITS_H
#define COCKTAIL_UNITS_H

#include "cocktail_base.h"

// Programs and runtime share the layout below; a runtime refuses programs of another version.
enum : u32 { CK_UNITS_VERSION = 5 };
enum : i64 { CK_FLAT_UNITS = 8, CK_MOST_UNITS = 256 };
enum : u64 { CK_NEVER = ~u64(0) };

// Neighbouring lines are fetched in pairs: a counter has two of them to itself.
struct alignas(128) CkCounter {
  u64 value;
};

struct CkUnit;

struct alignas(128) CkTeam {
  CkCounter* units;                         // one per unit: how often it arrived
  CkCounter* groups;                        // one per CK_FLAT_UNITS units: arrivals
  void (*yield)(CkUnit* unit, u64 times);   // lends the core; `times`: how often it was called in this wait
  bool (*change)(CkUnit* unit);             // gives the unit its new index; true: the unit leaves
  u64 spins;                                // polls before the first yield
  u64 change_at;                            // the barrier from which on units leave; CK_NEVER: none
  CkCounter root;                           // arrivals of whole groups
  CkCounter released;                       // barriers that all units have reached
};

struct CkUnit {
  i64 index;  // 0 is the caller
  i64 count;
  u8* own;    // memory of this unit alone, on a page border
  CkTeam* team;
  const i64* sizes;  // the launch parameters of the call
  const u64* alarm;  // of the call; not 0: units ask whether they stop (see also `ck_may_end`)
  bool (*stops)(CkUnit* unit, i64 loop, i64 trip);
};

#if defined(__x86_64__) || defined(__i386__)
CK_INLINE void ck_pause() { __builtin_ia32_pause(); }
#elif defined(__aarch64__)
CK_INLINE void ck_pause() { __asm__ volatile("isb" ::: "memory"); }
#else
CK_INLINE void ck_pause() {}
#endif

// Returns when the counter has reached `epoch`.
CK_INLINE void ck_await(const u64* counter, u64 epoch, CkUnit* unit) {
  u64 spins = unit->team->spins;
  for (u64 polls = 0; __atomic_load_n(counter, __ATOMIC_ACQUIRE) < epoch; ++polls) {
    if (polls < spins) {
      ck_pause();
    } else {
      unit->team->yield(unit, polls - spins);
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
  u64 before = epoch - 1;  // else the call is stopped
  __atomic_compare_exchange_n(&team->released.value, &before, epoch, false, __ATOMIC_RELEASE,
                              __ATOMIC_RELAXED);
}

CK_NOINLINE __attribute__((unused)) bool ck_wait_for_all(CkUnit* unit) {
  CkTeam* team = unit->team;
  const CkCounter* units = team->units;
  u64 epoch = __atomic_load_n(&units[unit->index].value, __ATOMIC_RELAXED);
  if (unit->count > CK_FLAT_UNITS) {
    ck_await(&team->released.value, epoch, unit);
  } else {
    for (i64 other = 0; other < unit->count; ++other) ck_await(&units[other].value, epoch, unit);
  }
  // The caller sets it before it arrives, and not again before all have changed. A unit that stops sets it to
  // 0 before it lets the others pass all barriers.
  return CK_UNLIKELY(__atomic_load_n(&team->change_at, __ATOMIC_RELAXED) <= epoch) && team->change(unit);
}

CK_INLINE void ck_arrive(const CkUnit* unit) {
  if (unit->count == 1) return;
  u64* arrived = &unit->team->units[unit->index].value;
  u64 epoch = __atomic_load_n(arrived, __ATOMIC_RELAXED) + 1;
  __atomic_store_n(arrived, epoch, __ATOMIC_RELEASE);
  if (CK_UNLIKELY(unit->count > CK_FLAT_UNITS)) ck_arrive_in_tree(unit, epoch);
}

// True if the unit leaves: its program returns at once.
CK_INLINE bool ck_wait(CkUnit* unit) { return unit->count != 1 && ck_wait_for_all(unit); }

// At the head of an iteration: true if the unit leaves, because the call is stopped. `loop`: its number in
// the program; `trip`: the number of its iterations so far; -1: nobody counts them. Programs keep the
// address of the alarm.
CK_INLINE bool ck_stops(CkUnit* unit, const u64* alarm, i64 loop, i64 trip) {
  return CK_UNLIKELY(__atomic_load_n(alarm, __ATOMIC_RELAXED) != 0) && unit->stops(unit, loop, trip);
}

// At the head of a step of a recursion, which goes on while the top of its stack is at least 0: true if it is
// not, or if the alarm rings. The lower half of an alarm that rings is more than any top, so one comparison
// finds both.
CK_INLINE bool ck_may_end(const u64* alarm, i32 top) {
  const i32 least = i32(__atomic_load_n(alarm, __ATOMIC_RELAXED));
  if (least < 0) __builtin_unreachable();  // then an index that is `top` needs no test for less than 0
  return CK_UNLIKELY(top < least);
}

// Read by the runtime before it calls the program.
CK_EXPORT const u32 ck_units_version;
#if CK_IN_PART(0)
const u32 ck_units_version __attribute__((used)) = CK_UNITS_VERSION;
#endif

#endif  // COCKTAIL_UNITS_H
