// Products of few rows with a matrix whose lines share sets of the caches. Read in strips of columns, such
// lines evict each other, and the prefetcher fetches what lies behind a strip in vain. So a long piece of
// each line is read at once, and the sums wait in the nearest caches. Their order is that of ck_gemv.
#ifndef COCKTAIL_LINES_H
#define COCKTAIL_LINES_H

#include "cocktail_gemm.h"

// [M] Bytes that lines are multiples of apart: from the first on, they share sets of the first cache, and
// from the second on of the second one, too. Up to so many rows, lines are then faster than strips. A matrix
// that is no smaller than kCkFarMatrix comes from beyond both.
constexpr i64 kCkAlikeBytes = 2 << 10, kCkFarBytes = 8 << 10, kCkFarMatrix = 4 << 20;
constexpr i64 kCkLinesRows = 4, kCkFarRows = 12;
constexpr i64 kCkLinesTogether = 4;          // their factors fill half of the registers, for two rows
constexpr i64 kCkLinesBytes = 8 << 10;       // of a line that is read at once
constexpr i64 kCkLeastLinesBytes = 2 << 10;  // of a whole line

// Adds the products of COUNT lines to the sums of ROWS rows.
template <class C, int BYTES, int ROWS, int COUNT, bool FIRST, class B>
CK_INLINE void ck_lines_rows(CkPiece<C> a, const B* b, i64 b_k, C* sums, i64 sums_m, i64 columns) {
  typedef CkVector<C, BYTES> V;
  typename V::type scale[ROWS][COUNT];
  CK_UNROLL
  for (int r = 0; r < ROWS; ++r) {
    CK_UNROLL
    for (int l = 0; l < COUNT; ++l) scale[r][l] = ck_broadcast<C, BYTES>(a.at[r * a.step_m + l * a.step_k]);
  }
  CK_NO_UNROLL
  for (i64 j = 0; j < columns; j += V::lanes) {
    typename V::type sum[ROWS] = {};
    if constexpr (!FIRST) {
      CK_UNROLL
      for (int r = 0; r < ROWS; ++r) sum[r] = ck_load<C, BYTES>(sums + r * sums_m + j);
    }
    CK_UNROLL
    for (int l = 0; l < COUNT; ++l) {
      const typename V::type line = ck_load<C, BYTES>(b + l * b_k + j);
      CK_UNROLL
      for (int r = 0; r < ROWS; ++r) sum[r] = ck_multiply_add<C>(sum[r], scale[r][l], line);
    }
    CK_UNROLL
    for (int r = 0; r < ROWS; ++r) ck_store<C, BYTES>(sums + r * sums_m + j, sum[r]);
  }
}

// The same for all ROWS rows, two at a time.
template <class C, int BYTES, int ROWS, int COUNT, bool FIRST, class B>
CK_INLINE void ck_lines_all(CkPiece<C> a, const B* b, i64 b_k, C* sums, i64 sums_m, i64 columns) {
  CK_NO_UNROLL
  for (i64 r = 0; r + 2 <= ROWS; r += 2) {
    const CkPiece<C> rows{a.at + r * a.step_m, a.step_m, a.step_k};
    ck_lines_rows<C, BYTES, 2, COUNT, FIRST>(rows, b, b_k, sums + r * sums_m, sums_m, columns);
  }
  if constexpr (ROWS % 2 != 0) {
    const CkPiece<C> row{a.at + (ROWS - 1) * a.step_m, a.step_m, a.step_k};
    ck_lines_rows<C, BYTES, 1, COUNT, FIRST>(row, b, b_k, sums + (ROWS - 1) * sums_m, sums_m, columns);
  }
}

// The sums of a chunk of `depth` products, in place of what is there.
template <class C, int BYTES, int ROWS, class B>
CK_INLINE void ck_lines_chunk(i64 depth, CkPiece<C> a, const B* b, i64 b_k, C* sums, i64 sums_m,
                              i64 columns) {
  i64 p = 0;
  const auto rest = [&] { return CkPiece<C>{a.at + p * a.step_k, a.step_m, a.step_k}; };
  if (depth >= kCkLinesTogether) {
    ck_lines_all<C, BYTES, ROWS, kCkLinesTogether, true>(a, b, b_k, sums, sums_m, columns);
    p = kCkLinesTogether;
  } else {
    ck_lines_all<C, BYTES, ROWS, 1, true>(a, b, b_k, sums, sums_m, columns);
    p = 1;
  }
  for (; p + kCkLinesTogether <= depth; p += kCkLinesTogether) {
    ck_lines_all<C, BYTES, ROWS, kCkLinesTogether, false>(rest(), b + p * b_k, b_k, sums, sums_m, columns);
  }
  for (; p < depth; ++p) {
    ck_lines_all<C, BYTES, ROWS, 1, false>(rest(), b + p * b_k, b_k, sums, sums_m, columns);
  }
}

// n: whole vectors. Rows are read where they are.
template <class C, int ROWS, class Rows, class B, class Sink>
CK_NOINLINE void ck_lines(const CkColumns<B>& d, const Rows& rows, const Sink& sink) {
  constexpr i64 lanes = CkVector<C, CK_VECTOR_BYTES>::lanes, width = kCkLinesBytes / i64(sizeof(C));
  constexpr bool dense = Sink::direct;  // lines of the result are whole
  alignas(64) C tile[dense ? 1 : ROWS * width], chunk[ROWS * width];
  for (i64 j = 0; j < d.n; j += width) {
    const i64 columns = d.n - j < width ? d.n - j : width;
    C* place = dense ? sink.place(0, j) : tile;
    const i64 place_m = dense ? sink.row() : width;
    for (i64 p = 0; p < d.k; p += kCkDepth) {
      const i64 depth = d.k - p < kCkDepth ? d.k - p : kCkDepth;
      const CkPiece<C> piece = rows.piece(0, ROWS, p, depth, nullptr);
      C* sums = p == 0 ? place : chunk;
      const i64 sums_m = p == 0 ? place_m : width;
      ck_lines_chunk<C, CK_VECTOR_BYTES, ROWS>(depth, piece, d.b + p * d.b_k + j, d.b_k, sums, sums_m,
                                               columns);
      if (p == 0) continue;
      for (i64 r = 0; r < ROWS; ++r) {
        for (i64 c = 0; c < columns; c += lanes) {
          C* to = place + r * place_m + c;
          const auto before = ck_load<C, CK_VECTOR_BYTES>(to);
          ck_store<C, CK_VECTOR_BYTES>(
              to, ck_plus<C>(before, ck_load<C, CK_VECTOR_BYTES>(chunk + r * width + c)));
        }
      }
    }
    if (!dense) sink(0, j, ROWS, columns, tile, width);
  }
}

// True if lines beat strips. `bytes`, `lanes`: of an element of the matrix, and of a vector.
constexpr bool ck_reads_lines(i64 m, i64 n, i64 k, i64 b_k, i64 bytes, i64 lanes) {
  if (n >= kCkSome || k >= kCkSome || b_k >= kCkSome) return false;
  const i64 apart = b_k * bytes;
  const bool far = apart % kCkFarBytes == 0 || k * apart >= kCkFarMatrix;
  return apart > 0 && apart % kCkAlikeBytes == 0 && m <= (far ? kCkFarRows : kCkLinesRows) &&
         k >= kCkLinesTogether && n % lanes == 0 && n * bytes >= kCkLeastLinesBytes;
}

#endif  // COCKTAIL_LINES_H
