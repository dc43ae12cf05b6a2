// Waiting for words that other threads write, and promises about where memory is. For all GPUs.
#ifndef COCKTAIL_WAIT_H
#define COCKTAIL_WAIT_H

#include "cocktail_base.h"

// A pointer that is into shared memory in the resident kernel, into global memory in the portable one.
template <bool RESIDENT, class T>
CK_INLINE T* ck_near(T* at CK_AND_WHERE) {
  if constexpr (RESIDENT) {
    return ck_in_shared(at);
  } else {
    return ck_far(at CK_AND_HERE);
  }
}

// What a wait is for, in reports, and whom to tell when it never ends.
struct CkWatch {
  u32* error;        // error word in pinned host memory, or null
  u32 phase;         // which barrier or step: its low 16 bits are reported
  const char* what;  // for the emulator's reports
};

// The error word after a wait that passed CK_SPIN_LIMIT: this bit, the block in 15 bits, the phase in 16.
enum : u32 { CK_SPUN = 0x80000000u };

CK_NOINLINE __attribute__((unused)) void ck_give_up(const CkWatch& watch) {
  if (watch.error) {
    u32 block = u32(ck_block_number()) & 0x7fffu, phase = watch.phase & 0xffffu;
    ck_store_release<CK_SYSTEM>(watch.error, CK_SPUN | block << 16 | phase);
  }
  ck_trap();
}

// Calls `read` until `done` holds of what it returns, and returns that. Where CK_SPIN_LIMIT is defined, so
// many polls in vain end the launch. `read` and `done` change nothing.
template <class Read, class Done>
CK_INLINE auto ck_poll_with(Read read, Done done, CkWatch watch CK_AND_WHERE) {
  auto seen = read();
  for (u32 polls = 0; !done(seen); ++polls, seen = read()) {
#if defined(CK_SPIN_LIMIT)
    if (polls >= u32(CK_SPIN_LIMIT)) ck_give_up(watch);
    constexpr bool bounded = true;
#else
    constexpr bool bounded = false;
#endif
#if defined(CK_EMULATED)
    ck_emulation::poll_failed(watch.what, polls == 0, bounded, {CK_PLACED});
#else
    (void)bounded;
    ck_pause();
#endif
  }
  return seen;
}

// Returns the word at `at` as soon as `done(word)`, which holds of all later words too: afterwards, what its
// writer released is visible. Where there is a fence that only acquires, the polls are relaxed and the fence
// follows the last one: a relaxed read of what a release wrote, and then the fence, synchronize with the
// release. An acquiring read empties the first-level cache, so to acquire at each poll would do so each time.
template <CkScope S = CK_GPU, class T, class Done>
CK_INLINE T ck_poll(const T* at, Done done, CkWatch watch CK_AND_WHERE) {
#if CK_HAS_ACQUIRE_FENCE
  const T seen = ck_poll_with([=] { return ck_load_relaxed<S>(at); }, done, watch CK_AND_HERE);
  ck_fence_acquire<S>(at);
  return seen;
#else
  return ck_poll_with([=] { return ck_load_acquire<S>(at); }, done, watch CK_AND_HERE);
#endif
}

#endif  // COCKTAIL_WAIT_H
