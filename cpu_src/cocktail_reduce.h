// Vector reductions with ck_max and ck_min, because OpenMP's own max and min need not propagate NaN.
#ifndef COCKTAIL_REDUCE_H
#define COCKTAIL_REDUCE_H

#include "cocktail_arith.h"

#pragma omp declare reduction(ck_max : f32 : omp_out = ck_max(omp_out, omp_in)) \
    initializer(omp_priv = -__builtin_inff())
#pragma omp declare reduction(ck_max : f64 : omp_out = ck_max(omp_out, omp_in)) \
    initializer(omp_priv = -__builtin_inf())
#pragma omp declare reduction(ck_min : f32 : omp_out = ck_min(omp_out, omp_in)) \
    initializer(omp_priv = __builtin_inff())
#pragma omp declare reduction(ck_min : f64 : omp_out = ck_min(omp_out, omp_in)) \
    initializer(omp_priv = __builtin_inf())
#endif
