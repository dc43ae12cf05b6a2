// Matrix products whose contracted axis is contiguous in both operands: dot products across vector lanes. A
// few rows share the loads of the columns.
#ifndef COCKTAIL_INNER_H
#define COCKTAIL_INNER_H

#include "cocktail_gemm.h"

constexpr i64 kCkInnerBlock = 4096;  // elements that are added in the lanes before their sum goes to an f64
constexpr i64 kCkInnerTile = 64;
constexpr i64 kCkInnerRows = 16;  // at most: above, transposing the right operand pays

// Lanes from `at` on of which the first `skip` are zero: they have been added before.
template <class C, int BYTES, class T>
CK_INLINE typename CkVector<C, BYTES>::type ck_load_last(const T* from, i64 skip) {
  typedef CkVector<C, BYTES> V;
  typename V::bits count;
  for (int l = 0; l < V::lanes; ++l) count[l] = typename V::bit(l);
  typename V::bits keep = typename V::bits(count >= typename V::bit(skip));
  return typename V::type(typename V::bits(ck_load<C, BYTES>(from)) & keep);
}

// ROWS x COLUMNS sums over at least one vector of elements, to `tile`.
template <class C, class A, class B, int BYTES, int ROWS, int COLUMNS>
CK_NOINLINE void ck_inner_block(i64 k, const A* a, i64 a_m, const B* b, i64 b_n, C* tile, i64 tile_m) {
  typedef CkVector<C, BYTES> V;
  typedef typename V::type Lanes;
  typedef typename CkChoose<CkSame<C, f32>::value, f64, C>::type Wide;
  Wide total[ROWS][COLUMNS] = {};
  for (i64 begin = 0; begin < k; begin += kCkInnerBlock) {
    const i64 end = k - begin < kCkInnerBlock ? k : begin + kCkInnerBlock;
    i64 p = begin;
    Lanes sum[ROWS][COLUMNS] = {};
    CK_NO_UNROLL
    for (; p + V::lanes <= end; p += V::lanes) {
      Lanes row[ROWS];
      CK_UNROLL
      for (int r = 0; r < ROWS; ++r) row[r] = ck_load<C, BYTES>(a + r * a_m + p);
      CK_UNROLL
      for (int c = 0; c < COLUMNS; ++c) {
        Lanes line = ck_load<C, BYTES>(b + c * b_n + p);
        CK_UNROLL
        for (int r = 0; r < ROWS; ++r) sum[r][c] = ck_multiply_add<C>(sum[r][c], row[r], line);
      }
    }
    if (p < end) {
      const i64 at = end - V::lanes;
      Lanes row[ROWS];
      CK_UNROLL
      for (int r = 0; r < ROWS; ++r) row[r] = ck_load_last<C, BYTES>(a + r * a_m + at, p - at);
      CK_UNROLL
      for (int c = 0; c < COLUMNS; ++c) {
        Lanes line = ck_load_last<C, BYTES>(b + c * b_n + at, p - at);
        CK_UNROLL
        for (int r = 0; r < ROWS; ++r) sum[r][c] = ck_multiply_add<C>(sum[r][c], row[r], line);
      }
    }
    constexpr int most = COLUMNS < V::lanes ? COLUMNS : V::lanes;
    CK_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      CK_UNROLL
      for (int c = 0; c < COLUMNS; c += most) {
        C part[V::lanes];
        ck_store<C, BYTES>(part, ck_lane_sums<C, BYTES, most>(sum[r] + c));
        CK_UNROLL
        for (int l = 0; l < most; ++l) total[r][c + l] = ck_plus<C>(total[r][c + l], Wide(part[l]));
      }
    }
  }
  CK_UNROLL
  for (int r = 0; r < ROWS; ++r) {
    CK_UNROLL
    for (int c = 0; c < COLUMNS; ++c) tile[r * tile_m + c] = C(total[r][c]);
  }
}

// ROWS x COLUMNS blocks of the rows from i on. Their sums depend on neither number.
template <class C, int BYTES, int ROWS, int COLUMNS, class A, class B>
CK_INLINE i64 ck_inner_rows(const CkColumns<B>& d, const CkRows<C, A>& rows, i64 i, const B* b, C* tile) {
  for (; i + ROWS <= d.m; i += ROWS) {
    ck_inner_block<C, A, B, BYTES, ROWS, COLUMNS>(d.k, rows.a + i * rows.a_m, rows.a_m, b, d.b_n,
                                                  tile + i * kCkInnerTile, kCkInnerTile);
  }
  return i;
}

// COLUMNS columns, all rows: except for the first rows, the columns come from the nearest cache.
template <class C, int BYTES, int COLUMNS, class A, class B>
CK_INLINE void ck_inner_columns(const CkColumns<B>& d, const CkRows<C, A>& rows, const B* b, C* tile) {
  i64 i = 0;
  if constexpr (CK_VECTOR_BYTES == 64) {
    i = ck_inner_rows<C, BYTES, 3, COLUMNS>(d, rows, i, b, tile);
    i = ck_inner_rows<C, BYTES, 2, COLUMNS>(d, rows, i, b, tile);
  }
  ck_inner_rows<C, BYTES, 1, COLUMNS>(d, rows, i, b, tile);
}

template <class C, class A, class B, class Sink>
CK_INLINE void ck_inner(const CkColumns<B>& d, const CkRows<C, A>& rows, const Sink& sink) {
  constexpr int wide = 8, narrow = 4, bytes = CK_VECTOR_BYTES;
  alignas(64) C tile[kCkInnerRows * kCkInnerTile];
  for (i64 begin = 0; begin < d.n; begin += kCkInnerTile) {
    const i64 count = d.n - begin < kCkInnerTile ? d.n - begin : kCkInnerTile;
    const B* b = d.b + begin * d.b_n;
    i64 c = 0;
    for (; c + wide <= count; c += wide) ck_inner_columns<C, bytes, wide>(d, rows, b + c * d.b_n, tile + c);
    for (; c + narrow <= count; c += narrow) {
      ck_inner_columns<C, bytes, narrow>(d, rows, b + c * d.b_n, tile + c);
    }
    for (; c < count; ++c) ck_inner_columns<C, bytes, 1>(d, rows, b + c * d.b_n, tile + c);
    sink(0, begin, d.m, count, tile, kCkInnerTile);
  }
}

#endif  // COCKTAIL_INNER_H
