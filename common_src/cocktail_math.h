// All elementwise operators of the IR as ck_<kind>(...). A program may include only the parts that it needs.
#ifndef COCKTAIL_MATH_H
#define COCKTAIL_MATH_H

#include "cocktail_arith.h"
#include "cocktail_elementary.h"
#include "cocktail_inverse.h"
#include "cocktail_random.h"
#include "cocktail_special.h"
#include "cocktail_trig.h"

#endif  // COCKTAIL_MATH_H
