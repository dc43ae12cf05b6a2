// The timeline of a call: units note the clock where the program's text has stamps. What the numbers of the
// stamps mean is in a table that the compiler keeps (`codegen.stamps`).
//
// Every writer has a ring of its own: a unit, or each warp of a unit. It keeps the last stamps. The rings are
// one more result of the program; nobody but its writer touches a ring while the program runs.
#ifndef COCKTAIL_TRACE_H
#define COCKTAIL_TRACE_H

#include "cocktail_units.h"
// Of the target: ck_cycles(), ck_wall() in nanoseconds, CK_CLOCKS_DIFFER (the cycles of two units have
// nothing in common), ck_writer(), and ck_stamps_of(ring, unit, writer): where a writer counts its stamps.
#include "cocktail_clock.h"

#if !defined(CK_TRACE_STAMPS) || !defined(CK_TRACE_WRITERS)
#error "the program defines CK_TRACE_STAMPS, of a ring, and CK_TRACE_WRITERS, of a unit"
#endif

struct CkStamp {
  u64 clock, number;
};

// `timeline.read` reads it.
struct CkRing {
  u64 count;                  // stamps so far
  u64 ended;                  // 1: the unit came to the end of the program
  u64 clock, wall;            // at its begin, and
  u64 last_clock, last_wall;  // at its end
  u64 units;                  // of the call
  u64 clocks_differ;
  CkStamp stamps[CK_TRACE_STAMPS];
};

CK_INLINE CkRing* ck_ring_of(u64* rings, const CkUnit* unit, i32 writer) {
  return (CkRing*)rings + (i64(unit->index) * CK_TRACE_WRITERS + writer);
}

CK_INLINE void ck_begin_trace(u64* rings, CkUnit* unit) {
  i32 writer = ck_writer();
  if (writer < 0) return;
  CkRing* ring = ck_ring_of(rings, unit, writer);
  ring->ended = ring->last_clock = ring->last_wall = 0;
  ring->units = u64(unit->count);
  ring->clocks_differ = CK_CLOCKS_DIFFER;
  *ck_stamps_of(ring, unit, writer) = 0;
  ring->wall = ck_wall();
  ring->clock = ck_cycles();
}

CK_INLINE void ck_stamp(u64* rings, CkUnit* unit, u64 number) {
  i32 writer = ck_writer();
  if (writer < 0) return;
  CkRing* ring = ck_ring_of(rings, unit, writer);
  auto* count = ck_stamps_of(ring, unit, writer);
  CkStamp* stamp = &ring->stamps[*count % CK_TRACE_STAMPS];
  stamp->clock = ck_cycles();
  stamp->number = number;
  *count += 1;
}

CK_INLINE void ck_end_trace(u64* rings, CkUnit* unit) {
  i32 writer = ck_writer();
  if (writer < 0) return;
  CkRing* ring = ck_ring_of(rings, unit, writer);
  ring->last_clock = ck_cycles();
  ring->last_wall = ck_wall();
  ring->count = *ck_stamps_of(ring, unit, writer);
  ring->ended = 1;
}

#endif  // COCKTAIL_TRACE_H
