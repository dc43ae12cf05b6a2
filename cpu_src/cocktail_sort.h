// Stable sort of an index by a comparison: runs sorted by insertion, then merged pairwise.
#ifndef COCKTAIL_SORT_H
#define COCKTAIL_SORT_H

#include "cocktail_arith.h"

// Sets `index` to the permutation of 0 .. n-1 that sorts by `less(i, j)`, a strict weak order over positions.
// Equal elements keep their order. `scratch` has room for n elements.
template <class Less>
CK_NOINLINE void ck_sort_index(i64 n, i32* index, i32* scratch, Less less) {
  constexpr i64 run = 16;
  for (i64 first = 0; first < n; first += run) {
    i64 last = first + run < n ? first + run : n;
    for (i64 i = first; i < last; ++i) {
      i64 at = i;
      for (; at > first && less(i32(i), index[at - 1]); --at) index[at] = index[at - 1];
      index[at] = i32(i);
    }
  }
  i32* from = index;
  i32* to = scratch;
  for (i64 width = run; width < n; width *= 2) {
    for (i64 first = 0; first < n; first += 2 * width) {
      i64 middle = first + width < n ? first + width : n;
      i64 last = middle + width < n ? middle + width : n;
      i64 left = first, right = middle, at = first;
      while (left < middle && right < last) {
        bool take_right = less(from[right], from[left]);
        to[at++] = take_right ? from[right++] : from[left++];
      }
      while (left < middle) to[at++] = from[left++];
      while (right < last) to[at++] = from[right++];
    }
    i32* swapped = from;
    from = to;
    to = swapped;
  }
  if (from != index) __builtin_memcpy(index, from, sizeof(i32) * u64(n));
}

// index[0 .. k) = the k elements that no other precedes, in order; equal elements keep their order. Meant for
// k far below n: one pass that inserts into the k best so far.
template <class Less>
CK_NOINLINE void ck_select_index(i64 n, i64 k, i32* index, Less less) {
  i64 count = 0;
  for (i64 i = 0; i < n; ++i) {
    if (count == k && !less(i32(i), index[k - 1])) continue;
    i64 at = count < k ? count++ : k - 1;
    for (; at > 0 && less(i32(i), index[at - 1]); --at) index[at] = index[at - 1];
    index[at] = i32(i);
  }
}

#endif  // COCKTAIL_SORT_H
