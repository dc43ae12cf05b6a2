// Matrix tiles of a wave: MFMA where it has 64 lanes (CDNA), WMMA where it has 32 (RDNA 3).
//
// c += a b by a whole wave, for tiles of 16 x K, K x 16 and 16 x 16. Lane l holds of a, row l % 16, and of b,
// column l % 16, PER consecutive elements of k each. On 64 lanes they begin at k = PER (l / 16); on 32 both
// halves of the wave hold the same ones, all K. Of c it holds column l % 16 and the rows ck_fragment_row(i).
// Products are exact and sums are f32. In which order the hardware adds is its own affair; the twin adds in
// the order of k. f32 factors are not rounded. RDNA has no instruction for them.
#ifndef COCKTAIL_FRAGMENTS_H
#define COCKTAIL_FRAGMENTS_H

#include "cocktail_base.h"

constexpr i32 kCkCellColumns = 16;
constexpr i32 kCkFragmentGroups = CK_WARP / 16 == 4 ? 4 : 1;  // of lanes, which share k
constexpr i32 kCkFragmentSums = 256 / CK_WARP;
constexpr bool kCkMatrixTakesF32 = CK_WARP == 64, kCkRoundsTf32 = false;
CK_INLINE u32 ck_to_tf32(f32 x) { return ck_bitcast<u32>(x); }

// This lane's row of a, or column of b; its first element of k; the row of its i-th sum.
CK_INLINE i32 ck_fragment_line() { return ck_warp_lane() % 16; }
template <i32 PER>
CK_INLINE i32 ck_fragment_depth() {
  return ck_warp_lane() / 16 % kCkFragmentGroups * PER;
}
CK_INLINE i32 ck_fragment_row(i32 i) {
  return CK_WARP == 64 ? ck_warp_lane() / 16 * 4 + i : i * 2 + ck_warp_lane() / 16;
}

#if defined(CK_EMULATED)
template <class E>
CK_INLINE f32 ck_fragment_value(const u8* at) {
  if constexpr (sizeof(E) == 4) return ck_bitcast<f32>(*(const u32*)at);
  else return ck_up(*(const E*)at);
}

// A meeting takes 64 bytes of a lane: fragments are brought in pieces.
template <class E, i32 PER>
CK_INLINE void ck_mma(f32 (&c)[kCkFragmentSums], const E (&a)[PER], const E (&b)[PER] CK_AND_WHERE) {
  static_assert(sizeof(E) == 2 || kCkMatrixTakesF32, "there is no such instruction");
  constexpr i32 MOST = 32 / i32(sizeof(E)), PIECE = PER < MOST ? PER : MOST;
  for (i32 from = 0; from < PER; from += PIECE) {
    E mine[2][PIECE];
    for (i32 j = 0; j < PIECE; ++j) mine[0][j] = a[from + j], mine[1][j] = b[from + j];
    auto all = ck_emulation::gather("mma", ck_emulation::ALL_LANES, mine, sizeof mine, {CK_PLACED});
    for (i32 i = 0; i < kCkFragmentSums; ++i) {
      for (i32 k = 0; k < kCkFragmentGroups * PIECE; ++k) {
        const i32 group = k / PIECE * 16, j = k % PIECE;
        const u8* left = all.bytes[group + ck_fragment_row(i)] + j * sizeof(E);
        const u8* right = all.bytes[group + ck_fragment_line()] + (PIECE + j) * sizeof(E);
        c[i] = ck_fma(ck_fragment_value<E>(left), ck_fragment_value<E>(right), c[i]);
      }
    }
  }
}
#else
// Vectors of COUNT elements as the instructions take them. T: float, _Float16 or short.
template <class T, i32 COUNT>
struct CkVector {
  typedef T type __attribute__((ext_vector_type(COUNT)));
};
template <class T, i32 COUNT, class E>
CK_INLINE typename CkVector<T, COUNT>::type ck_vector(const E* from) {
  typename CkVector<T, COUNT>::type vector;
#pragma unroll
  for (i32 i = 0; i < COUNT; ++i) vector[i] = __builtin_bit_cast(T, from[i]);
  return vector;
}

template <class E, i32 PER>
CK_INLINE void ck_mma(f32 (&c)[kCkFragmentSums], const E (&a)[PER], const E (&b)[PER]) {
  auto sums = ck_vector<f32, kCkFragmentSums>(c);
#if defined(__gfx11__) || defined(__GFX11__)
  static_assert(PER % 16 == 0, "an instruction takes 16 elements of k");
#pragma unroll
  for (i32 j = 0; j < PER; j += 16) {
    if constexpr (CkType<E>::mantissa == 7) {
      const auto x = ck_vector<short, 16>(a + j), y = ck_vector<short, 16>(b + j);
      sums = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(x, y, sums);
    } else {
      const auto x = ck_vector<_Float16, 16>(a + j), y = ck_vector<_Float16, 16>(b + j);
      sums = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(x, y, sums);
    }
  }
#elif defined(__gfx908__) || defined(__gfx90a__) || CK_SEVERAL_CACHES
  if constexpr (sizeof(E) == 4) {
#pragma unroll
    for (i32 j = 0; j < PER; ++j) sums = __builtin_amdgcn_mfma_f32_16x16x4f32(a[j], b[j], sums, 0, 0, 0);
  } else if constexpr (CkType<E>::mantissa == 10) {
    static_assert(PER % 4 == 0, "an instruction takes 4 elements of k of a lane");
#pragma unroll
    for (i32 j = 0; j < PER; j += 4) {
      const auto x = ck_vector<_Float16, 4>(a + j), y = ck_vector<_Float16, 4>(b + j);
      sums = __builtin_amdgcn_mfma_f32_16x16x16f16(x, y, sums, 0, 0, 0);
    }
  } else {
#if defined(__gfx908__)
#pragma unroll
    for (i32 j = 0; j < PER; j += 2) {
      const auto x = ck_vector<short, 2>(a + j), y = ck_vector<short, 2>(b + j);
      sums = __builtin_amdgcn_mfma_f32_16x16x8bf16(x, y, sums, 0, 0, 0);
    }
#else
#pragma unroll
    for (i32 j = 0; j < PER; j += 4) {
      const auto x = ck_vector<short, 4>(a + j), y = ck_vector<short, 4>(b + j);
      sums = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(x, y, sums, 0, 0, 0);
    }
#endif
  }
#else
#error "matrix instructions of this GPU are not known: gfx908, gfx90a, gfx942, gfx950 and gfx11 have them"
#endif
#pragma unroll
  for (i32 i = 0; i < kCkFragmentSums; ++i) c[i] = sums[i];
}
#endif

#endif  // COCKTAIL_FRAGMENTS_H
