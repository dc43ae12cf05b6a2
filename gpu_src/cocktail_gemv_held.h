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

constexpr i64 kCkHeldMost = 100;  // left factors and sums that a thread has at once

// The lanes of a group: more of them read less of the left operand, fewer of them shuffle less. The costs are
// cycles of a warp: `turns` warps share a scheduler. `products`: that share the left operand.
CK_INLINE constexpr CkHeldPlan ck_held_plan(CkDotForm f, i64 threads, i64 products) {
  CkHeldPlan best{};
  i64 least = 0;
  const i64 turns = ck_dot_ceil(threads, 4 * CK_WARP);
  best.kv = f.a_k == 1 ? ck_dot_vector(f.a_size, 4, f.k, f.a_m) : 1;
  for (i64 lanes = 1, levels = 0; lanes <= CK_WARP; lanes *= 2, ++levels) {
    const i64 columns = ck_dot_ceil(f.n, threads / lanes), steps = ck_dot_ceil(f.k / best.kv, lanes);
    const i64 sums = products * ck_dot_power(f.m) * ck_dot_power(columns);
    const i64 loads = f.m * steps * 8 * turns, fmas = products * f.m * columns * steps * best.kv * turns;
    const i64 shuffles = 25 * levels + 4 * sums + 4 * ck_dot_most(sums - 8, 0);  // few hide in their latency
    const bool spills = f.m * steps * best.kv + sums > kCkHeldMost;
    const i64 cost = loads + fmas + shuffles + (spills ? 1000 : 0);
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

// What a product plans and keeps, whatever the strides of its result. PRODUCTS: as in CkDotHeld.
template <class MADE, i32 PRODUCTS>
struct CkHeldOf {
  typedef MADE D;
  typedef typename D::A A;
  typedef typename D::W W;
  static constexpr CkHeldPlan plan = ck_held_plan(D::form, CK_THREADS, PRODUCTS);
  static constexpr i32 rows = i32(D::form.m), padded = i32(ck_dot_power(plan.columns));
  static constexpr i32 count = i32(ck_dot_power(rows)) * padded;  // sums of a thread
  typedef CkHeldPart<typename D::B, plan.columns, plan.steps, plan.kv> Part;
  typedef CkDotPack<A, plan.kv> Factors[plan.steps][rows];
};

// Whether step `s` of lane `member` of a group is within k.
template <class H>
CK_INLINE bool ck_held_in(i32 s, i32 member) {
  return (s + 1) * H::plan.lanes * H::plan.kv <= H::D::form.k ||
         s * H::plan.lanes + member < H::D::form.k / H::plan.kv;
}

template <class H>
CK_INLINE void ck_held_load(typename H::Part& held, const typename H::D::B* b) {
  constexpr CkDotForm f = H::D::form;
  constexpr CkHeldPlan p = H::plan;
  const i32 column = ck_lane() / p.lanes * p.columns, member = ck_lane() % p.lanes;
  held.from = b;
#pragma unroll
  for (i32 c = 0; c < p.columns; ++c) {
#pragma unroll
    for (i32 s = 0; s < p.steps; ++s) {
      const bool in = column + c < f.n && ck_held_in<H>(s, member);
      const i64 row = i64(s * p.lanes + member) * p.kv;
#pragma unroll
      for (i32 q = 0; q < p.kv; ++q) {
        held.at[c][s][q] = in ? b[(row + q) * f.b_k + (column + c) * f.b_n] : typename H::D::B{};
      }
    }
  }
}

// The left factors of a thread.
template <class H, bool FITS>
CK_INLINE void ck_held_read(typename H::Factors& x, const typename H::A* a) {
  constexpr CkDotForm f = H::D::form;
  constexpr CkHeldPlan p = H::plan;
  const i32 member = ck_lane() % p.lanes;
#pragma unroll
  for (i32 s = 0; s < p.steps; ++s) {
#pragma unroll
    for (i32 r = 0; r < H::rows; ++r) {
      x[s][r] = {};
      const typename H::A* at = a + i64(s * p.lanes + member) * p.kv * f.a_k + r * f.a_m;
      if (ck_held_in<H>(s, member)) x[s][r] = ck_dot_read<typename H::A, p.kv, f.a_k, FITS>(at);
    }
  }
}

// The sums of a thread, over its part of k.
template <class H>
CK_INLINE void ck_held_add(const typename H::Part& held, const typename H::Factors& x,
                           typename H::W (&sums)[H::count]) {
  typedef typename H::W W;
  typedef typename H::D::Types Types;
  constexpr CkHeldPlan p = H::plan;
  constexpr i32 CHAINS = H::count <= 2 ? p.kv : 1;  // sums of their own for the elements of a pack
  W chains[H::count][CHAINS] = {};
#pragma unroll
  for (i32 s = 0; s < p.steps; ++s) {
#pragma unroll
    for (i32 q = 0; q < p.kv; ++q) {
#pragma unroll
      for (i32 i = 0; i < H::rows * p.columns; ++i) {
        W& sum = chains[i / p.columns * H::padded + i % p.columns][q % CHAINS];
        const W factor = ck_dot_load<Types>(x[s][i / p.columns].at[q]);
        sum = ck_dot_fma(factor, ck_dot_load<Types>(held.at[i % p.columns][s][q]), sum);
      }
    }
  }
  ck_dot_join(sums, chains);
}

template <class H>
CK_INLINE void ck_held_put(typename H::D::O* o, i32 first, const typename H::W (&sums)[H::count]) {
  constexpr CkDotForm f = H::D::form;
  constexpr CkHeldPlan p = H::plan;
  const i32 column = ck_lane() / p.lanes * p.columns;
#pragma unroll
  for (i32 i = 0; i < ck_dot_kept(H::count, p.lanes); ++i) {
    const i32 r = (first + i) / H::padded, c = (first + i) % H::padded;
    if (first >= 0 && r < H::rows && c < p.columns && column + c < f.n) {
      ck_dot_store<typename H::D::Types>(o + r * f.o_m + (column + c) * f.o_n, sums[i]);
    }
  }
}

// A product of those that one call makes: what it keeps, its operands, and where its result goes.
template <class MADE, i32 PRODUCTS>
struct CkHeldProduct {
  typedef CkHeldOf<MADE, PRODUCTS> H;
  typename H::Part& held;
  const typename H::A* a;
  const typename H::D::B* b;
  typename H::D::O* o;
};

// All products load before any of them sums, so that they wait once; what they share is loaded once. All sum
// before any of them stores, so that their shuffles overlap.
template <bool FITS, class First, class... Rest>
CK_INLINE void ck_held_multiply(First first, Rest... rest) {
  typedef typename First::H H;
  constexpr i32 COUNT = 1 + i32(sizeof...(Rest));
  typename H::Factors x[COUNT];
  typename H::W sums[COUNT][H::count];
  i32 kept[COUNT], n = 0;
  ck_held_read<H, FITS>(x[0], first.a);
  (ck_held_read<typename Rest::H, FITS>(x[++n], rest.a), ...);
  n = 0;
  ck_held_add<H>(first.held, x[0], sums[0]);
  ((++n, ck_held_add<typename Rest::H>(rest.held, x[n], sums[n])), ...);
#pragma unroll
  for (i32 i = 0; i < COUNT; ++i) {
    kept[i] = ck_dot_butterfly<H::count, H::plan.lanes / 2, 1>(sums[i], ck_warp_lane());
  }
  n = 0;
  ck_held_put<H>(first.o, kept[0], sums[0]);
  ((++n, ck_held_put<typename Rest::H>(rest.o, kept[n], sums[n])), ...);
}

template <class Product>
CK_INLINE void ck_held_renew(Product product) {
  if (product.held.from != product.b) ck_held_load<typename Product::H>(product.held, product.b);
}

// What a product keeps of its right operand or, where that has fewer columns than the left one has rows, of
// its left operand. The arguments are those of ck_dot_fixed without the strides of the result. PRODUCTS: so
// many are made together and share the operand that is not kept.
template <class A, class B, class O, i64 M, i64 N, i64 K, i64 A_M, i64 A_K, i64 B_K, i64 B_N,
          i32 PRODUCTS = 1>
struct CkDotHeld {
  static constexpr bool left = N < M;
  static constexpr i32 products = PRODUCTS;
  template <i64 O_M, i64 O_N>
  struct Of {
    typedef CkDotOf<A, B, O, CkDotSerial, CK_EXACT, 1, M, N, K, A_M, A_K, B_K, B_N, O_M, O_N> Form;
    typedef CkDotMade<Form, left> D;
  };
  typename CkHeldOf<typename Of<0, 0>::D, PRODUCTS>::Part held;
};

// One of the products of ck_dot_held. `b`: the operand that is kept.
template <i64 O_M, i64 O_N, class Held, class A, class B, class O>
CK_INLINE auto ck_held(Held& held, const A* a, const B* b, O* o) {
  return CkHeldProduct<typename Held::template Of<O_M, O_N>::D, Held::products>{held.held, a, b, o};
}

// o = a b as ck_dot_fixed, or o = b a, for all products, which have one form. ALIGNED: each `a` surely begins
// at a multiple of 16 bytes. While what they keep lives, memory at the address of its matrix does not change.
template <bool ALIGNED = false, class First, class... Rest>
CK_INLINE void ck_dot_held(First first, Rest... rest) {
  typedef typename First::H H;
  constexpr i32 bytes = H::plan.kv * i32(sizeof(typename H::A));
  ck_held_renew(first);
  (ck_held_renew(rest), ...);
  const bool fits = ALIGNED || (ck_dot_fits(first.a, H::D::form.a_m, bytes) && ... &&
                                ck_dot_fits(rest.a, H::D::form.a_m, bytes));
  fits ? ck_held_multiply<true>(first, rest...) : ck_held_multiply<false>(first, rest...);
}

#endif  // COCKTAIL_GEMV_HELD_H
