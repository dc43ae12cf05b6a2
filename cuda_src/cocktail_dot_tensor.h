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
  static constexpr i32 across = p.bn / (8 * TN), workers = p.bm / (16 * TM) * across, spare = 8;
  static constexpr i32 blocks = p.bk * i32(sizeof(typename D::A)) / (4 * BLOCK);
  f32 sums[TM][TN][4];

  static CK_MEMBER i32 worker() { return ck_warp(); }

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

  // The same of 8 columns from `x` on. The operand has `columns` from the tile's first on.
  static CK_MEMBER void load_right(u32 (&to)[2][2], const u8* tile, i32 x, i32 k, i32 columns) {
    const i32 lane = ck_warp_lane(), g = lane / 4, t = lane % 4;
    u32 words[4];
    if constexpr (Right::is_packed) {
      const auto four = Right::lane_words(tile, x, k, columns);
#pragma unroll
      for (i32 i = 0; i < 4; ++i) words[i] = four.at[i];
    } else if constexpr (Right::along_k) {
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

  CK_MEMBER void add(const u8* left, const u8* right, i32 columns) {
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
      for (i32 i = 0; i < TN; ++i) load_right(b[i], right, x + i * 8, k, columns);
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
};

#endif  // COCKTAIL_DOT_TENSOR_H
