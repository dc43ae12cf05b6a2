// Register-blocked matrix products. Columns map to vector lanes. The first rows that need a panel of the
// right matrix pack it contiguously, unless it is. Every sum consists of chunks of kCkDepth products that are
// added one by one, so its order depends on the shape alone, not on the other rows.
// (K. Goto, R. van de Geijn: Anatomy of high-performance matrix multiplication, section 5.)
#ifndef COCKTAIL_GEMM_H
#define COCKTAIL_GEMM_H

#include "cocktail_vector.h"

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

constexpr i64 kCkDepth = CK_VECTOR_BYTES == 64 ? 128 : 256;  // a panel of it stays in the first cache
constexpr i64 kCkTileRows = 192;  // [M] that share a panel; their left factors stay in the second cache
// Lines from the one in use to the one to prefetch. Those of a matrix may all share a few sets of the first
// cache; those of a panel follow each other.
constexpr i64 kCkAhead = 8, kCkPanelAhead = 16;
constexpr int kCkBlockRows = 6;
// In the place of a size or stride that is known only at run time: one from kCkManyRows on, and one from
// kCkSomeRows on. From there on, rows are divided into blocks of kCkBlockRows and one less.
constexpr i64 kCkMany = 0x3fffffff, kCkSome = kCkMany - 1;
constexpr i64 kCkSomeRows = 32;
constexpr i64 kCkManyRows = 132;
static_assert(kCkManyRows >= 2 * kCkBlockRows * (2 * kCkBlockRows - 1), "the tallest blocks, and one less");
// Columns in flight.
constexpr int kCkColumnVectors = CK_VECTOR_REGISTERS == 32 ? 4 : 2;

// Memory of type T can be read as C.
template <class C, class T>
struct CkAlike {
  static constexpr bool value =
      CkSame<C, T>::value || (!CkType<C>::is_float && !CkType<T>::is_float && sizeof(C) == sizeof(T));
};

// ---- left operands --------------------------------------------------------------------------------------

template <class C>
struct CkPiece {
  const C* at;
  i64 step_m, step_k;
};

// A matrix with any strides.
template <class C, class A>
struct CkRows {
  const A* a;
  i64 a_m, a_k;

  // Elements [i, i + rows) x [p, p + depth): where they are, or copied to `buffer`.
  CK_MEMBER CkPiece<C> piece(i64 i, i64 rows, i64 p, i64 depth, C* buffer) const {
    const A* from = a + i * a_m + p * a_k;
    if constexpr (CkAlike<C, A>::value) {
      return {reinterpret_cast<const C*>(from), a_m, a_k};
    } else {
      copy(from, rows, depth, buffer);
      return {buffer, kCkDepth, 1};
    }
  }

  CK_MEMBER void copy(const A* from, i64 rows, i64 depth, C* buffer) const {
    for (i64 r = 0; r < rows; ++r) {
      const A* line = from + r * a_m;
      C* to = buffer + r * kCkDepth;
      if (a_k == 1) {
        ck_copy<C, CK_VECTOR_BYTES>(line, depth, to);
      } else {
        CK_NO_UNROLL
        for (i64 q = 0; q < depth; ++q) to[q] = ck_lane<C>(line[q * a_k]);
      }
    }
  }
};

// ---- results --------------------------------------------------------------------------------------------

// Finished sums go to an array. Where `direct` holds they may be made in place.
template <class C, class O>
struct CkStore {
  static constexpr bool direct = CkAlike<C, O>::value;
  O* o;
  i64 o_m, o_n;

  CK_MEMBER bool dense() const { return direct && o_n == 1; }
  CK_MEMBER C* place(i64 i, i64 j) const { return reinterpret_cast<C*>(o + i * o_m + j); }
  CK_MEMBER i64 row() const { return o_m; }

  // Columns [j, j + columns) of rows [i, i + rows).
  CK_MEMBER void operator()(i64 i, i64 j, i64 rows, i64 columns, const C* tile, i64 tile_m) const {
    for (i64 r = 0; r < rows; ++r) {
      O* to = o + (i + r) * o_m + j * o_n;
      const C* from = tile + r * tile_m;
      if (o_n == 1) {
        CK_LANES
        for (i64 c = 0; c < columns; ++c) to[c] = convert(from[c]);
      } else {
        CK_NO_UNROLL
        for (i64 c = 0; c < columns; ++c) to[c * o_n] = convert(from[c]);
      }
    }
  }
  static CK_MEMBER O convert(C x) {
    if constexpr (CkType<O>::is_float) {
      return ck_convert<O>(x);
    } else {
      return O(x);
    }
  }
};

// Finished sums go to visit(i, j, rows, columns, sums, stride), each exactly once: the sum of row i + r and
// column j + c is sums[r * stride + c].
template <class C, class F>
struct CkVisit {
  static constexpr bool direct = false;
  F& visit;

  CK_MEMBER bool dense() const { return false; }
  CK_MEMBER C* place(i64, i64) const { return nullptr; }
  CK_MEMBER i64 row() const { return 0; }
  CK_MEMBER void operator()(i64 i, i64 j, i64 rows, i64 columns, const C* tile, i64 tile_m) const {
    visit(i, j, rows, columns, tile, tile_m);
  }
};

// ---- the innermost block --------------------------------------------------------------------------------

// Where the lines of b lie: in a matrix; in one from which they are copied to `panel`; in such a panel; in
// panels of kCkPanelBytes (cocktail_panels.h) that are b_k apart.
enum CkLines { CK_MATRIX, CK_TO_PANEL, CK_PANEL, CK_PANELS };
constexpr i64 kCkPanelBytes = 64;

// The place of a column behind the first one.
template <CkLines LINES>
CK_INLINE constexpr i64 ck_column(i64 column, i64 width, i64 panel) {
  return LINES == CK_PANELS ? column / width * panel + column % width : column;
}

// ROWS x (VECTORS vectors of) sums over `depth` in registers. `add`: add them to the tile.
template <class C, class B, int BYTES, int ROWS, int VECTORS, CkLines LINES>
CK_NOINLINE void ck_block(i64 depth, CkPiece<C> rows, const B* b, i64 b_k, C* tile, i64 tile_m, bool add,
                          C* panel) {
  typedef CkVector<C, BYTES> V;
  typedef typename V::type Lanes;
  // Of a matrix, memory is the limit if rows are few; it helps beyond the second cache.
  constexpr i64 ahead = LINES >= CK_PANEL ? kCkPanelAhead : ROWS <= 3 || LINES == CK_TO_PANEL ? kCkAhead : 0;
  constexpr i64 width = LINES == CK_PANELS ? kCkPanelBytes / i64(sizeof(B)) : VECTORS * V::lanes;
  const i64 next = LINES == CK_PANELS ? width : b_k;
  Lanes sum[ROWS][VECTORS] = {};
  const C* a = rows.at;
  const i64 step_m = rows.step_m, step_k = rows.step_k;
  if (!add) {  // the lines arrive while the sums are made
    CK_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      CK_UNROLL
      for (int v = 0; v < VECTORS; ++v) __builtin_prefetch(tile + r * tile_m + v * V::lanes, 1);
    }
  }
  CK_NO_UNROLL
  for (i64 p = 0; p < depth; ++p) {
    if constexpr (ROWS == 1) {
      const Lanes scale = ck_broadcast<C, BYTES>(a[0]);
      CK_UNROLL
      for (int v = 0; v < VECTORS; ++v) {
        Lanes line = ck_load<C, BYTES>(b + ck_column<LINES>(v * V::lanes, width, b_k));
        sum[0][v] = ck_multiply_add<C>(sum[0][v], scale, line);
      }
    } else {
      Lanes line[VECTORS];
      CK_UNROLL
      for (int v = 0; v < VECTORS; ++v) {
        line[v] = ck_load<C, BYTES>(b + ck_column<LINES>(v * V::lanes, width, b_k));
        CK_IN_REGISTER(line[v]);
        if constexpr (LINES == CK_TO_PANEL) ck_store<C, BYTES>(panel + v * V::lanes, line[v]);
      }
      CK_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        const Lanes scale = ck_broadcast<C, BYTES>(a[r * step_m]);
        CK_UNROLL
        for (int v = 0; v < VECTORS; ++v) sum[r][v] = ck_multiply_add<C>(sum[r][v], scale, line[v]);
      }
    }
    if constexpr (ahead != 0) {
      CK_UNROLL
      for (int v = 0; v < VECTORS; ++v) {
        if (LINES == CK_PANELS && v * V::lanes % width != 0) continue;  // one line of the cache
        __builtin_prefetch(b + ahead * next + ck_column<LINES>(v * V::lanes, width, b_k));
      }
    }
    a += step_k;
    b += next;
    if constexpr (LINES == CK_TO_PANEL) panel += VECTORS * V::lanes;
  }
  CK_UNROLL
  for (int r = 0; r < ROWS; ++r) {
    CK_UNROLL
    for (int v = 0; v < VECTORS; ++v) {
      C* to = tile + r * tile_m + v * V::lanes;
      ck_store<C, BYTES>(to, add ? ck_plus<C>(ck_load<C, BYTES>(to), sum[r][v]) : sum[r][v]);
    }
  }
}

// ---- packing --------------------------------------------------------------------------------------------

// The first `columns` of WIDTH columns of b, `depth` lines; the rest of the panel is harmless.
template <class C, class B, int BYTES, int WIDTH>
CK_NOINLINE void ck_pack(i64 depth, i64 columns, const B* b, i64 b_k, i64 b_n, C* panel) {
  typedef CkVector<C, BYTES> V;
  constexpr i64 lanes = V::lanes;
  if (b_k == 1 && b_n != 1 && depth >= lanes && sizeof(C) >= 4) {
    for (i64 c = 0; c < WIDTH; c += lanes) {
      for (i64 begin = 0; begin < depth; begin += lanes) {
        i64 q = begin + lanes <= depth ? begin : depth - lanes;
        typename V::type line[lanes];
        for (i64 l = 0; l < lanes; ++l) {
          i64 column = c + l < columns ? c + l : columns - 1;
          line[l] = ck_load<C, BYTES>(b + column * b_n + q);
        }
        ck_transpose<V>(line);
        for (i64 l = 0; l < lanes; ++l) ck_store<C, BYTES>(panel + (q + l) * WIDTH + c, line[l]);
      }
    }
    return;
  }
  for (i64 q = 0; q < depth; ++q) {
    const B* from = b + q * b_k;
    C* to = panel + q * WIDTH;
    if (b_n == 1) {
      ck_copy<C, BYTES>(from, columns, to);
    } else {
      CK_NO_UNROLL
      for (i64 c = 0; c < columns; ++c) to[c] = ck_lane<C>(from[c * b_n]);
    }
    for (i64 c = columns; c < WIDTH; ++c) to[c] = C(0);
  }
}

// ---- many rows ------------------------------------------------------------------------------------------

// A product without its left operand and its result.
template <class B>
struct CkColumns {
  i64 m, n, k;
  const B* b;
  i64 b_k, b_n;
};

// One block of ROWS rows from i on, all columns of the panel, the piece of the sum that begins at p.
template <class C, int BYTES, int ROWS, int VECTORS, CkLines LINES, class Rows, class B>
CK_INLINE void ck_gemm_block(const Rows& rows, i64 i, i64 p, i64 depth, const B* b, i64 b_k, C* tile,
                             i64 tile_m, C* panel = nullptr) {
  alignas(64) C buffer[ROWS * kCkDepth];
  CkPiece<C> piece = rows.piece(i, ROWS, p, depth, buffer);
  ck_block<C, B, BYTES, ROWS, VECTORS, LINES>(depth, piece, b, b_k, tile, tile_m, p != 0, panel);
}

// Rows of the tallest of the blocks that m rows are divided into, each of at most `most` rows. They differ by
// one row at most: a block of few rows would wait for its loads. 0 if m is not known (negative).
constexpr int ck_tallest(i64 m, i64 most) {
  if (m == kCkSome) return kCkBlockRows;
  const i64 blocks = m > 0 ? (m + most - 1) / most : 1;
  return m > 0 ? int((m + blocks - 1) / blocks) : 0;
}

// The most rows of a block of VECTORS vectors: narrow ones need twice as many to hide the latency of a sum.
template <int VECTORS>
struct CkTall {
  static constexpr int most = 2 * VECTORS <= kCkColumnVectors ? 2 * kCkBlockRows : kCkBlockRows;
};

// How m rows are divided into `count` blocks: the first `high` have TALL rows each, the others one row less.
// TALL 0: as many as possible have MOST rows, the others one row.
template <int MOST, int TALL>
struct CkBlocks {
  static constexpr i64 tall = TALL ? TALL : MOST, low = TALL ? TALL - 1 : 1;
  static constexpr i64 fit = kCkTileRows / tall;  // in a tile
  i64 high, count, together;

  explicit CK_MEMBER CkBlocks(i64 m) {
    count = TALL ? (m + tall - 1) / tall : m / tall + m % tall;
    high = TALL ? m - count * low : m / tall;
    const i64 tiles = count > fit ? (count + fit - 1) / fit : 1;  // alike: each packs a panel
    together = (count + tiles - 1) / tiles;
  }
  CK_MEMBER i64 row(i64 block) const { return block * low + (block < high ? block : high) * (tall - low); }
};

// Blocks [block, last) of rows, VECTORS vectors of columns, a piece of the sum.
template <class C, int BYTES, int VECTORS, CkLines LINES, int MOST, int TALL, class Rows>
CK_INLINE void ck_gemm_blocks(const CkBlocks<MOST, TALL>& blocks, i64 block, i64 last, i64 p, i64 depth,
                              const Rows& rows, const C* b, i64 b_k, C* tile, i64 tile_m) {
  constexpr int tall = CkBlocks<MOST, TALL>::tall, low = CkBlocks<MOST, TALL>::low;
  const i64 high = last < blocks.high ? last : blocks.high;
  i64 i = blocks.row(block);
  for (; block < high; ++block, i += tall, tile += tall * tile_m) {
    ck_gemm_block<C, BYTES, tall, VECTORS, LINES>(rows, i, p, depth, b, b_k, tile, tile_m);
  }
  if constexpr (low > 0) {
    for (; block < last; ++block, i += low, tile += low * tile_m) {
      ck_gemm_block<C, BYTES, low, VECTORS, LINES>(rows, i, p, depth, b, b_k, tile, tile_m);
    }
  }
}

// Blocks [first, last) of a group of VECTORS vectors of columns.
template <class C, int BYTES, int VECTORS, int TALL, class Rows, class B>
CK_INLINE void ck_gemm_rows(const CkColumns<B>& d, i64 first, i64 last, i64 j, i64 columns, const Rows& rows,
                            C* tile, i64 tile_m, C* panel) {
  typedef CkBlocks<CkTall<VECTORS>::most, TALL> Blocks;
  constexpr i64 width = VECTORS * CkVector<C, BYTES>::lanes;
  constexpr int tall = Blocks::tall;
  const Blocks blocks(d.m);
  const i64 high = last < blocks.high ? last : blocks.high;
  for (i64 p = 0; p < d.k; p += kCkDepth) {
    const i64 depth = d.k - p < kCkDepth ? d.k - p : kCkDepth;
    const B* b = d.b + p * d.b_k + j * d.b_n;
    C* to = tile;
    i64 block = first;
    const C* packed = panel;
    if (CkAlike<C, B>::value && d.b_n == 1 && d.b_k == width && columns == width) {
      packed = reinterpret_cast<const C*>(b);  // dense already
    } else if (d.b_n == 1 && columns == width && block < high) {
      ck_gemm_block<C, BYTES, tall, VECTORS, CK_TO_PANEL>(rows, blocks.row(first), p, depth, b, d.b_k, to,
                                                             tile_m, panel);
      ++block, to += tall * tile_m;
    } else {
      ck_pack<C, B, BYTES, width>(depth, columns, b, d.b_k, d.b_n, panel);
    }
    ck_gemm_blocks<C, BYTES, VECTORS, CK_PANEL>(blocks, block, last, p, depth, rows, packed, width, to,
                                                tile_m);
  }
}

// Columns [from, to): whole groups of VECTORS vectors, or one that is not full.
template <class C, int BYTES, int VECTORS, int TALL, class Rows, class B, class Sink>
CK_NOINLINE void ck_gemm_columns(const CkColumns<B>& d, i64 from, i64 to, const Rows& rows,
                                 const Sink& sink) {
  typedef CkBlocks<CkTall<VECTORS>::most, TALL> Blocks;
  constexpr i64 width = VECTORS * CkVector<C, BYTES>::lanes;
  alignas(64) C panel[kCkDepth * width], tile[kCkTileRows * width];
  const Blocks blocks(d.m);
  for (i64 first = 0; first < blocks.count; first += blocks.together) {
    const i64 next = first + blocks.together, last = next < blocks.count ? next : blocks.count;
    const i64 begin = blocks.row(first), end = blocks.row(last);
    for (i64 j = from; j < to; j += width) {
      const i64 columns = to - j < width ? to - j : width;
      if (columns == width && sink.dense()) {
        ck_gemm_rows<C, BYTES, VECTORS, TALL>(d, first, last, j, columns, rows, sink.place(begin, j),
                                              sink.row(), panel);
      } else {
        ck_gemm_rows<C, BYTES, VECTORS, TALL>(d, first, last, j, columns, rows, tile, width, panel);
        sink(begin, j, end - begin, columns, tile, width);
      }
    }
  }
}

// Any shape, any strides; worth it from a few rows on. GROUPS: bit 3 if whole groups of columns may exist,
// bits 2 to 0 if the remainder may need kCkColumnVectors, 2 or 1 vectors. M: m, or -1 if it is not known.
template <class C, int M, int GROUPS, class Rows, class B, class Sink>
CK_INLINE void ck_gemm(const CkColumns<B>& d, const Rows& rows, const Sink& sink) {
  constexpr i64 lanes = CkVector<C, CK_VECTOR_BYTES>::lanes, width = kCkColumnVectors * lanes;
  constexpr int wide = ck_tallest(M, CkTall<kCkColumnVectors>::most);
  constexpr int two = ck_tallest(M, CkTall<2>::most);
  constexpr int one = ck_tallest(M, CkTall<1>::most);
  const i64 whole = d.n / width * width, vectors = (d.n - whole + lanes - 1) / lanes;
  if constexpr ((GROUPS & 8) != 0) {
    ck_gemm_columns<C, CK_VECTOR_BYTES, kCkColumnVectors, wide>(d, 0, whole, rows, sink);
  }
  if constexpr ((GROUPS & 4) != 0) {
    if (vectors > 2) ck_gemm_columns<C, CK_VECTOR_BYTES, kCkColumnVectors, wide>(d, whole, d.n, rows, sink);
  }
  if constexpr ((GROUPS & 2) != 0) {
    if (vectors == 2) ck_gemm_columns<C, CK_VECTOR_BYTES, 2, two>(d, whole, d.n, rows, sink);
  }
  if constexpr ((GROUPS & 1) != 0) {
    if (vectors == 1) ck_gemm_columns<C, CK_VECTOR_BYTES, 1, one>(d, whole, d.n, rows, sink);
  }
}

constexpr int ck_gemm_groups(i64 n, i64 lanes) {
  const i64 width = kCkColumnVectors * lanes, vectors = (n % width + lanes - 1) / lanes;
  return (n >= width ? 8 : 0) | (vectors > 2 ? 4 : int(vectors));
}

// ---- few rows -------------------------------------------------------------------------------------------

constexpr i64 kCkGemvRows = CK_VECTOR_REGISTERS == 32 ? 12 : 6;

// Vectors of columns in flight: enough sums to hide the latency of a product, as many as there are registers.
constexpr int ck_gemv_widest(i64 rows) {
  const int registers = CK_VECTOR_REGISTERS == 32 ? 24 : 12;
  return rows == 1 || 8 * rows <= registers ? 8 : 4 * rows <= registers ? 4 : 2;
}

// Whether to read a matrix from its last columns to its first. It alternates, so that the columns of a large
// matrix that are still in the cache are read first, before the others evict them.
inline bool ck_backwards(const void* b) {
  static thread_local unsigned char turns[64];
  const unsigned long long address = reinterpret_cast<unsigned long long>(b);
  return (turns[((address >> 6) * 0x9E3779B97F4A7C15ull) >> 58] ^= 1) != 0;
}

// All ROWS rows of columns [from, to), whole groups of VECTORS vectors; b is read once, where it is. The
// first `skip` columns are known already and made again, for a last group that would not be full.
template <class C, int BYTES, int ROWS, int VECTORS, class Rows, class B, class Sink>
CK_NOINLINE void ck_gemv_columns(const CkColumns<B>& d, i64 from, i64 to, i64 skip, const Rows& rows,
                                 const Sink& sink) {
  constexpr i64 width = VECTORS * CkVector<C, BYTES>::lanes;
  alignas(64) C tile[ROWS * width];
  const bool backwards = to - from > width && ck_backwards(d.b + from);
  for (i64 n = from; n < to; n += width) {
    const i64 j = backwards ? to - width - (n - from) : n;
    const bool dense = sink.dense();
    C* place = dense ? sink.place(0, j) : tile;
    const i64 row = dense ? sink.row() : width;
    for (i64 p = 0; p < d.k; p += kCkDepth) {
      const i64 depth = d.k - p < kCkDepth ? d.k - p : kCkDepth;
      ck_gemm_block<C, BYTES, ROWS, VECTORS, CK_MATRIX>(rows, 0, p, depth, d.b + p * d.b_k + j, d.b_k, place,
                                                    row);
    }
    if (!dense) sink(0, j + skip, ROWS, width - skip, tile + skip, width);
  }
}

// At least one vector of contiguous columns, at most kCkGemvRows rows: groups of eight vectors or less, each
// of which may exist if its bit of GROUPS is set (16: one that overlaps its neighbour).
template <class C, int BYTES, int ROWS, int GROUPS, class Rows, class B, class Sink>
CK_INLINE void ck_gemv(const CkColumns<B>& d, const Rows& rows, const Sink& sink) {
  constexpr i64 lanes = CkVector<C, BYTES>::lanes;
  constexpr int widest = ck_gemv_widest(ROWS);
  const i64 eight = widest >= 8 ? d.n / (8 * lanes) * (8 * lanes) : 0;
  const i64 four = widest >= 4 ? d.n / (4 * lanes) * (4 * lanes) : 0;
  const i64 two = widest >= 2 ? d.n / (2 * lanes) * (2 * lanes) : 0, one = d.n / lanes * lanes;
  if constexpr (widest >= 8 && (GROUPS & 8) != 0) {
    ck_gemv_columns<C, BYTES, ROWS, 8>(d, 0, eight, 0, rows, sink);
  }
  if constexpr (widest >= 4 && (GROUPS & 4) != 0) {
    ck_gemv_columns<C, BYTES, ROWS, 4>(d, eight, four, 0, rows, sink);
  }
  if constexpr (widest >= 2 && (GROUPS & 2) != 0) {
    ck_gemv_columns<C, BYTES, ROWS, 2>(d, four, two, 0, rows, sink);
  }
  if constexpr ((GROUPS & 1) != 0) ck_gemv_columns<C, BYTES, ROWS, 1>(d, two, one, 0, rows, sink);
  if constexpr ((GROUPS & 16) != 0) {
    if (one < d.n) ck_gemv_columns<C, BYTES, ROWS, 1>(d, d.n - lanes, d.n, one - (d.n - lanes), rows, sink);
  }
}

constexpr int ck_gemv_groups(i64 rows, i64 n, i64 lanes) {
  int groups = n % lanes ? 16 : 0;
  i64 left = n / lanes;
  for (int vectors = ck_gemv_widest(rows); vectors > 0; left %= vectors, vectors /= 2) {
    if (left >= vectors) groups |= vectors;
  }
  return groups;
}

#endif  // COCKTAIL_GEMM_H
