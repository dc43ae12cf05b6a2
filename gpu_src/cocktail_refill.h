// A loop whose trips the threads of all units share, each trip a loop of unknown length. A thread that is
// done with its trip takes the next one of its block, while others still run theirs (persistent threads: Aila
// and Laine, HPG'09). The lanes of a warp meet before they begin the same few iterations again: left to
// itself, a compiler lets all of them wait for the longest trip. See jax_cocktail/codegen/threads.py.
#ifndef COCKTAIL_REFILL_H
#define COCKTAIL_REFILL_H

#include "cocktail_base.h"
#include "cocktail_units.h"

// Lanes of a warp that have nothing to do, from which on it is worth taking trips for them: the others wait.
#define CK_RESTING (CK_WARP / 4)

CK_INLINE u32* ck_trips_taken(const CkUnit* unit) { return ck_in_shared((u32*)unit->scratch); }

// Before the loop, and behind it: scratch memory holds the number of trips that threads have taken.
CK_INLINE void ck_begin_trips(const CkUnit* unit CK_AND_WHERE) {
  ck_block_barrier(CK_HERE);
  if (ck_lane() == 0) *ck_trips_taken(unit) = 0;
  ck_block_barrier(CK_HERE);
}
CK_INLINE void ck_end_trips(CK_WHERE) { ck_block_barrier(CK_HERE); }

// True for all lanes of the warp, or for none.
CK_INLINE bool ck_many_rest(bool going CK_AND_WHERE) {
  return ck_lanes_in(ck_lanes_where(!going CK_AND_HERE)) >= CK_RESTING;
}

CK_INLINE bool ck_some(bool said CK_AND_WHERE) { return ck_lanes_where(said CK_AND_HERE) != 0; }

// Hands a trip to each lane that takes one: to those of a warp a run, so that accesses coalesce; units take
// runs in turn. `trips` if there is none. True if a lane of the warp has a trip.
CK_INLINE bool ck_take_trips(const CkUnit* unit, bool takes, i32 trips, i32* trip CK_AND_WHERE) {
  const u64 taking = ck_lanes_where(takes CK_AND_HERE);
  u32 first = 0;
  if (ck_warp_lane() == 0 && taking) first = ck_count(ck_trips_taken(unit), u32(ck_lanes_in(taking)));
  first = ck_word_from_lane(first, 0 CK_AND_HERE);
  if (takes) {
    const u64 before = (u64(1) << ck_warp_lane()) - 1;
    const i64 place = i64(first) + ck_lanes_in(taking & before);
    const i64 next = (place / CK_WARP * unit->count + unit->index) * CK_WARP + place % CK_WARP;
    *trip = next < trips ? i32(next) : trips;
  }
  return ck_some(*trip < trips CK_AND_HERE);
}

#endif  // COCKTAIL_REFILL_H
