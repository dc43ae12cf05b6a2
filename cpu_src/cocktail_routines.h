// Routines of other libraries: a program names those that it calls, and the runtime finds them when it loads
// the program.
#ifndef COCKTAIL_ROUTINES_H
#define COCKTAIL_ROUTINES_H

#include "cocktail_base.h"

// Programs and runtime share this layout. A program exports an array `ck_routines`; the last name is null.
struct CkRoutine {
  const char* name;
  void* function;
};

#endif  // COCKTAIL_ROUTINES_H
