// Convolution by a block of threads, with strides, padding, dilations and feature groups over one to three
// spatial axes, as a product of matrices of which the left one is never in memory as a whole.
#ifndef COCKTAIL_CONV_H
#define COCKTAIL_CONV_H

#include "cocktail_conv_few.h"

// One result element per thread: groups with few features, and little work.
template <class D>
CK_INLINE void ck_conv_elements(const typename D::item* x, const typename D::item* w, typename D::result* o) {
  typedef typename D::sum C;
  constexpr auto s = typename D::shape{}.value;
  constexpr CkConvSizes z = D::sizes;
  constexpr u32 all = u32(s.out_features), count = u32(z.rows) * all;
  CK_NO_UNROLL
  for (u32 e = u32(ck_lane()); e < count; e += CK_THREADS) {
    const u32 f = e % all;
    const CkConvRow row = ck_conv_row<D>(e / all);
    const typename D::item* from = x + f / u32(z.columns) * u32(z.features);
    const typename D::item* weights = w + f;
    C sum = C(0);
    CK_NO_UNROLL
    for (i32 tap = 0; tap < z.taps; ++tap, weights += z.features * i32(all)) {
      const i32 element = ck_conv_source<D>(row, ck_conv_tap<D>(u32(tap) * u32(z.features)));
      if (element < 0) continue;
      _Pragma("unroll 4")
      for (i32 c = 0; c < z.features; ++c) {
        sum = ck_conv_add<C>(sum, ck_convert<C>(from[element + c]), ck_convert<C>(weights[c * i32(all)]));
      }
    }
    o[e] = ck_convert<typename D::result>(sum);
  }
}

template <class D, class SUMS>
CK_INLINE void ck_conv_tiles(const typename D::item* x, const typename D::item* w, typename D::result* o) {
  constexpr auto s = typename D::shape{}.value;
  constexpr CkConvPlan p = D::plan;
  constexpr i32 high = ck_conv_above(D::sizes.rows, p.rows);
  constexpr i32 wide = ck_conv_above(D::sizes.columns, p.columns);
  constexpr i32 tiles = high * wide * i32(s.groups);
  CK_NO_UNROLL
  for (i32 tile = 0; tile < tiles; ++tile) {
    const i32 group = tile / (high * wide), m0 = tile / wide % high * p.rows, n0 = tile % wide * p.columns;
    const i32 first = group * D::sizes.columns;
    ck_conv_tile<D, SUMS>(x + group * D::sizes.features, w + first, o + first, m0, n0);
  }
}

// T: operands; O: result, at least as wide (16-bit floats are summed in f32). SHAPE: a type whose member
// `value` is the CkConv<RANK>; `struct g { CkConv<2> value = {...}; };` is what all compilers take. PLAN: see
// cocktail_conv_plan.h. Every thread of the block calls it. x, w and o: anywhere, aligned as their
// elements; 16 bytes are faster.
template <class T, class O, int RANK, class SHAPE, class PLAN, CkPrecision PRECISION = CK_EXACT>
CK_INLINE void ck_conv_fixed(const T* x, const T* w, O* o) {
  typedef CkConvTraits<T, O, RANK, SHAPE, PLAN, PRECISION> D;
  if constexpr (D::plan.kind == CK_CONV_SIMPLE) {
    ck_conv_elements<D>(x, w, o);
  } else if constexpr (D::plan.kind == CK_CONV_FEW) {
    typedef CkConvFew<D> F;
    if (ck_conv_aligned<T, F::chunk>(x) && ck_conv_aligned<T, F::side>(w)) return F::all(x, w, o);
    ck_conv_elements<D>(x, w, o);
  } else if constexpr (D::plan.kind == CK_CONV_FMA) {
    ck_conv_tiles<D, CkConvFma<D>>(x, w, o);
  } else {
    ck_conv_tiles<D, CkConvMma<D>>(x, w, o);
  }
}

#endif  // COCKTAIL_CONV_H
