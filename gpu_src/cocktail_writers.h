// Who writes the stamps of a timeline, and where: what the cocktail_clock.h of every GPU has in common.
#ifndef COCKTAIL_WRITERS_H
#define COCKTAIL_WRITERS_H

#include "cocktail_units.h"

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

#endif  // COCKTAIL_WRITERS_H
