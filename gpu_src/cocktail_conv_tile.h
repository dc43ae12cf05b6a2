// One tile of a convolution's result, by a whole block: operands come through shared memory, stage by stage.
#ifndef COCKTAIL_CONV_TILE_H
#define COCKTAIL_CONV_TILE_H

#include "cocktail_conv_plan.h"
#include "cocktail_conv_tensor.h"
#include "cocktail_units.h"

// SHAPE: a type whose member `value` is the CkConv<RANK>. Everything below is known to the compiler.
template <class T, class O, int RANK, class SHAPE, class PLAN, CkPrecision PRECISION>
struct CkConvTraits {
  typedef T item;
  typedef O result;
  typedef typename CkConvSum<O, ck_conv_is_f64<T>()>::type sum;
  typedef SHAPE shape;
  static constexpr int rank = RANK;
  static constexpr CkConvSizes sizes = ck_conv_sizes<RANK>(SHAPE{}.value);
  static constexpr CkConvPlan plan = ck_conv_lined(PLAN::plan, sizeof(T));
  static constexpr i32 a_chunk = ck_conv_chunk(sizes.features, sizeof(T));
  static constexpr i32 b_chunk = ck_conv_chunk(sizes.columns, sizeof(T));
  static constexpr i32 b_start = plan.rows * plan.a_line;  // of a stage
  static constexpr i32 stage = b_start + plan.depth * plan.b_line;
  static constexpr bool rounds = PRECISION == CK_TF32 && kCkMatrixTakesF32 && CkSame<T, f32>::value;
  static_assert(plan.kind != CK_CONV_MMA || (CkSame<sum, f32>::value && (CkType<T>::is_half || rounds)),
                "tensor cores do not take these operands");
};

template <class C>
CK_INLINE C ck_conv_add(C sum, C a, C b) {
  if constexpr (CkType<C>::is_float) {
    return ck_fma(a, b, sum);
  } else {
    return ck_add(sum, ck_mul(a, b));
  }
}

// COUNT neighbouring elements, moved at once.
template <class T, int COUNT>
struct alignas(COUNT * sizeof(T) < 16 ? COUNT * sizeof(T) : 16) CkConvPack {
  T item[COUNT];
};

template <class T, int COUNT>
CK_INLINE bool ck_conv_aligned(const T* p) {
  return (u64(p) & (sizeof(CkConvPack<T, COUNT>) - 1)) == 0;
}

// ---- operands into shared memory ------------------------------------------------------------------------

// How chunks of an operand are copied: past the registers (from global memory), as one word of the machine,
// or, where they do not begin on a border, element by element.
enum CkConvWay { CK_CONV_ELEMENTS, CK_CONV_WORDS, CK_CONV_ASYNC };

template <class T, int CHUNK>
CK_INLINE CkConvWay ck_conv_way(const T* p) {
  if (!ck_conv_aligned<T, CHUNK>(p)) return CK_CONV_ELEMENTS;
  return sizeof(CkConvPack<T, CHUNK>) >= 4 && ck_is_global(p) ? CK_CONV_ASYNC : CK_CONV_WORDS;
}

// A chunk on its way to `to`; zeros if not `valid`. Two steps, so that several loads are under way together.
template <class T, int CHUNK>
struct CkConvMove {
  typedef CkConvPack<T, CHUNK> Pack;
  T* to;  // null: nothing is left to do
  Pack pack;

  CK_MEMBER void start(T* target, const T* from, bool valid, CkConvWay way) {
    to = target;
    if constexpr (sizeof(Pack) >= 4) {
      if (way == CK_CONV_ASYNC) {
        to = nullptr;
        return ck_async_copy<int(sizeof(Pack))>(target, from, valid);
      }
    }
    pack = Pack{};
    if (!valid) return;
    if (way == CK_CONV_WORDS) {
      pack = *reinterpret_cast<const Pack*>(from);
    } else {
      _Pragma("unroll")
      for (int e = 0; e < CHUNK; ++e) pack.item[e] = from[e];
    }
  }
  CK_MEMBER void end() {
    if (to) *reinterpret_cast<Pack*>(to) = pack;
  }
};

// Chunks that a thread has under way together.
constexpr int kCkConvMoves = CK_THREADS <= 256 ? 4 : CK_THREADS <= 512 ? 2 : 1;

// Where the window of an output position begins. `base`: the element of x, which may lie outside.
struct alignas(16) CkConvRow {
  i32 base;
  i32 at[3];
};

// The window of output position `number` of all.
template <class D>
CK_INLINE CkConvRow ck_conv_row(u32 number) {
  constexpr auto s = typename D::shape{}.value;
  CkConvRow row = {};
  i32 place = 0, line = i32(s.in_features);
  _Pragma("unroll")
  for (int axis = D::rank - 1; axis >= 0; --axis) {
    const i32 out = i32(number % u32(s.out_size[axis]));
    number /= u32(s.out_size[axis]);
    row.at[axis] = out * i32(s.stride[axis]) - i32(s.pad_low[axis]);
    place += row.at[axis] * line;
    line *= i32(s.in_size[axis]);
  }
  row.base = i32(number) * line + (D::sizes.dilated ? 0 : place);
  return row;
}

// Windows of the tile's rows from row `first` on; rows behind the last one see only padding.
template <class D>
CK_INLINE void ck_conv_rows(i32 first, CkConvRow* rows) {
  CK_NO_UNROLL
  for (i32 r = ck_lane(); r < D::plan.rows; r += CK_THREADS) {
    rows[r] = ck_conv_row<D>(u32(first + r));
    if (first + r >= D::sizes.rows) rows[r].at[0] = -(1 << 30);
  }
}

// What depth `k` adds to a window: distances on every axis and, without holes, in elements of x.
template <int RANK>
struct CkConvTap {
  i32 distance[RANK];
  i32 element;  // with holes: the feature alone
};

template <class D>
CK_INLINE CkConvTap<D::rank> ck_conv_tap(u32 k) {
  constexpr auto s = typename D::shape{}.value;
  CkConvTap<D::rank> tap;
  u32 rest = k / u32(D::sizes.features);
  tap.element = i32(k % u32(D::sizes.features));
  i32 line = i32(s.in_features);
  _Pragma("unroll")
  for (int axis = D::rank - 1; axis >= 0; --axis) {
    tap.distance[axis] = i32(rest % u32(s.kernel[axis])) * i32(s.rhs_dilation[axis]);
    rest /= u32(s.kernel[axis]);
    if (!D::sizes.dilated) tap.element += tap.distance[axis] * line;
    line *= i32(s.in_size[axis]);
  }
  return tap;
}

// The element of x that `row` reads at `tap`, or -1: padding or a hole.
template <class D>
CK_INLINE i32 ck_conv_source(const CkConvRow& row, const CkConvTap<D::rank>& tap) {
  constexpr auto s = typename D::shape{}.value;
  i32 element = row.base + tap.element, line = i32(s.in_features);
  bool inside = true;
  _Pragma("unroll")
  for (int axis = D::rank - 1; axis >= 0; --axis) {
    const i32 at = row.at[axis] + tap.distance[axis];
    inside &= u32(at) < u32(s.in_size[axis] ? (s.in_size[axis] - 1) * s.lhs_dilation[axis] + 1 : 0);
    if (D::sizes.dilated) {
      inside &= u32(at) % u32(s.lhs_dilation[axis]) == 0;
      element += at / i32(s.lhs_dilation[axis]) * line;
    }
    line *= i32(s.in_size[axis]);
  }
  return inside ? element : -1;
}

// Depth k0.. of the tile's windows to [rows][a_line].
template <class D>
CK_INLINE void ck_conv_stage_a(const typename D::item* x, CkConvWay way, const CkConvRow* rows, i32 k0,
                               typename D::item* to) {
  typedef typename D::item T;
  constexpr i32 chunks = D::plan.depth / D::a_chunk, step = CK_THREADS / chunks;
  const i32 column = ck_lane() % chunks * D::a_chunk, k = k0 + column;
  const CkConvTap<D::rank> tap = ck_conv_tap<D>(u32(k));
  CK_NO_UNROLL
  for (i32 first = ck_lane() / chunks; first < D::plan.rows; first += step * kCkConvMoves) {
    CkConvMove<T, D::a_chunk> moves[kCkConvMoves];
    _Pragma("unroll")
    for (int i = 0; i < kCkConvMoves; ++i) {
      const i32 r = first + i * step;
      if (r >= D::plan.rows) break;
      const i32 element = ck_conv_source<D>(rows[r], tap);
      const bool valid = element >= 0 && k < D::sizes.depth;
      moves[i].start(to + r * D::plan.a_line + column, x + (valid ? element : 0), valid, way);
    }
    _Pragma("unroll")
    for (int i = 0; i < kCkConvMoves; ++i) {
      if (first + i * step < D::plan.rows) moves[i].end();
    }
  }
}

// The same depth of the weights, columns from n0 on, to [depth][b_line]. `w`: at the group's first column.
template <class D>
CK_INLINE void ck_conv_stage_b(const typename D::item* w, CkConvWay way, i32 n0, i32 k0,
                               typename D::item* to) {
  typedef typename D::item T;
  constexpr auto s = typename D::shape{}.value;
  constexpr i32 chunks = ck_conv_above(D::plan.columns, D::b_chunk), all = D::plan.depth * chunks;
  CK_NO_UNROLL
  for (i32 first = ck_lane(); first < all; first += CK_THREADS * kCkConvMoves) {
    CkConvMove<T, D::b_chunk> moves[kCkConvMoves];
    _Pragma("unroll")
    for (int i = 0; i < kCkConvMoves; ++i) {
      const u32 e = u32(first + i * CK_THREADS);
      if (e >= u32(all)) break;
      const i32 k = i32(e / u32(chunks)), n = i32(e % u32(chunks)) * D::b_chunk;
      const bool valid = k0 + k < D::sizes.depth && n0 + n < D::sizes.columns;
      const i32 element = valid ? (k0 + k) * i32(s.out_features) + n0 + n : 0;
      moves[i].start(to + k * D::plan.b_line + n, w + element, valid, way);
    }
    _Pragma("unroll")
    for (int i = 0; i < kCkConvMoves; ++i) {
      if (first + i * CK_THREADS < all) moves[i].end();
    }
  }
}

// ---- sums in registers ----------------------------------------------------------------------------------

// Fused multiply-adds: this thread's rows are row + i * row_parts, its columns column + j * 4 * column_parts.
template <class D>
struct CkConvFma {
  typedef typename D::item T;
  typedef typename D::sum C;
  static constexpr CkConvPlan p = D::plan;
  static constexpr i32 part = p.row_parts * p.column_parts, quads = p.width / 4;
  i32 slice, row, column;
  C sums[p.height][p.width];

  CK_MEMBER void begin() {
    const i32 slot = ck_lane() % part;
    slice = ck_lane() / part;
    row = slot / p.column_parts;
    column = slot % p.column_parts * 4;
    _Pragma("unroll")
    for (int i = 0; i < p.height; ++i) {
      _Pragma("unroll")
      for (int j = 0; j < p.width; ++j) sums[i][j] = C(0);
    }
  }

  CK_MEMBER void add(const T* stage) {
    constexpr i32 depth = p.depth / p.slices;
    if (slice >= p.slices) return;
    const T* a = stage + row * p.a_line + slice * depth;
    const T* b = stage + D::b_start + slice * depth * p.b_line + column;
    CK_NO_UNROLL
    for (i32 k = 0; k < depth; k += 4, a += 4, b += 4 * p.b_line) {
      CkConvPack<T, 4> left[p.height];
      _Pragma("unroll")
      for (int i = 0; i < p.height; ++i) {
        left[i] = *reinterpret_cast<const CkConvPack<T, 4>*>(a + i * p.row_parts * p.a_line);
      }
      _Pragma("unroll")
      for (int q = 0; q < 4; ++q) {
        _Pragma("unroll")
        for (int v = 0; v < quads; ++v) {
          const CkConvPack<T, 4> right =
              *reinterpret_cast<const CkConvPack<T, 4>*>(b + q * p.b_line + v * 4 * p.column_parts);
          _Pragma("unroll")
          for (int i = 0; i < p.height; ++i) {
            _Pragma("unroll")
            for (int e = 0; e < 4; ++e) {
              C& sum = sums[i][v * 4 + e];
              sum = ck_conv_add<C>(sum, ck_convert<C>(left[i].item[q]), ck_convert<C>(right.item[e]));
            }
          }
        }
      }
    }
  }

  // To [slices][rows][columns + kCkConvPad].
  CK_MEMBER void store(C* to) const {
    if (slice >= p.slices) return;
    _Pragma("unroll")
    for (int i = 0; i < p.height; ++i) {
      C* line = to + (slice * p.rows + row + i * p.row_parts) * (p.columns + kCkConvPad) + column;
      _Pragma("unroll")
      for (int v = 0; v < quads; ++v) {
        CkConvPack<C, 4> pack;
        _Pragma("unroll")
        for (int e = 0; e < 4; ++e) pack.item[e] = sums[i][v * 4 + e];
        *reinterpret_cast<CkConvPack<C, 4>*>(line + v * 4 * p.column_parts) = pack;
      }
    }
  }
};

// ---- the tile -------------------------------------------------------------------------------------------

// Adds up the slices of the tile at `sums` and writes what is inside the result. o: at the group's first
// column.
template <class D>
CK_INLINE void ck_conv_write(const typename D::sum* sums, i32 m0, i32 n0, typename D::result* o) {
  typedef typename D::sum C;
  typedef typename D::result O;
  constexpr auto s = typename D::shape{}.value;
  constexpr CkConvPlan p = D::plan;
  constexpr i32 line = p.columns + kCkConvPad, quads = p.columns / 4;
  const bool wide = D::sizes.columns % 4 == 0 && ck_conv_aligned<O, 4>(o);
  CK_NO_UNROLL
  for (i32 q = ck_lane(); q < p.rows * quads; q += CK_THREADS) {
    const i32 r = i32(u32(q) / u32(quads)), n = i32(u32(q) % u32(quads)) * 4;
    if (m0 + r >= D::sizes.rows || n0 + n >= D::sizes.columns) continue;
    CkConvPack<C, 4> total = *reinterpret_cast<const CkConvPack<C, 4>*>(sums + r * line + n);
    CK_NO_UNROLL
    for (i32 slice = 1; slice < p.slices; ++slice) {
      const CkConvPack<C, 4> more =
          *reinterpret_cast<const CkConvPack<C, 4>*>(sums + (slice * p.rows + r) * line + n);
      _Pragma("unroll")
      for (int e = 0; e < 4; ++e) total.item[e] = ck_add(total.item[e], more.item[e]);
    }
    O* to = o + (m0 + r) * i32(s.out_features) + n0 + n;
    CkConvPack<O, 4> pack;
    _Pragma("unroll")
    for (int e = 0; e < 4; ++e) pack.item[e] = ck_convert<O>(total.item[e]);
    if (wide) {
      *reinterpret_cast<CkConvPack<O, 4>*>(to) = pack;
    } else {
      _Pragma("unroll")
      for (int e = 0; e < 4; ++e) {
        if (n0 + n + e < D::sizes.columns) to[e] = pack.item[e];
      }
    }
  }
}

// Rows from m0, columns from n0 of one group. While a stage is multiplied, the next ones are on their way.
// Sums of the tile before may still be read until the first meeting: windows have memory of their own.
template <class D, class SUMS>
CK_INLINE void ck_conv_tile(const typename D::item* x, const typename D::item* w, typename D::result* o,
                            i32 m0, i32 n0) {
  typedef typename D::item T;
  constexpr CkConvPlan p = D::plan;
  constexpr i32 steps = ck_conv_above(D::sizes.depth, p.depth), chunks = p.depth / D::a_chunk;
  constexpr i32 room = CK_SCRATCH_BYTES - p.rows * i32(sizeof(CkConvRow));
  constexpr i32 staged = p.stages * D::stage * i32(sizeof(T));
  constexpr i32 summed = p.slices * p.rows * (p.columns + kCkConvPad) * i32(sizeof(typename D::sum));
  constexpr i32 workers = p.row_parts * p.column_parts * p.slices;
  static_assert(p.stages >= 2 && staged <= room && summed <= room, "the tiles of a plan fit");
  static_assert(p.depth % D::a_chunk == 0 && CK_THREADS % chunks == 0, "threads copy whole chunks");
  static_assert(workers <= (p.kind == CK_CONV_FMA ? CK_THREADS : CK_WARPS), "a block has the workers");
  CkConvRow* rows = reinterpret_cast<CkConvRow*>(ck_scratch());
  T* stages = reinterpret_cast<T*>(ck_scratch() + p.rows * sizeof(CkConvRow));
  const CkConvWay a_way = ck_conv_way<T, D::a_chunk>(x), b_way = ck_conv_way<T, D::b_chunk>(w);
  ck_conv_rows<D>(m0, rows);
  ck_block_barrier();
  SUMS sums;
  sums.begin();
  CK_NO_UNROLL
  for (i32 step = 1 - p.stages; step < steps; ++step) {
    const i32 next = step + p.stages - 1;
    if (step >= 0) {
      ck_async_wait<p.stages - 2>();
      ck_block_barrier();
    }
    if (next < steps) {
      T* to = stages + next % p.stages * D::stage;
      ck_conv_stage_a<D>(x, a_way, rows, next * p.depth, to);
      ck_conv_stage_b<D>(w, b_way, n0, next * p.depth, to + D::b_start);
    }
    ck_async_commit();
    if (step >= 0) sums.add(stages + step % p.stages * D::stage);
  }
  ck_block_barrier();
  typename D::sum* total = reinterpret_cast<typename D::sum*>(stages);
  sums.store(total);
  ck_block_barrier();
  ck_conv_write<D>(total, m0, n0, o);
}

#endif  // COCKTAIL_CONV_TILE_H
