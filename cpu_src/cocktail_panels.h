// Products whose right matrix has been packed before: panels of columns, each a cache line wide, follow each
// other. So what a kernel reads are a few streams, while each line of a matrix may lie on a page of its own.
// The order of sums is that of ck_gemm.
// (K. Goto, R. van de Geijn: Anatomy of high-performance matrix multiplication, section 4.2.3.)
#ifndef COCKTAIL_PANELS_H
#define COCKTAIL_PANELS_H

#include "cocktail_gemm.h"

// In place of the stride of columns: they lie in panels. b_k is then the width of one.
constexpr i64 kCkPanels = 0x2000000000000000;

// Vectors of columns in flight beside so many rows: enough sums to hide the latency of a product, as many as
// there are registers.
constexpr int ck_panel_vectors(int rows) {
  const int registers = CK_VECTOR_REGISTERS == 32 ? 24 : 11;
  return 8 * rows <= registers ? 8 : 4 * rows <= registers ? 4 : kCkColumnVectors;
}

// Columns [from, to), whole groups of VECTORS vectors, of blocks [first, last) of rows.
template <class C, int TALL, int VECTORS, class Rows, class Sink>
CK_NOINLINE void ck_panel_columns(const CkColumns<C>& d, i64 first, i64 last, i64 from, i64 to,
                                  const Rows& rows, const Sink& sink) {
  constexpr i64 width = VECTORS * CkVector<C, CK_VECTOR_BYTES>::lanes, line = kCkPanelBytes / i64(sizeof(C));
  const CkBlocks<kCkBlockRows, TALL> blocks(d.m);
  const i64 begin = blocks.row(first), end = blocks.row(last);
  alignas(64) C tile[kCkTileRows * width];
  const bool dense = sink.dense();
  const i64 step = dense ? kCkDepth : d.k;  // all columns take their share of the lines while those are near
  for (i64 piece = 0; piece < d.k; piece += step) {
    for (i64 j = from; j < to; j += width) {
      C* place = dense ? sink.place(begin, j) : tile;
      const i64 row = dense ? sink.row() : width;
      for (i64 p = piece; p < d.k && p < piece + step; p += kCkDepth) {
        const i64 depth = d.k - p < kCkDepth ? d.k - p : kCkDepth;
        const C* b = d.b + ck_column<CK_PANELS>(j, line, d.k * line) + p * line;
        ck_gemm_blocks<C, CK_VECTOR_BYTES, VECTORS, CK_PANELS>(blocks, first, last, p, depth, rows, b,
                                                               d.k * line, place, row);
      }
      if (!dense) sink(begin, j, end - begin, width, tile, width);
    }
  }
}

// Columns from `from` on: groups of VECTORS vectors, then of half as many.
template <class C, int TALL, int VECTORS, class Rows, class Sink>
CK_INLINE void ck_panel_groups(const CkColumns<C>& d, i64 first, i64 last, i64 from, const Rows& rows,
                               const Sink& sink) {
  constexpr i64 width = VECTORS * CkVector<C, CK_VECTOR_BYTES>::lanes, line = kCkPanelBytes / i64(sizeof(C));
  const i64 to = from + (d.n - from) / width * width;
  if (from < to) ck_panel_columns<C, TALL, VECTORS>(d, first, last, from, to, rows, sink);
  if constexpr (width > line) {
    if (to < d.n) ck_panel_groups<C, TALL, VECTORS / 2>(d, first, last, to, rows, sink);
  }
}

template <class C, int TALL, class Rows, class Sink>
CK_INLINE void ck_panel_rows(const CkColumns<C>& d, const Rows& rows, const Sink& sink) {
  typedef CkBlocks<kCkBlockRows, TALL> Blocks;
  const Blocks blocks(d.m);
  for (i64 first = 0; first < blocks.count; first += blocks.together) {
    const i64 next = first + blocks.together, last = next < blocks.count ? next : blocks.count;
    ck_panel_groups<C, TALL, ck_panel_vectors(Blocks::tall)>(d, first, last, 0, rows, sink);
  }
}

// n: whole panels. M: m, or -1 if it is not known.
template <class C, int M, class Rows, class Sink>
CK_INLINE void ck_panels(const CkColumns<C>& d, const Rows& rows, const Sink& sink) {
  if constexpr (M < 0) {
    switch (ck_tallest(d.m, kCkBlockRows)) {
      case 3: return ck_panel_rows<C, 3>(d, rows, sink);
      case 4: return ck_panel_rows<C, 4>(d, rows, sink);
      case 5: return ck_panel_rows<C, 5>(d, rows, sink);
      case 6: return ck_panel_rows<C, 6>(d, rows, sink);
    }
    static_assert(kCkBlockRows == 6, "a case for each");
    ck_panel_rows<C, 2>(d, rows, sink);  // also of a single row
  } else {
    ck_panel_rows<C, ck_tallest(M, kCkBlockRows)>(d, rows, sink);
  }
}

#endif  // COCKTAIL_PANELS_H
