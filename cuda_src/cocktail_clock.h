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

#include "cocktail_writers.h"

#endif  // COCKTAIL_CLOCK_H
