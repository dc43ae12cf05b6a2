// The shape of a convolution, for all targets.
#ifndef COCKTAIL_CONV_SHAPE_H
#define COCKTAIL_CONV_SHAPE_H

#include "cocktail_base.h"

// x: [batch, spatial..., features]; w: [kernel..., features / groups, out features];
// o: [batch, spatial..., out features]; all row-major.
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

#endif  // COCKTAIL_CONV_SHAPE_H
