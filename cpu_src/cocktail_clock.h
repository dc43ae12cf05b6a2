// The clock of a timeline (cocktail_trace.h): the counter of time stamps, which all cores share.
#ifndef COCKTAIL_CLOCK_H
#define COCKTAIL_CLOCK_H

#include "cocktail_base.h"

enum : u64 { CK_CLOCKS_DIFFER = 0 };

// The C library's, under a name that its headers do not declare with other types.
extern "C" int ck_clock_gettime(int clock, i64* time) __asm__("clock_gettime");
CK_INLINE u64 ck_wall() {
  i64 time[2] = {0, 0};             // seconds and nanoseconds
  (void)ck_clock_gettime(1, time);  // CLOCK_MONOTONIC
  return u64(time[0]) * 1000000000u + u64(time[1]);
}

// What stands before it is done before it, as far as the compiler is concerned.
CK_INLINE u64 ck_cycles() {
  __asm__ volatile("" ::: "memory");
#if defined(__x86_64__) || defined(__i386__)
  u64 now = __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  u64 now;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(now));
#else
  u64 now = ck_wall();
#endif
  __asm__ volatile("" ::: "memory");
  return now;
}

// A unit is one thread, and writes one ring.
CK_INLINE i32 ck_writer() { return 0; }
template <class Ring>
CK_INLINE u64* ck_stamps_of(Ring* ring, const CkUnit*, i32) {
  return &ring->count;
}

#endif  // COCKTAIL_CLOCK_H
