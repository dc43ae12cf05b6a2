// What the text of a program itself says about memory.
#ifndef COCKTAIL_PROGRAM_H
#define COCKTAIL_PROGRAM_H

#include "cocktail_units.h"

// An array of equal slices, each touched by one unit only: slice i by unit first + i. Returns what to count
// from so that the own slice is found where it is kept: in the unit's shared memory, at `offset` bytes among
// what is resident there, or in the workspace, where every slice has its place. `bytes`: of a slice.
template <bool RESIDENT>
CK_INLINE u8* ck_part(const CkUnit* unit, u8* workspace, i64 offset, i64 bytes, i32 first) {
  return RESIDENT ? unit->resident + offset - i64(unit->index - first) * bytes : workspace;
}

// In a function of its own for the parts of a parallel loop: the unit, made of what else the function gets.
// Made anew it takes no registers while other parts run.
#define CK_PART                                                                       \
  workspace = ck_far(workspace);                                                      \
  CkLaunch launch;                                                                    \
  launch.pointers[CK_OPERANDS + CK_RESULTS] = workspace - ck_front_bytes<RESIDENT>(); \
  launch.pointers[CK_OPERANDS + CK_RESULTS + 1] = error;                              \
  CkUnit here = ck_unit<RESIDENT>(launch);                                            \
  CkUnit* const unit = &here;

// The same in a function of its own for the loop of a role, which has barriers: `epoch` is that of the last
// one.
#define CK_ROLE \
  CK_PART       \
  unit->epoch = epoch;

#if !CK_NOTHING_CROSSES
// The barrier of units out of line, for programs that have it in very many places.
CK_NOINLINE __attribute__((unused)) u32 ck_arrive_at(CkHeader* header, i32 count, u32 epoch CK_AND_WHERE) {
  CkUnit unit{};
  unit.count = count;
  unit.header = header;
  unit.epoch = epoch;
  ck_arrive(&unit CK_AND_HERE);
  return unit.epoch;
}
CK_NOINLINE __attribute__((unused)) void ck_wait_at(CkHeader* header, i32 count, u32 epoch,
                                                    u32* error CK_AND_WHERE) {
  CkUnit unit{};
  unit.count = count;
  unit.header = header;
  unit.epoch = epoch;
  unit.error = error;
  ck_wait(&unit CK_AND_HERE);
}
CK_INLINE void ck_arrive_apart(CkUnit* unit CK_AND_WHERE) {
  unit->epoch = ck_arrive_at(unit->header, unit->count, unit->epoch CK_AND_HERE);
}
CK_INLINE void ck_wait_apart(CkUnit* unit CK_AND_WHERE) {
  ck_wait_at(unit->header, unit->count, unit->epoch, unit->error CK_AND_HERE);
}
#endif  // !CK_NOTHING_CROSSES

#endif  // COCKTAIL_PROGRAM_H
