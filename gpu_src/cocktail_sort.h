// Stable sort of an index by a comparison, by all threads of a block: each sorts short runs by insertion;
// neighbouring runs are merged, width after width. A thread makes a few neighbours of a merged run; where
// they come from, a search along the diagonal tells (Odeh, Green, Mwassi, Shmueli and Birk 2012).
#ifndef COCKTAIL_SORT_H
#define COCKTAIL_SORT_H

#include "cocktail_base.h"

enum : i32 {
  CK_SORT_RUN = 8,     // longest run that one thread sorts by insertion
  CK_SORT_CHUNK = 16,  // elements that one thread merges at a time when there are many
};

// Positions first .. last-1, sorted.
template <class Less>
CK_INLINE void ck_sort_run(i32* index, i32 first, i32 last, Less less) {
  for (i32 i = first; i < last; ++i) {
    i32 at = i;
    for (; at > first && less(i, index[at - 1]); --at) index[at] = index[at - 1];
    index[at] = i;
  }
}

// Elements begin .. end-1 of what merging a[0 .. na) and b[0 .. nb) gives; equal elements of `a` come first.
template <class Less>
CK_INLINE void ck_merge(const i32* a, i32 na, const i32* b, i32 nb, i32* to, i32 begin, i32 end, Less less) {
  i32 i = begin > nb ? begin - nb : 0;  // how many of the first `begin` are from `a`: at least
  i32 most = begin < na ? begin : na;
  while (i < most) {
    i32 middle = (i + most) / 2;
    if (less(b[begin - 1 - middle], a[middle])) {
      most = middle;
    } else {
      i = middle + 1;
    }
  }
  i32 j = begin - i;
  for (i32 at = begin; at < end; ++at) {
    bool take_b = i >= na || (j < nb && less(b[j], a[i]));
    to[at] = take_b ? b[j] : a[i];
    j += take_b;
    i += !take_b;
  }
}

// index[0 .. keep) = the first `keep` of 0 .. n-1 in the order of `less`: no merged run is made any longer.
template <class Less>
CK_INLINE void ck_sort_first(i32 n, i32 keep, i32* index, i32* spare, Less less) {
  i32 chunk = (n + CK_THREADS - 1) / CK_THREADS;
  chunk = chunk > CK_SORT_RUN ? i32(CK_SORT_CHUNK) : chunk;
  const i32 run = chunk > CK_SORT_RUN ? i32(CK_SORT_RUN) : chunk;
  i32 *from = index, *to = spare;
  for (i32 width = run; width < n; width *= 2) {  // the last merge writes `index`
    i32* swapped = from;
    from = to;
    to = swapped;
  }
  ck_block_barrier();  // another thread may still read what was here
  for (i32 first = ck_lane() * run; first < n; first += CK_THREADS * run) {
    ck_sort_run(from, first, first + run < n ? first + run : n, less);
  }
  CK_NO_UNROLL
  for (i32 width = run; width < n; width *= 2) {
    ck_block_barrier();
    const i32 most = 2 * width < keep ? 2 * width : keep;  // elements of a merged run
    const i32 chunks = (most + chunk - 1) / chunk;
    const i32 pairs = (n + 2 * width - 1) / (2 * width);
    CK_NO_UNROLL
    for (i32 task = ck_lane(); task < pairs * chunks; task += CK_THREADS) {
      const i32 first = task / chunks * 2 * width, begin = task % chunks * chunk;
      const i32 left = n - first, na = left < width ? left : width;
      const i32 nb = left - na < width ? left - na : width;
      const i32 count = na + nb < most ? na + nb : most;
      const i32 end = begin + chunk < count ? begin + chunk : count;
      if (begin < end) ck_merge(from + first, na, from + first + width, nb, to + first, begin, end, less);
    }
    i32* swapped = from;
    from = to;
    to = swapped;
  }
}

// index becomes the permutation of 0 .. n-1 that sorts by `less(i, j)`, a strict weak order over positions;
// equal elements keep their order. `spare` has room for n. n < 2^30.
template <class Less>
CK_INLINE void ck_sort_index(i64 n, i32* index, i32* spare, Less less) {
  ck_sort_first(i32(n), i32(n), index, spare, less);
}

// index[0 .. k) = the k elements that no other precedes, in order; equal elements keep their order. `index`
// has room for 2 * n.
template <class Less>
CK_INLINE void ck_select_index(i64 n, i64 k, i32* index, Less less) {
  ck_sort_first(i32(n), i32(k), index, index + n, less);
}

#endif  // COCKTAIL_SORT_H
