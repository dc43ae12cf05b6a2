// Products with few rows whose right matrix does not change in a loop: each thread keeps its part of the
// matrix in registers. Groups of lanes make whole columns, so no warp waits for another.
#ifndef COCKTAIL_GEMV_HELD_H
#define COCKTAIL_GEMV_HELD_H

#include "cocktail_dot_plan.h"
#include "cocktail_gemv.h"

struct CkHeldPlan {
  i32 kv;       // elements of a load of the left operand
  i32 lanes;    // of a group, over k
  i32 columns;  // of a group
  i32 steps;    // of a group through k, lanes * kv elements each
};

// The lanes of a group: more of them read less of the left operand, fewer of them shuffle less. The costs are
// cycles of a warp: `turns` warps share a scheduler.
CK_INLINE constexpr CkHeldPlan ck_held_plan(CkDotForm f, i64 threads) {
  CkHeldPlan best{};
  i64 least = 0;
  const i64 turns = ck_dot_ceil(threads, 4 * CK_WARP);
  best.kv = f.a_k == 1 ? ck_dot_vector(f.a_size, 4, f.k, f.a_m) : 1;
  for (i64 lanes = 1, levels = 0; lanes <= CK_WARP; lanes *= 2, ++levels) {
    const i64 columns = ck_dot_ceil(f.n, threads / lanes), steps = ck_dot_ceil(f.k / best.kv, lanes);
    const i64 sums = ck_dot_power(f.m) * ck_dot_power(columns);
    const i64 loads = f.m * steps * 8 * turns, fmas = f.m * columns * steps * best.kv * turns;
    const i64 cost = loads + fmas + 25 * levels + 4 * sums;
    if (least == 0 || cost < least) {
      least = cost;
      best.lanes = i32(lanes);
      best.columns = i32(columns);
      best.steps = i32(steps);
    }
  }
  return best;
}

// The part of a thread. `from`: the matrix it is of; null: of none yet.
template <class B, i32 COLUMNS, i32 STEPS, i32 KV>
struct CkHeldPart {
  const B* from = nullptr;
  B at[COLUMNS][STEPS][KV];
};

// What a product plans and keeps, whatever the strides of its result.
template <class D>
struct CkHeldOf {
  static constexpr CkHeldPlan plan = ck_held_plan(D::form, CK_THREADS);
  typedef CkHeldPart<typename D::B, plan.columns, plan.steps, plan.kv> Part;
};

// Whether step `s` of lane `member` of a group is within k.
template <class D>
CK_INLINE bool ck_held_in(i32 s, i32 member) {
  constexpr CkHeldPlan p = CkHeldOf<D>::plan;
  return (s + 1) * p.lanes * p.kv <= D::form.k || s * p.lanes + member < D::form.k / p.kv;
}

template <class D>
CK_INLINE void ck_held_load(typename CkHeldOf<D>::Part& held, const typename D::B* b) {
  constexpr CkDotForm f = D::form;
  constexpr CkHeldPlan p = CkHeldOf<D>::plan;
  const i32 column = ck_lane() / p.lanes * p.columns, member = ck_lane() % p.lanes;
  held.from = b;
#pragma unroll
  for (i32 c = 0; c < p.columns; ++c) {
#pragma unroll
    for (i32 s = 0; s < p.steps; ++s) {
      const bool in = column + c < f.n && ck_held_in<D>(s, member);
      const i64 row = i64(s * p.lanes + member) * p.kv;
#pragma unroll
      for (i32 q = 0; q < p.kv; ++q) {
        held.at[c][s][q] = in ? b[(row + q) * f.b_k + (column + c) * f.b_n] : typename D::B{};
      }
    }
  }
}

template <class D, bool FITS>
CK_INLINE void ck_held_multiply(const typename CkHeldOf<D>::Part& held, const typename D::A* a,
                                typename D::O* o) {
  typedef typename D::W W;
  constexpr CkDotForm f = D::form;
  constexpr CkHeldPlan p = CkHeldOf<D>::plan;
  constexpr i32 M = i32(f.m), PADDED = i32(ck_dot_power(p.columns)), COUNT = i32(ck_dot_power(M)) * PADDED;
  constexpr i32 CHAINS = COUNT <= 2 ? p.kv : 1;  // sums of their own for the elements of a pack: short chains
  const i32 column = ck_lane() / p.lanes * p.columns, member = ck_lane() % p.lanes;
  W chains[COUNT][CHAINS] = {}, sums[COUNT];
  CkDotPack<typename D::A, p.kv> x[p.steps][M];
#pragma unroll
  for (i32 s = 0; s < p.steps; ++s) {
#pragma unroll
    for (i32 r = 0; r < M; ++r) {
      x[s][r] = {};
      const typename D::A* at = a + i64(s * p.lanes + member) * p.kv * f.a_k + r * f.a_m;
      if (ck_held_in<D>(s, member)) x[s][r] = ck_dot_read<typename D::A, p.kv, f.a_k, FITS>(at);
    }
  }
#pragma unroll
  for (i32 s = 0; s < p.steps; ++s) {
#pragma unroll
    for (i32 q = 0; q < p.kv; ++q) {
#pragma unroll
      for (i32 i = 0; i < M * p.columns; ++i) {
        W& sum = chains[i / p.columns * PADDED + i % p.columns][q % CHAINS];
        const W factor = ck_dot_load<typename D::Types>(x[s][i / p.columns].at[q]);
        sum = ck_dot_fma(factor, ck_dot_load<typename D::Types>(held.at[i % p.columns][s][q]), sum);
      }
    }
  }
#pragma unroll
  for (i32 i = 0; i < COUNT; ++i) {
    sums[i] = chains[i][0];
#pragma unroll
    for (i32 j = 1; j < CHAINS; ++j) sums[i] = sums[i] + chains[i][j];
  }
  const i32 first = ck_dot_butterfly<COUNT, p.lanes / 2, 1>(sums, ck_warp_lane());
#pragma unroll
  for (i32 i = 0; i < ck_dot_kept(COUNT, p.lanes); ++i) {
    const i32 r = (first + i) / PADDED, c = (first + i) % PADDED;
    if (first >= 0 && r < M && c < p.columns && column + c < f.n) {
      ck_dot_store<typename D::Types>(o + r * f.o_m + (column + c) * f.o_n, sums[i]);
    }
  }
}

template <class D, bool ALIGNED>
CK_INLINE void ck_held_make(typename CkHeldOf<D>::Part& held, const typename D::A* a,
                            const typename D::B* b, typename D::O* o) {
  constexpr i32 bytes = CkHeldOf<D>::plan.kv * i32(sizeof(typename D::A));
  if (held.from != b) ck_held_load<D>(held, b);
  const bool fits = ALIGNED || ck_dot_fits(a, D::form.a_m, bytes);
  fits ? ck_held_multiply<D, true>(held, a, o) : ck_held_multiply<D, false>(held, a, o);
}

// What a product keeps of its right operand or, where that has fewer columns than the left one has rows, of
// its left operand. The arguments are those of ck_dot_fixed without the strides of the result.
template <class A, class B, class O, i64 M, i64 N, i64 K, i64 A_M, i64 A_K, i64 B_K, i64 B_N>
struct CkDotHeld {
  static constexpr bool left = N < M;
  template <i64 O_M, i64 O_N>
  struct Of {
    typedef CkDotMade<CkDotOf<A, B, O, CK_EXACT, 1, M, N, K, A_M, A_K, B_K, B_N, O_M, O_N>, left> D;
  };
  typename CkHeldOf<typename Of<0, 0>::D>::Part held;
};

// o = a b, as ck_dot_fixed. ALIGNED: the operand that is not kept surely begins at a multiple of 16 bytes.
// While `held` lives, memory at the address of the other one does not change.
template <i64 O_M, i64 O_N, bool ALIGNED = false, class Held, class A, class B, class O>
CK_INLINE void ck_dot_held(Held& held, const A* a, const B* b, O* o) {
  typedef typename Held::template Of<O_M, O_N>::D D;
  if constexpr (Held::left) {
    ck_held_make<D, ALIGNED>(held.held, b, a, o);
  } else {
    ck_held_make<D, ALIGNED>(held.held, a, b, o);
  }
}

#endif  // COCKTAIL_GEMV_HELD_H
