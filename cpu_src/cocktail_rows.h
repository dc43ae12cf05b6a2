// Reductions of many short rows: the lanes of several rows are combined at once.
#ifndef COCKTAIL_ROWS_H
#define COCKTAIL_ROWS_H

#include "cocktail_reduce.h"
#include "cocktail_vector.h"

constexpr i64 kCkRowLanes = 16;  // accumulators of a row, and rows of a table, on every machine

// Stores the accumulators of a row, by halves as ck_fold_lanes combines them. Overwrites x.
template <class Op, i64 COUNT, class T>
CK_INLINE void ck_keep_row(T* x, T* kept) {
  if constexpr (COUNT > kCkRowLanes) {
    CK_LANES
    for (i64 l = 0; l < COUNT / 2; ++l) x[l] = Op::apply(x[l], x[l + COUNT / 2]);
    ck_keep_row<Op, COUNT / 2>(x, kept);
  } else {
    static_assert(COUNT == kCkRowLanes);
    CK_LANES
    for (i64 l = 0; l < COUNT; ++l) kept[l] = x[l];
  }
}

// ck_fold_lanes of each row of a table, for elements of 4 or 8 bytes. The total of row r goes to table[r].
template <class Op, class T>
CK_INLINE void ck_fold_rows(T* table) {
  typedef CkVector<typename CkChoose<sizeof(T) == 8, i64, i32>::type, CK_VECTOR_BYTES> V;
  constexpr i64 n = V::lanes;
  for (i64 half = kCkRowLanes / 2; half >= n; half /= 2) {
    for (i64 r = 0; r < kCkRowLanes; ++r) {
      T* x = table + kCkRowLanes * r;
      CK_LANES
      for (i64 l = 0; l < half; ++l) x[l] = Op::apply(x[l], x[l + half]);
    }
  }
  for (i64 r = 0; r < kCkRowLanes; r += n) {
    typename V::type line[n];
    CK_UNROLL
    for (i64 i = 0; i < n; ++i) __builtin_memcpy(&line[i], table + kCkRowLanes * (r + i), CK_VECTOR_BYTES);
    ck_transpose<V>(line);
    T lane[n * n];  // lane[n * l + i] of row r + i
    CK_UNROLL
    for (i64 l = 0; l < n; ++l) __builtin_memcpy(lane + n * l, &line[l], CK_VECTOR_BYTES);
    CK_UNROLL
    for (i64 half = n / 2; half >= 1; half /= 2) {
      CK_LANES
      for (i64 i = 0; i < half * n; ++i) lane[i] = Op::apply(lane[i], lane[i + half * n]);
    }
    CK_LANES
    for (i64 i = 0; i < n; ++i) table[r + i] = lane[i];
  }
}

#endif  // COCKTAIL_ROWS_H
