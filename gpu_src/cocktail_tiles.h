// Products by tiles, by one block. Each thread (each warp, with tensor cores) keeps its part of the result's
// tile in registers. Tiles of both operands are copied to scratch some steps ahead, and rounded there once.
// Beside a packed matrix nothing is copied: every warp reads its operands and rounds the left one itself.
// Where the tile is small, slices of k are summed side by side and added up in order.
#ifndef COCKTAIL_TILES_H
#define COCKTAIL_TILES_H

#include "cocktail_dot_plan.h"
#include "cocktail_dot_tensor.h"

// How an operand's tile gets to scratch.
enum CkDotWay { CK_DOT_ELEMENTS, CK_DOT_PACKS, CK_DOT_ASYNC };

// What tiles are made of: numbers for FMA, or what tensor cores take.
enum CkDotTile { CK_DOT_NUMBERS, CK_DOT_TENSOR, CK_DOT_TENSOR_TF32 };

// One operand: ROWS x K with strides in elements of T, in tiles of R x BK elements of E. Lines of a tile lie
// as the operand does: along k, or along its rows.
template <class T, class E, class Types, i64 ROWS, i64 K, i64 S_ROW, i64 S_K, i32 R, i32 BK, CkDotTile TILE>
struct CkDotSide {
  static constexpr bool along_k = ck_dot_along_k(S_ROW, S_K), same = CkSame<T, E>::value;
  static constexpr i32 line = along_k ? BK : R, lines = along_k ? R : BK;
  static constexpr bool tf32 = TILE == CK_DOT_TENSOR_TF32 && kCkRoundsTf32;
  static constexpr i32 pitch = i32(ck_dot_pitch(line, sizeof(E), along_k, TILE != CK_DOT_NUMBERS));
  static constexpr i32 bytes = lines * pitch;
  static constexpr bool dense = (along_k ? S_K : S_ROW) == 1;
  static constexpr i32 most = i32(16 / (sizeof(T) > sizeof(E) ? sizeof(T) : sizeof(E)));
  static constexpr i64 extent = along_k ? K : ROWS, step = along_k ? S_ROW : S_K;
  static constexpr i32 v = dense ? ck_dot_vector(sizeof(T), most, extent, step) : 1;
  static constexpr bool async = same && v * sizeof(T) >= 4;

  static CK_MEMBER CkDotWay way(const T* from, i64 apart) {
    const bool fits = ck_dot_fits(from, apart, v * i64(sizeof(T)));
    return !fits ? CK_DOT_ELEMENTS : async && ck_is_global(from) ? CK_DOT_ASYNC : CK_DOT_PACKS;
  }

  // The i-th piece of a tile that this thread copies: the place of its first element, if `exists`.
  struct Piece {
    static constexpr i32 across = line / v, turns = i32(ck_dot_ceil(lines * across, CK_THREADS));
    static constexpr bool down = CK_THREADS % across == 0, all = lines * across % CK_THREADS == 0;
    i32 y, x;
    CK_MEMBER explicit Piece(i32 i) {
      const i32 at = ck_lane() + i * CK_THREADS;
      y = down ? ck_lane() / across + i * (CK_THREADS / across) : at / across;
      x = (down ? ck_lane() : at) % across * v;
    }
    CK_MEMBER bool exists() const { return all || y < lines; }
    CK_MEMBER u8* in(u8* tile) const { return tile + y * pitch + x * i32(sizeof(E)); }
  };

  static CK_MEMBER E converted(T x) {
    if constexpr (tf32) {
      return ck_bitcast<f32>(ck_to_tf32(x));
    } else if constexpr (same) {
      return x;
    } else {
      return ck_dot_load<Types>(x);
    }
  }

  // Elements from row `row` and depth `depth` on; what lies outside the operand is zero.
  template <CkDotWay WAY>
  static CK_MEMBER void copy(u8* to, const T* from, i32 row, i32 depth) {
    // Few at a time, or all loads of a thread stay in registers.
#pragma unroll(WAY == CK_DOT_ELEMENTS ? 2 : WAY == CK_DOT_PACKS ? 4 : 8)
    for (i32 i = 0; i < Piece::turns; ++i) {
      const Piece piece(i);
      if (!piece.exists()) break;
      const i32 r = row + (along_k ? piece.y : piece.x), k = depth + (along_k ? piece.x : piece.y);
      const bool in = (ROWS % R == 0 || r < ROWS) && (K % BK == 0 || k < K);
      const T* at = from + (in ? r * S_ROW + k * S_K : 0);
      if constexpr (WAY == CK_DOT_ASYNC) {
        ck_async_copy<v * i32(sizeof(T))>(piece.in(to), at, in);
      } else {
        CkDotPack<T, v> pack = {};
        if (in) pack = ck_dot_read<T, v, along_k ? S_K : S_ROW, WAY == CK_DOT_PACKS>(at);
        CkDotPack<E, v> stored;
#pragma unroll
        for (i32 j = 0; j < v; ++j) stored.at[j] = converted(pack.at[j]);
        *reinterpret_cast<CkDotPack<E, v>*>(piece.in(to)) = stored;
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

  // Rounds what this thread copied past its registers, once it has arrived.
  static CK_MEMBER void arrived(CkDotWay way, u8* tile) {
    if constexpr (tf32 && async) {
      if (way != CK_DOT_ASYNC) return;
#pragma unroll(4)
      for (i32 i = 0; i < Piece::turns; ++i) {
        if (!Piece(i).exists()) break;
        auto* pack = reinterpret_cast<CkDotPack<E, v>*>(Piece(i).in(tile));
        CkDotPack<E, v> rounded = *pack;
#pragma unroll
        for (i32 j = 0; j < v; ++j) rounded.at[j] = converted(rounded.at[j]);
        *pack = rounded;
      }
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

  // Where the sum at (y, x) of a tile lies among those of its slice. pitch: between rows.
  static constexpr i32 pitch = p.bn;
  static CK_MEMBER i32 place(i32 y, i32 x) { return y * pitch + x; }

  CK_MEMBER void keep(W* share) const {
    visit([=](i32 y, i32 x, W sum) { share[place(y, x)] = sum; });
  }

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
  constexpr i32 SIDE_BY_SIDE = Part::workers * p.slices;
  static_assert(SIDE_BY_SIDE <= (p.path == CK_DOT_MMA ? CK_WARPS : CK_THREADS), "a block has the workers");
  const bool works = Part::worker() < SIDE_BY_SIDE;
  if constexpr (p.slices == 1) {
    if (works) part.visit(put);
  } else {
    constexpr i32 SHARE = p.bm * Part::pitch;
    static_assert(p.slices * SHARE * i64(sizeof(W)) <= CK_SCRATCH_BYTES, "the sums of a plan fit");
    W* shares = reinterpret_cast<W*>(ck_scratch());
    W* mine = shares + Part::worker() / Part::workers * SHARE;
    ck_block_barrier();
    if (works) part.keep(mine);
    ck_block_barrier();
    constexpr i32 ITEMS = p.bm * p.bn, TOGETHER = i32(ck_dot_least(4, ck_dot_ceil(ITEMS, CK_THREADS)));
    CK_NO_UNROLL
    for (i32 first = ck_lane(); first < ITEMS; first += TOGETHER * CK_THREADS) {
      W found[TOGETHER] = {};  // all of them before any is stored: no load may cross a store
#pragma unroll
      for (i32 i = 0; i < TOGETHER * p.slices; ++i) {
        const i32 item = first + i / p.slices * CK_THREADS, s = i % p.slices;
        if (ITEMS % (TOGETHER * CK_THREADS) != 0 && item >= ITEMS) continue;
        const W share = shares[s * SHARE + Part::place(item / p.bn, item % p.bn)];
        found[i / p.slices] = s > 0 ? found[i / p.slices] + share : share;
      }
#pragma unroll
      for (i32 i = 0; i < TOGETHER; ++i) {
        const i32 item = first + i * CK_THREADS;
        if (ITEMS % (TOGETHER * CK_THREADS) == 0 || item < ITEMS) put(item / p.bn, item % p.bn, found[i]);
      }
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
  constexpr CkDotTile TILE = !MMA ? CK_DOT_NUMBERS : D::tf32 ? CK_DOT_TENSOR_TF32 : CK_DOT_TENSOR;
  typedef typename D::Types Types;
  typedef CkDotSide<typename D::A, E, Types, f.m, f.k, f.a_m, f.a_k, p.bm, p.bk, TILE> Left;
  typedef CkDotSide<typename D::B, E, Types, f.n, f.k, f.b_n, f.b_k, p.bn, p.bk, TILE> Right;
  typedef CkDotPart<D, MMA, Left, Right> Part;
  constexpr i32 DOWN = i32(ck_dot_ceil(f.m, p.bm)), ACROSS = i32(ck_dot_ceil(f.n, p.bn));
  constexpr i32 STEPS = i32(ck_dot_ceil(f.k, p.bk)), STAGE = Left::bytes + Right::bytes;
  // Where every step has a stage of its own, all of them are on their way together.
  constexpr i32 AHEAD = STEPS > 1 && p.stages == STEPS ? STEPS : p.stages - 1;
  static_assert(p.stages > 0 && p.stages * STAGE <= CK_SCRATCH_BYTES, "the tiles of a plan fit");
  const CkDotWay left = Left::way(a, a_b), right = Right::way(b, b_b);
  const i32 items = i32(batch) * DOWN * ACROSS;
  CK_NO_UNROLL
  for (i32 item = 0; item < items; ++item) {
    const i32 product = item / (DOWN * ACROSS);
    const i32 row = item / ACROSS % DOWN * p.bm, column = item % ACROSS * p.bn;
    Part part;
    part.clear();
    if (item > 0) ck_block_barrier();  // before what the last tile left in scratch is overwritten
    const auto stage_of = [=](i32 step) { return ck_scratch() + step % p.stages * STAGE; };
    const auto arrived = [=](i32 step) {
      Left::arrived(left, stage_of(step));
      Right::arrived(right, stage_of(step) + Left::bytes);
    };
    CK_NO_UNROLL
    for (i32 step = -AHEAD; step < STEPS; ++step) {
      if (AHEAD > 0 && step >= 0) {
        ck_async_wait<AHEAD - (AHEAD > 0)>();
        arrived(step);
        ck_block_barrier();
      } else if (AHEAD == 0 && step > 0) {
        ck_block_barrier();
      }
      const i32 next = step + AHEAD;
      if (next < STEPS) {
        u8* stage = stage_of(next);
        Left::copy_by(left, stage, a + product * a_b, row, next * p.bk);
        Right::copy_by(right, stage + Left::bytes, b + product * b_b, column, next * p.bk);
      }
      ck_async_commit();
      if (AHEAD == 0) {
        ck_async_wait<0>();
        arrived(step);
        ck_block_barrier();
      }
      if (step >= 0 && Part::worker() < Part::workers * p.slices) {
        part.add(stage_of(step), stage_of(step) + Left::bytes);
      }
    }
    ck_dot_finish<D>(part, o + product * o_b, row, column);
  }
}

// The same beside a packed matrix: every warp reads what it multiplies, straight from the operands. Another
// product c d may be added, whose rows of c are C_M elements apart: one after the other, for one of them may
// lie in shared memory.
template <class D, i64 C_M = D::form.a_m>
CK_INLINE void ck_dot_whole(i64 batch, const typename D::A* a, i64 a_b, const typename D::B* b, i64 b_b,
                            typename D::O* o, i64 o_b, const typename D::A* c = nullptr,
                            const typename D::B* d = nullptr) {
  constexpr CkDotForm f = D::form;
  constexpr CkDotPlan p = D::plan;
  typedef CkDotWholePart<D> Part;
  constexpr i32 DOWN = i32(ck_dot_ceil(f.m, p.bm)), ACROSS = i32(ck_dot_ceil(f.n, p.bn));
  const bool a_fits = ck_dot_fits(a, batch > 1 ? a_b : 0, 16), c_fits = ck_dot_fits(c, 0, 16);
  const i32 items = i32(batch) * DOWN * ACROSS;
  CK_NO_UNROLL
  for (i32 item = 0; item < items; ++item) {
    const i32 product = item / (DOWN * ACROSS);
    const i32 row = item / ACROSS % DOWN * p.bm, column = item % ACROSS * p.bn;
    Part part;
    part.clear();
    if (Part::worker() < Part::workers * p.slices) {
      const typename D::A* left = a + product * a_b;
      const auto first = Part::template begin<f.a_m>(a_fits, left, row);
      if constexpr (f.terms > 1) {
        const auto second = Part::template begin<C_M>(c_fits, c, row);
        part.template add<f.a_m>(first, a_fits, left, b + product * b_b, row, column);
        part.template add<C_M>(second, c_fits, c, d, row, column);
      } else {
        part.template add<f.a_m>(first, a_fits, left, b + product * b_b, row, column);
      }
    }
    ck_dot_finish<D>(part, o + product * o_b, row, column);
  }
}

#endif  // COCKTAIL_TILES_H
