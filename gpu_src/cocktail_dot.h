// Matrix products by one block of threads, every size and stride known to the compiler.
//
// Operands are visible when the template begins; its last stores are not met: the caller's barrier makes them
// visible. Scratch is written without a barrier before the first write: one stands between two templates that
// use it.
#ifndef COCKTAIL_DOT_H
#define COCKTAIL_DOT_H

#include "cocktail_units.h"
#include "cocktail_dot_plan.h"
#include "cocktail_gemv.h"
#include "cocktail_gemv_held.h"
#include "cocktail_tiles.h"

constexpr i64 kCkDotTinyDepth = 32;  // products up to these sizes are not worth a tile each
constexpr i64 kCkDotTinyOutputs = 1024;

// A thread makes an element. Neighbours make elements that lie side by side.
template <class D>
CK_INLINE void ck_dot_serial(i64 batch, const typename D::A* a, i64 a_b, const typename D::B* b, i64 b_b,
                             typename D::O* o, i64 o_b) {
  typedef typename D::W W;
  constexpr CkDotForm f = D::form;
  constexpr bool down = f.o_m == 1 && f.o_n != 1;
  constexpr i32 M = i32(f.m), N = i32(f.n), K = i32(f.k), CHAINS = K > 8 ? 4 : 1;
  const i32 items = i32(batch) * M * N;
  CK_NO_UNROLL
  for (i32 i = ck_lane(); i < items; i += CK_THREADS) {
    const i32 product = i / (M * N), r = down ? i % M : i / N % M, c = down ? i / M % N : i % N;
    const typename D::A* left = a + product * a_b + r * f.a_m;
    const typename D::B* right = b + product * b_b + c * f.b_n;
    W sums[CHAINS] = {};
    const auto add = [&](i32 chain, i32 k) {
      const W x = ck_dot_load<typename D::Types>(left[k * f.a_k]);
      sums[chain] = ck_dot_fma(x, ck_dot_load<typename D::Types>(right[k * f.b_k]), sums[chain]);
    };
#pragma unroll(CHAINS == 1 ? 8 : 1)
    for (i32 k = 0; k < K / CHAINS * CHAINS; k += CHAINS) {
#pragma unroll
      for (i32 j = 0; j < CHAINS; ++j) add(j, k + j);
    }
#pragma unroll
    for (i32 k = K / CHAINS * CHAINS; k < K; ++k) add(0, k);
#pragma unroll
    for (i32 j = 1; j < CHAINS; ++j) sums[0] = sums[0] + sums[j];
    ck_dot_store<typename D::Types>(o + product * o_b + r * f.o_m + c * f.o_n, sums[0]);
  }
}

// Few rows. Warps share k only where there are not enough products for all. ALIGNED: see ck_dot_fixed.
template <class D, i32 PARTS, bool ALIGNED>
CK_INLINE void ck_dot_slim(i64 batch, const typename D::A* a, i64 a_b, const typename D::B* b, i64 b_b,
                           typename D::O* o, i64 o_b) {
  constexpr CkDotPlan p = D::plan;
  constexpr i64 a_bytes = (D::form.a_k == 1 ? p.kv : 1) * i64(sizeof(typename D::A));
  constexpr i64 b_line = p.path == CK_DOT_LANES ? D::form.b_k : D::form.b_n;
  constexpr i64 b_bytes = (b_line == 1 ? p.v : 1) * i64(sizeof(typename D::B));
  static_assert(ck_dot_is_possible(D::form, p, sizeof(typename D::W)), "another plan");
  const bool more = batch > 1;
  const typename D::A* left = ALIGNED ? nullptr : a;  // null fits
  const typename D::B* right = ALIGNED ? nullptr : b;
  const bool fits = ck_dot_fits(left, more ? a_b : 0, a_bytes) && ck_dot_fits(right, more ? b_b : 0, b_bytes);
  if constexpr (p.path == CK_DOT_LANES) {
    fits ? ck_dot_lanes_of<D, PARTS, true>(batch, a, a_b, b, b_b, o, o_b)
         : ck_dot_lanes_of<D, PARTS, false>(batch, a, a_b, b, b_b, o, o_b);
  } else {
    fits ? ck_dot_columns<D, PARTS, true>(batch, a, a_b, b, b_b, o, o_b)
         : ck_dot_columns<D, PARTS, false>(batch, a, a_b, b, b_b, o, o_b);
  }
}

// Teams of at most PARTS warps, and of no more than leave all chunks of the batch a team each.
template <class D, i32 PARTS, bool ALIGNED>
CK_INLINE void ck_dot_teams(i64 batch, const typename D::A* a, i64 a_b, const typename D::B* b, i64 b_b,
                            typename D::O* o, i64 o_b) {
  if constexpr (PARTS > 1) {
    constexpr i64 chunks = ck_dot_ceil(D::form.n, D::plan.columns);
    if (batch > 1 && batch * chunks * PARTS > CK_WARPS) {
      return ck_dot_teams<D, PARTS / 2, ALIGNED>(batch, a, a_b, b, b_b, o, o_b);
    }
  }
  ck_dot_slim<D, PARTS, ALIGNED>(batch, a, a_b, b, b_b, o, o_b);
}

template <class D, bool ALIGNED>
CK_INLINE void ck_dot_make(i64 batch, const typename D::A* a, i64 a_b, const typename D::B* b, i64 b_b,
                           typename D::O* o, i64 o_b) {
  constexpr CkDotPlan p = D::plan;
  constexpr i64 outputs = D::form.m * D::form.n;
  if constexpr (p.path == CK_DOT_SERIAL) {
    ck_dot_serial<D>(batch, a, a_b, b, b_b, o, o_b);
  } else if constexpr (p.path == CK_DOT_COLUMNS || p.path == CK_DOT_LANES) {
    ck_dot_teams<D, p.parts, ALIGNED>(batch, a, a_b, b, b_b, o, o_b);
  } else if constexpr (ck_dot_packed(D::form)) {
    ck_dot_whole<D>(batch, a, a_b, b, b_b, o, o_b);
  } else {
    if constexpr (D::form.k <= kCkDotTinyDepth && outputs <= kCkDotTinyOutputs) {
      if (batch > 1 && batch * outputs >= 4 * CK_THREADS) {
        return ck_dot_serial<D>(batch, a, a_b, b, b_b, o, o_b);
      }
    }
    ck_dot_tiles<D>(batch, a, a_b, b, b_b, o, o_b);
  }
}

// o[i, r, c] = sum over p of a[i, r, p] * b[i, p, c]; i < batch, r < m, c < n, p < k. SHAPE: m, n, k and the
// strides of a (m, k), b (k, n) and o (m, n), in elements, as are a_b, b_b and o_b. o overlaps no operand.
// PLAN: how, see cocktail_dot_plan.h. ALIGNED: a and b surely begin at multiples of 16 bytes, so a product of
// few rows does not ask.
template <class A, class B, class O, i64 M, i64 N, i64 K, i64 A_M, i64 A_K, i64 B_K, i64 B_N, i64 O_M,
          i64 O_N, class PLAN, CkPrecision P = CK_EXACT, bool ALIGNED = false>
CK_INLINE void ck_dot_fixed(i64 batch, const A* a, i64 a_b, const B* b, i64 b_b, O* o, i64 o_b) {
  typedef CkDotOf<A, B, O, PLAN, P, 1, M, N, K, A_M, A_K, B_K, B_N, O_M, O_N> D;
  if constexpr (D::plan.turned) {
    ck_dot_make<CkDotMade<D, true>, ALIGNED>(batch, b, b_b, a, a_b, o, o_b);
  } else {
    ck_dot_make<CkDotMade<D, false>, ALIGNED>(batch, a, a_b, b, b_b, o, o_b);
  }
}

// The same with `rows` of m, at least M: so many at a time. The last M begin where they end, and make rows
// again that others made.
template <class A, class B, class O, i64 M, i64 N, i64 K, i64 A_M, i64 A_K, i64 B_K, i64 B_N, i64 O_M,
          i64 O_N, class PLAN, CkPrecision P = CK_EXACT, bool ALIGNED = false>
CK_INLINE void ck_dot_rows(i32 rows, i64 batch, const A* a, i64 a_b, const B* b, i64 b_b, O* o, i64 o_b) {
  CK_NO_UNROLL
  for (i32 row = 0; row < rows; row += i32(M)) {
    if (row > 0) ck_block_barrier();
    const i32 first = row + i32(M) < rows ? row : rows - i32(M);
    ck_dot_fixed<A, B, O, M, N, K, A_M, A_K, B_K, B_N, O_M, O_N, PLAN, P, ALIGNED && A_M != 1>(
        batch, a + first * A_M, a_b, b, b_b, o + first * O_M, o_b);
  }
}

// o = a b + c d, of one product of sizes and strides as above, and another that differs in the stride of its
// rows, C_M, alone. The right matrices are packed.
template <class A, class B, class O, i64 M, i64 N, i64 K, i64 A_M, i64 A_K, i64 B_K, i64 B_N, i64 O_M,
          i64 O_N, class PLAN, CkPrecision P, i64 C_M>
CK_INLINE void ck_dot_sum(const A* a, const B* b, const A* c, const B* d, O* o) {
  typedef CkDotOf<A, B, O, PLAN, P, 2, M, N, K, A_M, A_K, B_K, B_N, O_M, O_N> D;
  ck_dot_whole<CkDotMade<D, false>, C_M>(1, a, 0, b, 0, o, 0, c, d);
}

#endif  // COCKTAIL_DOT_H
