// Run-time indices: XLA clamps starts into range, whatever integer type they have.
#ifndef COCKTAIL_INDEX_H
#define COCKTAIL_INDEX_H

#include "cocktail_base.h"

CK_INLINE i64 ck_clamp_index(i64 start, i64 limit) {
  start = start > limit ? limit : start;
  return start < 0 ? 0 : start;
}
// In 32 bits where that is enough: the limit is a constant.
CK_INLINE i64 ck_clamp_index(i32 start, i64 limit) {
  if (limit > 0x7fffffff) return start < 0 ? 0 : start;
  const i32 below = start > i32(limit) ? i32(limit) : start;
  return below < 0 ? 0 : below;
}
CK_INLINE i64 ck_clamp_index(u32 start, i64 limit) { return ck_clamp_index(i64(start), limit); }
CK_INLINE i64 ck_clamp_index(u64 start, i64 limit) { return start > u64(limit) ? limit : i64(start); }
template <class T>
CK_INLINE i64 ck_clamp_index(T start, i64 limit) {
  return ck_clamp_index(i64(start), limit);
}

// True if a window that starts here is inside the array.
template <class T>
CK_INLINE bool ck_index_within(T start, i64 limit) {
  return ck_clamp_index(start, limit) == i64(start) && !(start > 0 && i64(start) < 0);
}

// The first trip of a parallel loop that this unit executes, where unit `first` executes trip 0.
template <class Unit, class Index>
CK_INLINE Index ck_first_part(const Unit* unit, Index first) {
  Index trip = Index(unit->index) - first % Index(unit->count);
  if (trip < 0) trip += Index(unit->count);
  if (trip < 0) __builtin_unreachable();  // then indices computed from it need no clamp
  return trip;
}

#endif  // COCKTAIL_INDEX_H
