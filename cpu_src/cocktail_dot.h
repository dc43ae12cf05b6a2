// Matrix products with arbitrary strides, one thread, tuned for the sizes inside loops: matrix-vector
// products and small matrix products. The order of every sum depends on shapes and strides only. Choosing a
// kernel is inlined: with constant shapes and strides a program contains, and compiles, only what it needs.
#ifndef COCKTAIL_DOT_H
#define COCKTAIL_DOT_H

#include "cocktail_arith.h"

// Explicit vectors: sums over k must not be reordered by the compiler, so it would not vectorise them.
template <class T, int BYTES>
struct CkVector {
  static constexpr bool exists = false;
  static constexpr int lanes = 1;
};
#define CK_VECTOR(T, BYTES)                                                             \
  template <>                                                                           \
  struct CkVector<T, BYTES> {                                                           \
    typedef T type __attribute__((vector_size(BYTES)));                                 \
    typedef T memory __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias)); \
    static constexpr bool exists = true;                                                \
    static constexpr int lanes = BYTES / int(sizeof(T));                                \
  };
CK_VECTOR(f32, 16)
CK_VECTOR(f64, 16)
#if CK_VECTOR_BYTES != 16
CK_VECTOR(f32, CK_VECTOR_BYTES)
CK_VECTOR(f64, CK_VECTOR_BYTES)
#endif
#undef CK_VECTOR

// Columns in flight per row block: 32 registers with 64-byte vectors, else 16.
constexpr int kCkColumnVectors = CK_VECTOR_BYTES == 64 ? 4 : 2;

template <class A, class B>
struct CkSame {
  static constexpr bool value = false;
};
template <class A>
struct CkSame<A, A> {
  static constexpr bool value = true;
};

template <bool CONDITION, class A, class B>
struct CkChoose {
  typedef A type;
};
template <class A, class B>
struct CkChoose<false, A, B> {
  typedef B type;
};

// What products are summed in: f64 if an operand is, else what the result is computed in.
template <class A, class B, class O>
struct CkAccumulator {
  static constexpr bool wide = CkSame<A, f64>::value || CkSame<B, f64>::value;
  typedef typename CkChoose<wide, f64, typename CkType<O>::compute>::type type;
};

template <class C, class A, class B>
CK_INLINE void ck_accumulate(C& sum, A a, B b) {
  if constexpr (CkSame<C, bool>::value) {
    sum = ck_or(sum, ck_and(ck_convert_bool(a), ck_convert_bool(b)));
  } else {
    sum = C(sum + C(C(ck_up(a)) * C(ck_up(b))));
  }
}

// One matrix product; strides in elements.
template <class A, class B, class O>
struct CkDot {
  i64 m, n, k;
  const A* a;
  i64 a_m, a_k;
  const B* b;
  i64 b_k, b_n;
  O* o;
  i64 o_m, o_n;
};

// ---- any strides, any types -----------------------------------------------------------------------------

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

// Contiguous columns: 64 sums at a time, vectorised by the compiler.
template <class A, class B, class O>
CK_NOINLINE void ck_dot_columns(const CkDot<A, B, O>& d) {
  typedef typename CkAccumulator<A, B, O>::type C;
  constexpr int tile = 64;
  for (i64 j = 0; j < d.n; j += tile) {
    int columns = d.n - j < tile ? int(d.n - j) : tile;
    for (i64 i = 0; i < d.m; ++i) {
      const A* a = d.a + i * d.a_m;
      C sum[tile] = {};
      if (columns == tile) {
        for (i64 p = 0; p < d.k; ++p) {
          A scale = a[p * d.a_k];
          const B* b = d.b + p * d.b_k + j;
          CK_LANES
          for (int c = 0; c < tile; ++c) ck_accumulate(sum[c], scale, b[c]);
        }
      } else {
        for (i64 p = 0; p < d.k; ++p) {
          A scale = a[p * d.a_k];
          const B* b = d.b + p * d.b_k + j;
          CK_NO_UNROLL
          for (int c = 0; c < columns; ++c) ck_accumulate(sum[c], scale, b[c]);
        }
      }
      O* o = d.o + i * d.o_m + j;
      CK_NO_UNROLL
      for (int c = 0; c < columns; ++c) o[c] = ck_convert<O>(sum[c]);
    }
  }
}

// ---- f32 and f64: columns contiguous ---------------------------------------------------------------------

// ROWS x (VECTORS vectors) of results, held in registers over the whole sum. ADD: to what is there.
template <class T, int BYTES, int ROWS, int VECTORS, bool ADD = false>
CK_INLINE void ck_dot_block(const CkDot<T, T, T>& d, i64 i, i64 j) {
  typedef CkVector<T, BYTES> Vector;
  typedef typename Vector::memory Memory;
  typename Vector::type sum[ROWS][VECTORS] = {};
  if constexpr (ADD) {
    for (int r = 0; r < ROWS; ++r) {
      const T* o = d.o + (i + r) * d.o_m + j;
      for (int v = 0; v < VECTORS; ++v) sum[r][v] = *reinterpret_cast<const Memory*>(o + v * Vector::lanes);
    }
  }
  const T* a = d.a + i * d.a_m;
  const T* b = d.b + j;
  CK_NO_UNROLL
  for (i64 p = 0; p < d.k; ++p) {
    typename Vector::type column[VECTORS];
    for (int v = 0; v < VECTORS; ++v) column[v] = *reinterpret_cast<const Memory*>(b + v * Vector::lanes);
    for (int r = 0; r < ROWS; ++r) {
      T scale = a[r * d.a_m];
      for (int v = 0; v < VECTORS; ++v) sum[r][v] += scale * column[v];
    }
    a += d.a_k;
    b += d.b_k;
  }
  for (int r = 0; r < ROWS; ++r) {
    T* o = d.o + (i + r) * d.o_m + j;
    for (int v = 0; v < VECTORS; ++v) *reinterpret_cast<Memory*>(o + v * Vector::lanes) = sum[r][v];
  }
}

// All rows from i on in steps of ROWS; returns the first one left over.
template <class T, int BYTES, int ROWS, int VECTORS, bool ADD = false>
CK_INLINE i64 ck_dot_rows(const CkDot<T, T, T>& d, i64 i, i64 j) {
  for (; i + ROWS <= d.m; i += ROWS) ck_dot_block<T, BYTES, ROWS, VECTORS, ADD>(d, i, j);
  return i;
}

// Many rows: a panel of columns is copied to where its lines follow each other (rows of a large matrix are
// often a power of two apart and would share cache sets), in pieces of the sum that stay in the first cache.
constexpr i64 kCkPackedDepth = 128, kCkPackedRows = 16;
constexpr int kCkBlockRows = CK_VECTOR_BYTES == 64 ? 6 : 4;
template <class T, int BYTES, int VECTORS>
CK_NOINLINE void ck_dot_packed(const CkDot<T, T, T>& d, i64 j) {
  constexpr i64 width = VECTORS * CkVector<T, BYTES>::lanes;
  alignas(64) T panel[kCkPackedDepth * width];
  for (i64 p = 0; p < d.k; p += kCkPackedDepth) {
    i64 depth = d.k - p < kCkPackedDepth ? d.k - p : kCkPackedDepth;
    for (i64 q = 0; q < depth; ++q) {
      __builtin_memcpy(panel + q * width, d.b + (p + q) * d.b_k + j, width * sizeof(T));
    }
    const T* a = d.a + p * d.a_k;
    CkDot<T, T, T> piece{d.m, width, depth, a, d.a_m, d.a_k, panel, width, 1, d.o + j, d.o_m, 1};
    i64 i = 0;
    if (p == 0) {
      i = ck_dot_rows<T, BYTES, kCkBlockRows, VECTORS>(piece, i, 0);
      ck_dot_rows<T, BYTES, 1, VECTORS>(piece, i, 0);
    } else {
      i = ck_dot_rows<T, BYTES, kCkBlockRows, VECTORS, true>(piece, i, 0);
      ck_dot_rows<T, BYTES, 1, VECTORS, true>(piece, i, 0);
    }
  }
}
template <class T, int BYTES, int VECTORS>
CK_INLINE void ck_dot_panel(const CkDot<T, T, T>& d, i64 j) {
  i64 i = ck_dot_rows<T, BYTES, 4, VECTORS>(d, 0, j);
  ck_dot_rows<T, BYTES, 1, VECTORS>(d, i, j);
}

// At least one vector of columns. What is left over at the right is done by a last vector that overlaps its
// neighbour and computes the same sums again.
template <class T, int BYTES>
CK_NOINLINE void ck_dot_vectors(const CkDot<T, T, T>& d) {
  constexpr i64 lanes = CkVector<T, BYTES>::lanes;
  constexpr int wide = 2 * kCkColumnVectors;
  i64 j = 0;
  if (d.m >= kCkPackedRows) {
    for (; j + kCkColumnVectors * lanes <= d.n; j += kCkColumnVectors * lanes) {
      ck_dot_packed<T, BYTES, kCkColumnVectors>(d, j);
    }
  } else if (d.m < 4) {
    for (; j + wide * lanes <= d.n; j += wide * lanes) ck_dot_rows<T, BYTES, 1, wide>(d, 0, j);
  } else {
    for (; j + kCkColumnVectors * lanes <= d.n; j += kCkColumnVectors * lanes) {
      ck_dot_panel<T, BYTES, kCkColumnVectors>(d, j);
    }
  }
  for (; j < d.n; j += lanes) ck_dot_panel<T, BYTES, 1>(d, j + lanes <= d.n ? j : d.n - lanes);
}

// ---- f32 and f64: the summed axis contiguous in both operands --------------------------------------------

template <class T, int BYTES>
CK_INLINE T ck_lane_sum(typename CkVector<T, BYTES>::type vector) {
  constexpr int lanes = CkVector<T, BYTES>::lanes;
  T part[lanes];
  __builtin_memcpy(part, &vector, sizeof(part));
  for (int width = lanes / 2; width > 0; width /= 2) {
    for (int c = 0; c < width; ++c) part[c] += part[c + width];
  }
  return part[0];
}

// COLUMNS results of one row, PARTS vectors of partial sums each. Long sums are added in blocks, and these in
// f64: one running sum in f32 would lose digits.
template <class T, int BYTES, int COLUMNS, int PARTS>
CK_INLINE void ck_dot_products(const CkDot<T, T, T>& d, i64 i, i64 j) {
  typedef CkVector<T, BYTES> Vector;
  typedef typename Vector::memory Memory;
  constexpr i64 step = PARTS * Vector::lanes, block = 4096;
  const T* a = d.a + i * d.a_m;
  const T* b = d.b + j * d.b_n;
  f64 total[COLUMNS] = {};
  for (i64 begin = 0; begin < d.k; begin += block) {
    i64 end = d.k - begin < block ? d.k : begin + block, p = begin;
    typename Vector::type sum[COLUMNS][PARTS] = {};
    CK_NO_UNROLL
    for (; p + step <= end; p += step) {
      for (int part = 0; part < PARTS; ++part) {
        i64 at = p + part * Vector::lanes;
        typename Vector::type row = *reinterpret_cast<const Memory*>(a + at);
        for (int c = 0; c < COLUMNS; ++c) {
          sum[c][part] += row * *reinterpret_cast<const Memory*>(b + c * d.b_n + at);
        }
      }
    }
    for (int c = 0; c < COLUMNS; ++c) {
      for (int part = 1; part < PARTS; ++part) sum[c][0] += sum[c][part];
      total[c] += ck_lane_sum<T, BYTES>(sum[c][0]);
    }
    CK_NO_UNROLL
    for (; p < end; ++p) {
      for (int c = 0; c < COLUMNS; ++c) total[c] += f64(a[p]) * f64(b[c * d.b_n + p]);
    }
  }
  for (int c = 0; c < COLUMNS; ++c) d.o[i * d.o_m + (j + c) * d.o_n] = T(total[c]);
}

template <class T, int BYTES>
CK_NOINLINE void ck_dot_inner(const CkDot<T, T, T>& d) {
  i64 j = 0;
  for (; j + 4 <= d.n; j += 4) {
    for (i64 i = 0; i < d.m; ++i) ck_dot_products<T, BYTES, 4, 2>(d, i, j);
  }
  for (; j < d.n; ++j) {
    for (i64 i = 0; i < d.m; ++i) ck_dot_products<T, BYTES, 1, 2>(d, i, j);
  }
}

// ---- choice ---------------------------------------------------------------------------------------------

template <class A, class B, class O>
CK_INLINE CkDot<B, A, O> ck_dot_transposed(const CkDot<A, B, O>& d) {
  return CkDot<B, A, O>{d.n, d.m, d.k, d.b, d.b_n, d.b_k, d.a, d.a_k, d.a_m, d.o, d.o_n, d.o_m};
}

template <class T>
CK_INLINE void ck_dot_float(const CkDot<T, T, T>& d) {
  constexpr i64 lanes = CkVector<T, CK_VECTOR_BYTES>::lanes, narrow = CkVector<T, 16>::lanes;
  CkDot<T, T, T> t = ck_dot_transposed(d);
  bool columns = d.b_n == 1 && d.o_n == 1, rows = d.a_m == 1 && d.o_m == 1;
  bool inner = d.a_k == 1 && d.b_k == 1 && d.k >= lanes;
  if (columns && d.n >= lanes) {
    ck_dot_vectors<T, CK_VECTOR_BYTES>(d);
  } else if (rows && d.m >= lanes) {
    ck_dot_vectors<T, CK_VECTOR_BYTES>(t);
  } else if (inner) {
    ck_dot_inner<T, CK_VECTOR_BYTES>(d.n >= d.m ? d : t);
  } else if (columns && d.n >= narrow) {
    ck_dot_vectors<T, 16>(d);
  } else if (rows && d.m >= narrow) {
    ck_dot_vectors<T, 16>(t);
  } else {
    ck_dot_strided(d);
  }
}

// o[i, r, c] = sum over p of a[i, r, p] * b[i, p, c]; i < batch, r < m, c < n, p < k.
template <class A, class B, class O>
CK_INLINE void ck_dot(i64 batch, i64 m, i64 n, i64 k, const A* a, i64 a_b, i64 a_m, i64 a_k, const B* b,
                      i64 b_b, i64 b_k, i64 b_n, O* o, i64 o_b, i64 o_m, i64 o_n) {
  if (m == 1) a_m = o_m = 1;
  if (n == 1) b_n = o_n = 1;
  if (k <= 1) a_k = b_k = 1;
  for (i64 i = 0; i < batch; ++i) {
    CkDot<A, B, O> d{m, n, k, a + i * a_b, a_m, a_k, b + i * b_b, b_k, b_n, o + i * o_b, o_m, o_n};
    if constexpr (CkSame<A, B>::value && CkSame<A, O>::value && CkVector<A, 16>::exists) {
      ck_dot_float(d);
    } else if (b_n == 1 && o_n == 1 && n >= 8) {
      ck_dot_columns(d);
    } else if (a_m == 1 && o_m == 1 && m >= 8) {
      ck_dot_columns(ck_dot_transposed(d));
    } else {
      ck_dot_strided(d);
    }
  }
}

#endif  // COCKTAIL_DOT_H
