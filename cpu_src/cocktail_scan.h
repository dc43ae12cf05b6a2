// Running totals and positions of extremes along one axis.
#ifndef COCKTAIL_SCAN_H
#define COCKTAIL_SCAN_H

#include "cocktail_arith.h"

// Columns whose totals are held together, and elements of a row that are compared with the best together.
enum { CK_SCAN_STRIP = 256 };

// True if x comes before `best`, an earlier element: it is larger (smaller), or it is the first NaN.
template <bool MAX, class T>
CK_INLINE bool ck_precedes(T x, T best) {
  return (MAX ? x > best : x < best) | ((x != x) & (best == best));
}

// The first position of the largest (smallest) element of a row; `read(k)` is its element k. NaN wins. The
// first block is searched, and of the others the few with an element that precedes the best before them.
template <bool MAX, class T, class Read>
CK_INLINE i64 ck_arg_row(i64 n, Read read) {
  T best = read(0);
  i64 at = 0;
  for (i64 first = 0; first < n; first += CK_SCAN_STRIP) {
    i64 count = n - first < CK_SCAN_STRIP ? n - first : CK_SCAN_STRIP;
    if (first > 0) {
      i32 found = 0;
      CK_LANES
      for (i64 k = 0; k < count; ++k) found |= i32(ck_precedes<MAX>(read(first + k), best));
      if (CK_LIKELY(!found)) continue;
    }
    for (i64 k = 0; k < count; ++k) {
      T x = read(first + k);
      if (ck_precedes<MAX>(x, best)) best = x, at = first + k;
    }
  }
  return at;
}

// The same for each of many columns, where neighbours are next to each other: `read(k, c)` is element k of
// column c, `store(c, k)` stores its position.
template <bool MAX, class T, class Read, class Write>
CK_INLINE void ck_arg_columns(i32 n, i64 columns, Read read, Write store) {
  T best[CK_SCAN_STRIP];
  i32 at[CK_SCAN_STRIP];
  for (i64 first = 0; first < columns; first += CK_SCAN_STRIP) {
    i64 count = columns - first < CK_SCAN_STRIP ? columns - first : CK_SCAN_STRIP;
    CK_LANES
    for (i64 c = 0; c < count; ++c) best[c] = read(0, first + c), at[c] = 0;
    for (i32 k = 1; k < n; ++k) {
      CK_LANES
      for (i64 c = 0; c < count; ++c) {
        T x = read(k, first + c);
        bool wins = ck_precedes<MAX>(x, best[c]);
        best[c] = wins ? x : best[c];
        at[c] = wins ? k : at[c];
      }
    }
    for (i64 c = 0; c < count; ++c) store(first + c, at[c]);
  }
}

// Running totals down many columns, where neighbours are next to each other. `take(k, c, total)` changes the
// total of column c by its element k and stores it.
template <class T, class Take>
CK_INLINE void ck_scan_columns(i64 n, i64 columns, T start, Take take) {
  T totals[CK_SCAN_STRIP];
  for (i64 first = 0; first < columns; first += CK_SCAN_STRIP) {
    i64 count = columns - first < CK_SCAN_STRIP ? columns - first : CK_SCAN_STRIP;
    for (i64 c = 0; c < count; ++c) totals[c] = start;
    for (i64 k = 0; k < n; ++k) {
      CK_LANES
      for (i64 c = 0; c < count; ++c) take(k, first + c, totals[c]);
    }
  }
}
#endif  // COCKTAIL_SCAN_H
