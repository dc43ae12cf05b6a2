// How a block of threads makes a matrix product whose sizes and strides the compiler knows: chosen here, from
// numbers alone. The order of every sum depends on those, on CK_THREADS and on CK_SCRATCH_BYTES.
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

// One product: sizes, strides in elements, bytes of an element of the operands and of a sum. `terms`: so many
// products of these sizes are added up; those of several have packed right matrices.
struct CkDotForm {
  i64 m, n, k, a_m, a_k, b_k, b_n, o_m, o_n;
  i32 a_size, b_size, w_size;
  bool mma;
  i32 terms;
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
  i32 stages;      // tiles of the operands in scratch; beside a packed matrix, whether the plan fits
  i64 scratch;     // bytes
};

constexpr i64 kCkDotFewRows = 8;          // above, tiles
constexpr i64 kCkDotFewRowsMma = 4;       // the same where tensor cores make the tiles
constexpr i64 kCkDotShort = 8;            // no deeper than this: not worth sharing k
constexpr i64 kCkDotTileOutputs = 4096;
constexpr i64 kCkDotStageBytes = 128;     // of k in one tile
constexpr i64 kCkDotStages = 4;           // enough to hide the way from the second cache
constexpr i64 kCkDotMostScratch = 65536;  // for stages beyond the first
constexpr i64 kCkDotBlock = 16;           // words of k that a warp reads at a time, for two instructions
constexpr i64 kCkDotMostDepth = 512;      // words of k in one tile for tensor cores

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
  return {f.n,   f.m,      f.k,      f.b_n,    f.b_k, f.a_k,  f.a_m,
          f.o_n, f.o_m, f.b_size, f.a_size, f.w_size, f.mma, f.terms};
}

CK_INLINE constexpr CkDotPlan ck_dot_plan_columns(CkDotForm f, i64 threads, i64 room) {
  CkDotPlan p{};
  p.path = CK_DOT_COLUMNS;
  p.v = f.b_n == 1 ? ck_dot_vector(f.b_size, 32 / ck_dot_power(f.m), f.n, f.b_k) : 1;
  p.lanes = i32(ck_dot_least(CK_WARP, ck_dot_power(f.n / p.v)));
  p.columns = p.lanes * p.v;
  // Neighbouring groups read lines that are kv apart: shorter ones would meet in the banks.
  const bool wide = p.columns * f.b_size >= 128 && f.a_k == 1;
  p.kv = wide ? ck_dot_vector(f.a_size, 4, f.k, f.a_m) : 1;
  const i64 warps = threads / CK_WARP, chunks = ck_dot_ceil(f.n, p.columns);
  p.parts = i32(ck_dot_most(1, ck_dot_least(warps / chunks, f.k * p.lanes / 128)));
  const i64 shares = warps * f.m * p.columns * f.w_size;
  if (shares > room) p.parts = 1;
  p.scratch = p.parts > 1 ? shares : 0;
  return p;
}

CK_INLINE constexpr CkDotPlan ck_dot_plan_lanes(CkDotForm f, i64 threads, i64 room) {
  CkDotPlan p{};
  p.path = CK_DOT_LANES;
  p.v = f.b_k == 1 ? ck_dot_vector(f.b_size, 32 / ck_dot_power(f.m), f.k, f.b_n) : 1;
  if (f.a_k == 1) p.v = i32(ck_dot_least(p.v, ck_dot_vector(f.a_size, p.v, f.k, f.a_m)));
  p.kv = p.v;
  p.lanes = i32(ck_dot_least(CK_WARP, ck_dot_power(f.k / p.v)));
  // Fewer lanes shuffle less: as long as they read whole lines, and all left factors are under way together.
  while (p.lanes * p.v * f.b_size > 128 && f.n * p.lanes > threads && f.k * f.m * 2 <= 32 * p.lanes) {
    p.lanes /= 2;
  }
  const i64 warps = threads / CK_WARP, groups = threads / p.lanes;
  const i64 most = ck_dot_most(1, 16 / ck_dot_power(f.m));
  p.columns = i32(ck_dot_least(ck_dot_least(8, most), ck_dot_power(ck_dot_ceil(f.n, groups))));
  p.parts = 1;
  if (p.lanes == CK_WARP && p.columns == 1) {
    p.parts = i32(ck_dot_most(1, ck_dot_least(warps / f.n, f.k / (CK_WARP * p.v))));
  }
  const i64 shares = warps * f.m * f.w_size;
  if (shares > room) p.parts = 1;
  p.scratch = p.parts > 1 ? shares : 0;
  return p;
}

// The power of two from `low` to `high` that covers `size` at once, or else often with little waste.
CK_INLINE constexpr i64 ck_dot_side(i64 size, i64 low, i64 high) {
  if (size <= high) return ck_dot_most(low, ck_dot_power(size));
  const i64 needed = ck_dot_ceil(size, low) * low;
  i64 side = high;
  while (side > low && ck_dot_ceil(size, side) * side * 4 > needed * 5) side /= 2;
  return side;
}

CK_INLINE constexpr bool ck_dot_along_k(i64 along_row, i64 along_k) { return along_row != 1 || along_k == 1; }

CK_INLINE constexpr bool ck_dot_packed(CkDotForm f) { return f.b_k == kCkDotPacked; }

// Bytes of a line of an operand's tile in scratch: its elements, and so many that lines start in other banks.
CK_INLINE constexpr i64 ck_dot_pitch(i64 elements, i64 size, bool along_k, bool mma) {
  const i64 bytes = elements * size;
  if (along_k || size == 2) return bytes + 16;
  return mma && bytes % 64 == 0 ? bytes + 32 : bytes;
}

CK_INLINE constexpr i64 ck_dot_stage_bytes(CkDotForm f, CkDotPlan p) {
  const i64 size = f.mma ? f.a_size : f.w_size;
  const bool a = ck_dot_along_k(f.a_m, f.a_k), b = ck_dot_along_k(f.b_n, f.b_k);
  const i64 left = (a ? p.bm : p.bk) * ck_dot_pitch(a ? p.bk : p.bm, size, a, f.mma);
  return left + (b ? p.bn : p.bk) * ck_dot_pitch(b ? p.bk : p.bn, size, b, f.mma);
}

// The part of one thread: as small as lets all of them hold the tile. What is left of them shares k.
CK_INLINE constexpr CkDotPlan ck_dot_shares(CkDotForm f, CkDotPlan p, i64 threads) {
  p.tm = p.tn = 2;
  while (p.bm * p.bn > threads * p.tm * p.tn) {
    p.tm >= p.bm || (p.tn < p.tm && p.tn < p.bn) ? p.tn *= 2 : p.tm *= 2;
  }
  const i64 used = p.bm * p.bn / (p.tm * p.tn);
  p.slices = i32(p.bk * f.w_size / 16);
  while (p.slices > 1 && p.slices * used > threads) p.slices /= 2;
  return p;
}

CK_INLINE constexpr CkDotPlan ck_dot_plan_tiles(CkDotForm f, i64 threads, i64 room) {
  CkDotPlan p{};
  p.path = CK_DOT_FMA;
  p.bk = i32(kCkDotStageBytes / f.w_size);
  if (f.k * 2 <= p.bk) p.bk /= 2;
  const i64 largest = ck_dot_power(ck_dot_least(kCkDotTileOutputs, 32 * threads) + 1) / 2;
  for (i64 area = largest; area >= 256; area /= 2) {
    p.bm = i32(ck_dot_side(f.m, 16, ck_dot_least(64, area / 16)));
    p.bn = i32(ck_dot_side(f.n, 16, ck_dot_least(256, area / p.bm)));
    p.bm = i32(ck_dot_side(f.m, 16, ck_dot_least(256, area / p.bn)));
    p = ck_dot_shares(f, p, threads);
    const i64 stage = ck_dot_stage_bytes(f, p), tiles = ck_dot_ceil(f.k, p.bk);
    i64 stages = ck_dot_least(kCkDotStages, tiles);
    while (stages > 1 && stages * stage > ck_dot_least(room, kCkDotMostScratch)) --stages;
    while (p.slices > 1 && p.slices * p.bm * p.bn * f.w_size > room) p.slices /= 2;
    p.stages = i32(stages);
    const i64 sums = p.slices > 1 ? p.slices * p.bm * p.bn * f.w_size : 0;
    p.scratch = ck_dot_most(stages * stage, sums);
    // A smaller tile that the next one follows beats one that all wait for.
    const bool waits = stages < ck_dot_least(2, tiles) && area > 512;
    if (p.scratch <= room && !waits) return p;
  }
  p.path = CK_DOT_SERIAL;
  p.scratch = 0;
  return p;
}

// ---- tiles for tensor cores -----------------------------------------------------------------------------

// Between rows of one slice's sums in scratch, in elements; and a row's bytes. Rows begin in other banks, or
// `place` of the tile turns them.
CK_INLINE constexpr i32 ck_dot_sums_pitch(i32 bn) { return bn % 32 == 16 ? bn + 8 : bn; }
CK_INLINE constexpr i64 ck_dot_sums_bytes(CkDotPlan p) { return i64(p.bm) * ck_dot_sums_pitch(p.bn) * 4; }

// The plan with as much of k in a tile as `room` has place for, and then the next tile on its way; without
// stages if there is no room.
CK_INLINE constexpr CkDotPlan ck_dot_depth(CkDotForm f, CkDotPlan p, i64 room) {
  const i64 pack = 4 / f.a_size, all = ck_dot_ceil(f.k, kCkDotBlock * pack) * kCkDotBlock;
  i64 words = ck_dot_least(all, kCkDotMostDepth);
  for (p.stages = 0; p.stages == 0 && words >= kCkDotBlock; words = ck_dot_power(words) / 2) {
    p.bk = i32(words * pack);
    const i64 stage = ck_dot_stage_bytes(f, p), tiles = ck_dot_ceil(all, words);
    const i64 stages = ck_dot_least(ck_dot_least(kCkDotStages, tiles), room / stage);
    if (stages >= ck_dot_least(2, tiles)) p.stages = i32(stages);
    p.scratch = stages * stage;
  }
  if (p.slices > 1) p.scratch = ck_dot_most(p.scratch, p.slices * ck_dot_sums_bytes(p));
  if (p.scratch > room || p.slices * kCkDotBlock * pack > p.bk) p.stages = 0;
  return p;
}

// The plan beside a packed matrix: warps read what they multiply, and scratch is for their sums.
CK_INLINE constexpr CkDotPlan ck_dot_plan_whole(CkDotForm f, CkDotPlan p, i64 room) {
  p.bk = i32(f.k);
  p.scratch = p.slices > 1 ? p.slices * ck_dot_sums_bytes(p) : 0;
  p.stages = p.scratch <= room && p.slices * kCkDotBlock * 4 <= f.k * f.a_size;
  return p;
}

// Cycles, about: a block of k takes the tensor cores, the way from the operands, or what one warp does alone.
CK_INLINE constexpr i64 ck_dot_whole_cycles(CkDotForm f, CkDotPlan p, i64 warps) {
  const i64 cells = p.tm * p.tn, tiles = ck_dot_ceil(f.m, p.bm) * ck_dot_ceil(f.n, p.bn);
  const i64 blocks = f.terms * ck_dot_ceil(f.k * f.a_size, 4 * kCkDotBlock * p.slices);
  const i64 tensor = 16 * cells * ck_dot_ceil(warps, 4), read = warps * (8 * p.tm + 4 * p.tn);
  const i64 block = ck_dot_most(16 * cells + 100 * p.tm, ck_dot_most(tensor, read));
  return tiles * (700 + blocks * block + (p.slices > 1 ? 120 + warps * cells * 3 : 0));
}

// Cycles, about: of a product by tiles that so many warps make.
CK_INLINE constexpr i64 ck_dot_cycles(CkDotForm f, CkDotPlan p, i64 warps) {
  const i64 tiles = ck_dot_ceil(f.m, p.bm) * ck_dot_ceil(f.n, p.bn), depths = ck_dot_ceil(f.k, p.bk);
  const i64 cells = p.tm * p.tn;
  // Of one step of all warps: sums that wait for each other, four tensor cores, reads of scratch.
  const i64 tensor = 8 * cells * ck_dot_ceil(warps, 4), read = warps * (4 * p.tm + 2 * p.tn);
  const i64 step = ck_dot_most(36, ck_dot_most(tensor, read));
  const i64 copied = ck_dot_stage_bytes(f, p) / 64;
  const i64 steps = ck_dot_ceil(p.bk * f.a_size, 32 * p.slices) * step;
  return tiles * (300 + depths * (100 + copied + steps) + (p.slices > 1 ? 120 + warps * cells * 3 : 0));
}

// Every way to share a tile among the warps, by the cycles that it takes.
CK_INLINE constexpr CkDotPlan ck_dot_plan_tensor(CkDotForm f, i64 threads, i64 room) {
  // Sums of larger parts leave too few registers for the places of two operands that are copied.
  const bool packed = ck_dot_packed(f);
  const i64 warps = threads / CK_WARP, most = ck_dot_least(packed ? 16 : 12, 4096 / threads);
  CkDotPlan best{};
  best.path = CK_DOT_SERIAL;
  i64 least = 0;
  for (i64 down = 1; down <= warps; down *= 2) {
    for (i64 across = 1; down * across <= warps; across *= 2) {
      for (i64 tm = 1; tm <= 4 && (tm == 1 || tm * 8 * down < f.m); tm *= 2) {
        for (i64 tn = 1; tm * tn <= most && (tn == 1 || (tn - 1) * kCkCellColumns * across < f.n); ++tn) {
          for (i64 slices = 1; slices * down * across <= warps; slices *= 2) {
            CkDotPlan p{};
            p.path = CK_DOT_MMA;
            p.tm = i32(tm);
            p.tn = i32(tn);
            p.bm = i32(16 * tm * down);
            p.bn = i32(kCkCellColumns * tn * across);
            p.slices = i32(slices);
            p = packed ? ck_dot_plan_whole(f, p, room) : ck_dot_depth(f, p, room);
            const i64 used = down * across * slices;
            const i64 cycles = packed ? ck_dot_whole_cycles(f, p, used) : ck_dot_cycles(f, p, used);
            if (p.stages > 0 && (least == 0 || cycles < least)) {
              best = p;
              least = cycles;
            }
          }
        }
      }
    }
  }
  return best;
}

// The plan for a block of `threads` threads with `room` bytes of scratch.
CK_INLINE constexpr CkDotPlan ck_dot_plan(CkDotForm given, i64 threads, i64 room) {
  CkDotForm f = ck_dot_normal(given);
  if (ck_dot_packed(f)) return ck_dot_plan_tensor(f, threads, room);
  const i64 few = f.mma ? kCkDotFewRowsMma : kCkDotFewRows;
  const bool slim = f.m <= few || f.n <= few;
  bool turned = slim ? f.n < f.m : f.mma ? f.m < 16 && f.n > f.m : f.o_m == 1 && f.o_n != 1;
  // Of two slim sides the one that its matrix runs along is spread over lanes.
  if (slim && f.m == f.n) turned = f.a_k != 1 && f.b_k == 1;
  if (turned) f = ck_dot_turned(f);
  CkDotPlan plan{};
  if (f.k <= kCkDotShort || f.m * f.n == 0) {
    plan.path = CK_DOT_SERIAL;
  } else if (!slim) {
    plan = f.mma ? ck_dot_plan_tensor(f, threads, room) : ck_dot_plan_tiles(f, threads, room);
  } else if (f.b_k == 1 || f.n < 4 || (f.b_n != 1 && f.b_k < f.b_n)) {
    plan = ck_dot_plan_lanes(f, threads, room);
  } else {
    plan = ck_dot_plan_columns(f, threads, room);
  }
  plan.turned = turned;
  return plan;
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

// A product, or a sum of TERMS products, as a type. P: CkPrecision.
template <class TA, class TB, class TO, CkPrecision P, i32 TERMS, i64... SHAPE>
struct CkDotOf {
  typedef TA A;
  typedef TB B;
  typedef TO O;
  typedef CkDotTypes<A, B, O> Types;
  typedef typename Types::work W;
  static constexpr bool halves = CkSame<A, B>::value && CkType<A>::is_half && CkSame<W, f32>::value;
  static constexpr bool tf32 = P == CK_TF32 && kCkMatrixTakesF32 && CkSame<A, f32>::value &&
                               CkSame<B, f32>::value && CkSame<W, f32>::value;
  static constexpr bool mma = halves || tf32;
  static constexpr CkDotForm form{SHAPE..., i32(sizeof(A)), i32(sizeof(B)), i32(sizeof(W)), mma, TERMS};
  static constexpr CkDotPlan plan = ck_dot_plan(form, CK_THREADS, CK_SCRATCH_BYTES);
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
