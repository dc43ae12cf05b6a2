// What the text of a program itself says about memory.
#ifndef COCKTAIL_PROGRAM_H
#define COCKTAIL_PROGRAM_H

#include "cocktail_units.h"

// Room for one element that one thread writes and all threads of the unit read: the end of its own memory.
template <class T>
CK_INLINE T* ck_mailbox(const CkUnit* unit) {
  return (T*)(unit->own + CK_OWN_BYTES - 64);
}

// An array of equal slices, each touched by one unit only: slice i by unit first + i. Returns what to count
// from so that the own slice is found where it is kept: in the unit's shared memory, at `offset` bytes among
// what is resident there, or in the workspace, where every slice has its place. `bytes`: of a slice.
template <bool RESIDENT>
CK_INLINE u8* ck_part(const CkUnit* unit, u8* workspace, i64 offset, i64 bytes, i32 first) {
  return RESIDENT ? unit->resident + offset - i64(unit->index - first) * bytes : workspace;
}

// In a function of its own for the parts of a parallel loop: what the program's function has as parameters.
// Made anew, a few loads, they take no registers while other parts run.
#define CK_PART                                                    \
  const CkLaunch& launch = *(const CkLaunch*)operands;             \
  CkUnit here = ck_unit<RESIDENT>(launch);                         \
  CkUnit* const unit = &here;                                      \
  void* const* const results = launch.pointers + CK_OPERANDS;      \
  u8* const workspace = ck_workspace(launch) + CK_HEADER_BYTES;

#endif  // COCKTAIL_PROGRAM_H
