// What the threads of a block do together: reductions over groups of threads, running totals, copies.
//
// Every thread of the block calls a template, with the same arguments but for the values it brings. A
// template ends without a ck_block_barrier(): what it wrote to memory is visible after the caller's next one.
// Those that use the scratch memory begin with a ck_block_barrier() of their own, so that they may follow
// each other.
//
// Rows that groups of threads reduce are written so (GROUP: 1, 2 ... CK_WARP; CK_THREADS: one row at a time):
//
//   CK_FOR_ROWS(GROUP, row, rows) {  // all threads make the same number of turns: row may be beyond the end
//     f32 total = 0;
//     if (row < rows) CK_FOR_GROUP_LANES(GROUP, k, length) total += x[row * length + k];
//     total = ck_group_reduce<GROUP, CkSum>(total);
//     if (row < rows && ck_group_lane<GROUP>() == 0) y[row] = total;
//   }
#ifndef COCKTAIL_BLOCK_H
#define COCKTAIL_BLOCK_H

#include "cocktail_arith.h"
#include "cocktail_elementary.h"
#include "cocktail_units.h"

static_assert(CK_SCRATCH_BYTES >= 1024, "the templates of a block need 1024 bytes of scratch memory");

enum : i32 { CK_MOST_WARPS = 32 };  // of a block

// ---- threads and groups of threads ----------------------------------------------------------------------

// A group is a part of a warp, or the block.
template <i32 GROUP>
CK_INLINE constexpr i32 ck_groups() {
  static_assert(GROUP == CK_THREADS || (GROUP > 0 && GROUP <= CK_WARP && (GROUP & (GROUP - 1)) == 0),
                "a group is 1, 2, 4 ... CK_WARP threads or the whole block");
  return CK_THREADS / GROUP;
}
// This thread's group, and its number in there.
template <i32 GROUP>
CK_INLINE i32 ck_group() {
  return ck_groups<GROUP>() == 1 ? 0 : ck_lane() / GROUP;
}
template <i32 GROUP>
CK_INLINE i32 ck_group_lane() {
  return ck_groups<GROUP>() == 1 ? ck_lane() : ck_lane() % GROUP;
}

// The iterations 0 .. count-1, dealt out to the threads of the block; of each group; rows to groups.
#define CK_FOR_LANES(name, count) for (i32 name = ck_lane(); name < (count); name += CK_THREADS)
#define CK_FOR_GROUP_LANES(GROUP, name, count) \
  for (i32 name = ck_group_lane<GROUP>(); name < (count); name += GROUP)
#define CK_FOR_ROWS(GROUP, name, count) \
  for (i32 name = ck_group<GROUP>(); name - ck_group<GROUP>() < (count); name += ck_groups<GROUP>())

// Where a loop over the elements k .. N-1 of a row begins.
template <i32 N>
CK_INLINE constexpr i32 ck_row_start(i32 k) {
  return k;
}

// ---- operators ------------------------------------------------------------------------------------------
// apply(a, b) of two values of a compute type, and its neutral element.

#define CK_OPERATOR(NAME, FUNCTION, NEUTRAL) \
  struct NAME {                              \
    template <class T>                       \
    CK_INLINE T apply(T a, T b) {            \
      return FUNCTION(a, b);                 \
    }                                        \
    template <class T>                       \
    CK_INLINE T identity() {                 \
      return NEUTRAL;                        \
    }                                        \
  };
template <class T>
CK_INLINE T ck_least() {
  if constexpr (CkType<T>::is_float) {
    return T(-__builtin_inff());
  } else {
    return ck_lowest<T>();
  }
}
template <class T>
CK_INLINE T ck_most() {
  if constexpr (CkType<T>::is_float) {
    return T(__builtin_inff());
  } else {
    return ck_highest<T>();
  }
}
template <class T>
CK_INLINE T ck_all_bits() {
  if constexpr (CkIsBool<T>::value) {
    return true;
  } else {
    return T(~T(0));
  }
}
// log(exp(a) + exp(b)) without overflow; equal infinities add no NaN.
template <class T>
CK_INLINE T ck_log_add_exp(T a, T b) {
  T high = ck_max(a, b);
  T gap = -ck_abs(a - b);
  return a == b ? high + ck_log(T(2)) : high + ck_log1p(ck_exp(gap));
}

CK_OPERATOR(CkSum, ck_add, T(0))
CK_OPERATOR(CkProd, ck_mul, T(1))
CK_OPERATOR(CkMax, ck_max, ck_least<T>())
CK_OPERATOR(CkMin, ck_min, ck_most<T>())
CK_OPERATOR(CkAnd, ck_and, ck_all_bits<T>())
CK_OPERATOR(CkOr, ck_or, T(0))
CK_OPERATOR(CkXor, ck_xor, T(0))
CK_OPERATOR(CkLogAddExp, ck_log_add_exp, ck_least<T>())
#undef CK_OPERATOR

// ---- values of other threads ----------------------------------------------------------------------------
// Of the warp: the thread whose number differs in the bits of `flip`; thread number `lane`; the thread `by`
// before this one (its own value in the first ones). Warps move words; smaller values travel in one. A word
// is not taken apart on its way: sums[upper ? i : j] would have to be in memory to be read as bytes.
#define CK_FROM(NAME, HOW)                                                       \
  template <class T>                                                             \
  CK_INLINE T ck_from_##NAME(T x, i32 HOW) {                                     \
    if constexpr (sizeof(T) >= 4) {                                              \
      return ck_word_from_##NAME(x, HOW);                                        \
    } else {                                                                     \
      typedef typename CkType<T>::bits Bits;                                     \
      const u32 word = ck_word_from_##NAME(u32(ck_bitcast<Bits>(x)), HOW);       \
      return ck_bitcast<T>(Bits(word));                                          \
    }                                                                            \
  }
CK_FROM(partner, flip)
CK_FROM(lane, lane)
CK_FROM(before, by)
#undef CK_FROM

// The value of thread 0 of the block.
template <class T>
CK_INLINE T ck_broadcast(T x) {
  T* slot = (T*)ck_scratch();
  ck_block_barrier();
  if (ck_lane() == 0) *slot = x;
  ck_block_barrier();
  return *slot;
}

// ---- reductions -----------------------------------------------------------------------------------------

// x[0] op x[1] op ... as a balanced tree.
template <class Op, i32 COUNT, class T>
CK_INLINE T ck_fold(const T* x) {
  if constexpr (COUNT == 1) {
    return x[0];
  } else {
    return Op::apply(ck_fold<Op, COUNT / 2>(x), ck_fold<Op, COUNT - COUNT / 2>(x + COUNT / 2));
  }
}

// Everyone's x combined, in every thread of the group. Always in the same order; equal bits in all threads
// of a block (in smaller groups all but the payload of a NaN). Of a block, only the first HAVE threads have
// something: the others bring the identity.
template <i32 GROUP, class Op, i32 HAVE = GROUP, class T>
CK_INLINE T ck_group_reduce(T x) {
  constexpr bool block = ck_groups<GROUP>() == 1;
  constexpr i32 width = GROUP < CK_WARP ? GROUP : CK_WARP, warps = (HAVE + CK_WARP - 1) / CK_WARP;
  for (i32 flip = width / 2; flip > 0; flip /= 2) x = Op::apply(x, ck_from_partner(x, flip));
  if constexpr (block && CK_WARPS > 1) {
    T* slots = (T*)ck_scratch();
    ck_block_barrier();
    if (ck_warp_lane() == 0) slots[ck_warp()] = x;
    ck_block_barrier();
    return ck_fold<Op, (warps < CK_WARPS ? warps : CK_WARPS)>(slots);
  } else {
    return block && CkType<T>::is_float ? ck_from_lane(x, 0) : x;
  }
}

// The best of the elements that a thread has seen: the largest (smallest), and the position of the first NaN.
enum : i32 { CK_NOWHERE = 0x7fffffff };
template <bool IS_MAX, class T>
struct CkArg {
  i32 at;  // begins as the thread's number in the group, where its first element is if it has one
  T best = IS_MAX ? CkMax::identity<T>() : CkMin::identity<T>();
  i32 nan_at = CK_NOWHERE;
};

// Sees x at a position after all others. There is no branch: the loads of later elements do not wait.
template <bool IS_MAX, class T>
CK_INLINE void ck_arg_take(CkArg<IS_MAX, T>& seen, T x, i32 position) {
  const bool wins = IS_MAX ? x > seen.best : x < seen.best;
  seen.best = wins ? x : seen.best;
  seen.at = wins ? position : seen.at;
  if (x != x) seen.nan_at = seen.nan_at < position ? seen.nan_at : position;
}

// The order of elements as integers: the larger the better, NaN best of all, zeros equal.
template <bool IS_MAX, class T>
CK_INLINE auto ck_arg_key(const CkArg<IS_MAX, T>& seen) {
  typedef typename CkChoose<(CkType<T>::width > 32), u64, u32>::type Key;
  typedef typename CkType<T>::bits Bits;
  constexpr Key sign = CkType<T>::is_signed ? Key(1) << (CkType<T>::width - 1) : 0;
  Key key;
  if constexpr (CkType<T>::is_float) {
    key = ck_bitcast<Bits>(T(seen.best + T(0)));  // -0 becomes 0
    key ^= (key & sign) != 0 ? ~Key(0) : sign;    // of negative numbers the bits fall
  } else {
    key = Key(Bits(seen.best)) ^ sign;
  }
  key = IS_MAX ? key : ~key;
  return seen.nan_at != CK_NOWHERE ? ~Key(0) : key;
}

// The largest key of WIDTH neighbouring lanes and its lowest position, in all of them.
template <i32 WIDTH, class Key>
CK_INLINE void ck_arg_lanes(Key& best, i32& at) {
  if constexpr (CK_HAS_WARP_EXTREMES && WIDTH == CK_WARP && sizeof(Key) == 4) {
    const Key most = ck_warp_most(best);
    at = i32(ck_warp_least(Key(best == most ? at : i32(CK_NOWHERE))));
    best = most;
  } else {
    for (i32 flip = WIDTH / 2; flip > 0; flip /= 2) {
      const Key other = ck_from_partner(best, flip);
      const i32 other_at = ck_from_partner(at, flip);
      const bool wins = (other > best) | ((other == best) & (other_at < at));
      best = wins ? other : best;
      at = wins ? other_at : at;
    }
  }
}

// The first position of the best element of the group, in every thread of the group.
template <i32 GROUP, bool IS_MAX, class T>
CK_INLINE i32 ck_arg_position(const CkArg<IS_MAX, T>& seen) {
  auto best = ck_arg_key(seen);
  i32 at = seen.nan_at != CK_NOWHERE ? seen.nan_at : seen.at;
  ck_arg_lanes<(GROUP < CK_WARP ? GROUP : CK_WARP)>(best, at);
  if constexpr (ck_groups<GROUP>() == 1 && CK_WARPS > 1) {
    i32* places = (i32*)ck_scratch();
    auto* slots = (decltype(best)*)(ck_scratch() + CK_MOST_WARPS * sizeof(i32));  // behind all places
    ck_block_barrier();
    if (ck_warp_lane() == 0) {
      slots[ck_warp()] = best;
      places[ck_warp()] = at;
    }
    ck_block_barrier();
    const i32 warp = ck_warp_lane() < CK_WARPS ? ck_warp_lane() : 0;
    best = slots[warp];
    at = places[warp];
    ck_arg_lanes<CK_WARP>(best, at);
  }
  return at;
}

// ---- running totals -------------------------------------------------------------------------------------

// x of this thread of the warp and of all before it.
template <class Op, class T>
CK_INLINE T ck_warp_scan(T x) {
  for (i32 by = 1; by < CK_WARP; by *= 2) {
    T before = ck_from_before(x, by);
    x = ck_warp_lane() >= by ? Op::apply(before, x) : x;
  }
  return x;
}

enum : i32 { CK_SCAN_CHUNK = 16 };  // neighbouring elements of one thread: what all threads read stays in L1

// y[k] = x[0] op ... op x[k] for k < n, or from the last element back; strides in elements. Totals are kept
// in Wide. y may be x itself (with the same stride); otherwise they do not overlap.
template <class Op, class Wide, class T>
CK_INLINE void ck_block_scan(const T* x, i64 xs, T* y, i64 ys, i32 n, bool reverse) {
  typedef typename CkType<T>::compute Compute;
  x += reverse ? (n - 1) * xs : 0;
  y += reverse ? (n - 1) * ys : 0;
  xs = reverse ? -xs : xs;
  ys = reverse ? -ys : ys;
  i32 chunk = (n + CK_THREADS - 1) / CK_THREADS;
  chunk = chunk < CK_SCAN_CHUNK ? chunk : CK_SCAN_CHUNK;
  const Wide nothing = Op::template identity<Wide>();
  Wide carry = nothing;
  Wide* slots = (Wide*)ck_scratch();
  i32 turn = 0;  // two sets of slots take turns: another thread may still read the one before
  ck_block_barrier();
  CK_NO_UNROLL
  for (i32 tile = 0; tile < n; tile += chunk * CK_THREADS, turn ^= CK_WARPS) {
    i32 first = tile + ck_lane() * chunk;
    i32 last = first + chunk < n ? first + chunk : n;
    Wide mine = nothing;
    for (i32 k = first; k < last; ++k) mine = Op::apply(mine, Wide(ck_up(x[k * xs])));
    Wide up_to = ck_warp_scan<Op>(mine);
    if (ck_warp_lane() == CK_WARP - 1) slots[turn + ck_warp()] = up_to;
    Wide before = ck_from_before(up_to, 1);
    before = ck_warp_lane() == 0 ? nothing : before;
    ck_block_barrier();
    Wide warps = ck_warp_scan<Op>(ck_warp_lane() < CK_WARPS ? slots[turn + ck_warp_lane()] : nothing);
    Wide earlier = ck_from_lane(warps, ck_warp() > 0 ? ck_warp() - 1 : 0);
    Wide total = Op::apply(carry, Op::apply(ck_warp() > 0 ? earlier : nothing, before));
    carry = Op::apply(carry, ck_from_lane(warps, CK_WARPS - 1));
    for (i32 k = first; k < last; ++k) {
      total = Op::apply(total, Wide(ck_up(x[k * xs])));
      y[k * ys] = ck_down<T>(Compute(total));
    }
  }
}

// ---- copies ---------------------------------------------------------------------------------------------

template <class Word>
CK_INLINE void ck_copy_words(Word* to, const Word* from, i64 count) {
  i64 i = ck_lane();
  CK_NO_UNROLL
  for (; i + 3 * CK_THREADS < count; i += 4 * CK_THREADS) {  // four loads on their way at a time
    Word held[4];
    for (i32 j = 0; j < 4; ++j) held[j] = from[i + j * CK_THREADS];
    for (i32 j = 0; j < 4; ++j) to[i + j * CK_THREADS] = held[j];
  }
  CK_NO_UNROLL
  for (; i < count; i += CK_THREADS) to[i] = from[i];
}

// By the widest word that everything is a multiple of. Out of line: long, and rarely run; a template: a
// program without copies has none.
template <class Byte>
CK_NOINLINE void ck_copy_unaligned(Byte* to, const Byte* from, i64 bytes) {
  u64 all = (u64)to | (u64)from | u64(bytes);
  if (all % 8 == 0) {
    ck_copy_words((u64*)to, (const u64*)from, bytes / 8);
  } else if (all % 4 == 0) {
    ck_copy_words((u32*)to, (const u32*)from, bytes / 4);
  } else if (all % 2 == 0) {
    ck_copy_words((u16*)to, (const u16*)from, bytes / 2);
  } else {
    ck_copy_words(to, from, bytes);
  }
}

// Memory that does not overlap, at any alignment.
CK_INLINE void ck_copy(void* to, const void* from, i64 bytes) {
  if (CK_LIKELY(((u64)to | (u64)from) % 16 == 0)) {
    ck_copy_words((CkWords*)to, (const CkWords*)from, bytes / 16);
    i64 rest = bytes / 16 * 16 + ck_lane();
    if (rest < bytes) ((u8*)to)[rest] = ((const u8*)from)[rest];
  } else {
    ck_copy_unaligned((u8*)to, (const u8*)from, bytes);
  }
}

// *to = valid ? *from : 0, for `to` in memory of the unit. In the resident kernel the element may come as
// late as ck_moved: many copies of a thread are under way at once, and none takes a register.
template <bool RESIDENT, class T>
CK_INLINE void ck_move(T* to, const T* from, bool valid) {
  if constexpr (RESIDENT) {
    ck_async_copy<sizeof(T)>(to, from, valid);
  } else {
    *to = valid ? *from : T(0);
  }
}
template <bool RESIDENT>
CK_INLINE void ck_moved() {
  if constexpr (RESIDENT) {
    ck_async_commit();
    ck_async_wait<0>();
  }
}

// to[0 .. n) = value.
template <class T>
CK_INLINE void ck_fill(T* to, T value, i64 n) {
  constexpr i64 width = 16 / i64(sizeof(T));
  i64 done = 0;
  if ((u64)to % 16 == 0) {
    T parts[width];
    for (i32 j = 0; j < width; ++j) parts[j] = value;
    CkWords words;
    __builtin_memcpy(&words, parts, 16);
    for (i64 i = ck_lane(); i < n / width; i += CK_THREADS) ((CkWords*)to)[i] = words;
    done = n / width * width;
  }
  for (i64 i = done + ck_lane(); i < n; i += CK_THREADS) to[i] = value;
}

#endif  // COCKTAIL_BLOCK_H
