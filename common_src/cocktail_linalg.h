// Factorisations of one matrix, and solutions of triangular systems, unblocked: for the sizes inside loops.
// Operands have any strides, in elements; results are dense and rows are contiguous. The work on a row or on
// the rest of the matrix is shared by the threads of a unit, all of which call a template with the same
// arguments; the caller's next ck_block_barrier() makes the result visible.
#ifndef COCKTAIL_LINALG_H
#define COCKTAIL_LINALG_H

#include "cocktail_arith.h"

template <class T>
CK_INLINE T ck_not_a_number() {
  return T(__builtin_nanf(""));
}

// Threads that share a row of this many elements: a power of two.
constexpr i32 ck_row_group(i32 length) {
  return length >= 32 ? 32 : length <= 1 ? 1 : 2 * ck_row_group(length / 2);
}

// The dense copy of a matrix.
template <i32 ROWS, i32 COLUMNS, class T>
CK_INLINE void ck_copy_matrix(const T* a, i64 row, i64 column, T* to) {
  constexpr i32 group = ck_row_group(COLUMNS);
  CK_FOR_ROWS(group, i, ROWS) {
    if (i < ROWS) CK_FOR_GROUP_LANES(group, j, COLUMNS) to[i * COLUMNS + j] = a[i * row + j * column];
  }
}

// l = the lower factor of the N x N matrix `a`, of which only the lower triangle counts; NaN if a pivot
// is not positive. The upper triangle first holds the transposed factor: loops run along rows.
template <i32 N, class T>
CK_INLINE void ck_cholesky(const T* a, i64 row, i64 column, T* l) {
  ck_copy_matrix<N, N>(a, column, row, l);
  ck_block_barrier();
  CK_NO_UNROLL
  for (i32 k = 0; k < N; ++k) {
    const i32 first = ck_row_start<N>(k);
    T* mine = l + k * N + first;
    i32 p = 0;
    for (; p + 4 <= k; p += 4) {  // four rows at a time: fewer stores
      const T *above = l + p * N, *from = above + first;
      const T a0 = above[k], a1 = above[N + k], a2 = above[2 * N + k], a3 = above[3 * N + k];
      CK_FOR_LANES(j, N - first) {
        const T left = ck_fma(a0, from[j], a1 * from[N + j]);
        mine[j] -= left + ck_fma(a2, from[2 * N + j], a3 * from[3 * N + j]);
      }
    }
    for (; p < k; ++p) {
      const T *above = l + p * N, *from = above + first;
      const T factor = above[k];
      CK_FOR_LANES(j, N - first) mine[j] = ck_fma(-factor, from[j], mine[j]);
    }
    ck_block_barrier();
    const T pivot = mine[k - first];
    ck_block_barrier();  // every thread has the pivot
    if (pivot <= T(0)) {
      CK_FOR_LANES(at, N * N) l[at] = ck_not_a_number<T>();
      return;
    }
    const T root = ck_sqrt(pivot);
    CK_FOR_LANES(j, N - first) mine[j] /= root;
    ck_block_barrier();
    CK_FOR_LANES(only, 1) mine[k - first + only] = root;
    ck_block_barrier();
  }
  CK_FOR_ROWS(1, i, N) {
    for (i64 j = i + 1; j < N; ++j) {
      l[j * N + i] = l[i * N + j];
      l[i * N + j] = T(0);
    }
  }
}

// x = the solution of a x = b for a lower (or upper) triangular N x N matrix `a` and M columns.
template <bool LOWER, bool UNIT, i32 N, i32 M, class T>
CK_INLINE void ck_triangular_solve(const T* a, i64 row, i64 column, const T* b, i64 b_row, i64 b_column,
                                   T* x) {
  constexpr i32 group = ck_row_group(M);
  ck_copy_matrix<N, M>(b, b_row, b_column, x);
  CK_NO_UNROLL
  for (i32 p = 0; p < N; ++p) {
    const i32 k = LOWER ? p : N - 1 - p;
    T* mine = x + k * M;
    const T* below = a + k * column;
    ck_block_barrier();
    if constexpr (!UNIT) {
      const T pivot = below[k * row];
      CK_FOR_LANES(j, M) mine[j] = mine[j] / pivot;
      ck_block_barrier();
    }
    const i32 first = LOWER ? k + 1 : 0;
    const i32 rest = N - 1 - p;
    CK_FOR_ROWS(group, i, rest) {
      if (i < rest) {
        T* other = x + (first + i) * M;
        const T factor = below[(first + i) * row];
        CK_FOR_GROUP_LANES(group, j, M) other[j] = ck_fma(-factor, mine[j], other[j]);
      }
    }
  }
}

// x = the factors of the M x N matrix `a` with rows exchanged: the upper one, and below its diagonal the
// lower one, which has a diagonal of ones. pivots[k]: the row that was exchanged with row k, first to last.
template <i32 M, i32 N, class T>
CK_INLINE void ck_lu(const T* a, i64 row, i64 column, T* x, i32* pivots) {
  constexpr i32 group = ck_row_group(N);
  ck_copy_matrix<M, N>(a, row, column, x);
  CK_NO_UNROLL
  for (i32 k = 0; k < (M < N ? M : N); ++k) {
    ck_block_barrier();
    i32 best = k;
    for (i32 i = k + 1; i < M; ++i) best = ck_abs(x[i * N + k]) > ck_abs(x[best * N + k]) ? i : best;
    const T pivot = x[best * N + k];
    ck_block_barrier();  // every thread has the pivot
    T *mine = x + k * N, *other = x + best * N;
    CK_FOR_LANES(j, N) {
      const T moved = mine[j];
      mine[j] = other[j];
      other[j] = moved;
    }
    CK_FOR_LANES(only, 1) pivots[k + only] = best;
    if (pivot == T(0)) continue;  // so is all below it
    ck_block_barrier();
    CK_FOR_LANES(at, M - 1 - k) x[(k + 1 + at) * N + k] /= pivot;
    ck_block_barrier();
    const i32 first = ck_row_start<N>(k + 1), rest = M - 1 - k;
    CK_FOR_ROWS(group, i, rest) {
      if (i < rest) {
        T* below = mine + (i + 1) * N;
        const T factor = below[k];
        CK_FOR_GROUP_LANES(group, at, N - first) {
          const i32 j = first + i32(at);
          below[j] = j > k ? ck_fma(-factor, mine[j], below[j]) : below[j];
        }
      }
    }
  }
}

// The length of the vector x[0], x[step] ... of `count` elements. Scaled, so that no square overflows.
template <class T>
CK_INLINE T ck_length(const T* x, i64 step, i32 count) {
  T largest = T(0), sum = T(0);
  for (i32 i = 0; i < count; ++i) largest = ck_max(largest, ck_abs(x[i * step]));
  if (largest == T(0)) return largest;
  for (i32 i = 0; i < count; ++i) {
    const T part = x[i * step] / largest;
    sum = ck_fma(part, part, sum);
  }
  return largest * ck_sqrt(sum);
}

// Applies the reflection 1 - factor v v' to the columns `from` .. N-1 of x, which has 1 + `below` rows. The
// elements of v are 1, v[0], v[step] ... Every thread has columns of its own, others for another `from`.
template <i32 N, class T>
CK_INLINE void ck_reflect(T* x, i32 from, i32 below, T factor, const T* v, i64 step) {
  const i32 start = ck_row_start<N>(from);
  T sums[N];
  CK_FOR_LANES(j, N - start) sums[j] = x[start + j];
  CK_NO_UNROLL
  for (i32 i = 0; i < below; ++i) {
    const T* row = x + (i + 1) * N + start;
    const T part = v[i * step];
    CK_FOR_LANES(j, N - start) sums[j] = ck_fma(part, row[j], sums[j]);
  }
  CK_NO_UNROLL
  for (i32 i = 0; i <= below; ++i) {
    T* row = x + i * N + start;
    const T part = i == 0 ? factor : factor * v[(i - 1) * step];
    CK_FOR_LANES(j, N - start) {
      row[j] = start + i32(j) >= from ? ck_fma(-part, sums[j], row[j]) : row[j];
    }
  }
}

// x = the upper factor R of the M x N matrix `a`, and below the diagonal the vectors of the reflections whose
// product is Q, in LAPACK's form: each begins with a 1 that is not stored. taus: their factors.
template <i32 M, i32 N, class T>
CK_INLINE void ck_geqrf(const T* a, i64 row, i64 column, T* x, T* taus) {
  ck_copy_matrix<M, N>(a, row, column, x);
  CK_NO_UNROLL
  for (i32 k = 0; k < (M < N ? M : N); ++k) {
    T* mine = x + k * N;
    const i32 below = M - 1 - k;
    ck_block_barrier();
    const T first = mine[k], rest = ck_length(mine + N + k, N, below);
    ck_block_barrier();  // every thread has the column
    if (rest == T(0)) {
      CK_FOR_LANES(only, 1) taus[k + only] = T(0);
      continue;
    }
    const T both[2] = {first, rest};
    const T length = ck_length(both, 1, 2), end = first < T(0) ? length : -length;
    const T tau = (end - first) / end;
    CK_FOR_LANES(i, below) mine[(i + 1) * N + k] /= first - end;
    CK_FOR_LANES(only, 1) {
      mine[k + only] = end;
      taus[k + only] = tau;
    }
    ck_block_barrier();
    if (k + 1 < N) ck_reflect<N>(mine, k + 1, below, tau, mine + N + k, N);
  }
}

// x = the first N columns of the product of K reflections whose vectors are in the M x N matrix `a`.
template <i32 M, i32 N, i32 K, class T>
CK_INLINE void ck_householder_product(const T* a, i64 row, i64 column, const T* taus, i64 step, T* x) {
  for (i32 i = 0; i < M; ++i) {
    CK_FOR_LANES(j, N) x[i * N + j] = T(i32(j) == i);
  }
  CK_NO_UNROLL
  for (i32 k = K - 1; k >= 0; --k) {
    ck_block_barrier();
    ck_reflect<N>(x + k * N, k, M - 1 - k, taus[k * step], a + (k + 1) * row + k * column, row);
  }
}

#endif  // COCKTAIL_LINALG_H
