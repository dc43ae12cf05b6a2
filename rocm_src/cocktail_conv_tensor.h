// A tile of a convolution on matrix units.
#ifndef COCKTAIL_CONV_TENSOR_H
#define COCKTAIL_CONV_TENSOR_H

#include "cocktail_conv_plan.h"

// A wave's sums are fragments as in cocktail_fragments.h.
template <class D>
struct CkConvMma {
  typedef typename D::item T;
  typedef typename D::sum C;
  static constexpr CkConvPlan p = D::plan;
  static constexpr i32 part = p.row_parts * p.column_parts, step = CkType<T>::is_half ? 16 : 8;
  static constexpr i32 PER = step / kCkFragmentGroups;
  i32 slice, row, column;
  f32 sums[p.height][p.width][kCkFragmentSums];

  CK_MEMBER void begin() {
    const i32 slot = ck_warp() % part;
    slice = ck_warp() / part;
    row = slot / p.column_parts * 16 * p.height;
    column = slot % p.column_parts * 16 * p.width;
#pragma unroll
    for (i32 i = 0; i < p.height * p.width * kCkFragmentSums; ++i) {
      const i32 cell = i / kCkFragmentSums;
      sums[cell / p.width][cell % p.width][i % kCkFragmentSums] = 0;
    }
  }

  CK_MEMBER void add(const T* stage) {
    constexpr i32 depth = p.depth / p.slices;
    if (slice >= p.slices) return;
    const i32 line = ck_fragment_line(), first = slice * depth + ck_fragment_depth<PER>();
    const T* a = stage + (row + line) * p.a_line + first;
    const T* b = stage + D::b_start + first * p.b_line + column + line;
    CK_NO_UNROLL
    for (i32 k = 0; k < depth; k += step) {
      T lefts[p.height][PER], rights[p.width][PER];
#pragma unroll
      for (i32 i = 0; i < p.width * PER; ++i) {
        rights[i / PER][i % PER] = b[(k + i % PER) * p.b_line + i / PER * 16];
      }
#pragma unroll
      for (i32 i = 0; i < p.height * PER; ++i) {
        lefts[i / PER][i % PER] = a[i / PER * 16 * p.a_line + k + i % PER];
      }
#pragma unroll
      for (i32 i = 0; i < p.height * p.width; ++i) {
        ck_mma(sums[i / p.width][i % p.width], lefts[i / p.width], rights[i % p.width]);
      }
    }
  }

  CK_MEMBER void store(C* to) const {
    if (slice >= p.slices) return;
#pragma unroll
    for (i32 i = 0; i < p.height * p.width * kCkFragmentSums; ++i) {
      const i32 cell = i / kCkFragmentSums, e = i % kCkFragmentSums;
      const i32 r = slice * p.rows + row + cell / p.width * 16 + ck_fragment_row(e);
      to[r * (p.columns + kCkConvPad) + column + cell % p.width * 16 + ck_fragment_line()] =
          sums[cell / p.width][cell % p.width][e];
    }
  }
};

#endif  // COCKTAIL_CONV_TENSOR_H
