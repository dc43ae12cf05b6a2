// Convolution with strides, padding, dilations and feature groups, over any number of spatial axes.
// x: [batch, spatial..., features]; w: [kernel..., features / groups, out features]; o: [batch, spatial...,
// out features]; all row-major. Vectorised over output features; neighbouring positions share each weight.
#ifndef COCKTAIL_CONV_H
#define COCKTAIL_CONV_H

#include "cocktail_arith.h"

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

// sum[p][f] += x[p][c] * w[c][f] over the features c of a group, for POSITIONS positions and TILE output
// features. A position in the padding has no source and adds nothing.
template <int POSITIONS, int TILE, class T, class C>
CK_INLINE void ck_conv_tap(C (&sum)[POSITIONS][TILE], const T* const (&source)[POSITIONS], const T* w,
                           i64 channels, i64 row, int features) {
  CK_NO_UNROLL
  for (i64 c = 0; c < channels; ++c) {
    C weight[TILE];
    const T* line = w + c * row;
    if (features == TILE) {
      CK_LANES
      for (int f = 0; f < TILE; ++f) weight[f] = C(ck_up(line[f]));
    } else {
      for (int f = 0; f < TILE; ++f) weight[f] = f < features ? C(ck_up(line[f])) : C(0);
    }
    for (int p = 0; p < POSITIONS; ++p) {
      if (source[p] == nullptr) continue;
      C value = C(ck_up(source[p][c]));
      CK_LANES
      for (int f = 0; f < TILE; ++f) sum[p][f] = C(sum[p][f] + value * weight[f]);
    }
  }
}

// `count` <= POSITIONS neighbouring positions along the last axis, `features` <= TILE from `feature` on.
template <int POSITIONS, int TILE, int RANK, class T>
CK_NOINLINE void ck_conv_tile(const CkConv<RANK>& s, const T* x, const T* w, T* o, const i64 (&out)[RANK],
                              int count, i64 feature, int features) {
  typedef typename CkType<T>::compute C;
  const i64 channels = s.in_features / s.groups;
  const i64 group = feature / (s.out_features / s.groups);
  C sum[POSITIONS][TILE] = {};
  i64 taps = 1;
  for (int axis = 0; axis < RANK; ++axis) taps *= s.kernel[axis];
  i64 tap[RANK] = {};
  for (i64 t = 0; t < taps; ++t) {
    i64 outer = 0;  // position over all axes but the last; -1 once outside
    for (int axis = 0; axis + 1 < RANK; ++axis) {
      i64 at = ck_conv_source(s, axis, out[axis], tap[axis]);
      outer = outer < 0 || at < 0 ? -1 : outer * s.in_size[axis] + at;
    }
    if (outer >= 0) {
      const T* source[POSITIONS] = {};
      bool any = false;
      for (int p = 0; p < count; ++p) {
        i64 at = ck_conv_source(s, RANK - 1, out[RANK - 1] + p, tap[RANK - 1]);
        if (at < 0) continue;
        source[p] = x + (outer * s.in_size[RANK - 1] + at) * s.in_features + group * channels;
        any = true;
      }
      const T* weights = w + t * channels * s.out_features + feature;
      if (any) ck_conv_tap(sum, source, weights, channels, s.out_features, features);
    }
    for (int axis = RANK - 1; axis >= 0 && ++tap[axis] == s.kernel[axis]; --axis) tap[axis] = 0;
  }
  for (int p = 0; p < count; ++p) {
    for (int f = 0; f < features; ++f) o[p * s.out_features + feature + f] = ck_down<T>(sum[p][f]);
  }
}

template <class T, int RANK>
CK_NOINLINE void ck_conv(const CkConv<RANK>& s, const T* x, const T* w, T* o) {
  constexpr int tile = CK_VECTOR_BYTES == 64 ? 32 : 16, positions = 4;
  i64 lines = s.batch, in_count = s.in_features;
  for (int axis = 0; axis + 1 < RANK; ++axis) lines *= s.out_size[axis];
  for (int axis = 0; axis < RANK; ++axis) in_count *= s.in_size[axis];
  const i64 width = s.out_size[RANK - 1], per_group = s.out_features / s.groups;
  for (i64 line = 0; line < lines; ++line) {
    i64 out[RANK], rest = line;
    for (int axis = RANK - 2; axis >= 0; --axis) {
      out[axis] = rest % s.out_size[axis];
      rest /= s.out_size[axis];
    }
    const T* image = x + rest * in_count;
    for (i64 at = 0; at < width; at += positions) {
      out[RANK - 1] = at;
      int count = width - at < positions ? int(width - at) : positions;
      T* target = o + (line * width + at) * s.out_features;
      for (i64 group = 0; group < s.groups; ++group) {
        for (i64 f = 0; f < per_group; f += tile) {
          int features = per_group - f < tile ? int(per_group - f) : tile;
          ck_conv_tile<positions, tile>(s, image, w, target, out, count, group * per_group + f, features);
        }
      }
    }
  }
}

#endif  // COCKTAIL_CONV_H
