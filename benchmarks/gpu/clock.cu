// A kernel that keeps multiprocessors busy for a given time, and one that counts their clocks in it.
// What stands before this text defines the numbers of a program, CLOCK_SPIN and CLOCK_RATE.
//
// operands[0]: i64 numbers: which kernel, nanoseconds.
// results[0]: u64 [units, 2]: clocks and nanoseconds that passed in each unit.
#include "cocktail_base.h"
#include "cocktail_units.h"

#if defined(CK_EMULATED)
CK_INLINE u64 ck_clocks() { return ck_nanoseconds(); }
#else
CK_INLINE u64 ck_clocks() {
  u64 now;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
  return now;
}
#endif

// Multiply-adds until `wanted` nanoseconds after the first thread of the block began.
CK_INLINE void ck_spin(i64 wanted, u64* found) {
  u64* begin = (u64*)ck_scratch();
  if (ck_lane() == 0) *begin = ck_nanoseconds();
  ck_block_barrier();
  const u64 start = *begin, first = ck_clocks();
  f32 chain[4] = {1, 2, 3, 4};
  const f32 factor = f32(wanted & 1) * 0.5f;  // the compiler does not know it
  while (i64(ck_nanoseconds() - start) < wanted) {
#pragma unroll
    for (i32 i = 0; i < 128; ++i) chain[i % 4] = ck_fma(chain[i % 4], factor, 1.0f);
  }
  const bool kept = chain[0] + chain[1] + chain[2] + chain[3] >= 0.0f;  // always
  if (ck_lane() == 0) {
    found[0] = kept ? ck_clocks() - first : 0;
    found[1] = ck_nanoseconds() - start;
  }
}

// The clock of nanoseconds may advance once in a microsecond, so both ends are moments when it does.
CK_INLINE u64 ck_next_tick(u64 least) {
  const u64 before = ck_nanoseconds();
  u64 now = before;
  while (now == before || now < least) now = ck_nanoseconds();
  return now;
}
CK_INLINE void ck_rate(i64 wanted, u64* found) {
  if (ck_lane() != 0) return;
  const u64 start = ck_next_tick(0), first = ck_clocks();
  const u64 end = ck_next_tick(start + u64(wanted)), last = ck_clocks();
  found[0] = last - first;
  found[1] = end - start;
}

template <bool RESIDENT>
CK_INLINE void ck_body(const void* const* operands, void* const* results, u8*, CkUnit* unit) {
  const i64* numbers = (const i64*)operands[0];
  u64* found = (u64*)results[0] + 2 * unit->index;
  switch (numbers[0]) {
    case CLOCK_SPIN: return ck_spin(numbers[1], found);
    case CLOCK_RATE: return ck_rate(numbers[1], found);
  }
}
CK_ENTRIES
