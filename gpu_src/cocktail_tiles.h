// Products by tiles, by one block: tiles of both operands are copied to scratch some steps ahead, each thread
// (each warp, with tensor cores) keeps its part of the result's tile in registers. Where the tile is small,
// slices of k are summed side by side and added up in order.
#ifndef COCKTAIL_TILES_H
#define COCKTAIL_TILES_H

#include "cocktail_dot_plan.h"
#include "cocktail_dot_tensor.h"

// How an operand's tile gets to scratch.
enum CkDotWay { CK_DOT_ELEMENTS, CK_DOT_PACKS, CK_DOT_ASYNC };

// One operand: ROWS x K with strides in elements of T, in tiles of R x BK elements of E. Lines of a tile lie
// as the operand does: along k, or along its rows.
template <class T, class E, class Types, i64 ROWS, i64 K, i64 S_ROW, i64 S_K, i32 R, i32 BK, bool MMA>
struct CkDotSide {
  static constexpr bool along_k = ck_dot_along_k(S_ROW, S_K), same = CkSame<T, E>::value;
  static constexpr i32 line = along_k ? BK : R, lines = along_k ? R : BK;
  static constexpr i32 pitch = i32(ck_dot_pitch(line, sizeof(E), along_k, MMA)), bytes = lines * pitch;
  static constexpr bool dense = (along_k ? S_K : S_ROW) == 1;
  static constexpr i32 most = i32(16 / (sizeof(T) > sizeof(E) ? sizeof(T) : sizeof(E)));
  static constexpr i64 extent = along_k ? K : ROWS, step = along_k ? S_ROW : S_K;
  static constexpr i32 v = dense ? ck_dot_vector(sizeof(T), most, extent, step) : 1;
  static constexpr bool async = same && v * sizeof(T) >= 4;

  static CK_MEMBER CkDotWay way(const T* from, i64 apart) {
    const bool fits = ck_dot_fits(from, apart, v * i64(sizeof(T)));
    return !fits ? CK_DOT_ELEMENTS : async && ck_is_global(from) ? CK_DOT_ASYNC : CK_DOT_PACKS;
  }

  // Elements from row `row` and depth `depth` on; what lies outside the operand is zero.
  template <CkDotWay WAY>
  static CK_MEMBER void copy(u8* to, const T* from, i32 row, i32 depth) {
    constexpr i32 pieces = lines * (line / v);
    // Few at a time, or all loads of a thread stay in registers.
#pragma unroll(WAY == CK_DOT_ELEMENTS ? 2 : 4)
    for (i32 i = ck_lane(); i < pieces; i += CK_THREADS) {
      const i32 y = i / (line / v), x = i % (line / v) * v;
      const i32 r = row + (along_k ? y : x), k = depth + (along_k ? x : y);
      const bool in = (ROWS % R == 0 || r < ROWS) && (K % BK == 0 || k < K);
      const T* at = from + (in ? r * S_ROW + k * S_K : 0);
      u8* place = to + y * pitch + x * i32(sizeof(E));
      if constexpr (WAY == CK_DOT_ASYNC) {
        ck_async_copy<v * i32(sizeof(T))>(place, at, in);
      } else {
        CkDotPack<T, v> pack = {};
        if (in) pack = ck_dot_read<T, v, along_k ? S_K : S_ROW, WAY == CK_DOT_PACKS>(at);
        CkDotPack<E, v> converted;
#pragma unroll
        for (i32 j = 0; j < v; ++j) {
          if constexpr (same) {
            converted.at[j] = pack.at[j];
          } else {
            converted.at[j] = ck_dot_load<Types>(pack.at[j]);
          }
        }
        *reinterpret_cast<CkDotPack<E, v>*>(place) = converted;
      }
    }
  }

  static CK_MEMBER void copy_by(CkDotWay way, u8* to, const T* from, i32 row, i32 depth) {
    if constexpr (async) {
      if (way == CK_DOT_ASYNC) return copy<CK_DOT_ASYNC>(to, from, row, depth);
    }
    way == CK_DOT_PACKS ? copy<CK_DOT_PACKS>(to, from, row, depth)
                        : copy<CK_DOT_ELEMENTS>(to, from, row, depth);
  }

  // 32 bits of the tile: one element of four bytes, or two that follow each other along k.
  static CK_MEMBER u32 word(const u8* tile, i32 row, i32 at) {
    if constexpr (sizeof(E) == 4) {
      const u8* place = tile + (along_k ? row * pitch + at * 4 : at * pitch + row * 4);
      return ck_to_tf32(*reinterpret_cast<const f32*>(place));
    } else if constexpr (along_k) {
      const auto pair = *reinterpret_cast<const CkDotPack<E, 2>*>(tile + row * pitch + at * 4);
      return u32(pair.at[0].bits) | u32(pair.at[1].bits) << 16;
    } else {
      const u8* place = tile + 2 * at * pitch + row * 2;
      const u32 low = reinterpret_cast<const E*>(place)->bits;
      return low | u32(reinterpret_cast<const E*>(place + pitch)->bits) << 16;
    }
  }

  // This thread's rows, COUNT of R: the i-th of thread `at` of R / COUNT. Threads read lines side by side.
  template <i32 COUNT, i32 PACK>
  static CK_MEMBER i32 row_of(i32 at, i32 i) {
    constexpr i32 run = along_k ? 1 : COUNT < PACK ? COUNT : PACK;
    return i / run * (R / COUNT * run) + at * run + i % run;
  }

  // Elements [row_of(i)][k, k + PACK).
  template <i32 COUNT, i32 PACK>
  static CK_MEMBER void part(E (&to)[COUNT][PACK], const u8* tile, i32 at, i32 k) {
    if constexpr (along_k) {
#pragma unroll
      for (i32 i = 0; i < COUNT; ++i) {
        const u8* place = tile + row_of<COUNT, PACK>(at, i) * pitch + k * i32(sizeof(E));
        const auto pack = *reinterpret_cast<const CkDotPack<E, PACK>*>(place);
#pragma unroll
        for (i32 j = 0; j < PACK; ++j) to[i][j] = pack.at[j];
      }
    } else {
      constexpr i32 run = COUNT < PACK ? COUNT : PACK;
#pragma unroll
      for (i32 i = 0; i < COUNT * PACK / run; ++i) {
        const i32 j = i % PACK, first = i / PACK * run;
        const u8* place = tile + (k + j) * pitch + row_of<COUNT, PACK>(at, first) * i32(sizeof(E));
        const auto pack = *reinterpret_cast<const CkDotPack<E, run>*>(place);
#pragma unroll
        for (i32 x = 0; x < run; ++x) to[first + x][j] = pack.at[x];
      }
    }
  }
};

template <class D, bool MMA>
struct CkDotElement {
  typedef typename D::W type;
};
template <class D>
struct CkDotElement<D, true> {
  typedef typename D::A type;
};

// What one worker, here a thread, makes of a tile. visit(row, column, sum) gets each sum.
template <class D, class Left, class Right>
struct CkDotFmaPart {
  typedef typename D::W W;
  static constexpr CkDotPlan p = D::plan;
  static constexpr i32 TM = p.tm, TN = p.tn, PACK = i32(16 / sizeof(W));
  static constexpr i32 across = p.bn / TN, workers = p.bm / TM * across;
  W sums[TM][TN];

  static CK_MEMBER i32 worker() { return ck_lane(); }

  CK_MEMBER void clear() {
#pragma unroll
    for (i32 i = 0; i < TM * TN; ++i) sums[i / TN][i % TN] = W(0);
  }

  CK_MEMBER void add(const u8* left, const u8* right) {
    const i32 y = ck_lane() % workers / across, x = ck_lane() % across, slice = ck_lane() / workers;
    CK_NO_UNROLL
    for (i32 k = slice * PACK; k < p.bk; k += p.slices * PACK) {
      W a[TM][PACK], b[TN][PACK];
      Left::part(a, left, y, k);
      Right::part(b, right, x, k);
#pragma unroll
      for (i32 j = 0; j < PACK; ++j) {
#pragma unroll
        for (i32 i = 0; i < TM * TN; ++i) {
          sums[i / TN][i % TN] = ck_dot_fma(a[i / TN][j], b[i % TN][j], sums[i / TN][i % TN]);
        }
      }
    }
  }

  template <class F>
  CK_MEMBER void visit(F&& visit) const {
    const i32 y = ck_lane() % workers / across, x = ck_lane() % across;
#pragma unroll
    for (i32 i = 0; i < TM * TN; ++i) {
      const i32 row = Left::template row_of<TM, PACK>(y, i / TN);
      visit(row, Right::template row_of<TN, PACK>(x, i % TN), sums[i / TN][i % TN]);
    }
  }
};

template <class D, bool MMA, class Left, class Right>
struct CkDotPart : CkDotFmaPart<D, Left, Right> {};
template <class D, class Left, class Right>
struct CkDotPart<D, true, Left, Right> : CkDotMmaPart<D, Left, Right> {};

// Sums of a finished tile at (row, column) of o. Slices meet in scratch, in the order of k.
template <class D, class Part>
CK_INLINE void ck_dot_finish(const Part& part, typename D::O* o, i32 row, i32 column) {
  typedef typename D::W W;
  constexpr CkDotForm f = D::form;
  constexpr CkDotPlan p = D::plan;
  const auto put = [=](i32 y, i32 x, W sum) {
    const i32 r = row + y, c = column + x;
    if ((f.m % p.bm == 0 || r < f.m) && (f.n % p.bn == 0 || c < f.n)) {
      ck_dot_store<typename D::Types>(o + r * f.o_m + c * f.o_n, sum);
    }
  };
  const bool works = Part::worker() < Part::workers * p.slices;
  if constexpr (p.slices == 1) {
    if (works) part.visit(put);
  } else {
    W* shares = reinterpret_cast<W*>(ck_scratch());
    W* mine = shares + Part::worker() / Part::workers * (p.bm * p.bn);
    ck_block_barrier();
    if (works) part.visit([=](i32 y, i32 x, W sum) { mine[y * p.bn + x] = sum; });
    ck_block_barrier();
    CK_NO_UNROLL
    for (i32 i = ck_lane(); i < p.bm * p.bn; i += CK_THREADS) {
      W sum = shares[i];
#pragma unroll
      for (i32 s = 1; s < p.slices; ++s) sum = sum + shares[s * p.bm * p.bn + i];
      put(i / p.bn, i % p.bn, sum);
    }
  }
}

template <class D>
CK_INLINE void ck_dot_tiles(i64 batch, const typename D::A* a, i64 a_b, const typename D::B* b, i64 b_b,
                            typename D::O* o, i64 o_b) {
  constexpr CkDotForm f = D::form;
  constexpr CkDotPlan p = D::plan;
  constexpr bool MMA = p.path == CK_DOT_MMA;
  typedef typename CkDotElement<D, MMA>::type E;
  typedef CkDotSide<typename D::A, E, typename D::Types, f.m, f.k, f.a_m, f.a_k, p.bm, p.bk, MMA> Left;
  typedef CkDotSide<typename D::B, E, typename D::Types, f.n, f.k, f.b_n, f.b_k, p.bn, p.bk, MMA> Right;
  typedef CkDotPart<D, MMA, Left, Right> Part;
  constexpr i32 DOWN = i32(ck_dot_ceil(f.m, p.bm)), ACROSS = i32(ck_dot_ceil(f.n, p.bn));
  constexpr i32 STEPS = i32(ck_dot_ceil(f.k, p.bk)), STAGE = Left::bytes + Right::bytes, AHEAD = p.stages - 1;
  static_assert(p.stages * STAGE <= p.scratch, "the plan sizes tiles as they are");
  const CkDotWay left = Left::way(a, a_b), right = Right::way(b, b_b);
  const i32 items = i32(batch) * DOWN * ACROSS;
  CK_NO_UNROLL
  for (i32 item = 0; item < items; ++item) {
    const i32 product = item / (DOWN * ACROSS);
    const i32 row = item / ACROSS % DOWN * p.bm, column = item % ACROSS * p.bn;
    Part part;
    part.clear();
    if (item > 0) ck_block_barrier();  // before what the last tile left in scratch is overwritten
    CK_NO_UNROLL
    for (i32 step = -AHEAD; step < STEPS; ++step) {
      if (AHEAD > 0 && step >= 0) {
        ck_async_wait<AHEAD - (AHEAD > 0)>();
        ck_block_barrier();
      } else if (AHEAD == 0 && step > 0) {
        ck_block_barrier();
      }
      const i32 next = step + AHEAD;
      if (next < STEPS) {
        u8* stage = ck_scratch() + next % p.stages * STAGE;
        Left::copy_by(left, stage, a + product * a_b, row, next * p.bk);
        Right::copy_by(right, stage + Left::bytes, b + product * b_b, column, next * p.bk);
      }
      ck_async_commit();
      if (AHEAD == 0) {
        ck_async_wait<0>();
        ck_block_barrier();
      }
      const u8* stage = ck_scratch() + (step + p.stages) % p.stages * STAGE;
      if (step >= 0 && Part::worker() < Part::workers * p.slices) part.add(stage, stage + Left::bytes);
    }
    ck_dot_finish<D>(part, o + product * o_b, row, column);
  }
}

#endif  // COCKTAIL_TILES_H
