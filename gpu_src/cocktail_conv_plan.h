// What a convolution looks like and how a block makes it: all known when the program is compiled.
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
  i32 bytes;           // of scratch
  i64 cost;
};

// What a plan depends on. item, sum: bytes of operands and sums; step: depth of one tensor core instruction,
// 0 where there is none. a_chunk, b_chunk: elements that are copied at once.
// x, y: the last axes.
struct CkConvCase {
  CkConvSizes sizes;
  i32 groups, item, sum, step, a_chunk, b_chunk, scratch;
  CkConvAxis x, y;
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

CK_INLINE constexpr i64 ck_conv_most(i64 a, i64 b) { return a > b ? a : b; }

// Clocks (times 64) that the threads need for one step of depth of one tile, operands being there: what the
// pipelines of four warps issue, what shared memory delivers (128 bytes per clock), and how long a warp alone
// takes, whose loads come after 48 clocks.
CK_INLINE constexpr i64 ck_conv_busy(const CkConvCase& c, const CkConvPlan& p) {
  const bool fma = p.kind == CK_CONV_FMA;
  const i32 parts = p.row_parts * p.column_parts * p.slices;
  const i64 warps = fma ? ck_conv_above(parts, CK_WARP) : parts;
  const i64 loads = fma ? p.height + p.width : 4 * p.height + 2 * p.width;
  const i64 math = p.height * p.width * (fma ? c.sum : 7);  // 4 multiply-adds deep, or an instruction deep
  const i64 reads = warps * loads * (fma ? 3 * c.item / 4 : 2) / 2;
  const i64 alone = math + 2 * loads + 48, together = (warps + 3) / 4 * (math + loads);
  const i64 clocks = ck_conv_most(ck_conv_most(together, reads), alone);
  return clocks * 64 / (p.slices * (fma ? 4 : c.step));
}

// Clocks (times 64) of all tiles of a group. The second cache delivers about 32 bytes per clock; a step from
// stage to stage costs 600 clocks, beginning and end of a tile 1000.
CK_INLINE constexpr i64 ck_conv_cost(const CkConvCase& c, const CkConvPlan& p) {
  const i64 copies = i64(p.rows + p.columns) * c.item * 2, busy = ck_conv_busy(c, p);
  const i64 step = (busy + copies + ck_conv_most(busy, copies)) / 2 * (p.stages == 2 ? 9 : 8) / 8;
  const i64 depth = ck_conv_round(c.sizes.depth, p.depth);
  const i64 sums = i64(p.slices + 1) * p.rows * p.columns * c.sum / 2;
  const i64 tiles = i64(ck_conv_above(c.sizes.rows, p.rows)) * ck_conv_above(c.sizes.columns, p.columns);
  return tiles * (depth * step + depth / p.depth * 38400 + sums + 64000);
}

// Fills in what follows from the parts; the cost is negative if it does not fit.
CK_INLINE constexpr CkConvPlan ck_conv_fit(const CkConvCase& c, CkConvPlan p) {
  const bool fma = p.kind == CK_CONV_FMA;
  const i32 high = fma ? p.height : 16 * p.height, wide = fma ? p.width : kCkCellColumns * p.width;
  const i32 most = (fma ? CK_THREADS : CK_WARPS) / (p.column_parts * p.slices);
  p.cost = -1;
  if (most < 1 || p.depth % (p.slices * (fma ? 4 : c.step)) != 0 || p.depth % c.a_chunk != 0) return p;
  if (CK_THREADS % (p.depth / c.a_chunk) != 0) return p;
  const i32 needed = ck_conv_above(c.sizes.rows, high);
  const i32 tiles = ck_conv_above(needed, most);
  p.row_parts = ck_conv_above(needed, tiles);
  p.rows = p.row_parts * high;
  p.columns = p.column_parts * wide;
  if (p.rows > 256 || p.columns >= 2 * ck_conv_round(c.sizes.columns, wide)) return p;
  const i32 sixteen = 16 / c.item, spare = fma ? 0 : c.item == 4 ? 8 : sixteen;
  p.a_line = p.depth + sixteen;
  p.b_line = ck_conv_round(p.columns, sixteen) + spare;
  const i32 stage = (p.rows * p.a_line + p.depth * p.b_line) * c.item;
  const i32 sums = p.slices * p.rows * (p.columns + kCkConvPad) * c.sum;
  for (p.stages = 4; p.stages >= 2; --p.stages) {
    const i32 staged = p.stages * stage;
    p.bytes = p.rows * 16 + (staged > sums ? staged : sums);
    if (p.bytes <= c.scratch) {
      p.cost = ck_conv_cost(c, p);
      return p;
    }
  }
  return p;
}

CK_INLINE constexpr CkConvPlan ck_conv_cheaper(const CkConvPlan& a, const CkConvPlan& b) {
  return b.cost >= 0 && (a.kind == CK_CONV_SIMPLE || b.cost < a.cost) ? b : a;
}

CK_INLINE constexpr CkConvPlan ck_conv_fma_plan(const CkConvCase& c, CkConvPlan best) {
  const i32 registers = CK_THREADS <= 256 ? 256 : CK_THREADS <= 512 ? 128 : 32;  // bytes for sums
  for (i32 height = 1; height <= 8; height *= 2) {
    for (i32 width = 4; width <= 8 && height * width * c.sum <= registers; width *= 2) {
      for (i32 column_parts = 1; column_parts <= 32; column_parts *= 2) {
        for (i32 slices = 1; slices <= 16; slices *= 2) {
          for (i32 depth = 16; depth <= 64; depth *= 2) {
            CkConvPlan p = {CK_CONV_FMA, 0, 0, depth, 0, slices, 0, column_parts, height, width, 0, 0, 0, -1};
            best = ck_conv_cheaper(best, ck_conv_fit(c, p));
          }
        }
      }
    }
  }
  return best;
}

CK_INLINE constexpr CkConvPlan ck_conv_mma_plan(const CkConvCase& c, CkConvPlan best) {
  const i32 most = CK_THREADS <= 256 ? 16 : CK_THREADS <= 512 ? 8 : 4;  // fragments of a warp
  for (i32 height = 1; height <= 2; ++height) {
    for (i32 width = 2; width <= 8 && height * width <= most; width *= 2) {
      for (i32 column_parts = 1; column_parts <= 8; column_parts *= 2) {
        for (i32 slices = 1; slices <= 8; slices *= 2) {
          for (i32 depth = 16; depth <= 64; depth *= 2) {
            CkConvPlan p = {CK_CONV_MMA, 0, 0, depth, 0, slices, 0, column_parts, height, width, 0, 0, 0, -1};
            best = ck_conv_cheaper(best, ck_conv_fit(c, p));
          }
        }
      }
    }
  }
  return best;
}

constexpr i32 kCkConvFew = 4;     // output features of boxes, at most
constexpr i32 kCkConvSums = 64;   // bytes of sums of a thread, at most
constexpr i32 kCkConvSeen = 288;  // bytes of a box's input that a thread has under way, at most

// Clocks (times 64) of all boxes: what the threads issue, or what the first cache delivers, and what comes to
// it from the second one.
CK_INLINE constexpr i64 ck_conv_few_cost(const CkConvCase& c, const CkConvPlan& p) {
  const i32 lanes = p.column_parts, few = c.sizes.columns, taps = c.x.taps * c.y.taps;
  const i64 seen = i64(ck_conv_seen(c.x, p.width)) * ck_conv_seen(c.y, p.height);
  const i64 outer = c.sizes.rows / (i64(c.x.out) * c.y.out), deep = c.sizes.taps / taps;
  const i64 boxes = outer * ck_conv_above(c.y.out, p.height) * ck_conv_above(c.x.out, p.width);
  const i64 rounds = (boxes * lanes + CK_THREADS - 1) / CK_THREADS;
  const i64 steps = rounds * deep * ck_conv_above(c.sizes.features, lanes * p.depth);
  const i64 weights = i64(p.height) * taps * few, math = i64(p.height) * p.width * taps * p.depth * few;
  const i64 issued = (seen * 2 + weights + math * c.sum / 4) * ck_conv_above(CK_WARPS, 4);
  const i64 reads = (seen * ck_conv_most(1, p.depth * c.item / 4) + weights) * CK_WARPS;
  const i64 sums = rounds * (300 + 2 * i64(p.height) * p.width * few * CK_WARPS);
  const i64 image = outer * deep * c.x.in * c.y.in * c.sizes.features * c.item / 32;
  return 64 * (steps * (ck_conv_most(issued, reads) + 300) + sums + image);
}

CK_INLINE constexpr CkConvPlan ck_conv_few_plan(const CkConvCase& c, CkConvPlan best) {
  if (c.groups > 1 || c.sizes.dilated || c.sizes.columns > kCkConvFew) return best;
  const i32 chunk = ck_conv_chunk(c.sizes.features, c.item, 8);
  for (i32 lanes = 1; lanes <= CK_WARP && (lanes == 1 || lanes * chunk <= c.sizes.features); lanes *= 2) {
    for (i32 height = 1; height <= 4; height *= 2) {
      for (i32 width = 1; width <= 4; width *= 2) {
        if (height * width * c.sizes.columns * c.sum > kCkConvSums) continue;
        const i32 seen = ck_conv_seen(c.x, width) * ck_conv_seen(c.y, height);
        if (seen * chunk * c.item > kCkConvSeen) continue;
        const i32 bytes = c.sizes.columns > 1 ? c.sizes.depth * c.sizes.columns * c.item : 0;
        CkConvPlan p = {CK_CONV_FEW, 0, 0, chunk, 0, 0, 0, lanes, height, width, 0, 0, bytes, -1};
        if (bytes > c.scratch) continue;
        p.cost = ck_conv_few_cost(c, p);
        best = ck_conv_cheaper(best, p);
      }
    }
  }
  return best;
}

// Too little to fill tiles: an output element per thread.
CK_INLINE constexpr bool ck_conv_is_small(const CkConvSizes& z, i32 groups) {
  const i64 products = i64(z.rows) * z.columns * groups * z.depth;
  return z.depth < 8 || z.rows == 0 || (groups > 1 && z.columns < 8) || products < 64 * CK_THREADS;
}

template <class T, class O, int RANK>
CK_INLINE constexpr CkConvPlan ck_conv_plan(const CkConv<RANK>& s, CkPrecision precision) {
  const CkConvSizes z = ck_conv_sizes(s);
  const i32 item = sizeof(T);
  const i32 sum = ck_conv_is_f64<T>() ? 8 : i32(sizeof(typename CkType<O>::compute));
  const bool tensor = sum == 4 && CkType<O>::is_float && CkType<T>::is_float;
  const i32 step = !tensor ? 0 : CkType<T>::is_half ? 16 : precision == CK_TF32 && kCkMatrixTakesF32 ? 8 : 0;
  const CkConvCase c = {z, i32(s.groups), item, sum, step, ck_conv_chunk(z.features, item),
                        ck_conv_chunk(z.columns, item), CK_SCRATCH_BYTES,
                        ck_conv_axis(s, 0), ck_conv_axis(s, 1)};
  CkConvPlan best = {CK_CONV_SIMPLE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1};
  if (ck_conv_is_small(z, c.groups)) return best;
  best = ck_conv_fma_plan(c, best);
  if (step) best = ck_conv_mma_plan(c, best);
  return CkType<T>::is_float ? ck_conv_few_plan(c, best) : best;
}

// Bytes of scratch with which a convolution runs well; it is right with any number.
template <class T, int RANK>
CK_INLINE constexpr i32 ck_conv_scratch(const CkConv<RANK>& s) {
  const CkConvSizes z = ck_conv_sizes(s);
  const i32 item = sizeof(T), most = item == 8 ? 64 : 128, depth = item == 2 ? 64 : 32;
  if (ck_conv_is_small(z, i32(s.groups))) return 0;
  const i32 rows = z.rows < most ? ck_conv_round(z.rows, 16) : most;
  const i32 columns = z.columns < most ? ck_conv_round(z.columns, 16) : most;
  const i32 bytes = rows * 16 + 3 * (rows * (depth + 16 / item) + depth * (columns + 8)) * item;
  return bytes < 96 << 10 ? bytes : 96 << 10;
}

#endif  // COCKTAIL_CONV_PLAN_H
