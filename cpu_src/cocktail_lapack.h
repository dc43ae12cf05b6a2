// Dense linear algebra by LAPACK, which the runtime takes from where jaxlib does: so vectors have the same
// signs. Operands have any strides, in elements; results are dense and rows are contiguous. LAPACK's matrices
// have contiguous columns. If it fails, results are NaN.
//
// `scratch`: memory for copies of matrices, and for LAPACK (jax_cocktail/utask/lapack.py has its size).
#ifndef COCKTAIL_LAPACK_H
#define COCKTAIL_LAPACK_H

#include "cocktail_linalg.h"
#include "cocktail_routines.h"

// Each of f32, then of f64.
enum CkLapack { ck_syevd = 0, ck_gesdd = 2, ck_lapack_end = 4 };

CK_EXPORT CkRoutine ck_routines[];
CkRoutine ck_routines[] __attribute__((used)) = {
    {"ssyevd", nullptr}, {"dsyevd", nullptr}, {"sgesdd", nullptr}, {"dgesdd", nullptr}, {nullptr, nullptr},
};
static_assert(sizeof(ck_routines) == (ck_lapack_end + 1) * sizeof(CkRoutine), "a name is missing");

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

// v = the eigenvectors, as columns, and w = the ascending eigenvalues of the symmetric N x N matrix `a`, of
// which one triangle counts.
template <bool LOWER, i32 N, class T>
CK_INLINE void ck_eigh(const T* a, i64 row, i64 column, T* v, T* w, void* scratch) {
  constexpr i32 n = N, size = 1 + 6 * N + 2 * N * N, integers = 3 + 5 * N;
  T* columns = static_cast<T*>(scratch);
  T* work = columns + N * N;
  i32 info = 0;
  ck_copy_matrix<N, N>(a, column, row, columns);
  ck_call<T>(ck_syevd, "V", LOWER ? "L" : "U", &n, columns, &n, w, work, &size,
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
CK_INLINE void ck_svd(const T* a, i64 row, i64 column, T* s, T* u, T* vt, void* scratch, i32 most) {
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
    ck_call<T>(ck_gesdd, vectors, &m, &n, columns, &m, s, left, &m, right, &v, work, &size, integers, &info);
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
