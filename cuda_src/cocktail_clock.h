// The clock of a timeline (cocktail_trace.h): the cycles of a multiprocessor.
#ifndef COCKTAIL_CLOCK_H
#define COCKTAIL_CLOCK_H

#include "cocktail_units.h"

#if defined(CK_EMULATED)
enum : u64 { CK_CLOCKS_DIFFER = 0 };
#else
enum : u64 { CK_CLOCKS_DIFFER = 1 };
#endif

CK_INLINE u64 ck_cycles() { return u64(clock64()); }
CK_INLINE u64 ck_wall() { return ck_nanoseconds(); }

// The ring that this thread writes: the first thread of the block writes the only one, or the first thread of
// each warp its own. -1: none.
CK_INLINE i32 ck_writer() {
  constexpr i32 SHARE = CK_TRACE_WRITERS == 1 ? CK_THREADS : CK_WARP;
  return ck_lane() % SHARE == 0 ? ck_lane() / SHARE : -1;
}

// Near memory: who stamps does not wait for the memory of the ring.
template <class Ring>
CK_INLINE u32* ck_stamps_of(Ring*, CkUnit* unit, i32 writer) {
  return (u32*)(unit->own + CK_TRACE_OFFSET) + writer;
}

#endif  // COCKTAIL_CLOCK_H
