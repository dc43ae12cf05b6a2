// Finds the routines of other libraries that programs call (cocktail_routines.h).
#ifndef COCKTAIL_RUNTIME_ROUTINES_H
#define COCKTAIL_RUNTIME_ROUTINES_H

#include "cocktail_routines.h"

namespace {

typedef void* FindFunction(const char* name);  // a routine; nullptr: this process does not have it
FindFunction* find_routine = nullptr;

// The name of a routine that this process does not have, or nullptr: all are found. It may wait for the lock
// of the Python interpreter: the caller must hold no lock of its own.
const char* FindRoutines(CkRoutine* routines) {
  FindFunction* find = __atomic_load_n(&find_routine, __ATOMIC_ACQUIRE);
  for (CkRoutine* each = routines; each != nullptr && each->name != nullptr; ++each) {
    if (__atomic_load_n(&each->function, __ATOMIC_ACQUIRE) != nullptr) continue;
    void* function = find == nullptr ? nullptr : find(each->name);
    if (function == nullptr) return each->name;
    __atomic_store_n(&each->function, function, __ATOMIC_RELEASE);
  }
  return nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void ck_set_find_routine(FindFunction* function) {
  __atomic_store_n(&find_routine, function, __ATOMIC_RELEASE);
}

#endif  // COCKTAIL_RUNTIME_ROUTINES_H
