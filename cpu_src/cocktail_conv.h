// Convolution with strides, padding, dilations and feature groups, over any number of spatial axes.
// x: [batch, spatial..., features]; w: [kernel..., features / groups, out features]; o: [batch, spatial...,
// out features]; all row-major. Vectorised over output features; neighbouring positions share each weight.
#ifndef COCKTAIL_CONV_H
#define COCKTAIL_CONV_H

#include "cocktail_dot.h"

template <int RANK>
struct CkConv {
  i64 batch;
  i64 in_size[RANK];
  i64 out_size[RANK];
  i64 kernel[RANK];
  i64 stride[RANK];
  i64 pad_low[RANK];
  i64 lhs_dilation[RANK];
  i64 rhs_dilation[RANK];
  i64 in_features;
  i64 out_features;
  i64 groups;
};

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

// One output tile: `count` neighbouring positions along the last axis, output features from `feature` on.
template <int RANK>
struct CkConvTile {
  i64 out[RANK];
  int count;
  i64 feature;
};

// Calls visit(source, step, weights) for every tap of the kernel that touches the image. Position p reads
// feature c at source[p][c * step[p]]; in the padding that is a zero.
template <int POSITIONS, int RANK, class T, class F>
CK_INLINE void ck_conv_taps(const CkConv<RANK>& s, const CkConvTile<RANK>& tile, const T* x, const T* w,
                            F visit) {
  static const T zero = {};
  const i64 channels = s.in_features / s.groups;
  const i64 first = tile.feature / (s.out_features / s.groups) * channels;
  i64 taps = 1;
  for (int axis = 0; axis < RANK; ++axis) taps *= s.kernel[axis];
  i64 tap[RANK] = {};
  for (i64 t = 0; t < taps; ++t) {
    i64 outer = 0;  // position over all axes but the last; -1 once outside
    for (int axis = 0; axis + 1 < RANK; ++axis) {
      i64 at = ck_conv_source(s, axis, tile.out[axis], tap[axis]);
      outer = outer < 0 || at < 0 ? -1 : outer * s.in_size[axis] + at;
    }
    if (outer >= 0) {
      const T* source[POSITIONS];
      i64 step[POSITIONS];
      bool any = false;
      for (int p = 0; p < POSITIONS; ++p) {
        i64 at = p < tile.count ? ck_conv_source(s, RANK - 1, tile.out[RANK - 1] + p, tap[RANK - 1]) : -1;
        source[p] = at < 0 ? &zero : x + (outer * s.in_size[RANK - 1] + at) * s.in_features + first;
        step[p] = at >= 0;
        any |= at >= 0;
      }
      if (any) visit(source, step, w + t * channels * s.out_features + tile.feature);
    }
    for (int axis = RANK - 1; axis >= 0 && ++tap[axis] == s.kernel[axis]; --axis) tap[axis] = 0;
  }
}

// POSITIONS x (VECTORS vectors of) output features in registers.
template <int POSITIONS, int VECTORS, int RANK, class T, class O>
CK_NOINLINE void ck_conv_vectors(const CkConv<RANK>& s, const CkConvTile<RANK>& tile, const T* x, const T* w,
                                 O* o) {
  typedef CkVector<T, CK_VECTOR_BYTES> V;
  typedef typename V::type Lanes;
  typedef typename V::memory Memory;
  Lanes sum[POSITIONS][VECTORS] = {};
  const i64 channels = s.in_features / s.groups, row = s.out_features;
  ck_conv_taps<POSITIONS>(s, tile, x, w, [&](const T* const* source, const i64* step, const T* weights) {
    CK_NO_UNROLL
    for (i64 c = 0; c < channels; ++c) {
      Lanes line[VECTORS];
      for (int v = 0; v < VECTORS; ++v) line[v] = *(const Memory*)(weights + c * row + v * V::lanes);
      for (int p = 0; p < POSITIONS; ++p) {
        T value = source[p][c * step[p]];
        for (int v = 0; v < VECTORS; ++v) sum[p][v] += line[v] * value;
      }
    }
  });
  for (int p = 0; p < tile.count; ++p) {
    for (int v = 0; v < VECTORS; ++v) {
      O* target = o + p * row + tile.feature + v * V::lanes;
      for (int l = 0; l < V::lanes; ++l) target[l] = sum[p][v][l];
    }
  }
}

// Any types, and what is left of the features after the vectors.
template <int POSITIONS, int RANK, class T, class O>
CK_NOINLINE void ck_conv_rest(const CkConv<RANK>& s, const CkConvTile<RANK>& tile, int features, const T* x,
                              const T* w, O* o) {
  constexpr int most = 16;
  typedef typename CkType<O>::compute C;
  C sum[POSITIONS][most] = {};
  const i64 channels = s.in_features / s.groups, row = s.out_features;
  ck_conv_taps<POSITIONS>(s, tile, x, w, [&](const T* const* source, const i64* step, const T* weights) {
    for (i64 c = 0; c < channels; ++c) {
      for (int p = 0; p < POSITIONS; ++p) {
        C value = C(ck_up(source[p][c * step[p]]));
        CK_LANES
        for (int f = 0; f < features; ++f) {
          sum[p][f] = C(sum[p][f] + C(value * C(ck_up(weights[c * row + f]))));
        }
      }
    }
  });
  for (int p = 0; p < tile.count; ++p) {
    for (int f = 0; f < features; ++f) o[p * row + tile.feature + f] = ck_down<O>(sum[p][f]);
  }
}

// All output features of one tile's positions.
template <int POSITIONS, int RANK, class T, class O>
CK_INLINE void ck_conv_features(const CkConv<RANK>& s, CkConvTile<RANK>& tile, const T* x, const T* w, O* o) {
  typedef CkVector<T, CK_VECTOR_BYTES> V;
  constexpr bool vectors = V::exists && CkSame<T, O>::value;
  const i64 per_group = s.out_features / s.groups;
  for (i64 f = 0; f < s.out_features;) {
    i64 left = per_group - f % per_group;
    tile.feature = f;
    if (vectors && left >= 2 * V::lanes) {
      if constexpr (vectors) ck_conv_vectors<POSITIONS, 2>(s, tile, x, w, o);
      f += 2 * V::lanes;
    } else if (vectors && left >= V::lanes) {
      if constexpr (vectors) ck_conv_vectors<POSITIONS, 1>(s, tile, x, w, o);
      f += V::lanes;
    } else {
      int features = left < 16 ? int(left) : 16;
      ck_conv_rest<POSITIONS>(s, tile, features, x, w, o);
      f += features;
    }
  }
}

// T: operands; O: result, at least as wide (16-bit floats are summed in f32).
template <class T, class O, int RANK>
CK_NOINLINE void ck_conv(const CkConv<RANK>& s, const T* x, const T* w, O* o) {
  constexpr int positions = CK_VECTOR_BYTES == 64 ? 8 : 4;
  i64 lines = s.batch, in_count = s.in_features;
  for (int axis = 0; axis + 1 < RANK; ++axis) lines *= s.out_size[axis];
  for (int axis = 0; axis < RANK; ++axis) in_count *= s.in_size[axis];
  const i64 width = s.out_size[RANK - 1];
  CkConvTile<RANK> tile;
  for (i64 line = 0; line < lines; ++line) {
    i64 rest = line;
    for (int axis = RANK - 2; axis >= 0; --axis) {
      tile.out[axis] = rest % s.out_size[axis];
      rest /= s.out_size[axis];
    }
    for (i64 at = 0; at < width; at += positions) {
      tile.out[RANK - 1] = at;
      tile.count = width - at < positions ? int(width - at) : positions;
      O* target = o + (line * width + at) * s.out_features;
      ck_conv_features<positions>(s, tile, x + rest * in_count, w, target);
    }
  }
}

#endif  // COCKTAIL_CONV_H
