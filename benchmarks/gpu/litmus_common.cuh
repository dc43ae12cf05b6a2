// What the litmus tests in litmus.cu share: what units show to each other, roles, delays, and words that are
// checked. litmus.py joins both files.
#include "cocktail_base.h"
#include "cocktail_elementary.h"
#include "cocktail_gemv_held.h"
#include "cocktail_units.h"

enum : i32 {
  PAYLOAD = 2 * CK_THREADS,  // words of a message
  SHIFT = CK_WARP + 5,       // a thread reads what a thread of another warp wrote
  WORDS = 32,                // tagged words of a message
  EACH = 4,                  // tagged words of a unit in an exchange of all
  HELD_K = 64,               // a matrix that stays in registers
  HELD_N = 32,
  STAGGER = 512,  // nanoseconds
};

struct alignas(128) CkCommon {
  f32 vector[2][HELD_K];
  u64 exchange[2 * EACH * CK_MOST_UNITS];
};

// What a unit shows to others.
struct alignas(128) CkArea {
  u32 payload[PAYLOAD];  // plain
  u32 beside[PAYLOAD];   // plain, and not ordered
  u64 words[2 * WORDS];  // tagged
  CkLine word;           // relaxed
  CkLine flags[2];       // plain; those of two trials, so that no reader is overtaken
};
static_assert(sizeof(CkCommon) == LITMUS_COMMON_BYTES, "litmus.py knows this size");
static_assert(sizeof(CkArea) == LITMUS_AREA_BYTES, "litmus.py knows this size");

struct CkLitmus {
  CkUnit* unit;
  CkCommon* common;
  CkArea* areas;
  const f32* weights;
  u32 rounds;
  u32 trials, stale, early, seen;  // of this thread; trials: of lane 0 alone
};

// Weak accesses that race, which C++ has no words for. The emulation must not take them for mistakes.
#if defined(CK_EMULATED)
CK_INLINE u32 ck_load_weak(const u32* at) { return ck_load_relaxed(at); }
CK_INLINE void ck_store_weak(u32* at, u32 x) { ck_store_relaxed(at, x); }
#else
CK_INLINE u32 ck_load_weak(const u32* at) {
  u32 x;
  asm volatile("ld.weak.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
  return x;
}
CK_INLINE void ck_store_weak(u32* at, u32 x) {
  asm volatile("st.weak.u32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}
#endif

// Zero before the first trial. The values of a word differ between trials, those of a trial between words.
CK_INLINE u32 ck_value(u32 trial, i32 word) { return trial * (0x9e3779b1u + 2u * u32(word)); }
CK_INLINE u32 ck_before(u32 trial, u32 period) { return trial > period ? trial - period : 0; }

// Delays half of the trials of a unit by up to `most` nanoseconds.
CK_INLINE void ck_stagger(const CkLitmus& t, u32 trial, u32 most = STAGGER) {
  u32 x = (trial * 0x9e3779b1u + u32(t.unit->index)) * 0x85ebca6bu;
  x = (x ^ x >> 15) * 0xc2b2ae35u;
  if (x >> 31) ck_sleep(x % most);
}

// Units form groups of `group`, in which roles rotate.
CK_INLINE i32 ck_role(const CkLitmus& t, i32 group, u32 trial) {
  return (t.unit->index % group + i32(trial % u32(group))) % group;
}
CK_INLINE i32 ck_member(const CkLitmus& t, i32 group, i32 role, u32 trial) {
  return t.unit->index / group * group + (role + group - i32(trial % u32(group))) % group;
}

CK_INLINE void ck_meet(CkUnit* unit) {
  ck_arrive(unit);
  ck_wait(unit);
}

// Calls `trial(i)` in the units of whole groups. MEETS: a trial has one barrier of all units.
template <i32 GROUP, bool MEETS, class Trial>
CK_INLINE void ck_trials(const CkLitmus& t, Trial trial) {
  const bool idle = t.unit->index >= t.unit->count / GROUP * GROUP;
  CK_NO_UNROLL for (u32 i = 1; i <= t.rounds; ++i) {
    if (!idle) {
      trial(i);
    } else if (MEETS) {
      ck_meet(t.unit);
    }
  }
}

CK_INLINE void ck_put(u32* payload, u32 trial) {
  for (i32 i = ck_lane(); i < PAYLOAD; i += CK_THREADS) payload[i] = ck_value(trial, i);
}
// How many of the thread's words are not those of a trial.
template <class Load>
CK_INLINE u32 ck_wrong_with(u32 trial, Load load) {
  u32 wrong = 0;
  for (i32 i = ck_lane(); i < PAYLOAD; i += CK_THREADS) {
    const i32 at = (i + SHIFT) % PAYLOAD;
    wrong += load(at) != ck_value(trial, at);
  }
  return wrong;
}
CK_INLINE u32 ck_wrong(const u32* plain, u32 trial) {
  return ck_wrong_with(trial, [=](i32 at) { return plain[at]; });
}
CK_INLINE u32 ck_wrong_beside(const u32* racing, u32 trial) {
  return ck_wrong_with(trial, [=](i32 at) { return ck_load_weak(racing + at); });
}

// A word as ck_poll sees it, whatever it is, and the fence of ck_poll.
CK_INLINE u32 ck_look(const u32* at) {
  return ck_poll(at, [](u32) { return true; }, CkWatch{nullptr, 0, "nothing"});
}
