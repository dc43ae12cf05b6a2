// A tile of a product on matrix units.
#ifndef COCKTAIL_DOT_TENSOR_H
#define COCKTAIL_DOT_TENSOR_H

#include "cocktail_dot_plan.h"

// What one wave makes of a tile, as `CkDotFmaPart` is what one thread makes of it. Fragments are those of
// cocktail_fragments.h. A wave takes 16 words of k at a time: a word is 32 bits along k, one element or two.
template <class D, class Left, class Right>
struct CkDotMmaPart {
  typedef typename D::A E;
  static constexpr CkDotPlan p = D::plan;
  static constexpr i32 TM = p.tm, TN = p.tn, LINE = i32(kCkDotBlock * 4 / sizeof(E));
  static constexpr i32 across = p.bn / (16 * TN), workers = p.bm / (16 * TM) * across, blocks = p.bk / LINE;
  static constexpr i32 PER = LINE / kCkFragmentGroups;
  f32 sums[TM][TN][kCkFragmentSums];

  static CK_MEMBER i32 worker() { return ck_warp(); }

  // As in CkDotFmaPart.
  static constexpr i32 pitch = ck_dot_sums_pitch(p.bn);
  static CK_MEMBER i32 place(i32 y, i32 x) { return y * pitch + x; }

  CK_MEMBER void clear() {
#pragma unroll
    for (i32 i = 0; i < TM * TN * kCkFragmentSums; ++i) {
      const i32 cell = i / kCkFragmentSums;
      sums[cell / TN][cell % TN][i % kCkFragmentSums] = 0;
    }
  }

  // This lane's part of 16 rows of an operand from `row` on, in the block of k that begins at `k`.
  template <class Side>
  static CK_MEMBER void load(E (&to)[PER], const u8* tile, i32 row, i32 k) {
    const i32 y = row + ck_fragment_line(), x = k + ck_fragment_depth<PER>();
    if constexpr (Side::along_k) {
      constexpr i32 PACK = i32(16 / sizeof(E));
#pragma unroll
      for (i32 i = 0; i < PER; i += PACK) {
        const u8* at = tile + y * Side::pitch + (x + i) * i32(sizeof(E));
        const auto pack = *reinterpret_cast<const CkDotPack<E, PACK>*>(at);
#pragma unroll
        for (i32 j = 0; j < PACK; ++j) to[i + j] = pack.at[j];
      }
    } else {
#pragma unroll
      for (i32 i = 0; i < PER; ++i) {
        to[i] = *reinterpret_cast<const E*>(tile + (x + i) * Side::pitch + y * i32(sizeof(E)));
      }
    }
  }

  static CK_MEMBER i32 first_row() { return ck_warp() % workers / across * 16 * TM; }
  static CK_MEMBER i32 first_column() { return ck_warp() % across * 16 * TN; }

  CK_MEMBER void add(const u8* left, const u8* right) {
    const i32 y = first_row(), x = first_column(), slice = ck_warp() / workers;
    CK_NO_UNROLL
    for (i32 block = slice; block < blocks; block += p.slices) {
      E a[TM][PER], b[TN][PER];
#pragma unroll
      for (i32 i = 0; i < TM; ++i) load<Left>(a[i], left, y + i * 16, block * LINE);
#pragma unroll
      for (i32 i = 0; i < TN; ++i) load<Right>(b[i], right, x + i * 16, block * LINE);
#pragma unroll
      for (i32 i = 0; i < TM * TN; ++i) ck_mma(sums[i / TN][i % TN], a[i / TN], b[i % TN]);
    }
  }

  template <class F>
  CK_MEMBER void visit(F&& visit) const {
    const i32 y = first_row(), x = first_column() + ck_fragment_line();
#pragma unroll
    for (i32 i = 0; i < TM * TN * kCkFragmentSums; ++i) {
      const i32 cell = i / kCkFragmentSums, row = ck_fragment_row(i % kCkFragmentSums);
      visit(y + cell / TN * 16 + row, x + cell % TN * 16, sums[cell / TN][cell % TN][i % kCkFragmentSums]);
    }
  }

  CK_MEMBER void keep(f32* share) const {
    visit([=](i32 y, i32 x, f32 sum) { share[place(y, x)] = sum; });
  }
};

// The same beside a packed matrix, whose lines lie as fragments need them: nothing goes through scratch.
template <class D>
struct CkDotWholePart : CkDotMmaPart<D, void, void> {
  typedef CkDotMmaPart<D, void, void> Base;
  typedef typename D::A E;
  using Base::blocks, Base::first_column, Base::first_row, Base::LINE, Base::p, Base::PER, Base::sums;
  using Base::TM, Base::TN, Base::workers;
  static constexpr CkDotForm f = D::form;

  struct Batch {
    E at[TM][PER];
  };

  // This lane's part of the rows of `a` from `row` on, A_M elements apart, in a block of k. Beyond the last
  // block and the last row it takes these again. FITS: one load may take several elements of a row.
  template <i64 A_M, bool FITS>
  static CK_MEMBER Batch load_rows(const E* a, i32 row, i32 block) {
    constexpr i32 PACK = i32(16 / sizeof(E));
    Batch found;
#pragma unroll
    for (i32 i = 0; i < TM; ++i) {
      const i32 y = row + first_row() + i * 16 + ck_fragment_line();
      const i32 r = f.m % p.bm == 0 || y < f.m ? y : i32(f.m) - 1;
      const i32 k = (block < blocks ? block : blocks - 1) * LINE + ck_fragment_depth<PER>();
#pragma unroll
      for (i32 j = 0; j < PER; j += PACK) {
        const auto pack = ck_dot_read<E, PACK, f.a_k, FITS>(a + r * A_M + (k + j) * f.a_k);
#pragma unroll
        for (i32 l = 0; l < PACK; ++l) found.at[i][j + l] = pack.at[l];
      }
    }
    return found;
  }
  template <i64 A_M>
  static CK_MEMBER Batch load_left(bool fits, const E* a, i32 row, i32 block) {
    constexpr bool dense = f.a_k == 1 && A_M * sizeof(E) % 16 == 0;  // for loads of 16 bytes
    if (dense && fits) return load_rows<A_M, dense>(a, row, block);
    return load_rows<A_M, false>(a, row, block);
  }

  // What `add` begins with: of the rows of `a` from `row` on.
  template <i64 A_M>
  static CK_MEMBER Batch begin(bool fits, const E* a, i32 row) {
    return load_left<A_M>(fits, a, row, ck_warp() / workers);
  }

  // The rows of `a` from `row` on, A_M elements apart, and the columns of `b` from `column` on. fits: rows
  // surely begin at multiples of 16 bytes if A_M allows it.
  template <i64 A_M>
  CK_MEMBER void add(Batch now, bool fits, const E* a, const E* b, i32 row, i32 column) {
    CK_NO_UNROLL
    for (i32 block = ck_warp() / workers; block < blocks; block += p.slices) {
      Batch next = now;
      if (block + p.slices < blocks) next = load_left<A_M>(fits, a, row, block + p.slices);
      add_block(now, b, column + first_column() + ck_fragment_line(), block);
      now = next;
    }
  }

  CK_MEMBER void add_block(const Batch& left, const E* b, i32 x, i32 block) {
    typedef CkDotPack<E, PER> Line;
    Line right[TN];
#pragma unroll
    for (i32 i = 0; i < TN; ++i) {
      const i32 wanted = x + i * 16, column = wanted < f.n ? wanted : 0;
      const E* line = b + column / 8 * 8 * i32(f.k) + (block * 8 + column % 8) * LINE;
      right[i] = *reinterpret_cast<const Line*>(line + ck_fragment_depth<PER>());
    }
#pragma unroll
    for (i32 i = 0; i < TM * TN; ++i) ck_mma(sums[i / TN][i % TN], left.at[i / TN], right[i % TN].at);
  }
};

#endif  // COCKTAIL_DOT_TENSOR_H
