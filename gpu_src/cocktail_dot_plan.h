// How a block of threads makes a matrix product whose sizes and strides the compiler knows. The plan is an
// argument of the templates: whoever emits the text chooses it (jax_cocktail/cost/dot_plan.py). The order of
// every sum depends on it, on the sizes and on CK_THREADS.
#ifndef COCKTAIL_DOT_PLAN_H
#define COCKTAIL_DOT_PLAN_H

#include "cocktail_arith.h"
#include "cocktail_precision.h"

enum CkDotPath {
  CK_DOT_SERIAL,   // a thread makes an element
  CK_DOT_COLUMNS,  // few rows, right matrix contiguous along n: columns over lanes, k over groups of lanes
  CK_DOT_LANES,    // few rows, contiguous along k: k over lanes
  CK_DOT_FMA,      // tiles in scratch, sums in registers
  CK_DOT_MMA,      // tiles for tensor cores, in scratch unless the right matrix is packed
};

// In place of b_k: the right matrix is packed for tensor cores. Words are 32 bits along k: one element, or
// two. Blocks of 8 columns and 16 words of k lie one after another, those of the same columns in the order of
// k. A block has a line for each column. Where tensor cores round, the elements are rounded. k is a multiple
// of 16 words, n of 8.
constexpr i64 kCkDotPacked = i64(1) << 62;  // no stride, which may be negative

// One product: sizes, strides in elements, bytes of an element of the operands. `terms`: so many products of
// these sizes are added up; those of several have packed right matrices.
struct CkDotForm {
  i64 m, n, k, a_m, a_k, b_k, b_n, o_m, o_n;
  i32 a_size, b_size, terms;
};

struct CkDotPlan {
  CkDotPath path;
  bool turned;     // the operands change places, so that few rows are rows of the left one
  i32 v, kv;       // elements of a load of the right and of the left operand
  i32 lanes;       // COLUMNS: lanes along n. LANES: lanes of a group
  i32 columns;     // of a chunk, made by one team
  i32 parts;       // warps of a team: they share k (1: each warp, or group of lanes, is a team)
  i32 bm, bn, bk;  // tile
  i32 tm, tn;      // its part for one thread; for one warp, in cells of 16 x kCkCellColumns
  i32 slices;      // of k, made side by side
  i32 stages;      // tiles of the operands in scratch, if the right matrix is not packed
};

// Plans as arguments of templates. Numbers have the names of their fields.
struct CkDotSerial {
  static constexpr CkDotPlan plan{CK_DOT_SERIAL};
};
template <i32 V, i32 KV, i32 LANES, i32 PARTS>
struct CkDotColumns {
  static constexpr CkDotPlan plan{CK_DOT_COLUMNS, false, V, KV, LANES, LANES * V, PARTS};
};
template <i32 V, i32 LANES, i32 COLUMNS, i32 PARTS>
struct CkDotLanes {
  static constexpr CkDotPlan plan{CK_DOT_LANES, false, V, V, LANES, COLUMNS, PARTS};
};
template <CkDotPath PATH, i32 BM, i32 BN, i32 BK, i32 TM, i32 TN, i32 SLICES, i32 STAGES>
struct CkDotTiles {
  static constexpr CkDotPlan plan{PATH, false, 0, 0, 0, 0, 0, BM, BN, BK, TM, TN, SLICES, STAGES};
};
CK_INLINE constexpr CkDotPlan ck_dot_plan_turned(CkDotPlan p) {
  p.turned = true;
  return p;
}
template <class PLAN>
struct CkDotTurned {
  static constexpr CkDotPlan plan = ck_dot_plan_turned(PLAN::plan);
};

constexpr i64 kCkDotBlock = 16;  // words of k that a warp reads at a time, for two instructions

CK_INLINE constexpr i64 ck_dot_ceil(i64 x, i64 y) { return (x + y - 1) / y; }
CK_INLINE constexpr i64 ck_dot_least(i64 x, i64 y) { return x < y ? x : y; }
CK_INLINE constexpr i64 ck_dot_most(i64 x, i64 y) { return x > y ? x : y; }
// The smallest power of two that is not below x.
CK_INLINE constexpr i64 ck_dot_power(i64 x) {
  i64 power = 1;
  while (power < x) power *= 2;
  return power;
}

// Elements of `size` bytes that one load takes when a line has `extent` of them and lines lie `step` apart.
CK_INLINE constexpr i32 ck_dot_vector(i64 size, i64 most, i64 extent, i64 step) {
  i64 v = ck_dot_least(16 / size, 8);
  while (v > 1 && (v > most || extent % v != 0 || step % v != 0)) v /= 2;
  return i32(v);
}

// A stride over one element does not matter.
CK_INLINE constexpr CkDotForm ck_dot_normal(CkDotForm f) {
  if (f.m == 1) f.a_m = f.o_m = 0;
  if (f.n == 1) f.b_n = f.o_n = 0;
  return f;
}

CK_INLINE constexpr CkDotForm ck_dot_turned(CkDotForm f) {
  return {f.n, f.m, f.k, f.b_n, f.b_k, f.a_k, f.a_m, f.o_n, f.o_m, f.b_size, f.a_size, f.terms};
}

CK_INLINE constexpr bool ck_dot_along_k(i64 along_row, i64 along_k) { return along_row != 1 || along_k == 1; }

CK_INLINE constexpr bool ck_dot_packed(CkDotForm f) { return f.b_k == kCkDotPacked; }

// Bytes of a line of an operand's tile in scratch: its elements, and so many that lines start in other banks.
CK_INLINE constexpr i64 ck_dot_pitch(i64 elements, i64 size, bool along_k, bool mma) {
  const i64 bytes = elements * size;
  if (along_k || size == 2) return bytes + 16;
  return mma && bytes % 64 == 0 ? bytes + 32 : bytes;
}

// Between rows of one slice's sums in scratch, in elements, with tensor cores. Rows begin in other banks, or
// `place` of the tile turns them.
CK_INLINE constexpr i32 ck_dot_sums_pitch(i32 bn) { return bn % 32 == 16 ? bn + 8 : bn; }

// Whether a block can make a product of few rows so. `sum`: bytes of a sum; what several warps of a team sum
// goes through scratch.
CK_INLINE constexpr bool ck_dot_is_possible(CkDotForm f, CkDotPlan p, i64 sum) {
  const bool whole = p.path == CK_DOT_COLUMNS ? f.n % p.v == 0 && f.k % p.kv == 0 : f.k % p.v == 0;
  const bool lanes = p.lanes <= CK_WARP && ck_dot_power(p.lanes) == p.lanes;
  const bool several = p.parts <= CK_WARPS && CK_WARPS * f.m * p.columns * sum <= CK_SCRATCH_BYTES;
  return whole && lanes && (p.parts == 1 || several);
}

// ---- types ----------------------------------------------------------------------------------------------

// Elements are summed in f64 if an operand is, else in what the result is computed in: as on the CPU.
// `work`: what the sums are kept in. Integers and bools (counted) wrap in u32, or u64.
template <class A, class B, class O>
struct CkDotTypes {
  static constexpr bool wide = CkSame<A, f64>::value || CkSame<B, f64>::value;
  typedef typename CkChoose<wide, f64, typename CkType<O>::compute>::type sum;
  typedef typename CkChoose<(CkType<sum>::width > 32), u64, u32>::type integer;
  typedef typename CkChoose<CkType<sum>::is_float, sum, integer>::type work;
};

template <class Types, class T>
CK_INLINE typename Types::work ck_dot_load(T x) {
  typedef typename Types::sum C;
  if constexpr (CkIsBool<C>::value) {
    return typename Types::work(ck_convert_bool(x));
  } else {
    return typename Types::work(C(ck_up(x)));
  }
}

template <class Types, class O>
CK_INLINE void ck_dot_store(O* to, typename Types::work sum) {
  if constexpr (CkIsBool<typename Types::sum>::value) {
    *to = O(sum != 0);
  } else {
    *to = ck_convert<O>(typename Types::sum(sum));
  }
}

template <class W>
CK_INLINE W ck_dot_fma(W a, W b, W sum) {
  if constexpr (CkType<W>::is_float) {
    return ck_fma(a, b, sum);
  } else {
    return W(a * b + sum);
  }
}

// A product, or a sum of TERMS products, as a type.
template <class TA, class TB, class TO, class PLAN, CkPrecision P, i32 TERMS, i64... SHAPE>
struct CkDotOf {
  typedef TA A;
  typedef TB B;
  typedef TO O;
  typedef CkDotTypes<A, B, O> Types;
  typedef typename Types::work W;
  static constexpr bool halves = CkSame<A, B>::value && CkType<A>::is_half && CkSame<W, f32>::value;
  static constexpr bool tf32 = P == CK_TF32 && kCkMatrixTakesF32 && CkSame<A, f32>::value &&
                               CkSame<B, f32>::value && CkSame<W, f32>::value;
  static constexpr CkDotForm form{SHAPE..., i32(sizeof(A)), i32(sizeof(B)), TERMS};
  static constexpr CkDotPlan plan = PLAN::plan;
  static_assert(plan.path != CK_DOT_MMA || halves || tf32, "tensor cores do not take these operands");
  static_assert(plan.path == CK_DOT_MMA || !ck_dot_packed(form), "only tensor cores read packed matrices");
};

// The same as it is made: few rows are rows of the left operand.
template <class D, bool TURNED>
struct CkDotMade {
  typedef typename CkChoose<TURNED, typename D::B, typename D::A>::type A;
  typedef typename CkChoose<TURNED, typename D::A, typename D::B>::type B;
  typedef typename D::O O;
  typedef typename D::Types Types;
  typedef typename D::W W;
  static constexpr bool tf32 = D::tf32;
  static constexpr CkDotForm form = ck_dot_normal(TURNED ? ck_dot_turned(D::form) : D::form);
  static constexpr CkDotPlan plan = D::plan;
};

// ---- loads ----------------------------------------------------------------------------------------------

// N elements that one instruction moves.
template <class T, i32 N>
struct alignas(sizeof(T) * N) CkDotPack {
  T at[N];
};

// N elements from `from` on, `STEP` apart. FITS: the address is a multiple of the pack's size.
template <class T, i32 N, i64 STEP, bool FITS>
CK_INLINE CkDotPack<T, N> ck_dot_read(const T* from) {
  if constexpr (FITS && STEP == 1) {
    return *reinterpret_cast<const CkDotPack<T, N>*>(from);
  } else {
    CkDotPack<T, N> pack;
#pragma unroll
    for (i32 i = 0; i < N; ++i) pack.at[i] = from[i * STEP];
    return pack;
  }
}

// Whether all products of a batch begin at multiples of `bytes`.
template <class T>
CK_INLINE bool ck_dot_fits(const T* from, i64 step, i64 bytes) {
  return ((u64(from) | u64(step * i64(sizeof(T)))) & u64(bytes - 1)) == 0;
}

#endif  // COCKTAIL_DOT_PLAN_H
