// A tile of a product on tensor cores.
#ifndef COCKTAIL_DOT_TENSOR_H
#define COCKTAIL_DOT_TENSOR_H

#include "cocktail_dot_plan.h"

// What one warp makes of a tile, as `CkDotFmaPart` is what one thread makes of it. Fragments are those of
// cocktail_ptx.h; g: row, t: pair of columns. Words are 32 bits along k: one element, or two.
// A warp takes 16 words of k at a time, for two instructions.
template <class D, class Left, class Right>
struct CkDotMmaPart {
  static constexpr CkDotPlan p = D::plan;
  static constexpr i32 TM = p.tm, TN = p.tn, BLOCK = i32(kCkDotBlock);
  static constexpr i32 across = p.bn / (8 * TN), workers = p.bm / (16 * TM) * across;
  static constexpr i32 blocks = p.bk * i32(sizeof(typename D::A)) / (4 * BLOCK);
  f32 sums[TM][TN][4];

  static CK_MEMBER i32 worker() { return ck_warp(); }

  // As in CkDotFmaPart. Lanes that store together meet in no bank.
  static constexpr i32 pitch = ck_dot_sums_pitch(p.bn);
  static CK_MEMBER i32 place(i32 y, i32 x) { return y * pitch + (p.bn % 32 == 0 ? x ^ y % 4 * 8 : x); }

  CK_MEMBER void clear() {
#pragma unroll
    for (i32 i = 0; i < TM * TN * 4; ++i) sums[i / 4 / TN][i / 4 % TN][i % 4] = 0;
  }

  template <class Side>
  static CK_MEMBER u32 word(const u8* tile, i32 row, i32 at) {
    typedef typename D::A E;
    const u8* place = tile + at * i32(4 / sizeof(E)) * Side::pitch + row * i32(sizeof(E));
    if constexpr (sizeof(E) == 4) {
      return *reinterpret_cast<const u32*>(place);
    } else {
      const u32 low = reinterpret_cast<const E*>(place)->bits;
      return low | u32(reinterpret_cast<const E*>(place + Side::pitch)->bits) << 16;
    }
  }

  // Both instructions' parts of a block of k that begins at word `k`, of 16 rows from `y` on.
  static CK_MEMBER void load_left(u32 (&to)[2][4], const u8* tile, i32 y, i32 k) {
    const i32 lane = ck_warp_lane(), g = lane / 4, t = lane % 4;
    if constexpr (Left::along_k) {
#pragma unroll
      for (i32 i = 0; i < 2; ++i) {
        ck_load_tiles(to[i], tile + (y + lane % 16) * Left::pitch + (k + 8 * i + lane / 16 * 4) * 4);
      }
    } else {
#pragma unroll
      for (i32 i = 0; i < 8; ++i) {
        to[i / 4][i % 4] = word<Left>(tile, y + g + i % 2 * 8, k + i / 4 * 8 + t + i % 4 / 2 * 4);
      }
    }
  }

  // The same of 8 columns from `x` on.
  static CK_MEMBER void load_right(u32 (&to)[2][2], const u8* tile, i32 x, i32 k) {
    const i32 lane = ck_warp_lane(), g = lane / 4, t = lane % 4;
    u32 words[4];
    if constexpr (Right::along_k) {
      ck_load_tiles(words, tile + (x + lane % 8) * Right::pitch + (k + lane / 8 * 4) * 4);
    } else {
#pragma unroll
      for (i32 i = 0; i < 4; ++i) words[i] = word<Right>(tile, x + g, k + t + i * 4);
    }
#pragma unroll
    for (i32 i = 0; i < 4; ++i) to[i / 2][i % 2] = words[i];
  }

  static CK_MEMBER void multiply(f32 (&sum)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    if constexpr (D::tf32) {
      ck_mma_tf32(sum, a, b);
    } else if constexpr (CkType<typename D::A>::mantissa == 7) {
      ck_mma_bf16(sum, a, b);
    } else {
      ck_mma_f16(sum, a, b);
    }
  }

  CK_MEMBER void add(const u8* left, const u8* right) {
    const i32 y = ck_warp() % workers / across * 16 * TM, x = ck_warp() % across * 8 * TN;
    const i32 slice = ck_warp() / workers;
    // Some blocks ahead hide the way from scratch, as far as registers last. Several rows hide more of it.
#pragma unroll(TM * TN > (TM > 1 ? 4 : 8) ? 2 : 4)
    for (i32 block = 0; block < blocks; block += p.slices) {
      const i32 k = (block + slice) * BLOCK;
      if (blocks % p.slices != 0 && block + slice >= blocks) break;
      u32 a[TM][2][4], b[TN][2][2];
#pragma unroll
      for (i32 i = 0; i < TM; ++i) load_left(a[i], left, y + i * 16, k);
#pragma unroll
      for (i32 i = 0; i < TN; ++i) load_right(b[i], right, x + i * 8, k);
#pragma unroll
      for (i32 j = 0; j < 2; ++j) {
#pragma unroll
        for (i32 i = 0; i < TM * TN; ++i) multiply(sums[i / TN][i % TN], a[i / TN][j], b[i % TN][j]);
      }
    }
  }

  template <class F>
  CK_MEMBER void visit(F&& visit) const {
    const i32 y = ck_warp() % workers / across * 16 * TM, x = ck_warp() % across * 8 * TN;
    const i32 g = ck_warp_lane() / 4, t = ck_warp_lane() % 4;
#pragma unroll
    for (i32 i = 0; i < TM * TN * 4; ++i) {
      const i32 tile = i / 4, row = y + tile / TN * 16 + g + i % 4 / 2 * 8;
      visit(row, x + tile % TN * 8 + 2 * t + i % 2, sums[tile / TN][tile % TN][i % 4]);
    }
  }

  CK_MEMBER void keep(f32* share) const {
    const i32 y = ck_warp() % workers / across * 16 * TM, x = ck_warp() % across * 8 * TN;
    const i32 g = ck_warp_lane() / 4, t = ck_warp_lane() % 4;
#pragma unroll
    for (i32 i = 0; i < TM * TN * 2; ++i) {
      const i32 tile = i / 2, at = place(y + tile / TN * 16 + i % 2 * 8 + g, x + tile % TN * 8 + 2 * t);
      const f32* pair = sums[tile / TN][tile % TN] + i % 2 * 2;
      *reinterpret_cast<CkDotPack<f32, 2>*>(share + at) = {pair[0], pair[1]};
    }
  }
};

// The same beside a packed matrix. A lane takes four neighbouring words of k at once, of row g and column g:
// the sum does not ask which of them is called t, as long as both sides agree.
template <class D>
struct CkDotWholePart : CkDotMmaPart<D, void, void> {
  typedef CkDotMmaPart<D, void, void> Base;
  typedef typename D::A E;
  typedef CkDotPack<u32, 4> Words;
  using Base::across, Base::BLOCK, Base::blocks, Base::multiply, Base::p, Base::sums, Base::TM, Base::TN;
  using Base::workers;
  static constexpr CkDotForm f = D::form;
  static constexpr i32 pair = 4 / sizeof(E), line = BLOCK * pair, MINE = i32(ck_dot_ceil(blocks, p.slices));
  // Few blocks at a time: the compiler loads the columns of all of them first.
  static constexpr i32 MOST = TM > 1 ? 1 : TN > 4 ? 2 : 4;
  static constexpr i32 AHEAD = MINE < MOST ? MINE : MOST, STEP = AHEAD * p.slices;

  // The words of some blocks, which a lane loads while it multiplies those of the blocks before.
  struct Batch {
    Words at[AHEAD][TM][2];
  };

  // Those of the blocks from `first` on; rows are A_M elements apart. Beyond the last block and the last row
  // it takes these again. FITS: one load may take the words of a row.
  template <i64 A_M, bool FITS>
  static CK_MEMBER Batch load_batch(const E* a, i32 y, i32 first) {
    Batch found;
#pragma unroll
    for (i32 i = 0; i < AHEAD * TM * 2; ++i) {
      const i32 row = y + i % (TM * 2) * 8, at = first + i / (TM * 2) * p.slices;
      const i32 r = f.m % p.bm == 0 || row < f.m ? row : i32(f.m) - 1;
      const i32 block = blocks % STEP == 0 || at < blocks ? at : blocks - 1;
      const i32 k = block * line + ck_warp_lane() % 4 * 4 * pair;
      const auto words = ck_dot_read<E, 4 * pair, f.a_k, FITS>(a + r * A_M + k * f.a_k);
      found.at[i / (TM * 2)][i / 2 % TM][i % 2] = ck_bitcast<Words>(words);
    }
    return found;
  }
  template <i64 A_M>
  static CK_MEMBER Batch load_left(bool fits, const E* a, i32 y, i32 first) {
    constexpr bool dense = f.a_k == 1 && A_M * sizeof(E) % 16 == 0;  // for loads of 16 bytes
    if (dense && fits) return load_batch<A_M, dense>(a, y, first);
    return load_batch<A_M, false>(a, y, first);
  }

  // Rounds the words of one row. A NaN, which adding would turn into a number, becomes the first of them:
  // it is enough for all sums of the row.
  static CK_MEMBER void round(u32 (&to)[4], const Words& from) {
    bool odd = false;
#pragma unroll
    for (i32 i = 0; i < 4; ++i) {
      const f32 x = ck_bitcast<f32>(from.at[i]);
      odd |= D::tf32 && x != x;
      to[i] = from.at[i] + (D::tf32 ? kCkHalfTf32 : 0);
    }
    if (odd) to[0] = 0x7fffffff;
  }

  // The first row of `a` whose words this lane takes, in the tile from `row` on.
  static CK_MEMBER i32 first_row(i32 row) {
    return row + ck_warp() % workers / across * 16 * TM + ck_warp_lane() / 4;
  }

  // What `add` begins with: of the rows of `a` from `row` on.
  template <i64 A_M>
  static CK_MEMBER Batch begin(bool fits, const E* a, i32 row) {
    return load_left<A_M>(fits, a, first_row(row), ck_warp() / workers);
  }

  // The rows of `a` from `row` on, A_M elements apart, and the columns of `b` from `column` on. fits: rows
  // surely begin at multiples of 16 bytes if A_M allows it.
  template <i64 A_M>
  CK_MEMBER void add(Batch now, bool fits, const E* a, const E* b, i32 row, i32 column) {
    const i32 x = column + ck_warp() % across * 8 * TN;
    CK_NO_UNROLL
    for (i32 first = ck_warp() / workers; first < blocks; first += STEP) {
      Batch next = now;
      if (first + STEP < blocks) next = load_left<A_M>(fits, a, first_row(row), first + STEP);
#pragma unroll
      for (i32 i = 0; i < AHEAD; ++i) {
        const i32 block = first + i * p.slices;
        if (blocks % STEP != 0 && block >= blocks) break;
        add_block(now.at[i], b, x, block);
      }
      now = next;
    }
  }

  CK_MEMBER void add_block(const Words (&left)[TM][2], const E* b, i32 x, i32 block) {
    u32 rows[TM][2][4];
    Words right[TN];
#pragma unroll
    for (i32 i = 0; i < TN; ++i) {
      const i32 column = f.n % p.bn == 0 || x + i * 8 < f.n ? x + i * 8 : 0;
      right[i] = reinterpret_cast<const Words*>(b + column * i32(f.k) + block * 8 * line)[ck_warp_lane()];
    }
#pragma unroll
    for (i32 i = 0; i < TM * 2; ++i) round(rows[i / 2][i % 2], left[i / 2][i % 2]);
#pragma unroll
    for (i32 j = 0; j < 2; ++j) {
#pragma unroll
      for (i32 i = 0; i < TM * TN; ++i) {
        const u32 both[2] = {right[i % TN].at[2 * j], right[i % TN].at[2 * j + 1]};
        const u32(&a)[2][4] = rows[i / TN];
        const u32 four[4] = {a[0][2 * j], a[1][2 * j], a[0][2 * j + 1], a[1][2 * j + 1]};
        multiply(sums[i / TN][i % TN], four, both);
      }
    }
  }
};

#endif  // COCKTAIL_DOT_TENSOR_H
