// Dense linear algebra by LAPACK and BLAS, which the runtime takes from where jaxlib does: so vectors have
// the same signs. Operands have any strides, in elements; results are dense and rows are contiguous. LAPACK's
// matrices have contiguous columns. If it fails, results are NaN.
//
// `scratch`: memory for copies of matrices, and for LAPACK (jax_cocktail/utask/lapack.py has its size).
#ifndef COCKTAIL_LAPACK_H
#define COCKTAIL_LAPACK_H

#include "cocktail_linalg.h"
#include "cocktail_routines.h"

enum : i32 { CK_LAPACK_BLOCK = 64 };  // the most columns that LAPACK takes together

// The numbers of routines for f32; that for f64 follows.
enum CkLapack {
  ck_xpotrf = 0,
  ck_xgetrf = 2,
  ck_xgeqrf = 4,
  ck_xorgqr = 6,
  ck_xtrsm = 8,
  ck_xsyevd = 10,
  ck_xgesdd = 12,
  ck_lapack_end = 14,
};

CK_EXPORT CkRoutine ck_routines[];
#if CK_IN_PART(0)
CkRoutine ck_routines[] __attribute__((used)) = {
    {"spotrf", nullptr}, {"dpotrf", nullptr}, {"sgetrf", nullptr}, {"dgetrf", nullptr}, {"sgeqrf", nullptr},
    {"dgeqrf", nullptr}, {"sorgqr", nullptr}, {"dorgqr", nullptr}, {"strsm", nullptr},  {"dtrsm", nullptr},
    {"ssyevd", nullptr}, {"dsyevd", nullptr}, {"sgesdd", nullptr}, {"dgesdd", nullptr}, {nullptr, nullptr},
};
static_assert(sizeof(ck_routines) == (ck_lapack_end + 1) * sizeof(CkRoutine), "a name is missing");
#endif

// Calls a routine, which has no result and takes pointers only.
template <class T, class... Arguments>
CK_INLINE void ck_call(CkLapack routine, Arguments*... arguments) {
  auto* function = reinterpret_cast<void (*)(Arguments*...)>(ck_routines[routine + sizeof(T) / 8].function);
  function(arguments...);
}

template <class T>
CK_NOINLINE void ck_fill_nan(T* x, i64 count) {
  for (i64 i = 0; i < count; ++i) x[i] = ck_not_a_number<T>();
}

// The rest as in cocktail_linalg.h: l = the lower factor.
template <i32 N, class T>
CK_INLINE void ck_lapack_cholesky(const T* a, i64 row, i64 column, T* l, void*) {
  constexpr i32 n = N;
  i32 info = 0;
  ck_copy_matrix<N, N>(a, row, column, l);  // LAPACK sees the transpose: the upper triangle counts
  ck_call<T>(ck_xpotrf, "U", &n, l, &n, &info);
  if (info != 0) ck_fill_nan(l, N * N);
  for (i32 i = 0; i < N; ++i) {
    for (i32 j = i + 1; j < N; ++j) l[i * N + j] = info == 0 ? T(0) : l[i * N + j];
  }
}

template <i32 M, i32 N, class T>
CK_INLINE void ck_lapack_lu(const T* a, i64 row, i64 column, T* x, i32* pivots, void* scratch) {
  constexpr i32 m = M, n = N;
  T* columns = static_cast<T*>(scratch);
  i32 info = 0;  // a pivot of zero is no failure
  ck_copy_matrix<N, M>(a, column, row, columns);
  ck_call<T>(ck_xgetrf, &m, &n, columns, &m, pivots, &info);
  ck_copy_matrix<M, N>(columns, 1, M, x);
  for (i32 k = 0; k < (M < N ? M : N); ++k) --pivots[k];  // LAPACK counts from 1
}

template <i32 M, i32 N, class T>
CK_INLINE void ck_lapack_geqrf(const T* a, i64 row, i64 column, T* x, T* taus, void* scratch) {
  constexpr i32 m = M, n = N, size = CK_LAPACK_BLOCK * N;
  T* columns = static_cast<T*>(scratch);
  i32 info = 0;
  ck_copy_matrix<N, M>(a, column, row, columns);
  ck_call<T>(ck_xgeqrf, &m, &n, columns, &m, taus, columns + i64(M) * N, &size, &info);
  ck_copy_matrix<M, N>(columns, 1, M, x);
}

template <i32 M, i32 N, i32 K, class T>
CK_INLINE void ck_lapack_householder_product(const T* a, i64 row, i64 column, const T* taus, i64 step, T* x,
                                             void* scratch) {
  constexpr i32 m = M, n = N, k = K, size = CK_LAPACK_BLOCK * N;
  T* columns = static_cast<T*>(scratch);
  T* factors = columns + i64(M) * N;
  i32 info = 0;
  ck_copy_matrix<N, M>(a, column, row, columns);
  ck_copy_matrix<1, K>(taus, 0, step, factors);
  ck_call<T>(ck_xorgqr, &m, &n, &k, columns, &m, factors, factors + K, &size, &info);
  ck_copy_matrix<M, N>(columns, 1, M, x);
}

// LAPACK sees transposes: it solves x' a' = b'.
template <bool LOWER, bool UNIT, i32 N, i32 M, class T>
CK_INLINE void ck_lapack_triangular_solve(const T* a, i64 row, i64 column, const T* b, i64 b_row,
                                          i64 b_column, T* x, void* scratch) {
  constexpr i32 n = N, m = M;
  constexpr T one = T(1);
  T* rows = static_cast<T*>(scratch);
  ck_copy_matrix<N, N>(a, row, column, rows);
  ck_copy_matrix<N, M>(b, b_row, b_column, x);
  ck_call<T>(ck_xtrsm, "R", LOWER ? "U" : "L", "N", UNIT ? "U" : "N", &m, &n, &one, rows, &n, x, &m);
}

// v = the eigenvectors, as columns, and w = the ascending eigenvalues of the symmetric N x N matrix `a`, of
// which one triangle counts.
template <bool LOWER, i32 N, class T>
CK_INLINE void ck_lapack_eigh(const T* a, i64 row, i64 column, T* v, T* w, void* scratch) {
  constexpr i32 n = N, size = 1 + 6 * N + 2 * N * N, integers = 3 + 5 * N;
  T* columns = static_cast<T*>(scratch);
  T* work = columns + N * N;
  i32 info = 0;
  ck_copy_matrix<N, N>(a, column, row, columns);
  ck_call<T>(ck_xsyevd, "V", LOWER ? "L" : "U", &n, columns, &n, w, work, &size,
             reinterpret_cast<i32*>(work + size), &integers, &info);
  ck_copy_matrix<N, N>(columns, 1, N, v);
  if (info == 0) return;
  ck_fill_nan(v, N * N);
  ck_fill_nan(w, N);
}

// s = the descending singular values of the M x N matrix `a`, u = the first U of its left singular vectors,
// as columns, and vt = the first V right ones, as rows; none if U is 0. `most`: elements for LAPACK, which
// rounds otherwise if it gets more than it asks for.
template <i32 M, i32 N, i32 U, i32 V, class T>
CK_INLINE void ck_lapack_svd(const T* a, i64 row, i64 column, T* s, T* u, T* vt, void* scratch, i32 most) {
  constexpr i32 least = M < N ? M : N, m = M, n = N, v = V > 0 ? V : 1;
  T* columns = static_cast<T*>(scratch);
  T* left = columns + i64(M) * N;
  T* right = left + i64(M) * U;
  T* work = right + i64(V) * N;
  i32* integers = reinterpret_cast<i32*>(work + most);
  const char* vectors = U == 0 ? "N" : U == least && V == least ? "S" : "A";
  i32 size = -1, info = 0;
  ck_copy_matrix<N, M>(a, column, row, columns);
  for (i32 asked = 0; asked < 2; ++asked) {  // with a size of -1, it tells which it asks for
    ck_call<T>(ck_xgesdd, vectors, &m, &n, columns, &m, s, left, &m, right, &v, work, &size, integers, &info);
    size = work[0] < T(most) ? i32(work[0]) : most;
  }
  ck_copy_matrix<M, U>(left, 1, M, u);
  ck_copy_matrix<V, N>(right, 1, V, vt);
  if (info == 0) return;
  ck_fill_nan(s, least);
  ck_fill_nan(u, i64(M) * U);
  ck_fill_nan(vt, i64(V) * N);
}

#endif  // COCKTAIL_LAPACK_H
