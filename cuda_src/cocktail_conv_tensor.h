// A tile of a convolution on tensor cores.
#ifndef COCKTAIL_CONV_TENSOR_H
#define COCKTAIL_CONV_TENSOR_H

#include "cocktail_conv_plan.h"

template <class T>
CK_INLINE void ck_conv_mma(f32 (&sums)[4], const u32 (&left)[4], const u32 (&right)[2]) {
  if constexpr (CkType<T>::mantissa == 7) {
    ck_mma_bf16(sums, left, right);
  } else if constexpr (CkType<T>::mantissa == 10) {
    ck_mma_f16(sums, left, right);
  } else {
    ck_mma_tf32(sums, left, right);
  }
}

// A warp's sums are fragments as in cocktail_ptx.h; g: row, t: pair of columns.
template <class D>
struct CkConvMma {
  typedef typename D::item T;
  typedef typename D::sum C;
  static constexpr CkConvPlan p = D::plan;
  static constexpr bool is_half = CkType<T>::is_half;
  static constexpr i32 part = p.row_parts * p.column_parts, step = is_half ? 16 : 8;
  i32 slice, row, column, g, t;
  f32 sums[p.height][p.width][4];

  CK_MEMBER void begin() {
    const i32 slot = ck_warp() % part;
    slice = ck_warp() / part;
    row = slot / p.column_parts * 16 * p.height;
    column = slot % p.column_parts * 8 * p.width;
    g = ck_warp_lane() / 4;
    t = ck_warp_lane() % 4;
    _Pragma("unroll")
    for (int i = 0; i < p.height; ++i) {
      _Pragma("unroll")
      for (int j = 0; j < p.width; ++j) {
        _Pragma("unroll")
        for (int e = 0; e < 4; ++e) sums[i][j][e] = 0;
      }
    }
  }

  // 16 rows, one instruction deep, from `a` on.
  CK_MEMBER void left(const T* a, u32 (&to)[4]) const {
    if constexpr (is_half) {
      const i32 lane = ck_warp_lane();
      ck_load_tiles(to, a + lane % 16 * p.a_line + lane / 16 * 8);
    } else {
      _Pragma("unroll")
      for (int e = 0; e < 4; ++e) to[e] = ck_to_tf32(a[(g + e % 2 * 8) * p.a_line + t + e / 2 * 4]);
    }
  }

  // The same depth of all columns.
  CK_MEMBER void right(const T* b, u32 (&to)[p.width][2]) const {
    if constexpr (is_half) {
      const i32 lane = ck_warp_lane();
      _Pragma("unroll")
      for (int j = 0; j < p.width; j += 2) {
        u32 both[4];
        ck_load_tiles<true>(both, b + lane % 16 * p.b_line + lane / 16 * 8 + j * 8);
        _Pragma("unroll")
        for (int e = 0; e < 4; ++e) to[j + e / 2][e % 2] = both[e];
      }
    } else {
      _Pragma("unroll")
      for (int j = 0; j < p.width; ++j) {
        _Pragma("unroll")
        for (int e = 0; e < 2; ++e) to[j][e] = ck_to_tf32(b[(t + e * 4) * p.b_line + j * 8 + g]);
      }
    }
  }

  CK_MEMBER void add(const T* stage) {
    constexpr i32 depth = p.depth / p.slices;
    if (slice >= p.slices) return;
    const T* a = stage + row * p.a_line + slice * depth;
    const T* b = stage + D::b_start + slice * depth * p.b_line + column;
    CK_NO_UNROLL
    for (i32 k = 0; k < depth; k += step) {
      u32 lefts[p.height][4], rights[p.width][2];
      right(b + k * p.b_line, rights);
      _Pragma("unroll")
      for (int i = 0; i < p.height; ++i) left(a + i * 16 * p.a_line + k, lefts[i]);
      _Pragma("unroll")
      for (int i = 0; i < p.height; ++i) {
        _Pragma("unroll")
        for (int j = 0; j < p.width; ++j) ck_conv_mma<T>(sums[i][j], lefts[i], rights[j]);
      }
    }
  }

  CK_MEMBER void store(C* to) const {
    if (slice >= p.slices) return;
    _Pragma("unroll")
    for (int i = 0; i < p.height; ++i) {
      _Pragma("unroll")
      for (int j = 0; j < p.width; ++j) {
        _Pragma("unroll")
        for (int e = 0; e < 4; ++e) {
          const i32 r = slice * p.rows + row + i * 16 + g + e / 2 * 8;
          to[r * (p.columns + kCkConvPad) + column + j * 8 + t * 2 + e % 2] = sums[i][j][e];
        }
      }
    }
  }
};

#endif  // COCKTAIL_CONV_TENSOR_H
