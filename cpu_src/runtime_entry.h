// The runtime's record of a program.
#ifndef COCKTAIL_RUNTIME_ENTRY_H
#define COCKTAIL_RUNTIME_ENTRY_H

#include "runtime_stop.h"

namespace {

typedef int ProgramFunction(const void* const* operands, void* const* results, u8* workspace, CkUnit* unit);

struct Entry {
  ProgramFunction* function;
  i64 most_units;
  // Nanoseconds of the fastest call on one unit, and on several; 0: not known yet.
  u64 alone, together;
};

// What a call gives to its program, besides operands and results.
struct Given {
  u8* workspace;       // or nullptr to lease `workspace_bytes`
  i64 workspace_bytes;
  i64 own_bytes;       // memory of each unit
  const i64* sizes;    // launch parameters
};

// How a call ended: the program's code, or why and where it was stopped.
struct End {
  int code;
  int reason;  // StopReason
  i64 loop, trip;
  u64 limit;  // nanoseconds
};

u64 Least(const u64* nanoseconds) { return __atomic_load_n(nanoseconds, __ATOMIC_RELAXED); }

void KeepLeast(u64* least, u64 nanoseconds) {
  u64 before = Least(least);
  if (before == 0 || nanoseconds < before) __atomic_store_n(least, nanoseconds, __ATOMIC_RELAXED);
}

}  // namespace

#endif  // COCKTAIL_RUNTIME_ENTRY_H
