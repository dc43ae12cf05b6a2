// A tile of a product on tensor cores.
#ifndef COCKTAIL_DOT_TENSOR_H
#define COCKTAIL_DOT_TENSOR_H

#include "cocktail_dot_plan.h"

// What one warp makes of a tile, as `CkDotFmaPart` is what one thread makes of it. Fragments are those of
// cocktail_ptx.h; g: row, t: pair of columns.
template <class D, class Left, class Right>
struct CkDotMmaPart {
  static constexpr CkDotPlan p = D::plan;
  static constexpr i32 TM = p.tm, TN = p.tn;
  static constexpr i32 across = p.bn / (8 * TN), workers = p.bm / (16 * TM) * across;
  f32 sums[TM][TN][4];

  static CK_MEMBER i32 worker() { return ck_warp(); }

  CK_MEMBER void clear() {
#pragma unroll
    for (i32 i = 0; i < TM * TN * 4; ++i) sums[i / 4 / TN][i / 4 % TN][i % 4] = 0;
  }

  CK_MEMBER void add(const u8* left, const u8* right) {
    const i32 y = ck_warp() % workers / across * 16 * TM, x = ck_warp() % across * 8 * TN;
    const i32 g = ck_warp_lane() / 4, t = ck_warp_lane() % 4, slice = ck_warp() / workers;
    constexpr i32 words = p.bk * i32(sizeof(typename D::A)) / 4;
    CK_NO_UNROLL
    for (i32 k = slice * 8; k < words; k += p.slices * 8) {
      u32 a[TM][4], b[TN][2];
#pragma unroll
      for (i32 i = 0; i < TM * 4; ++i) {
        a[i / 4][i % 4] = Left::word(left, y + i / 4 * 16 + g + i % 2 * 8, k + t + i % 4 / 2 * 4);
      }
#pragma unroll
      for (i32 i = 0; i < TN * 2; ++i) {
        b[i / 2][i % 2] = Right::word(right, x + i / 2 * 8 + g, k + t + i % 2 * 4);
      }
#pragma unroll
      for (i32 i = 0; i < TM * TN; ++i) {
        if constexpr (D::tf32) {
          ck_mma_tf32(sums[i / TN][i % TN], a[i / TN], b[i % TN]);
        } else if constexpr (CkType<typename D::A>::mantissa == 7) {
          ck_mma_bf16(sums[i / TN][i % TN], a[i / TN], b[i % TN]);
        } else {
          ck_mma_f16(sums[i / TN][i % TN], a[i / TN], b[i % TN]);
        }
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
