// Counter-based random bits: Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy
// as 1, 2, 3", SC 2011), the default generator of JAX.
#ifndef COCKTAIL_RANDOM_H
#define COCKTAIL_RANDOM_H

#include "cocktail_base.h"

CK_INLINE u32 ck_rotate_left(u32 x, int count) { return (x << count) | (x >> (32 - count)); }

// Four rounds of mixing.
#define CK_THREEFRY_ROUNDS(a, b, c, d)               \
  x0 += x1; x1 = ck_rotate_left(x1, a) ^ x0;         \
  x0 += x1; x1 = ck_rotate_left(x1, b) ^ x0;         \
  x0 += x1; x1 = ck_rotate_left(x1, c) ^ x0;         \
  x0 += x1; x1 = ck_rotate_left(x1, d) ^ x0;

CK_INLINE void ck_threefry2x32(u32 k0, u32 k1, u32 x0, u32 x1, u32* o0, u32* o1) {
  const u32 k2 = k0 ^ k1 ^ 0x1bd11bdau;
  x0 += k0;
  x1 += k1;
  CK_THREEFRY_ROUNDS(13, 15, 26, 6)
  x0 += k1;
  x1 += k2 + 1u;
  CK_THREEFRY_ROUNDS(17, 29, 16, 24)
  x0 += k2;
  x1 += k0 + 2u;
  CK_THREEFRY_ROUNDS(13, 15, 26, 6)
  x0 += k0;
  x1 += k1 + 3u;
  CK_THREEFRY_ROUNDS(17, 29, 16, 24)
  x0 += k1;
  x1 += k2 + 4u;
  CK_THREEFRY_ROUNDS(13, 15, 26, 6)
  *o0 = x0 + k2;
  *o1 = x1 + k0 + 5u;
}
#undef CK_THREEFRY_ROUNDS

// Word 0 or 1 of the block.
template <int WORD>
CK_INLINE u32 ck_threefry2x32(u32 k0, u32 k1, u32 x0, u32 x1) {
  u32 word[2];
  ck_threefry2x32(k0, k1, x0, x1, &word[0], &word[1]);
  return word[WORD];
}

#endif  // COCKTAIL_RANDOM_H
