// Explicit vectors: the compiler must not reorder sums, so it would not vectorise them by itself. Loads
// convert from a storage type to the accumulation type; shuffles transpose and add across lanes.
#ifndef COCKTAIL_VECTOR_H
#define COCKTAIL_VECTOR_H

#include "cocktail_arith.h"

#define CK_MEMBER inline __attribute__((always_inline))

// For loops over registers: g++ must unroll them before it decides which arrays are registers.
#if defined(__clang__)
#define CK_UNROLL _Pragma("clang loop unroll(full)")
#else
#define CK_UNROLL _Pragma("GCC unroll 64")
#endif

// Keeps a vector in its register: GCC would rather read memory again for every product that it is part of.
#if defined(__x86_64__) && !defined(__clang__)
#define CK_IN_REGISTER(vector) asm("" : "+v"(vector))
#else
#define CK_IN_REGISTER(vector) (void)(vector)
#endif

template <class T, int BYTES>
struct CkVector {};
#define CK_VECTOR(T, BITS, NATURAL, BYTES)                                               \
  template <>                                                                            \
  struct CkVector<T, BYTES> {                                                            \
    typedef T type __attribute__((vector_size(BYTES)));                                  \
    typedef T memory __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias)); \
    typedef BITS bit;                                                                    \
    typedef BITS bits __attribute__((vector_size(BYTES)));                               \
    typedef NATURAL natural __attribute__((vector_size(BYTES)));                         \
    static constexpr int lanes = BYTES / int(sizeof(T));                                 \
  };
#define CK_VECTORS(BYTES)         \
  CK_VECTOR(u8, u8, u8, BYTES)    \
  CK_VECTOR(i16, i16, u16, BYTES) \
  CK_VECTOR(i32, i32, u32, BYTES) \
  CK_VECTOR(i64, i64, u64, BYTES) \
  CK_VECTOR(f32, i32, u32, BYTES) \
  CK_VECTOR(f64, i64, u64, BYTES)
CK_VECTORS(16)
#if CK_VECTOR_BYTES != 16
CK_VECTORS(CK_VECTOR_BYTES)
#endif
#undef CK_VECTORS
#undef CK_VECTOR

// The type whose lanes products of A and B are summed in, for a result of type O. Integers wrap, so a
// narrower or signed type of enough bits gives the same result; bools are bytes. `void`: no vectors for these
// types.
template <class A, class B, class O>
struct CkLane {
  static constexpr bool whole = !CkType<A>::is_float && !CkType<B>::is_float;
  static constexpr bool bools = CkIsBool<A>::value && CkIsBool<B>::value && CkIsBool<O>::value;
  static constexpr bool wide = CkSame<A, f64>::value || CkSame<B, f64>::value || CkSame<O, f64>::value;
  typedef typename CkChoose<wide, f64, f32>::type real;
  typedef
      typename CkChoose<sizeof(O) <= 2, i16, typename CkChoose<sizeof(O) == 4, i32, i64>::type>::type integer;
  typedef typename CkChoose<whole && !CkIsBool<O>::value, integer, void>::type not_real;
  typedef
      typename CkChoose<bools, u8, typename CkChoose<CkType<O>::is_float, real, not_real>::type>::type type;
};

template <class C, class T>
CK_INLINE C ck_lane(T x) {
  return C(ck_up(x));
}

// ---- shuffles -------------------------------------------------------------------------------------------

enum CkPick { CK_ZIP_LOW, CK_ZIP_HIGH, CK_EVEN, CK_ODD };

// Lane l of the result is this lane of two vectors of n lanes, one after the other.
CK_INLINE constexpr int ck_pick(CkPick pick, int n, int l) {
  return pick == CK_ZIP_LOW    ? l / 2 + l % 2 * n
         : pick == CK_ZIP_HIGH ? (n + l) / 2 + l % 2 * n
                               : 2 * l + (pick == CK_ODD);
}

template <class T, T... I>
struct CkSequence {};
#if defined(__clang__)
template <int N>
using CkCount = __make_integer_seq<CkSequence, int, N>;
#else
template <int N>
using CkCount = CkSequence<int, __integer_pack(N)...>;
#endif

template <CkPick PICK, class V, int... I>
CK_INLINE typename V::type ck_shuffle_lanes(typename V::type a, typename V::type b, CkSequence<int, I...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, ck_pick(PICK, V::lanes, I)...);
#else
  return __builtin_shuffle(a, b, typename V::bits{typename V::bit(ck_pick(PICK, V::lanes, I))...});
#endif
}
template <CkPick PICK, class V>
CK_INLINE typename V::type ck_shuffle(typename V::type a, typename V::type b) {
  return ck_shuffle_lanes<PICK, V>(a, b, CkCount<V::lanes>());
}

// ---- loads ----------------------------------------------------------------------------------------------

// Instructions that widen on the way from memory. Compilers do not reliably find them for lanes in a loop.
template <int BYTES>
struct CkRaw {
  u8 bytes[BYTES];
};
#if defined(__AVX512BW__)
#define CK_WIDENS(BYTES) true
#elif defined(__AVX2__) && defined(__F16C__)
#define CK_WIDENS(BYTES) (BYTES <= 32)
#else
#define CK_WIDENS(BYTES) false
#endif
#if defined(__x86_64__)
#define CK_WIDEN(NAME) asm(NAME " %1, %0" : "=v"(vector) : "m"(*from))
#else
#define CK_WIDEN(NAME) __builtin_trap()  // CK_WIDENS is false
#endif

template <int FROM, int TO, bool SIGNED, class V, class M>
CK_INLINE V ck_widen(const M* from) {
  V vector;
  if constexpr (FROM == 1 && TO == 2) {
    if constexpr (SIGNED)
      CK_WIDEN("vpmovsxbw");
    else
      CK_WIDEN("vpmovzxbw");
  } else if constexpr (FROM == 1 && TO == 4) {
    if constexpr (SIGNED)
      CK_WIDEN("vpmovsxbd");
    else
      CK_WIDEN("vpmovzxbd");
  } else if constexpr (FROM == 1) {
    if constexpr (SIGNED)
      CK_WIDEN("vpmovsxbq");
    else
      CK_WIDEN("vpmovzxbq");
  } else if constexpr (FROM == 2 && TO == 4) {
    if constexpr (SIGNED)
      CK_WIDEN("vpmovsxwd");
    else
      CK_WIDEN("vpmovzxwd");
  } else if constexpr (FROM == 2) {
    if constexpr (SIGNED)
      CK_WIDEN("vpmovsxwq");
    else
      CK_WIDEN("vpmovzxwq");
  } else {
    if constexpr (SIGNED)
      CK_WIDEN("vpmovsxdq");
    else
      CK_WIDEN("vpmovzxdq");
  }
  return vector;
}

// The same for 16 bytes without such instructions: every element beside itself, then shifted down.
template <int FROM, int TO, bool SIGNED, class V>
CK_INLINE V ck_widen_slowly(const void* from) {
  typedef CkVector<typename CkChoose<TO == 2, i16, typename CkChoose<TO == 4, i32, i64>::type>::type, 16> W;
  typedef typename CkChoose<SIGNED, typename W::type, typename W::natural>::type Shifted;
  i64 word = 0;
  __builtin_memcpy(&word, from, 16 * FROM / TO);
  typename CkVector<i64, 16>::type words = {word, 0};
  typedef CkVector<u8, 16> Bytes;
  typedef CkVector<i16, 16> Shorts;
  typedef CkVector<i32, 16> Ints;
  if constexpr (FROM == 1) {
    words = decltype(words)(
        ck_shuffle<CK_ZIP_LOW, Bytes>(typename Bytes::type(words), typename Bytes::type(words)));
  }
  if constexpr (FROM <= 2 && TO >= 4) {
    words = decltype(words)(
        ck_shuffle<CK_ZIP_LOW, Shorts>(typename Shorts::type(words), typename Shorts::type(words)));
  }
  if constexpr (TO == 8) {
    words =
        decltype(words)(ck_shuffle<CK_ZIP_LOW, Ints>(typename Ints::type(words), typename Ints::type(words)));
  }
  return V(Shifted(words) >> ((TO - FROM) * 8));
}

// ck_up of f16, lane by lane; `half`: its bits.
template <class V>
CK_INLINE typename V::type ck_up_lanes(typename V::bits half) {
  typedef typename V::bits Bits;
  const Bits sign = (half & 0x8000) << 16, magnitude = (half & 0x7fff) << 13;
  const Bits exponent = magnitude & 0x0f800000;
  const Bits special = Bits(exponent == 0x0f800000), small = Bits(exponent == 0);
  const Bits tiny = Bits(typename V::type(magnitude + 0x38800000) - 6.103515625e-05f);
  const Bits large = magnitude + 0x38000000 + (special & 0x38000000);
  return typename V::type((small & tiny) | (~small & large) | sign);
}

// A vector of C from consecutive elements of type T.
template <class C, int BYTES, class T>
CK_INLINE typename CkVector<C, BYTES>::type ck_load(const T* memory) {
  typedef CkVector<C, BYTES> V;
  typedef CkType<T> Type;
  typedef CkRaw<V::lanes* int(sizeof(T))> Raw;
  constexpr bool whole = !CkType<C>::is_float && !Type::is_float;
  const Raw* from = reinterpret_cast<const Raw*>(memory);
  typename V::type vector;
  if constexpr (CkSame<C, T>::value || (whole && sizeof(C) == sizeof(T))) {
    vector = *reinterpret_cast<const typename V::memory*>(memory);
  } else if constexpr (CK_WIDENS(BYTES) && whole && sizeof(C) > sizeof(T)) {
    vector = ck_widen<sizeof(T), sizeof(C), Type::is_signed, typename V::type>(from);
  } else if constexpr (CK_WIDENS(BYTES) && CkSame<C, f32>::value && CkSame<T, f16>::value) {
    CK_WIDEN("vcvtph2ps");
  } else if constexpr (CK_WIDENS(BYTES) && CkSame<C, f32>::value && CkSame<T, bf16>::value) {
    vector = typename V::type(ck_widen<2, 4, false, typename V::bits>(from) << 16);
  } else if constexpr (CK_WIDENS(BYTES) && CkSame<C, f64>::value && CkSame<T, f32>::value) {
    CK_WIDEN("vcvtps2pd");
  } else if constexpr (BYTES == 16 && CkSame<C, f32>::value && Type::is_half) {
    const auto bits = ck_widen_slowly<2, 4, false, typename V::bits>(from);
    if constexpr (CkSame<T, bf16>::value) {
      vector = typename V::type(bits << 16);
    } else {
      vector = ck_up_lanes<V>(bits);
    }
  } else if constexpr (BYTES == 16 && whole && sizeof(C) > sizeof(T)) {
    vector = ck_widen_slowly<sizeof(T), sizeof(C), Type::is_signed, typename V::type>(from);
  } else {
    C lane[V::lanes];
    for (int l = 0; l < V::lanes; ++l) lane[l] = ck_lane<C>(memory[l]);
    __builtin_memcpy(&vector, lane, sizeof(vector));
  }
  return vector;
}

template <class C, int BYTES>
CK_INLINE void ck_store(C* to, typename CkVector<C, BYTES>::type vector) {
  *reinterpret_cast<typename CkVector<C, BYTES>::memory*>(to) = vector;
}

// Elements [0, count), converted.
template <class C, int BYTES, class T>
CK_INLINE void ck_copy(const T* from, i64 count, C* to) {
  constexpr i64 lanes = CkVector<C, BYTES>::lanes, narrow = CkVector<C, 16>::lanes;
  i64 q = 0;
  CK_NO_UNROLL
  for (; q + lanes <= count; q += lanes) ck_store<C, BYTES>(to + q, ck_load<C, BYTES>(from + q));
  CK_NO_UNROLL
  for (; q + narrow <= count; q += narrow) ck_store<C, 16>(to + q, ck_load<C, 16>(from + q));
  CK_NO_UNROLL
  for (; q < count; ++q) to[q] = ck_lane<C>(from[q]);
}

template <class C, int BYTES>
CK_INLINE typename CkVector<C, BYTES>::type ck_broadcast(C x) {
  return x - typename CkVector<C, BYTES>::type{};
}

// sum + a * b; of bools "or" and "and". One rounding where the machine has it: g++ would split chains of sums
// on some machines, and the same sum would have other bits in another kernel.
template <class C, class V>
CK_INLINE V ck_multiply_add(V sum, V scale, V b) {
#if defined(__FMA__) && !defined(__clang__)
  constexpr int bytes = sizeof(V);
#define CK_FUSED(NAME, ...) return V(NAME(scale, b, sum __VA_ARGS__))
  if constexpr (CkSame<C, f32>::value && bytes == 16) CK_FUSED(__builtin_ia32_vfmaddps);
  if constexpr (CkSame<C, f64>::value && bytes == 16) CK_FUSED(__builtin_ia32_vfmaddpd);
  if constexpr (CkSame<C, f32>::value && bytes == 32) CK_FUSED(__builtin_ia32_vfmaddps256);
  if constexpr (CkSame<C, f64>::value && bytes == 32) CK_FUSED(__builtin_ia32_vfmaddpd256);
#if defined(__AVX512F__)
  if constexpr (CkSame<C, f32>::value && bytes == 64) CK_FUSED(__builtin_ia32_vfmaddps512_mask, , u16(-1), 4);
  if constexpr (CkSame<C, f64>::value && bytes == 64) CK_FUSED(__builtin_ia32_vfmaddpd512_mask, , u8(-1), 4);
#endif
#undef CK_FUSED
#endif
  if constexpr (CkSame<C, u8>::value) {
    return sum | (scale & b);
  } else {
    return sum + scale * b;
  }
}
template <class C, class V>
CK_INLINE V ck_plus(V a, V b) {
  if constexpr (CkSame<C, u8>::value) {
    return a | b;
  } else {
    return a + b;
  }
}

// ---- across lanes ---------------------------------------------------------------------------------------

// lanes x lanes elements in place: line[i][j] and line[j][i] change places.
template <class V>
CK_INLINE void ck_transpose(typename V::type* line) {
  constexpr int n = V::lanes;
  typename V::type next[n];
  for (int size = 1; size < n; size *= 2) {
    for (int i = 0; i < n / 2; ++i) {
      next[2 * i] = ck_shuffle<CK_ZIP_LOW, V>(line[i], line[i + n / 2]);
      next[2 * i + 1] = ck_shuffle<CK_ZIP_HIGH, V>(line[i], line[i + n / 2]);
    }
    for (int i = 0; i < n; ++i) line[i] = next[i];
  }
}

// The sum of all lanes of sum[c] in lane c, for COUNT vectors (a power of two, at most the number of lanes).
// Neighbours are added first, whatever COUNT: the order of each sum is always the same.
template <class C, int BYTES, int COUNT>
CK_INLINE typename CkVector<C, BYTES>::type ck_lane_sums(typename CkVector<C, BYTES>::type* sum) {
  typedef CkVector<C, BYTES> V;
  int count = COUNT;
  for (int width = 1; width < V::lanes; width *= 2) {
    int pairs = count > 1 ? count / 2 : 1;
    for (int c = 0; c < pairs; ++c) {
      typename V::type a = sum[count > 1 ? 2 * c : 0], b = sum[count > 1 ? 2 * c + 1 : 0];
      sum[c] = ck_plus<C>(ck_shuffle<CK_EVEN, V>(a, b), ck_shuffle<CK_ODD, V>(a, b));
    }
    count = pairs;
  }
  return sum[0];
}

#endif  // COCKTAIL_VECTOR_H
