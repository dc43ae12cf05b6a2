// The floating-point mode of a thread.
// XLA's threads flush denormals and new threads do not, so results would depend on the unit by default.
#ifndef COCKTAIL_RUNTIME_FLOAT_H
#define COCKTAIL_RUNTIME_FLOAT_H

#include "cocktail_base.h"

namespace {

#if defined(__x86_64__)
u64 FloatMode() { return __builtin_ia32_stmxcsr() & ~0x3fu; }  // without the sticky exception flags
void SetFloatMode(u64 mode) { __builtin_ia32_ldmxcsr(u32(mode)); }
#elif defined(__aarch64__)
u64 FloatMode() {
  u64 mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
void SetFloatMode(u64 mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
#else
u64 FloatMode() { return 0; }
void SetFloatMode(u64) {}
#endif

}  // namespace

#endif  // COCKTAIL_RUNTIME_FLOAT_H
