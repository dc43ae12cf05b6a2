// What a convolution looks like and how a block makes it: all known when the program is compiled. The plan is
// an argument of the template: whoever emits the text chooses it (jax_cocktail/cost/conv_plan.py).
#ifndef COCKTAIL_CONV_PLAN_H
#define COCKTAIL_CONV_PLAN_H

#include "cocktail_arith.h"
#include "cocktail_conv_shape.h"
#include "cocktail_precision.h"

// As one matrix product per group: rows are output positions, columns the group's output features, depth runs
// over kernel elements and input features.
struct CkConvSizes {
  i32 rows, columns, depth, taps, features;
  bool dilated;  // the input has holes
};

template <int RANK>
CK_INLINE constexpr CkConvSizes ck_conv_sizes(const CkConv<RANK>& s) {
  i64 rows = s.batch, taps = 1;
  bool dilated = false;
  for (int axis = 0; axis < RANK; ++axis) {
    rows *= s.out_size[axis];
    taps *= s.kernel[axis];
    dilated = dilated || s.lhs_dilation[axis] != 1;
  }
  const i64 features = s.in_features / s.groups;
  return {i32(rows), i32(s.out_features / s.groups), i32(taps * features), i32(taps), i32(features), dilated};
}

// An axis as loops over it see it; counted from the last one, axes that are not there have one position.
struct CkConvAxis {
  i32 in, out, taps, stride, low, spread;
};

template <int RANK>
CK_INLINE constexpr CkConvAxis ck_conv_axis(const CkConv<RANK>& s, int from_last) {
  const int axis = RANK - 1 - from_last;
  if (axis < 0) return {1, 1, 1, 1, 0, 1};
  return {i32(s.in_size[axis]), i32(s.out_size[axis]), i32(s.kernel[axis]),
          i32(s.stride[axis]),  i32(s.pad_low[axis]),  i32(s.rhs_dilation[axis])};
}

// Input positions that `count` neighbouring output positions see.
CK_INLINE constexpr i32 ck_conv_seen(const CkConvAxis& a, i32 count) {
  return (count - 1) * a.stride + (a.taps - 1) * a.spread + 1;
}

// What products are summed in: f64 if an operand is, else what the result is computed in.
template <class O, bool WIDE>
struct CkConvSum {
  typedef typename CkType<O>::compute type;
};
template <class O>
struct CkConvSum<O, true> {
  typedef f64 type;
};
template <class T>
CK_INLINE constexpr bool ck_conv_is_f64() {
  return CkType<T>::mantissa == 52;
}

enum CkConvKind { CK_CONV_SIMPLE, CK_CONV_FMA, CK_CONV_MMA, CK_CONV_FEW };

// How a block makes one product. A tile of the result has `rows` x `columns` elements; `depth` elements of
// both operands are in shared memory at a time, `stages` times. `slices` parts of the block share that depth.
// FMA: a slice is row_parts x column_parts threads with height x width sums each, width in steps of 4.
// MMA: it is row_parts x column_parts warps with height x width cells of 16 x kCkCellColumns sums.
// FEW: column_parts lanes make height x width positions, without tiles; each adds `depth` features at a time.
struct CkConvPlan {
  CkConvKind kind;
  i32 rows, columns, depth, stages, slices, row_parts, column_parts, height, width;
  i32 a_line, b_line;  // elements from row to row of the operands' tiles
};

// Plans as arguments of templates. Numbers have the names of their fields.
struct CkConvElements {
  static constexpr CkConvPlan plan{CK_CONV_SIMPLE};
};
template <CkConvKind KIND, i32 DEPTH, i32 STAGES, i32 SLICES, i32 ROW_PARTS, i32 COLUMN_PARTS, i32 HEIGHT,
          i32 WIDTH>
struct CkConvTiles {
  static constexpr i32 high = KIND == CK_CONV_FMA ? HEIGHT : 16 * HEIGHT;
  static constexpr i32 wide = KIND == CK_CONV_FMA ? WIDTH : kCkCellColumns * WIDTH;
  static constexpr CkConvPlan plan{KIND,   ROW_PARTS * high, COLUMN_PARTS * wide, DEPTH, STAGES,
                                   SLICES, ROW_PARTS,        COLUMN_PARTS,        HEIGHT, WIDTH};
};
template <i32 DEPTH, i32 LANES, i32 HEIGHT, i32 WIDTH>
struct CkConvBoxes {
  static constexpr CkConvPlan plan{CK_CONV_FEW, 0, 0, DEPTH, 0, 0, 0, LANES, HEIGHT, WIDTH};
};

CK_INLINE constexpr i32 ck_conv_above(i32 n, i32 part) { return (n + part - 1) / part; }
CK_INLINE constexpr i32 ck_conv_round(i32 n, i32 part) { return ck_conv_above(n, part) * part; }

constexpr i32 kCkConvPad = 4;  // elements between lines of sums: rows fall on different banks

// A power of two that divides `count`, of at most `most` bytes together.
CK_INLINE constexpr i32 ck_conv_chunk(i32 count, i32 item, i32 most = 16) {
  i32 chunk = most / item;
  while (chunk > 1 && count % chunk != 0) chunk /= 2;
  return chunk;
}

// The plan with its lines for operands of `item` bytes. Lines of tensor cores' tiles fall on different banks.
CK_INLINE constexpr CkConvPlan ck_conv_lined(CkConvPlan p, i32 item) {
  const i32 sixteen = 16 / item, spare = p.kind == CK_CONV_FMA ? 0 : item == 4 ? 8 : sixteen;
  p.a_line = p.depth + sixteen;
  p.b_line = ck_conv_round(p.columns, sixteen) + spare;
  return p;
}

#endif  // COCKTAIL_CONV_PLAN_H
