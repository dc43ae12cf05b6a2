// Matrix products with arbitrary strides on one thread, tuned for the sizes inside loops. The order of every
// sum depends only on shapes and strides. The choice of a kernel is inlined: with constant shapes and strides
// a program contains only the kernels that it needs.
#ifndef COCKTAIL_DOT_H
#define COCKTAIL_DOT_H

#include "cocktail_inner.h"
#include "cocktail_lines.h"
#include "cocktail_panels.h"

// ---- any strides, any types -----------------------------------------------------------------------------

// The accumulation type of products: f64 if an operand is f64, else the compute type of the result.
template <class A, class B, class O>
struct CkAccumulator {
  static constexpr bool wide = CkSame<A, f64>::value || CkSame<B, f64>::value;
  typedef typename CkChoose<wide, f64, typename CkType<O>::compute>::type type;
};

template <class C, class A, class B>
CK_INLINE void ck_accumulate(C& sum, A a, B b) {
  if constexpr (CkIsBool<C>::value) {
    sum = ck_or(sum, ck_and(ck_convert_bool(a), ck_convert_bool(b)));
  } else {
    sum = C(sum + C(C(ck_up(a)) * C(ck_up(b))));
  }
}

template <class A, class B, class O>
CK_NOINLINE void ck_dot_strided(const CkDot<A, B, O>& d) {
  typedef typename CkAccumulator<A, B, O>::type C;
  for (i64 i = 0; i < d.m; ++i) {
    for (i64 j = 0; j < d.n; ++j) {
      const A* a = d.a + i * d.a_m;
      const B* b = d.b + j * d.b_n;
      C sum = C(0);
      CK_NO_UNROLL
      for (i64 p = 0; p < d.k; ++p) ck_accumulate(sum, a[p * d.a_k], b[p * d.b_k]);
      d.o[i * d.o_m + j * d.o_n] = ck_convert<O>(sum);
    }
  }
}

// ---- choice ---------------------------------------------------------------------------------------------

template <class A, class B, class O>
CK_INLINE CkDot<B, A, O> ck_dot_transposed(const CkDot<A, B, O>& d) {
  return CkDot<B, A, O>{d.n, d.m, d.k, d.b, d.b_n, d.b_k, d.a, d.a_k, d.a_m, d.o, d.o_n, d.o_m};
}

enum CkKernel { CK_STRIDED, CK_GEMV, CK_NARROW_GEMV, CK_INNER, CK_GEMM, CK_PACKED, CK_WHOLE_LINES };

// The plan of one product. `transposed`: the left and right operands are exchanged. `rows`, `groups`: see
// ck_gemv, ck_gemm and ck_panels.
struct CkPlan {
  CkKernel kernel;
  bool transposed;
  int rows, groups;
};

// Sizes and strides of one product, in elements.
struct CkShape {
  i64 m, n, k, a_m, a_k, b_k, b_n, o_m, o_n;
};

constexpr i64 kCkFewProducts = 256;

// A stride over one element does not matter: the one that fits best.
constexpr CkShape ck_normal(CkShape s) {
  if (s.m == 1) s.a_m = s.o_m = 1;
  if (s.n == 1) s.b_n = s.o_n = 1;
  if (s.k <= 1) s.a_k = s.b_k = 1;
  return s;
}

// `lanes`, `narrow`: of the wide and of 16-byte vectors. `turns`: the operands may change places.
constexpr CkPlan ck_plan(CkShape given, i64 lanes, i64 narrow, bool turns) {
  const CkShape s = ck_normal(given);
  const bool columns = s.b_n == 1 && s.o_n == 1, rows = turns && s.a_m == 1 && s.o_m == 1;
  const bool inner = s.a_k == 1 && s.b_k == 1 && s.k >= lanes;
  CkKernel kernel = CK_GEMM;
  bool transposed = turns && s.o_n != 1 && s.o_m == 1;
  if (s.k == 0) {
    return {CK_STRIDED, false, 0, 0};
  } else if (s.b_n == kCkPanels) {
    return {CK_PACKED, false, int(s.m), 0};
  } else if (columns && s.n >= lanes && (s.m <= kCkGemvRows || !rows || s.n >= s.m)) {
    kernel = s.m <= kCkGemvRows ? CK_GEMV : CK_GEMM;
    transposed = false;
  } else if (rows && s.m >= lanes) {
    kernel = s.n <= kCkGemvRows ? CK_GEMV : CK_GEMM;
    transposed = true;
  } else if (inner && (s.m <= kCkInnerRows || (turns && s.n <= kCkInnerRows))) {
    return {CK_INNER, turns && s.n < s.m, 0, 0};
  } else if (columns && s.n >= narrow && s.m <= kCkGemvRows) {
    kernel = CK_NARROW_GEMV;
    transposed = false;
  } else if (rows && s.m >= narrow && s.n <= kCkGemvRows) {
    kernel = CK_NARROW_GEMV;
    transposed = true;
  } else if (turns && s.m <= kCkFewProducts && s.n <= kCkFewProducts && s.m * s.n * s.k <= kCkFewProducts) {
    return {CK_STRIDED, false, 0, 0};
  }
  const i64 m = transposed ? s.n : s.m, n = transposed ? s.m : s.n;
  if (kernel == CK_GEMM) return {kernel, transposed, int(m), n >= kCkSome ? 15 : ck_gemm_groups(n, lanes)};
  const i64 used = kernel == CK_GEMV ? lanes : narrow;
  return {kernel, transposed, int(m), n >= kCkSome ? 31 : ck_gemv_groups(m, n, used)};
}

template <class A, class B, class O, class C = typename CkLane<A, B, O>::type>
constexpr CkPlan ck_plan_for(CkShape shape, bool turns) {
  if constexpr (CkSame<C, void>::value) {
    return {CK_STRIDED, false, 0, 0};
  } else {
    constexpr i64 lanes = CkVector<C, CK_VECTOR_BYTES>::lanes;
    const CkPlan plan = ck_plan(shape, lanes, CkVector<C, 16>::lanes, turns);
    constexpr bool alike = CkAlike<C, A>::value && CkAlike<C, B>::value;
    if (!alike || (plan.kernel != CK_GEMV && plan.kernel != CK_GEMM)) return plan;
    const CkShape s = ck_normal(shape);
    const bool turned = plan.transposed, whole = turned ? s.a_m == 1 && s.o_m == 1 : s.b_n == 1 && s.o_n == 1;
    const bool lines = turned ? ck_reads_lines(s.n, s.m, s.k, s.a_k, sizeof(C), lanes)
                              : ck_reads_lines(s.m, s.n, s.k, s.b_k, sizeof(C), lanes);
    return whole && lines ? CkPlan{CK_WHOLE_LINES, turned, plan.rows, 0} : plan;
  }
}

template <class C, CkKernel KERNEL, int ROWS, int GROUPS, class A, class B, class O, class Sink>
CK_INLINE void ck_dot_as(const CkDot<A, B, O>& d, const Sink& sink) {
  const CkColumns<B> columns{d.m, d.n, d.k, d.b, d.b_k, d.b_n};
  const CkRows<C, A> rows{d.a, d.a_m, d.a_k};
  if constexpr (KERNEL == CK_GEMV) {
    ck_gemv<C, CK_VECTOR_BYTES, ROWS, GROUPS>(columns, rows, sink);
  } else if constexpr (KERNEL == CK_NARROW_GEMV) {
    ck_gemv<C, 16, ROWS, GROUPS>(columns, rows, sink);
  } else if constexpr (KERNEL == CK_INNER) {
    ck_inner(columns, rows, sink);
  } else if constexpr (KERNEL == CK_PACKED) {
    ck_panels<C, ROWS>(columns, rows, sink);
  } else if constexpr (KERNEL == CK_WHOLE_LINES) {
    ck_lines<C, ROWS>(columns, rows, sink);
  } else {
    ck_gemm<C, ROWS, GROUPS>(columns, rows, sink);
  }
}

template <CkKernel KERNEL, int ROWS, int GROUPS, class A, class B, class O>
CK_INLINE void ck_dot_to(const CkDot<A, B, O>& d) {
  typedef typename CkLane<A, B, O>::type C;
  if constexpr (KERNEL == CK_STRIDED) {
    ck_dot_strided(d);
  } else {
    ck_dot_as<C, KERNEL, ROWS, GROUPS>(d, CkStore<C, O>{d.o, d.o_m, d.o_n});
  }
}

template <class A, class B, class O>
CK_INLINE CkDot<A, B, O> ck_dot_of(CkShape s, const A* a, const B* b, O* o) {
  s = ck_normal(s);
  return {s.m, s.n, s.k, a, s.a_m, s.a_k, b, s.b_k, s.b_n, o, s.o_m, s.o_n};
}

// Few kernels for all shapes: a product with few rows runs row by row.
template <class A, class B, class O>
CK_NOINLINE void ck_dot_planned(CkKernel kernel, const CkDot<A, B, O>& d) {
  if (kernel == CK_INNER) {
    ck_dot_to<CK_INNER, 0, 0>(d);
  } else if (kernel == CK_GEMM || (kernel == CK_WHOLE_LINES && d.m > kCkGemvRows)) {
    ck_dot_to<CK_GEMM, -1, 15>(d);
  } else if (kernel == CK_STRIDED) {
    ck_dot_strided(d);
  } else if (kernel == CK_PACKED) {
    if constexpr (CkSame<B, typename CkLane<A, B, O>::type>::value) {
      ck_dot_to<CK_PACKED, -1, 0>(d);
    } else {
      __builtin_trap();  // only matrices that are not converted have panels
    }
  } else {
    for (i64 i = 0; i < d.m; ++i) {
      const CkDot<A, B, O> row{1,   d.n,   d.k,   d.a + i * d.a_m, d.a_m, d.a_k,
                               d.b, d.b_k, d.b_n, d.o + i * d.o_m, d.o_m, d.o_n};
      kernel == CK_NARROW_GEMV ? ck_dot_to<CK_NARROW_GEMV, 1, 31>(row) : ck_dot_to<CK_GEMV, 1, 31>(row);
    }
  }
}

// ---- entry points ---------------------------------------------------------------------------------------

// o[i, r, c] = sum over p of a[i, r, p] * b[i, p, c]; i < batch, r < m, c < n, p < k. For shapes that the
// compiler does not know; the sums are those of ck_dot_fixed.
template <class A, class B, class O>
CK_INLINE void ck_dot(i64 batch, i64 m, i64 n, i64 k, const A* a, i64 a_b, i64 a_m, i64 a_k, const B* b,
                      i64 b_b, i64 b_k, i64 b_n, O* o, i64 o_b, i64 o_m, i64 o_n) {
  const CkShape shape{m, n, k, a_m, a_k, b_k, b_n, o_m, o_n};
  const CkPlan plan = ck_plan_for<A, B, O>(shape, true);
  for (i64 i = 0; i < batch; ++i) {
    const CkDot<A, B, O> d = ck_dot_of(shape, a + i * a_b, b + i * b_b, o + i * o_b);
    if constexpr (CkSame<typename CkLane<A, B, O>::type, void>::value) {
      ck_dot_strided(d);
    } else {
      plan.transposed ? ck_dot_planned(plan.kernel, ck_dot_transposed(d)) : ck_dot_planned(plan.kernel, d);
    }
  }
}

// The same for a shape known to the compiler, which sees only the kernel it needs.
template <class A, class B, class O, i64... SHAPE>
CK_INLINE void ck_dot_fixed(i64 batch, const A* a, i64 a_b, const B* b, i64 b_b, O* o, i64 o_b) {
  constexpr CkShape shape{SHAPE...};
  constexpr CkPlan plan = ck_plan_for<A, B, O>(shape, true);
  for (i64 i = 0; i < batch; ++i) {
    const CkDot<A, B, O> d = ck_dot_of(shape, a + i * a_b, b + i * b_b, o + i * o_b);
    if constexpr (plan.transposed) {
      ck_dot_to<plan.kernel, plan.rows, plan.groups>(ck_dot_transposed(d));
    } else {
      ck_dot_to<plan.kernel, plan.rows, plan.groups>(d);
    }
  }
}

// The same for a shape of which the compiler knows a part: SHAPE has kCkMany or kCkSome for the rest.
template <class A, class B, class O, i64... SHAPE>
CK_INLINE void ck_dot_sized(CkShape shape, i64 batch, const A* a, i64 a_b, const B* b, i64 b_b, O* o,
                            i64 o_b) {
  constexpr CkPlan plan = ck_plan_for<A, B, O>(CkShape{SHAPE...}, true);
  for (i64 i = 0; i < batch; ++i) {
    const CkDot<A, B, O> d = ck_dot_of(shape, a + i * a_b, b + i * b_b, o + i * o_b);
    if constexpr (plan.transposed) {
      ck_dot_to<plan.kernel, plan.rows, plan.groups>(ck_dot_transposed(d));
    } else {
      ck_dot_to<plan.kernel, plan.rows, plan.groups>(d);
    }
  }
}

// The same for a shape of which the compiler knows nothing.
template <class A, class B, class O>
CK_INLINE void ck_dot_any(CkShape s, i64 batch, const A* a, i64 a_b, const B* b, i64 b_b, O* o, i64 o_b) {
  ck_dot(batch, s.m, s.n, s.k, a, a_b, s.a_m, s.a_k, b, b_b, s.b_k, s.b_n, o, o_b, s.o_m, s.o_n);
}

// Sums are not stored but given to visit(i, r, c, rows, columns, sums, stride) a block at a time, each once:
// the sum of row r + x and column c + y of product i is sums[x * stride + y]. SHAPE: as above, without o's
// strides. O: the type that determines the accumulation type.
template <class A, class B, class O, i64 M, i64 N, i64 K, i64 A_M, i64 A_K, i64 B_K, i64 B_N, class F>
CK_INLINE void ck_dot_visit(i64 batch, const A* a, i64 a_b, const B* b, i64 b_b, F visit) {
  typedef typename CkLane<A, B, O>::type C;
  static_assert(!CkSame<C, void>::value && K > 0, "no vectors for these types, or no products");
  constexpr CkShape shape{M, N, K, A_M, A_K, B_K, B_N, N, 1};
  constexpr CkPlan plan = ck_plan_for<A, B, O>(shape, false);
  for (i64 i = 0; i < batch; ++i) {
    auto one = [&](i64 r, i64 c, i64 rows, i64 columns, const C* sums, i64 stride) {
      visit(i, r, c, rows, columns, sums, stride);
    };
    const CkDot<A, B, O> d = ck_dot_of(shape, a + i * a_b, b + i * b_b, (O*)nullptr);
    ck_dot_as<C, plan.kernel, plan.rows, plan.groups>(d, CkVisit<C, decltype(one)>{one});
  }
}

#endif  // COCKTAIL_DOT_H
