// Exchanges: small arrays that units have written part by part, and that each of them gets as a whole in
// memory of its own, as tagged words (see cocktail_units.h).
//
// All exchanges of a program use the same words in turn, and `unit->step` counts them. In every step every
// unit sends: its own parts, or, where there are fewer parts than units, a word that says it has none. So who
// has received all of a step knows that all have received the one before, whose buffer comes next.
#ifndef COCKTAIL_EXCHANGE_H
#define COCKTAIL_EXCHANGE_H

#include "cocktail_units.h"

// Begins a step: its words are at ck_exchange(unit, 0), CK_TAGGED_WORDS of them.
CK_INLINE void ck_next_step(CkUnit* unit) { ++unit->step; }

// Sends the unit's own parts of an array, to the words from `at` on. The array has ROWS rows of ROW elements;
// part p is RUN elements from p * RUN on in each of them, and unit (FIRST + p) mod count has written it.
template <i32 PARTS, i32 FIRST, i32 ROWS, i32 RUN, i32 ROW, class T>
CK_INLINE void ck_send_parts(CkUnit* unit, i32 at, const T* values CK_AND_WHERE) {
  u64* to = ck_exchange(unit, 0) + (unit->step & 1u) * u32(CK_TAGGED_WORDS) + at;
  u64 tag = u64(unit->step) << 32;
  i32 count = unit->count, copies = ck_word_copies(unit);
  CK_NO_UNROLL
  for (i32 part = (unit->index + count - FIRST % count) % count; part < PARTS; part += count) {
    CK_NO_UNROLL
    for (i32 i = ck_lane(); i < copies * ROWS * RUN; i += CK_THREADS) {
      i32 row = i / RUN % ROWS, place = part * RUN + i % RUN;
      u64* word = ck_word_copy(unit, to + row * (PARTS * RUN) + place, i / (ROWS * RUN) CK_AND_HERE);
      ck_store_relaxed(word, tag | ck_bitcast<u32>(values[row * ROW + place]));
    }
  }
}

// Receives all parts of an array of ROWS rows of ROW elements, of which the first COUNT are parts, from the
// words from `at` on.
template <i32 ROWS, i32 COUNT, i32 ROW, class T>
CK_INLINE void ck_receive_parts(CkUnit* unit, i32 at, T* values CK_AND_WHERE) {
  constexpr i32 PIECES = COUNT == ROW ? 1 : ROWS, PIECE = COUNT == ROW ? ROWS * ROW : COUNT;
  constexpr i32 NEEDED = (PIECE + CK_THREADS - 1) / CK_THREADS, AT_ONCE = NEEDED < 4 ? NEEDED : 4;
  CK_NO_UNROLL
  for (i32 row = 0; row < PIECES; ++row) {
    const u64* words = ck_exchange(unit, 0) + at + row * PIECE;
    ck_receive_tagged<AT_ONCE>(unit, values + row * ROW, words, CK_TAGGED_WORDS, 0, PIECE,
                               unit->step CK_AND_HERE);
  }
}

// The units beyond the PARTS parts from unit FIRST on say that they have nothing to send, in the words from
// `at` on.
template <i32 PARTS, i32 FIRST>
CK_INLINE void ck_send_nothing(CkUnit* unit, i32 at CK_AND_WHERE) {
  i32 idle = (unit->index + unit->count - FIRST % unit->count) % unit->count - PARTS;
  if (idle < 0 || ck_lane() >= ck_word_copies(unit)) return;
  u64* to = ck_exchange(unit, 0) + (unit->step & 1u) * u32(CK_TAGGED_WORDS) + at;
  ck_store_relaxed(ck_word_copy(unit, to + idle, ck_lane() CK_AND_HERE), u64(unit->step) << 32);
}

// And all units hear them.
template <i32 PARTS>
CK_INLINE void ck_receive_nothing(CkUnit* unit, i32 at CK_AND_WHERE) {
  const u64* from = ck_exchange(unit, 0) + (unit->step & 1u) * u32(CK_TAGGED_WORDS) + at;
  u32 step = unit->step;
  CK_NO_UNROLL
  for (i32 i = ck_lane(); i < unit->count - PARTS; i += CK_THREADS) {
    ck_poll_with([=] { return ck_load_relaxed(from + i); }, [=](u64 seen) { return u32(seen >> 32) == step; },
                 CkWatch{unit->error, step, "tagged words"} CK_AND_HERE);
  }
}

#endif  // COCKTAIL_EXCHANGE_H
