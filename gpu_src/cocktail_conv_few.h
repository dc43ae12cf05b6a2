// A convolution with few output features. Neighbouring lanes share the input features and make a box of
// positions on the last two axes: an element of the input is loaded once for all taps and positions of a box.
// The weights of its input features for all output features lie side by side, so a lane reads them together.
#ifndef COCKTAIL_CONV_FEW_H
#define COCKTAIL_CONV_FEW_H

#include "cocktail_conv_tile.h"
#include "cocktail_gemv.h"

template <class T, int COUNT>
CK_INLINE CkConvPack<T, COUNT> ck_conv_taken(const T* from, bool valid) {
  CkConvPack<T, COUNT> pack = {};
  if (valid) pack = *reinterpret_cast<const CkConvPack<T, COUNT>*>(from);
  return pack;
}

template <class D>
struct CkConvFew {
  typedef typename D::item T;
  typedef typename D::sum C;
  static constexpr CkConvPlan p = D::plan;
  static constexpr CkConvAxis X = ck_conv_axis(typename D::shape{}.value, 0);
  static constexpr CkConvAxis Y = ck_conv_axis(typename D::shape{}.value, 1);
  static constexpr CkConvAxis Z = ck_conv_axis(typename D::shape{}.value, 2);
  static constexpr i32 lanes = p.column_parts, chunk = p.depth, few = D::sizes.columns;
  static constexpr i32 features = D::sizes.features, count = p.height * p.width * few;
  static constexpr i32 across = ck_conv_above(X.out, p.width), down = ck_conv_above(Y.out, p.height);
  static constexpr i32 wide = ck_conv_seen(X, p.width), high = ck_conv_seen(Y, p.height);
  static constexpr i32 side = ck_conv_chunk(chunk * few, sizeof(T));  // weights that are read at once
  static constexpr i32 padded = i32(ck_dot_power(count));             // so that lanes can halve them
  static_assert(lanes <= CK_WARP && features % chunk == 0 && !D::sizes.dilated, "another plan");
  static_assert(few == 1 || D::sizes.depth * few * i32(sizeof(T)) <= CK_SCRATCH_BYTES, "the weights fit");
  C sums[padded];

  typedef CkConvPack<T, chunk> Line[wide];

  // Whether position `at` of a box's input is on the axis; the compiler knows it where that holds for all
  // boxes. `size`: positions of a box; `from`: where this one begins.
  static CK_MEMBER bool on(CkConvAxis a, i32 size, i32 from, i32 at) {
    const bool low = at >= a.low, high = (a.out - 1) / size * size * a.stride + at < a.in + a.low;
    return (low || from + at >= 0) && (high || from + at < a.in);
  }

  // Reads a row of the box's input. `at`: the box's first column in that row.
  static CK_MEMBER void read(Line& line, const T* at, i32 left, bool inside) {
    _Pragma("unroll")
    for (i32 x = 0; x < wide; ++x) {
      line[x] = ck_conv_taken<T, chunk>(at + x * features, inside && on(X, p.width, left, x));
    }
  }

  // What the row adds to every row of positions.
  CK_MEMBER void add(const Line& line, const T* w, i32 row) {
    _Pragma("unroll")
    for (i32 tap = 0; tap < Y.taps * X.taps; ++tap) {
      const i32 up = row - tap / X.taps * Y.spread, y = up / Y.stride;
      if (up < 0 || up % Y.stride != 0 || y >= p.height) continue;
      _Pragma("unroll")
      for (i32 first = 0; first < chunk * few; first += side) {
        const auto weights = ck_conv_taken<T, side>(w + tap * features * few + first, true);
        _Pragma("unroll")
        for (i32 i = 0; i < p.width * side; ++i) {
          const i32 x = i / side, c = (first + i % side) / few, f = (first + i % side) % few;
          C& sum = sums[(y * p.width + x) * few + f];
          const T element = line[x * X.stride + tap % X.taps * X.spread].item[c];
          sum = ck_conv_add<C>(sum, ck_convert<C>(element), ck_convert<C>(weights.item[i % side]));
        }
      }
    }
  }

  // The box of positions (z, y.., x..) of an image.
  CK_MEMBER void make(const T* x, const T* w, i32 z, i32 top, i32 left) {
    _Pragma("unroll")
    for (i32 i = 0; i < padded; ++i) sums[i] = C(0);
    CK_NO_UNROLL
    for (i32 tap = 0; tap < Z.taps; ++tap) {
      const i32 front = z * Z.stride - Z.low, plane = front + tap * Z.spread;
      const bool inside = on(Z, 1, front, tap * Z.spread);
      CK_NO_UNROLL
      for (i32 c = ck_lane() % lanes * chunk; c < features; c += lanes * chunk) {
        const T* weights = w + (tap * Y.taps * X.taps * features + c) * few;
        const T* corner = x + ((plane * Y.in + top) * X.in + left) * features + c;
        Line lines[high];
        _Pragma("unroll")
        for (i32 row = 0; row < high; ++row) {
          read(lines[row], corner + row * X.in * features, left, inside && on(Y, p.height, top, row));
        }
        _Pragma("unroll")
        for (i32 row = 0; row < high; ++row) add(lines[row], weights, row);
      }
    }
  }

  // The weights; those of several output features are copied to scratch if they are far away.
  static CK_MEMBER const T* near(const T* w) {
    typedef CkConvPack<T, side> Pack;
    if (few == 1 || !ck_is_global(w)) return w;
    Pack* to = reinterpret_cast<Pack*>(ck_scratch());
    _Pragma("unroll 8")
    for (i32 i = ck_lane(); i < D::sizes.depth * few / side; i += CK_THREADS) {
      to[i] = reinterpret_cast<const Pack*>(w)[i];
    }
    ck_block_barrier();
    return reinterpret_cast<const T*>(to);
  }

  static CK_MEMBER void all(const T* x, const T* w, typename D::result* o) {
    constexpr i32 boxes = D::sizes.rows / (Y.out * X.out) * down * across, teams = CK_THREADS / lanes;
    constexpr i32 kept = ck_dot_kept(padded, lanes);
    w = near(w);
    CK_NO_UNROLL
    for (i32 first = 0; first < boxes; first += teams) {
      const i32 own = first + ck_lane() / lanes, box = own < boxes ? own : boxes - 1;  // the last one again
      const i32 image = box / (down * across) / Z.out;
      const i32 z = box / (down * across) % Z.out, y = box / across % down * p.height;
      const i32 column = box % across * p.width;
      CkConvFew part;
      const T* from = x + image * Z.in * Y.in * X.in * features;
      part.make(from, w, z, y * Y.stride - Y.low, column * X.stride - X.low);
      const i32 mine = ck_dot_butterfly<padded, lanes / 2, 1>(part.sums, ck_lane());
      _Pragma("unroll")
      for (i32 i = 0; i < kept; ++i) {
        const i32 f = (mine + i) % few, at = (mine + i) / few;
        const i32 r = y + at / p.width, c = column + at % p.width;
        if (mine < 0 || mine + i >= count || own >= boxes || r >= Y.out || c >= X.out) continue;
        const i32 place = ((image * Z.out + z) * Y.out + r) * X.out + c;
        o[place * few + f] = ck_convert<typename D::result>(part.sums[i]);
      }
    }
  }
};

#endif  // COCKTAIL_CONV_FEW_H
