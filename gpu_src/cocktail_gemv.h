// Products with few rows, by one block. A team (some warps, a warp, or lanes of a warp) makes a chunk of
// columns; what its groups of lanes sum alone is added up by shuffles and, between warps, through scratch: in
// the same order every time.
#ifndef COCKTAIL_GEMV_H
#define COCKTAIL_GEMV_H

#include "cocktail_block.h"
#include "cocktail_dot_plan.h"

// Adds `sums` up over the lanes whose numbers differ in bits HIGH to LOW. Where values are left to share out,
// partners keep half of them each. Returns the first value that this lane keeps, `kept` at the beginning of
// `sums`; -1: another lane keeps them.
template <i32 COUNT, i32 HIGH, i32 LOW, class W>
CK_INLINE i32 ck_dot_butterfly(W (&sums)[COUNT], i32 lane) {
  static_assert((COUNT & (COUNT - 1)) == 0, "partners halve the values");
  i32 first = 0, left = COUNT;
#pragma unroll
  for (i32 flip = HIGH; flip >= LOW; flip /= 2) {
    const bool upper = (lane & flip) != 0;
    if (left > 1) {
      left /= 2;
#pragma unroll
      for (i32 i = 0; i < COUNT / 2; ++i) {
        if (i >= left) continue;
        const W low = sums[i], high = sums[i + left];  // read first: a choice of places needs memory
        sums[i] = (upper ? high : low) + ck_from_partner(upper ? low : high, flip);
      }
      first += upper ? left : 0;
    } else {
      sums[0] = sums[0] + ck_from_partner(sums[0], flip);
      first = upper ? -1 : first;
    }
  }
  return first;
}

// Values that a lane keeps of COUNT shared out over `lanes` lanes.
CK_INLINE constexpr i32 ck_dot_kept(i64 count, i64 lanes) { return i32(count > lanes ? count / lanes : 1); }

// Steps of a team through k, `block` at a time: all left factors of a block are under way together.
struct CkDotSteps {
  i32 blocks, block;
  bool exact;  // no step is past the end
};
// Most left factors of a block of steps: if packs are read whole, and if elements are read by themselves.
// Around a block of one warp, other blocks hide the loads, and it has fewer registers.
constexpr i32 kCkDotAhead = CK_WARPS > 1 ? 32 : 8, kCkDotSingly = 8;
CK_INLINE constexpr CkDotSteps ck_dot_steps(i64 pieces, i64 groups, i64 most) {
  const i64 steps = ck_dot_ceil(pieces, groups), blocks = ck_dot_ceil(steps, ck_dot_most(1, most));
  const i64 block = ck_dot_ceil(steps, blocks);
  return {i32(blocks), i32(block), pieces == blocks * block * groups};
}

// Sums of a product's chunk to their places. Sum [r * COLUMNS + c] belongs to row r and column `column` + c.
template <class D, i32 COLUMNS, i32 KEPT, class W, i32 COUNT>
CK_INLINE void ck_dot_put(typename D::O* o, i32 column, i32 first, const W (&sums)[COUNT]) {
#pragma unroll
  for (i32 i = 0; i < KEPT; ++i) {
    const i32 at = first + i, r = at / COLUMNS, c = column + at % COLUMNS;
    if (first >= 0 && r < D::form.m && c < D::form.n) {
      ck_dot_store<typename D::Types>(o + r * D::form.o_m + c * D::form.o_n, sums[i]);
    }
  }
}

// The same for a team of several warps: shares in scratch, [warp][row][column of the chunk], are added up.
template <class D, i32 PARTS, i32 COLUMNS>
CK_INLINE void ck_dot_gather(typename D::O* o, i64 o_b, i32 base, i32 items) {
  typedef typename D::W W;
  constexpr i32 TEAMS = CK_WARPS / PARTS, M = i32(D::form.m), CHUNKS = i32(ck_dot_ceil(D::form.n, COLUMNS));
  const W* shares = reinterpret_cast<const W*>(ck_scratch());
  CK_NO_UNROLL
  for (i32 i = ck_lane(); i < TEAMS * M * COLUMNS; i += CK_THREADS) {
    const i32 team = i / (M * COLUMNS), r = i / COLUMNS % M, item = base + team;
    const i32 column = item % CHUNKS * COLUMNS + i % COLUMNS;
    if (item >= items || column >= D::form.n) continue;
    W sum = shares[team * PARTS * M * COLUMNS + i % (M * COLUMNS)];
#pragma unroll
    for (i32 part = 1; part < PARTS; ++part) {
      sum = sum + shares[(team * PARTS + part) * M * COLUMNS + i % (M * COLUMNS)];
    }
    ck_dot_store<typename D::Types>(o + item / CHUNKS * o_b + r * D::form.o_m + column * D::form.o_n, sum);
  }
}

// The left factors of a lane in BLOCK steps: pieces of WIDTH elements of k, GROUPS apart from `piece` on.
// EXACT: all of them are within k.
template <class D, i32 GROUPS, bool FITS, bool EXACT, i32 WIDTH, i32 BLOCK>
CK_INLINE void ck_dot_left(CkDotPack<typename D::A, WIDTH> (&x)[BLOCK][D::form.m], const typename D::A* left,
                           i32 piece) {
  constexpr CkDotForm f = D::form;
#pragma unroll
  for (i32 i = 0; i < BLOCK * i32(f.m); ++i) {
    const i32 u = i / i32(f.m), r = i % i32(f.m);
    x[u][r] = {};
    const typename D::A* at = left + u * GROUPS * WIDTH * f.a_k + r * f.a_m;
    if (EXACT || piece + u * GROUPS < f.k / WIDTH) {
      x[u][r] = ck_dot_read<typename D::A, WIDTH, f.a_k, FITS>(at);
    }
  }
}

// Adds up the chains of each sum.
template <class W, i32 COUNT, i32 CHAINS>
CK_INLINE void ck_dot_join(W (&sums)[COUNT], const W (&chains)[COUNT][CHAINS]) {
#pragma unroll
  for (i32 i = 0; i < COUNT; ++i) {
    sums[i] = chains[i][0];
#pragma unroll
    for (i32 j = 1; j < CHAINS; ++j) sums[i] = sums[i] + chains[i][j];
  }
}

// Columns over lanes: lane % lanes says which, the rest of the team shares k. FITS: packs may be read whole.
template <class D, i32 PARTS, bool FITS>
CK_INLINE void ck_dot_columns(i64 batch, const typename D::A* a, i64 a_b, const typename D::B* b, i64 b_b,
                              typename D::O* o, i64 o_b) {
  typedef typename D::W W;
  constexpr CkDotForm f = D::form;
  constexpr CkDotPlan p = D::plan;
  constexpr i32 M = i32(f.m), V = p.v, KV = p.kv, LANES = p.lanes, COLUMNS = LANES * V;
  constexpr i32 IN_WARP = CK_WARP / LANES, GROUPS = PARTS * IN_WARP, TEAMS = CK_WARPS / PARTS;
  constexpr i32 CHUNKS = i32(ck_dot_ceil(f.n, COLUMNS)), COUNT = i32(ck_dot_power(M)) * V;
  constexpr CkDotSteps steps = ck_dot_steps(f.k / KV, GROUPS, (FITS ? kCkDotAhead : kCkDotSingly) / (M * KV));
  const i32 lane = ck_warp_lane(), team = ck_warp() / PARTS, part = ck_warp() % PARTS;
  const i32 group = part * IN_WARP + lane / LANES, items = i32(batch) * CHUNKS;
  CK_NO_UNROLL
  for (i32 base = 0; base < items; base += TEAMS) {
    const i32 item = base + team, chunk = item % CHUNKS * COLUMNS, column = chunk + lane % LANES * V;
    W sums[COUNT] = {};
    if (team < TEAMS && item < items && column < f.n) {
      const typename D::A* left = a + item / CHUNKS * a_b + i64(group) * KV * f.a_k;
      const typename D::B* right = b + item / CHUNKS * b_b + i64(group) * KV * f.b_k + column * f.b_n;
      CK_NO_UNROLL
      for (i32 s = 0; s < steps.blocks; ++s) {
        CkDotPack<typename D::A, KV> x[steps.block][M];
        ck_dot_left<D, GROUPS, FITS, steps.exact>(x, left, s * steps.block * GROUPS + group);
#pragma unroll
        for (i32 u = 0; u < steps.block; ++u) {
          const bool in = steps.exact || (s * steps.block + u) * GROUPS + group < f.k / KV;
#pragma unroll
          for (i32 q = 0; q < KV; ++q) {
            CkDotPack<typename D::B, V> y = {};
            if (in) y = ck_dot_read<typename D::B, V, f.b_n, FITS>(right + (u * GROUPS * KV + q) * f.b_k);
#pragma unroll
            for (i32 i = 0; i < M * V; ++i) {
              const W factor = ck_dot_load<typename D::Types>(x[u][i / V].at[q]);
              sums[i] = ck_dot_fma(factor, ck_dot_load<typename D::Types>(y.at[i % V]), sums[i]);
            }
          }
        }
        left += steps.block * GROUPS * KV * f.a_k;
        right += steps.block * GROUPS * KV * f.b_k;
      }
    }
    const i32 first = ck_dot_butterfly<COUNT, CK_WARP / 2, LANES>(sums, lane);
    constexpr i32 KEPT = ck_dot_kept(COUNT, IN_WARP);
    if constexpr (PARTS == 1) {
      if (item < items) ck_dot_put<D, V, KEPT>(o + item / CHUNKS * o_b, column, first, sums);
    } else {
      if (base > 0) ck_block_barrier();
      W* shares = reinterpret_cast<W*>(ck_scratch()) + ck_warp() * M * COLUMNS + lane % LANES * V;
#pragma unroll
      for (i32 i = 0; i < KEPT; ++i) {
        const i32 r = (first + i) / V;
        if (team < TEAMS && first >= 0 && r < M) shares[r * COLUMNS + (first + i) % V] = sums[i];
      }
      ck_block_barrier();
      ck_dot_gather<D, PARTS, COLUMNS>(o, o_b, base, items);
    }
  }
}

// The sums of a thread for one chunk of columns: k over the lanes of a group.
template <class D, i32 GROUPS, bool FITS, i32 COLUMNS, i32 COUNT>
CK_INLINE void ck_dot_lane_sums(const typename D::A* left, const typename D::B* right, i32 column,
                                typename D::W (&sums)[COUNT]) {
  typedef typename D::W W;
  constexpr CkDotForm f = D::form;
  constexpr i32 M = i32(f.m), V = D::plan.v;
  constexpr i32 CHAINS = COUNT <= 2 ? V : 1;  // sums of their own for the elements of a pack: short chains
  constexpr CkDotSteps steps = ck_dot_steps(f.k / V, GROUPS, (FITS ? kCkDotAhead : kCkDotSingly) / (M * V));
  const i32 member = ck_lane() % GROUPS;
  W chains[COUNT][CHAINS] = {};
  CK_NO_UNROLL
  for (i32 s = 0; s < steps.blocks; ++s) {
    CkDotPack<typename D::A, V> x[steps.block][M];
    ck_dot_left<D, GROUPS, FITS, steps.exact>(x, left, s * steps.block * GROUPS + member);
#pragma unroll
    for (i32 u = 0; u < steps.block; ++u) {
      const bool in = steps.exact || (s * steps.block + u) * GROUPS + member < f.k / V;
#pragma unroll
      for (i32 c = 0; c < COLUMNS; ++c) {
        if (f.n % COLUMNS != 0 && column + c >= f.n) continue;
        CkDotPack<typename D::B, V> y = {};
        const typename D::B* at = right + u * GROUPS * V * f.b_k + c * f.b_n;
        if (in) y = ck_dot_read<typename D::B, V, f.b_k, FITS>(at);
#pragma unroll
        for (i32 i = 0; i < M * V; ++i) {
          W& sum = chains[i / V * COLUMNS + c][i % V % CHAINS];
          const W factor = ck_dot_load<typename D::Types>(x[u][i / V].at[i % V]);
          sum = ck_dot_fma(factor, ck_dot_load<typename D::Types>(y.at[i % V]), sum);
        }
      }
    }
    left += steps.block * GROUPS * V * f.a_k;
    right += steps.block * GROUPS * V * f.b_k;
  }
  ck_dot_join(sums, chains);
}

// k over the lanes of a group, which makes COLUMNS columns. A team makes TOGETHER chunks before it stores
// any, so that the loads of one hide the shuffles of another.
template <class D, i32 PARTS, bool FITS, i32 COLUMNS, i32 TOGETHER>
CK_INLINE void ck_dot_lanes(i64 batch, const typename D::A* a, i64 a_b, const typename D::B* b, i64 b_b,
                            typename D::O* o, i64 o_b) {
  typedef typename D::W W;
  constexpr CkDotForm f = D::form;
  constexpr CkDotPlan p = D::plan;
  constexpr i32 M = i32(f.m), LANES = p.lanes;
  constexpr i32 GROUPS = PARTS * LANES, TEAMS = CK_THREADS / GROUPS;  // GROUPS: threads of a team
  constexpr i32 CHUNKS = i32(ck_dot_ceil(f.n, COLUMNS)), COUNT = i32(ck_dot_power(M)) * COLUMNS;
  const i32 team = ck_lane() / GROUPS, member = ck_lane() % GROUPS, items = i32(batch) * CHUNKS;
  CK_NO_UNROLL
  for (i32 base = 0; base < items; base += TEAMS * TOGETHER) {
    W sums[TOGETHER][COUNT] = {};
    i32 first[TOGETHER];
#pragma unroll
    for (i32 t = 0; t < TOGETHER; ++t) {
      const i32 item = base + t * TEAMS + team, column = item % CHUNKS * COLUMNS;
      const typename D::A* left = a + item / CHUNKS * a_b + i64(member) * p.v * f.a_k;
      const typename D::B* right = b + item / CHUNKS * b_b + i64(member) * p.v * f.b_k + column * f.b_n;
      if (team < TEAMS && item < items) {
        ck_dot_lane_sums<D, GROUPS, FITS, COLUMNS>(left, right, column, sums[t]);
      }
    }
#pragma unroll
    for (i32 t = 0; t < TOGETHER; ++t) {
      first[t] = ck_dot_butterfly<COUNT, LANES / 2, 1>(sums[t], ck_warp_lane());
    }
    if constexpr (PARTS == 1) {
      constexpr i32 KEPT = ck_dot_kept(COUNT, LANES);
#pragma unroll
      for (i32 t = 0; t < TOGETHER; ++t) {
        const i32 item = base + t * TEAMS + team, column = item % CHUNKS * COLUMNS;
        if (item < items) ck_dot_put<D, COLUMNS, KEPT>(o + item / CHUNKS * o_b, column, first[t], sums[t]);
      }
    } else {
      static_assert(COLUMNS == 1 && TOGETHER == 1, "warps share k where there are few columns");
      if (base > 0) ck_block_barrier();
      W* shares = reinterpret_cast<W*>(ck_scratch()) + ck_warp() * M;
      constexpr i32 KEPT = ck_dot_kept(COUNT, CK_WARP);
#pragma unroll
      for (i32 i = 0; i < KEPT; ++i) {
        if (team < TEAMS && first[0] >= 0 && first[0] + i < M) shares[first[0] + i] = sums[0][i];
      }
      ck_block_barrier();
      ck_dot_gather<D, PARTS, COLUMNS>(o, o_b, base, items);
    }
  }
}

// Columns of a group for a batch of products whose k lies over lanes: a round of all teams takes some 200
// cycles, and the lines that all groups read.
CK_INLINE constexpr i32 ck_dot_columns_of(CkDotForm f, CkDotPlan p, i64 batch, i64 threads) {
  const i64 groups = threads / p.lanes, most = ck_dot_least(8, 16 / ck_dot_power(f.m));
  i64 best = p.columns, least = 0;
  for (i64 columns = best; batch > 1 && p.parts == 1 && columns <= most && columns <= f.n; columns *= 2) {
    const i64 rounds = ck_dot_ceil(batch * ck_dot_ceil(f.n, columns), groups);
    const i64 cycles = rounds * (200 + groups * columns * f.k * f.b_size / 128);
    if (least == 0 || cycles < least) {
      least = cycles;
      best = columns;
    }
  }
  return i32(best);
}

// The same with as many columns as the batch asks for, COLUMNS or more.
template <class D, i32 PARTS, bool FITS, i32 COLUMNS = D::plan.columns>
CK_INLINE void ck_dot_lanes_of(i64 batch, const typename D::A* a, i64 a_b, const typename D::B* b, i64 b_b,
                               typename D::O* o, i64 o_b) {
  // Around a block of one warp, other blocks hide the shuffles.
  if constexpr (PARTS == 1 && D::plan.parts == 1 && CK_WARPS > 1) {
    constexpr i32 teams = CK_THREADS / D::plan.lanes, chunks = i32(ck_dot_ceil(D::form.n, COLUMNS));
    constexpr i32 count = i32(ck_dot_power(D::form.m)) * COLUMNS;  // sums of a thread for a chunk
    if constexpr (COLUMNS < 8) {
      if (ck_dot_columns_of(D::form, D::plan, batch, CK_THREADS) > COLUMNS) {
        return ck_dot_lanes_of<D, PARTS, FITS, COLUMNS * 2>(batch, a, a_b, b, b_b, o, o_b);
      }
    }
    const i64 rounds = ck_dot_ceil(batch * chunks, teams);
    if constexpr (count <= 5) {
      if (rounds % 3 == 0) return ck_dot_lanes<D, PARTS, FITS, COLUMNS, 3>(batch, a, a_b, b, b_b, o, o_b);
    }
    if constexpr (count <= 8) {
      if (rounds % 2 == 0) return ck_dot_lanes<D, PARTS, FITS, COLUMNS, 2>(batch, a, a_b, b, b_b, o, o_b);
    }
  }
  ck_dot_lanes<D, PARTS, FITS, COLUMNS, 1>(batch, a, a_b, b, b_b, o, o_b);
}

#endif  // COCKTAIL_GEMV_H
