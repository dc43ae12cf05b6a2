// How products of 32-bit floats are made.
#ifndef COCKTAIL_PRECISION_H
#define COCKTAIL_PRECISION_H

// CK_EXACT: fused multiply-adds in f32.
// CK_TF32: tensor cores, factors rounded to 10 bits of mantissa, sums in
// f32. 16-bit floats run on tensor cores, and all other types on the arithmetic units, in both.
enum CkPrecision { CK_EXACT, CK_TF32 };

#endif  // COCKTAIL_PRECISION_H
