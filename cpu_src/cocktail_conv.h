// Convolution with strides, padding, dilations and feature groups, over any number of spatial axes, as a
// product of matrices, the left one of which never exists as a whole. x: [batch, spatial..., features];
// w: [kernel..., features / groups, out features]; o: [batch, spatial..., out features]; all row-major.
#ifndef COCKTAIL_CONV_H
#define COCKTAIL_CONV_H

#include "cocktail_conv_shape.h"
#include "cocktail_dot.h"

// Input coordinate that kernel element `tap` reads for output coordinate `out` on one axis, or -1: padding or
// a hole of the dilated input.
template <int RANK>
CK_INLINE i64 ck_conv_source(const CkConv<RANK>& s, int axis, i64 out, i64 tap) {
  i64 at = out * s.stride[axis] - s.pad_low[axis] + tap * s.rhs_dilation[axis];
  if (at < 0) return -1;
  if (s.lhs_dilation[axis] != 1) {
    if (at % s.lhs_dilation[axis] != 0) return -1;
    at /= s.lhs_dilation[axis];
  }
  return at < s.in_size[axis] ? at : -1;
}

// ---- straight from the image ----------------------------------------------------------------------------
// A few neighbouring positions share each weight, and no padding is multiplied: better as long as the weights
// of a kernel element stay in the first cache, or lines are short.

// One output tile: `count` neighbouring positions along the last axis, output features from `feature` on.
template <int RANK>
struct CkConvTile {
  i64 out[RANK];
  int count;
  i64 feature;
};

// The sources of a tile's positions: position p reads feature c at at[p][c * step[p]], which is a zero in the
// padding. `inside`: at[p] is at[0] + p * pitch for all p, and every step is 1.
template <class T, int POSITIONS>
struct CkConvSource {
  const T* at[POSITIONS] = {};
  i64 step[POSITIONS] = {};
  i64 pitch = 0;
  bool inside = false;
};

// False if all positions read padding. `line`: of the input, over all axes but the last.
template <int POSITIONS, int RANK, class T>
CK_INLINE bool ck_conv_line(const CkConv<RANK>& s, const CkConvTile<RANK>& tile, const T* line, i64 tap,
                            CkConvSource<T, POSITIONS>& source) {
  static const T zero = {};
  constexpr int axis = RANK - 1;
  const i64 out = tile.out[axis], stride = s.stride[axis];
  const i64 low = ck_conv_source(s, axis, out, tap), high = ck_conv_source(s, axis, out + POSITIONS - 1, tap);
  source.inside = low >= 0 && high >= 0 && tile.count == POSITIONS && s.lhs_dilation[axis] == 1;
  source.pitch = stride * s.in_features;
  if (source.inside) {
    source.at[0] = line + low * s.in_features;
    return true;
  }
  bool any = false;
  for (int p = 0; p < POSITIONS; ++p) {
    i64 at = p < tile.count ? ck_conv_source(s, axis, out + p, tap) : -1;
    source.at[p] = at < 0 ? &zero : line + at * s.in_features;
    source.step[p] = at >= 0;
    any |= at >= 0;
  }
  return any;
}

// Calls visit(source, weights) for every tap of the kernel that touches the image.
template <int POSITIONS, int RANK, class T, class F>
CK_INLINE void ck_conv_taps(const CkConv<RANK>& s, const CkConvTile<RANK>& tile, const T* x, const T* w,
                            F visit) {
  const i64 channels = s.in_features / s.groups;
  const i64 first = tile.feature / (s.out_features / s.groups) * channels;
  i64 taps = 1;
  for (int axis = 0; axis < RANK; ++axis) taps *= s.kernel[axis];
  i64 tap[RANK] = {};
  for (i64 t = 0; t < taps; ++t) {
    i64 outer = 0;  // -1 once outside
    for (int axis = 0; axis + 1 < RANK; ++axis) {
      i64 at = ck_conv_source(s, axis, tile.out[axis], tap[axis]);
      outer = outer < 0 || at < 0 ? -1 : outer * s.in_size[axis] + at;
    }
    CkConvSource<T, POSITIONS> source;
    const T* line = x + outer * s.in_size[RANK - 1] * s.in_features + first;
    if (outer >= 0 && ck_conv_line(s, tile, line, tap[RANK - 1], source)) {
      visit(source, w + t * channels * s.out_features + tile.feature);
    }
    for (int axis = RANK - 1; axis >= 0 && ++tap[axis] == s.kernel[axis]; --axis) tap[axis] = 0;
  }
}

// POSITIONS x (VECTORS vectors of) output features in registers.
template <int POSITIONS, int VECTORS, int RANK, class T>
CK_NOINLINE void ck_conv_vectors(const CkConv<RANK>& s, const CkConvTile<RANK>& tile, const T* x, const T* w,
                                 T* o) {
  typedef CkVector<T, CK_VECTOR_BYTES> V;
  typedef typename V::type Lanes;
  Lanes sum[POSITIONS][VECTORS] = {};
  const i64 channels = s.in_features / s.groups, row = s.out_features;
  ck_conv_taps<POSITIONS>(s, tile, x, w, [&](const CkConvSource<T, POSITIONS>& source, const T* weights) {
    auto one = [&](const T* const* at, i64 pitch, const i64* step, const T* line_of, i64 c)
        __attribute__((always_inline)) {
      Lanes line[VECTORS];
      CK_UNROLL
      for (int v = 0; v < VECTORS; ++v) line[v] = ck_load<T, CK_VECTOR_BYTES>(line_of + v * V::lanes);
      CK_UNROLL
      for (int p = 0; p < POSITIONS; ++p) {
        const Lanes value =
            ck_broadcast<T, CK_VECTOR_BYTES>(step ? at[p][c * step[p]] : at[0][p * pitch + c]);
        CK_UNROLL
        for (int v = 0; v < VECTORS; ++v) sum[p][v] = ck_multiply_add<T>(sum[p][v], value, line[v]);
      }
    };
    if (source.inside) {
      CK_NO_UNROLL
      for (i64 c = 0; c < channels; ++c) one(source.at, source.pitch, nullptr, weights + c * row, c);
    } else {
      CK_NO_UNROLL
      for (i64 c = 0; c < channels; ++c) one(source.at, 0, source.step, weights + c * row, c);
    }
  });
  CK_UNROLL
  for (int p = 0; p < POSITIONS; ++p) {
    if (p >= tile.count) break;
    CK_UNROLL
    for (int v = 0; v < VECTORS; ++v) {
      ck_store<T, CK_VECTOR_BYTES>(o + p * row + tile.feature + v * V::lanes, sum[p][v]);
    }
  }
}

// GROUPS: see ck_gemm; it tells whether there are pairs of vectors, and whether one vector is left over.
template <int GROUPS, class T, int RANK>
CK_NOINLINE void ck_conv_direct(const CkConv<RANK>& s, const T* x, const T* w, T* o) {
  constexpr bool pairs = (GROUPS & (8 | 4 | 2)) != 0, single = (GROUPS & (4 | 1)) != 0;
  constexpr int most = CK_VECTOR_BYTES == 64 ? 8 : 4;
  constexpr i64 lanes = CkVector<T, CK_VECTOR_BYTES>::lanes;
  i64 lines = s.batch, image = s.in_features;
  for (int axis = 0; axis + 1 < RANK; ++axis) lines *= s.out_size[axis];
  for (int axis = 0; axis < RANK; ++axis) image *= s.in_size[axis];
  const i64 width = s.out_size[RANK - 1], outs = s.out_features / s.groups;
  CkConvTile<RANK> tile;
  for (i64 line = 0; line < lines; ++line) {
    i64 rest = line;
    for (int axis = RANK - 2; axis >= 0; --axis) {
      tile.out[axis] = rest % s.out_size[axis];
      rest /= s.out_size[axis];
    }
    for (i64 at = 0; at < width; at += most) {
      tile.out[RANK - 1] = at;
      tile.count = width - at < most ? int(width - at) : most;
      T* target = o + (line * width + at) * s.out_features;
      for (tile.feature = 0; tile.feature < s.out_features;) {
        const bool pair = pairs && (!single || outs - tile.feature % outs >= 2 * lanes);
        if constexpr (pairs) {
          if (pair) ck_conv_vectors<most, 2>(s, tile, x + rest * image, w, target);
        }
        if constexpr (single) {
          if (!pair) ck_conv_vectors<most, 1>(s, tile, x + rest * image, w, target);
        }
        tile.feature += pair ? 2 * lanes : lanes;
      }
    }
  }
}

// ---- as one matrix product per group --------------------------------------------------------------------

// The left operand: a row per output position, a column per kernel element and feature; padding and holes are
// zeros. Rows are gathered a block at a time, while it is multiplied. (K. Chellapilla et al., 2006,
// section 3.)
template <class C, class T, int RANK>
struct CkPatches {
  const CkConv<RANK>& s;
  const T* x;           // at the group's first feature
  i64 features, count;  // of the group; elements of one image

  __attribute__((noinline)) CkPiece<C> piece(i64 i, i64 rows, i64 p, i64 depth, C* buffer) const {
    i64 out[RANK], image = i;
    for (int axis = RANK - 1; axis >= 0; --axis) {
      out[axis] = image % s.out_size[axis];
      image /= s.out_size[axis];
    }
    const i64 line = s.kernel[RANK - 1] * features, first = p / line, skip = p % line;
    for (i64 r = 0; r < rows; ++r) {
      gather(out, x + image * count, first, skip, depth, buffer + r * kCkDepth);
      int axis = RANK - 1;
      for (; axis >= 0 && ++out[axis] == s.out_size[axis]; --axis) out[axis] = 0;
      image += axis < 0;
    }
    return {buffer, kCkDepth, 1};
  }

  // `depth` elements of one row, from element `skip` of kernel line `number` on.
  CK_MEMBER void gather(const i64* out, const T* from, i64 number, i64 skip, i64 depth, C* to) const {
    constexpr int last = RANK - 1;
    const i64 line = s.kernel[last] * features;
    for (i64 done = 0; done < depth; ++number, skip = 0) {
      const i64 size = line - skip < depth - done ? line - skip : depth - done;
      i64 place = 0, rest = number;  // position over all axes but the last; negative outside
      i64 tap[RANK] = {};
      for (int axis = last - 1; axis > 0; --axis) {
        tap[axis] = rest % s.kernel[axis];
        rest /= s.kernel[axis];
      }
      tap[0] = rest;
      for (int axis = 0; axis < last; ++axis) {
        i64 at = ck_conv_source(s, axis, out[axis], tap[axis]);
        place = place < 0 || at < 0 ? -1 : place * s.in_size[axis] + at;
      }
      if (place < 0) {
        for (i64 q = 0; q < size; ++q) to[done + q] = C(0);
      } else {
        gather_line(out[last], from + place * s.in_size[last] * s.in_features, skip, size, to + done);
      }
      done += size;
    }
  }

  // Part of one kernel line over the input line `from`.
  CK_MEMBER void gather_line(i64 out, const T* from, i64 skip, i64 size, C* to) const {
    constexpr int last = RANK - 1;
    if (features == s.in_features && s.lhs_dilation[last] == 1 && s.rhs_dilation[last] == 1) {
      const i64 begin = (out * s.stride[last] - s.pad_low[last]) * features + skip;
      const i64 all = s.in_size[last] * features;
      i64 low = begin < 0 ? -begin : 0, high = begin + size > all ? all - begin : size;
      low = low < size ? low : size;
      high = high > low ? high : low;
      for (i64 q = 0; q < low; ++q) to[q] = C(0);
      ck_copy<C, CK_VECTOR_BYTES>(from + begin + low, high - low, to + low);
      for (i64 q = high; q < size; ++q) to[q] = C(0);
      return;
    }
    i64 tap = skip / features, c = skip % features;
    for (i64 done = 0; done < size; ++tap, c = 0) {
      const i64 part = features - c < size - done ? features - c : size - done;
      const i64 at = ck_conv_source(s, last, out, tap);
      if (at < 0) {
        for (i64 q = 0; q < part; ++q) to[done + q] = C(0);
      } else {
        ck_copy<C, CK_VECTOR_BYTES>(from + at * s.in_features + c, part, to + done);
      }
      done += part;
    }
  }
};

// True if every output position reads the one input position of the same number.
template <int RANK>
constexpr bool ck_conv_pointwise(const CkConv<RANK>& s) {
  bool same = true;
  for (int axis = 0; axis < RANK; ++axis) {
    same = same && s.kernel[axis] == 1 && s.stride[axis] == 1 && s.pad_low[axis] == 0 &&
           s.lhs_dilation[axis] == 1 && s.in_size[axis] == s.out_size[axis];
  }
  return same;
}

template <class C, bool POINTWISE, int M, int GROUPS, class T, class O, int RANK>
CK_INLINE void ck_conv_products(const CkConv<RANK>& s, i64 positions, i64 image, const T* x, const T* w,
                                O* o) {
  const i64 features = s.in_features / s.groups, outs = s.out_features / s.groups;
  i64 taps = 1;
  for (int axis = 0; axis < RANK; ++axis) taps *= s.kernel[axis];
  for (i64 g = 0; g < s.groups; ++g) {
    const CkColumns<T> columns{positions, outs, taps * features, w + g * outs, s.out_features, 1};
    const CkStore<C, O> store{o + g * outs, s.out_features, 1};
    if constexpr (POINTWISE) {
      ck_gemm<C, M, GROUPS>(columns, CkRows<C, T>{x + g * features, s.in_features, 1}, store);
    } else {
      ck_gemm<C, M, GROUPS>(columns, CkPatches<C, T, RANK>{s, x + g * features, features, image}, store);
    }
  }
}

// ---- element by element ---------------------------------------------------------------------------------

// Types without vectors, and groups with few features: neighbouring output features run in lanes.
template <class T, class O, int RANK>
CK_INLINE void ck_conv_position(const CkConv<RANK>& s, const i64* out, const T* x, const T* w, O* o) {
  typedef typename CkType<O>::compute C;
  constexpr i64 most = 64;
  const i64 features = s.in_features / s.groups, outs = s.out_features / s.groups;
  i64 taps = 1;
  for (int axis = 0; axis < RANK; ++axis) taps *= s.kernel[axis];
  for (i64 f = 0; f < s.out_features; f += most) {
    const i64 count = s.out_features - f < most ? s.out_features - f : most;
    C sum[most] = {};
    for (i64 t = 0; t < taps; ++t) {
      i64 place = 0, rest = t, tap[RANK];
      for (int axis = RANK - 1; axis >= 0; --axis) {
        tap[axis] = rest % s.kernel[axis];
        rest /= s.kernel[axis];
      }
      for (int axis = 0; axis < RANK; ++axis) {
        i64 at = ck_conv_source(s, axis, out[axis], tap[axis]);
        place = place < 0 || at < 0 ? -1 : place * s.in_size[axis] + at;
      }
      if (place < 0) continue;
      const T* from = x + place * s.in_features;
      const T* weights = w + t * features * s.out_features + f;
      for (i64 c = 0; c < features; ++c, weights += s.out_features) {
        if (outs == 1) {
          CK_LANES
          for (i64 l = 0; l < count; ++l) {
            sum[l] = C(sum[l] + C(C(ck_up(from[(f + l) * features + c])) * C(ck_up(weights[l]))));
          }
        } else {
          for (i64 l = 0; l < count; ++l) {
            const i64 at = (f + l) / outs * features + c;
            sum[l] = C(sum[l] + C(C(ck_up(from[at])) * C(ck_up(weights[l]))));
          }
        }
      }
    }
    for (i64 l = 0; l < count; ++l) o[f + l] = ck_convert<O>(sum[l]);
  }
}

template <class T, class O, int RANK>
CK_NOINLINE void ck_conv_positions(const CkConv<RANK>& s, i64 positions, i64 image, const T* x, const T* w,
                                   O* o) {
  i64 out[RANK] = {};
  for (i64 i = 0; i < positions; ++i) {
    ck_conv_position(s, out, x, w, o + i * s.out_features);
    int axis = RANK - 1;
    for (; axis >= 0 && ++out[axis] == s.out_size[axis]; --axis) out[axis] = 0;
    if (axis < 0) x += image;
  }
}

// ---- choice ---------------------------------------------------------------------------------------------

enum CkConvKernel { CK_CONV_POSITIONS, CK_CONV_DIRECT, CK_CONV_PRODUCTS, CK_CONV_POINTWISE };

// T: operands; O: result, at least as wide (16-bit floats are summed in f32).
template <class T, class O, int RANK>
constexpr CkConvKernel ck_conv_kernel(const CkConv<RANK>& s) {
  typedef typename CkLane<T, T, O>::type C;
  if constexpr (CkSame<C, void>::value) {
    return CK_CONV_POSITIONS;
  } else {
    constexpr i64 lanes = CkVector<C, CK_VECTOR_BYTES>::lanes;
    const i64 outs = s.out_features / s.groups;
    i64 taps = 1;
    for (int axis = 0; axis < RANK; ++axis) taps *= s.kernel[axis];
    if (s.groups != 1 && outs < lanes / 2) return CK_CONV_POSITIONS;
    if (ck_conv_pointwise(s)) return CK_CONV_POINTWISE;
    if (!(CkSame<T, O>::value && CkSame<T, C>::value) || taps == 1 || outs % lanes != 0)
      return CK_CONV_PRODUCTS;
    const i64 bytes = s.out_features * i64(sizeof(T)), weights = taps * s.in_features / s.groups * bytes;
    const bool near = bytes <= 512 || (s.out_size[RANK - 1] <= 8 && weights <= (1 << 20));
    return near && s.in_features / s.groups >= 16 ? CK_CONV_DIRECT : CK_CONV_PRODUCTS;
  }
}

template <CkConvKernel KERNEL, int M, int GROUPS, class T, class O, int RANK>
CK_INLINE void ck_conv_as(const CkConv<RANK>& s, const T* x, const T* w, O* o) {
  typedef typename CkLane<T, T, O>::type C;
  i64 positions = s.batch, image = s.in_features;
  for (int axis = 0; axis < RANK; ++axis) {
    positions *= s.out_size[axis];
    image *= s.in_size[axis];
  }
  constexpr bool pointwise = KERNEL == CK_CONV_POINTWISE;
  if constexpr ((pointwise || KERNEL == CK_CONV_PRODUCTS) && !CkSame<C, void>::value) {
    ck_conv_products<C, pointwise, M, GROUPS>(s, positions, image, x, w, o);
  } else if constexpr (KERNEL == CK_CONV_DIRECT && CkSame<T, O>::value && CkSame<T, C>::value) {
    ck_conv_direct<GROUPS>(s, x, w, o);
  } else {
    ck_conv_positions(s, positions, image, x, w, o);
  }
}

// Positions of the output.
template <int RANK>
constexpr int ck_conv_rows(const CkConv<RANK>& s) {
  i64 positions = s.batch;
  for (int axis = 0; axis < RANK; ++axis) positions *= s.out_size[axis];
  return int(positions);
}

// For shapes that the compiler does not know: all kernels are compiled.
template <class T, class O, int RANK>
CK_NOINLINE void ck_conv(const CkConv<RANK>& s, const T* x, const T* w, O* o) {
  switch (ck_conv_kernel<T, O>(s)) {
    case CK_CONV_PRODUCTS:
      return ck_conv_as<CK_CONV_PRODUCTS, -1, 15>(s, x, w, o);
    case CK_CONV_POINTWISE:
      return ck_conv_as<CK_CONV_POINTWISE, -1, 15>(s, x, w, o);
    case CK_CONV_DIRECT:
      return ck_conv_as<CK_CONV_DIRECT, -1, 15>(s, x, w, o);
    default:
      return ck_conv_as<CK_CONV_POSITIONS, -1, 15>(s, x, w, o);
  }
}

// The same for one shape: `S` is a struct whose member `value` is, by its default, the description.
template <class T, class O, int RANK, class S>
CK_INLINE void ck_conv_fixed(const T* x, const T* w, O* o) {
  static constexpr CkConv<RANK> SHAPE = S().value;
  typedef typename CkChoose<CkSame<typename CkLane<T, T, O>::type, void>::value, f32,
                            typename CkLane<T, T, O>::type>::type C;
  constexpr i64 lanes = CkVector<C, CK_VECTOR_BYTES>::lanes;
  constexpr int groups = ck_gemm_groups(SHAPE.out_features / SHAPE.groups, lanes);
  ck_conv_as<ck_conv_kernel<T, O>(SHAPE), ck_conv_rows(SHAPE), groups>(SHAPE, x, w, o);
}

#endif  // COCKTAIL_CONV_H
