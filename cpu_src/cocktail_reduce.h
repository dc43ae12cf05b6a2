// Reductions in vector lanes.
#ifndef COCKTAIL_REDUCE_H
#define COCKTAIL_REDUCE_H

#include "cocktail_arith.h"

#define CK_OPERATOR(name, function)    \
  struct name {                        \
    template <class T>                 \
    CK_INLINE T apply(T a, T b) {      \
      return function(a, b);           \
    }                                  \
  };
CK_OPERATOR(CkSum, ck_add)
CK_OPERATOR(CkProd, ck_mul)
CK_OPERATOR(CkMax, ck_max)
CK_OPERATOR(CkMin, ck_min)
CK_OPERATOR(CkAnd, ck_and)
CK_OPERATOR(CkOr, ck_or)
CK_OPERATOR(CkXor, ck_xor)
#undef CK_OPERATOR

// x[0] op x[1] op ... of a power of two, by halves. Overwrites x.
template <class Op, i64 COUNT, class T>
CK_INLINE T ck_fold_lanes(T* x) {
  if constexpr (COUNT > 1) {
    CK_LANES
    for (i64 l = 0; l < COUNT / 2; ++l) x[l] = Op::apply(x[l], x[l + COUNT / 2]);
    return ck_fold_lanes<Op, COUNT / 2>(x);
  } else {
    return x[0];
  }
}
#endif
