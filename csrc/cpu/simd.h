// Vectors of one instruction set: lanes of float or double, loads and stores of the four logit types, exp, log, sums.
// Written with the compiler's vector extension, by which one text serves AVX-512, AVX2 and, 16 bytes wide, any other
// processor; intrinsics only where the extension has no word for it (masked tails, half precision).
//
// Included by one .cpp file per instruction set, after that file has chosen JF_ISA (a namespace of its own: the same
// template compiled for two instruction sets must not be merged by the linker) and JF_VECTOR_BYTES.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

namespace jocor_fast::cpu::JF_ISA {

struct float16 {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};

template <class Element, int N>
struct VectorOf {
  typedef Element type __attribute__((vector_size(N * sizeof(Element))));
};

// "Real": the type in which a logit type is computed.
template <class Logit>
using RealOf = std::conditional_t<std::is_same_v<Logit, double>, double, float>;

template <class Real>
struct Lanes {
  static constexpr int count = JF_VECTOR_BYTES / sizeof(Real);
  using Index = std::conditional_t<std::is_same_v<Real, double>, int64_t, int32_t>;
  using Vector = typename VectorOf<Real, count>::type;
  using IndexVector = typename VectorOf<Index, count>::type;
};

template <class Real>
using Vector = typename Lanes<Real>::Vector;

template <class Real>
JF_INLINE Vector<Real> broadcast(Real value) {
  return value - Vector<Real>{};  // x - 0 is x, also for -0
}

template <class To, class From>
JF_INLINE To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

template <class V>
JF_INLINE V larger(V a, V b) {
  return a > b ? a : b;  // a NaN in `a` is dropped: the sum of exponentials meets it again
}

// The compiler makes two instructions of the above where one does the same. Here and below a _mm512_maskz_ with all
// lanes stands for the plain intrinsic, which GCC 12's header starts from an uninitialised vector: -Wuninitialized.
#if defined(JF_ISA_AVX512)
JF_INLINE Vector<float> larger(Vector<float> a, Vector<float> b) {
  return bit_cast<Vector<float>>(_mm512_maskz_max_ps(0xffff, bit_cast<__m512>(a), bit_cast<__m512>(b)));
}
#elif defined(JF_ISA_AVX2)
JF_INLINE Vector<float> larger(Vector<float> a, Vector<float> b) {
  return bit_cast<Vector<float>>(_mm256_max_ps(bit_cast<__m256>(a), bit_cast<__m256>(b)));
}
#endif

// --- sums and maxima over the lanes, in a fixed order ---------------------------------------------------------------

template <class Half, class Whole, int... I>
JF_INLINE Half lanes_from(Whole v, int first, std::integer_sequence<int, I...>) {
  return first == 0 ? __builtin_shufflevector(v, v, I...) : __builtin_shufflevector(v, v, (I + int(sizeof...(I)))...);
}

template <class Whole, class Half, int... I>
JF_INLINE Whole joined(Half low, Half high, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(low, high, I...);
}

template <class Real, int N, class Op>
JF_INLINE Real reduce(typename VectorOf<Real, N>::type v, Op op) {
  if constexpr (N == 2) {
    return op(v[0], v[1]);
  } else {
    using Half = typename VectorOf<Real, N / 2>::type;
    constexpr auto indices = std::make_integer_sequence<int, N / 2>{};
    return reduce<Real, N / 2>(op(lanes_from<Half>(v, 0, indices), lanes_from<Half>(v, 1, indices)), op);
  }
}

template <class Real>
JF_INLINE Real sum_of_lanes(Vector<Real> v) {
  return reduce<Real, Lanes<Real>::count>(v, [](auto a, auto b) __attribute__((always_inline)) { return a + b; });
}

template <class Real>
JF_INLINE Real max_of_lanes(Vector<Real> v) {
  return reduce<Real, Lanes<Real>::count>(v,
                                          [](auto a, auto b) __attribute__((always_inline)) { return larger(a, b); });
}

// The same for as many vectors as one has lanes, vector i to lane i, in the same order: 45 instructions for 16 vectors,
// where one by one they take 128. At each level a vector holds count / part of them, each in `part` neighbouring lanes;
// from two vectors `op` makes one, whose parts are half as long.
template <class Real, int part, int... I>
JF_INLINE Vector<Real> half_parts(Vector<Real> a, Vector<Real> b, int second, std::integer_sequence<int, I...>) {
  return second == 0 ? __builtin_shufflevector(a, b, (I / (part / 2) * part + I % (part / 2))...)
                     : __builtin_shufflevector(a, b, (I / (part / 2) * part + I % (part / 2) + part / 2)...);
}

template <class Real, int part = Lanes<Real>::count, class Op>
JF_INLINE Vector<Real> reduce_each(const Vector<Real>* vectors, Op op) {
  if constexpr (part == 1) {
    return *vectors;
  } else {
    constexpr auto indices = std::make_integer_sequence<int, Lanes<Real>::count>{};
    Vector<Real> joint[part / 2];
    for (int i = 0; i < part / 2; ++i) {
      const Vector<Real> a = vectors[2 * i], b = vectors[2 * i + 1];
      joint[i] = op(half_parts<Real, part>(a, b, 0, indices), half_parts<Real, part>(a, b, 1, indices));
    }
    return reduce_each<Real, part / 2>(joint, op);
  }
}

// --- exp(x) for x <= 0 (or NaN), 1 ulp near 0 -----------------------------------------------------------------------

// Results below the smallest normal number may be 0. exp(x) = 2^n exp(r), n = round(x / ln 2), r = x - n ln 2. ln 2 is
// one float: n times its rounding error changes a result near the smallest number by 3e-7 of it, and one that is large
// enough to change a sum with 1 by less than half an ulp. exp(r) = 1 + r (1 + r g(r)); g is fitted on |r| <= ln 2 / 2
// to minimise the largest relative error, 3.1e-9.
JF_INLINE Vector<float> exp_reduced(Vector<float> r) {
  Vector<float> g = broadcast(1.3813539988e-03f);
  g = g * r + 8.3687451164e-03f;
  g = g * r + 4.1668390787e-02f;
  g = g * r + 1.6666520399e-01f;
  g = g * r + 4.9999993432e-01f;
  g = g * r + 1.0f;
  return g * r + 1.0f;
}

JF_INLINE Vector<float> exp_nonpositive(Vector<float> x) {
  const float log2_e = 1.44269504f, ln_2 = 0.693147181f;
#if defined(JF_ISA_AVX512)
  // vscalefps multiplies by 2^n for any n, down to 0: fewer instructions than the way below
  const __m512 lowest = _mm512_set1_ps(-105.0f);                                    // exp of it rounds to 0
  const __m512 clamped = _mm512_maskz_max_ps(0xffff, lowest, bit_cast<__m512>(x));  // in this order a NaN stays
  const __m512 n = _mm512_maskz_roundscale_ps(0xffff, clamped * log2_e, _MM_FROUND_TO_NEAREST_INT);
  const auto exp_r = exp_reduced(bit_cast<Vector<float>>(clamped - n * ln_2));
  return bit_cast<Vector<float>>(_mm512_maskz_scalef_ps(0xffff, bit_cast<__m512>(exp_r), n));
#else
  // lowest: n = -127, whose 2^n below is 0
  const Vector<float> clamped = larger(broadcast(-88.0f), x);  // in this order a NaN stays
  // rounds by adding 1.5 * 2^23, whose low mantissa bits then hold n
  const float shift = 12582912.0f;
  const Vector<float> shifted = clamped * log2_e + shift;
  const Vector<float> n = shifted - shift;
  using Bits = typename Lanes<float>::IndexVector;
  const auto scale = bit_cast<Vector<float>>((bit_cast<Bits>(shifted) << 23) + 0x3f800000);  // 2^n
  return exp_reduced(clamped - n * ln_2) * scale;
#endif
}

// Likewise, ln 2 in two parts and exp(r) by its series, whose terms after r^13 / 13! are under 1e-17.
JF_INLINE Vector<double> exp_nonpositive(Vector<double> x) {
  const double log2_e = 1.4426950408889634, ln_2_high = 0x1.62e42fefa38p-1, ln_2_low = 0x1.ef35793c7673p-45;
  const Vector<double> clamped = larger(broadcast(-709.0), x);  // n = -1023 at the lowest
  const double shift = 6755399441055744.0;                      // 1.5 * 2^52
  const Vector<double> shifted = clamped * log2_e + shift;
  const Vector<double> n = shifted - shift;
  const Vector<double> r = (clamped - n * ln_2_high) - n * ln_2_low;
  Vector<double> series = broadcast(1.0 / 6227020800.0);
  for (const double factorial :
       {479001600.0, 39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0}) {
    series = series * r + 1.0 / factorial;
  }
  using Bits = typename Lanes<double>::IndexVector;
  return series * bit_cast<Vector<double>>((bit_cast<Bits>(shifted) << 52) + 0x3ff0000000000000);
}

// --- log(x) for normal x > 0 (or inf, NaN), 1 ulp -------------------------------------------------------------------

JF_INLINE Vector<float> logarithm(Vector<float> x) {
  using Bits = typename Lanes<float>::IndexVector;
  // x = 2^n (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)): the offset carries into the exponent from sqrt(2) on
  const Bits bits = bit_cast<Bits>(x);
  const Bits n = ((bits - 0x3f3504f3) >> 23);
  const Vector<float> f = bit_cast<Vector<float>>(bits - (n << 23)) - 1.0f;
  const Vector<float> n_float = __builtin_convertvector(n, Vector<float>);
  // log(1 + f) = f - f^2 / 2 + f^3 g(f); g is fitted to minimise the largest relative error, 5.9e-9
  Vector<float> g = broadcast(-7.6344930171e-02f);
  g = g * f + 1.2761575641e-01f;
  g = g * f - 1.3160183064e-01f;
  g = g * f + 1.4201758234e-01f;
  g = g * f - 1.6623357298e-01f;
  g = g * f + 2.0001226865e-01f;
  g = g * f - 2.5000821036e-01f;
  g = g * f + 3.3333331708e-01f;
  const Vector<float> square = f * f;
  const Vector<float> small = n_float * -2.12194440e-4f + (g * f * square - 0.5f * square);
  const Vector<float> result = n_float * 0.693359375f + (f + small);
  return x - x == Vector<float>{} ? result : x;  // inf and NaN are their own logarithms here
}

JF_INLINE Vector<double> logarithm(Vector<double> x) {
  Vector<double> result;
  for (int lane = 0; lane < Lanes<double>::count; ++lane) result[lane] = ::log(x[lane]);
  return result;
}

// --- loads: a whole vector, or n lanes of one, the others -inf (a class with probability 0) --------------------------

constexpr uint16_t kFloat16MinusInfinity = 0xfc00;
constexpr uint16_t kBfloat16MinusInfinity = 0xff80;

JF_INLINE float to_float(bfloat16 x) { return bit_cast<float>(uint32_t(x.bits) << 16); }

[[maybe_unused]] JF_INLINE float to_float(float16 x) {  // portable; subnormals by an exact multiplication
  const uint32_t sign = uint32_t(x.bits & 0x8000) << 16;
  const uint32_t magnitude = uint32_t(x.bits & 0x7fff) << 13;
  float value = bit_cast<float>(magnitude) * 0x1p112f;                               // exponent bias 15 -> 127
  if ((x.bits & 0x7c00) == 0x7c00) value = bit_cast<float>(magnitude | 0x7f800000);  // inf, NaN
  return bit_cast<float>(bit_cast<uint32_t>(value) | sign);
}

[[maybe_unused]] JF_INLINE uint16_t to_float16_bits(float x) {  // round to nearest even
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffff;
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000);
  if (magnitude > 0x7f800000) return sign | 0x7e00;   // NaN
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds to 65520 or more: inf
  if (magnitude < 0x38800000) {                       // subnormal: let the addition of 0.5 round to 2^-24 steps
    const float aligned = bit_cast<float>(magnitude) + 0.5f;
    return sign | uint16_t(bit_cast<uint32_t>(aligned) - 0x3f000000);
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return sign | uint16_t((rounded - 0x38000000) >> 13);
}

using Float16Bits = VectorOf<uint16_t, Lanes<float>::count>::type;

JF_INLINE Vector<float> widen(const bfloat16*, Float16Bits bits) {
#if defined(JF_ISA_AVX2)  // the compiler makes four instructions of the widening below
  return bit_cast<Vector<float>>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bit_cast<__m128i>(bits)), 16));
#else
  using Bits = VectorOf<uint32_t, Lanes<float>::count>::type;
  return bit_cast<Vector<float>>(__builtin_convertvector(bits, Bits) << 16);
#endif
}

JF_INLINE Vector<float> widen(const float16*, Float16Bits bits) {
#if defined(JF_ISA_AVX512)
  return bit_cast<Vector<float>>(_mm512_maskz_cvtph_ps(0xffff, bit_cast<__m256i>(bits)));
#elif defined(JF_ISA_AVX2)
  return bit_cast<Vector<float>>(_mm256_cvtph_ps(bit_cast<__m128i>(bits)));
#else
  Vector<float> result;
  for (int lane = 0; lane < Lanes<float>::count; ++lane) result[lane] = to_float(float16{bits[lane]});
  return result;
#endif
}

JF_INLINE Float16Bits narrow(const bfloat16*, Vector<float> value) {
  using Bits = VectorOf<uint32_t, Lanes<float>::count>::type;
  const Bits bits = bit_cast<Bits>(value);
  const Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest even
  return __builtin_convertvector(value == value ? rounded : (bits >> 16) | 0x40, Float16Bits);
}

JF_INLINE Float16Bits narrow(const float16*, Vector<float> value) {
#if defined(JF_ISA_AVX512)
  return bit_cast<Float16Bits>(_mm512_maskz_cvtps_ph(0xffff, bit_cast<__m512>(value), _MM_FROUND_TO_NEAREST_INT));
#elif defined(JF_ISA_AVX2)
  return bit_cast<Float16Bits>(_mm256_cvtps_ph(bit_cast<__m256>(value), _MM_FROUND_TO_NEAREST_INT));
#else
  Float16Bits result;
  for (int lane = 0; lane < Lanes<float>::count; ++lane) result[lane] = to_float16_bits(value[lane]);
  return result;
#endif
}

// Tails, n < N: by halves of a vector, halves of those, down to one element. Loading a vector from an array that was
// just written element by element would wait until all of them have reached the cache.
template <class Element, int N>
JF_INLINE typename VectorOf<Element, N>::type load_first(const Element* source, int n, Element fill) {
  using Whole = typename VectorOf<Element, N>::type;
  if constexpr (N == 2) {
    return Whole{n > 0 ? source[0] : fill, fill};
  } else {
    constexpr int half = N / 2;
    typename VectorOf<Element, half>::type low, high;
    if (n >= half) {
      std::memcpy(&low, source, sizeof(low));
      high = load_first<Element, half>(source + half, n - half, fill);
    } else {
      low = load_first<Element, half>(source, n, fill);
      high = fill - decltype(high){};
    }
    return joined<Whole>(low, high, std::make_integer_sequence<int, N>{});
  }
}

template <class Element, int N>
JF_INLINE void store_first(Element* target, typename VectorOf<Element, N>::type v, int n) {
  if constexpr (N == 2) {
    if (n > 0) target[0] = v[0];
  } else {
    constexpr int half = N / 2;
    constexpr auto indices = std::make_integer_sequence<int, half>{};
    using Half = typename VectorOf<Element, half>::type;
    const Half low = lanes_from<Half>(v, 0, indices);
    if (n >= half) {
      std::memcpy(target, &low, sizeof(low));
      store_first<Element, half>(target + half, lanes_from<Half>(v, 1, indices), n - half);
    } else {
      store_first<Element, half>(target, low, n);
    }
  }
}

JF_INLINE Vector<float> load(const float* source) {
  Vector<float> v;
  std::memcpy(&v, source, sizeof(v));
  return v;
}

JF_INLINE Vector<double> load(const double* source) {
  Vector<double> v;
  std::memcpy(&v, source, sizeof(v));
  return v;
}

JF_INLINE Vector<double> load_tail(const double* source, int n) {
  return load_first<double, Lanes<double>::count>(source, n, -std::numeric_limits<double>::infinity());
}

template <class Real>
JF_INLINE Vector<Real> load_tail_or_zeros(const Real* source, int n) {
#if defined(JF_ISA_AVX512)
  if constexpr (std::is_same_v<Real, float>) {
    return bit_cast<Vector<float>>(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1u), source));
  }
#endif
  return load_first<Real, Lanes<Real>::count>(source, n, Real(0));
}

template <class Half>
JF_INLINE Vector<float> load(const Half* source) {
  Float16Bits bits;
  std::memcpy(&bits, source, sizeof(bits));
  return widen(source, bits);
}

#if defined(JF_ISA_AVX512)

JF_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

JF_INLINE Vector<float> load_tail(const float* source, int n) {
  const __m512 fill = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  return bit_cast<Vector<float>>(_mm512_mask_loadu_ps(fill, first_lanes(n), source));
}

template <class Half>
JF_INLINE Vector<float> load_tail(const Half* source, int n) {
  constexpr uint16_t fill = std::is_same_v<Half, float16> ? kFloat16MinusInfinity : kBfloat16MinusInfinity;
  const __m256i bits = _mm256_mask_loadu_epi16(_mm256_set1_epi16(static_cast<short>(fill)), first_lanes(n), source);
  return widen(source, bit_cast<Float16Bits>(bits));
}

JF_INLINE void store_tail(float* target, Vector<float> v, int n) {
  _mm512_mask_storeu_ps(target, first_lanes(n), bit_cast<__m512>(v));
}

template <class Half>
JF_INLINE void store_tail(Half* target, Vector<float> v, int n) {
  _mm256_mask_storeu_epi16(target, first_lanes(n), bit_cast<__m256i>(narrow(target, v)));
}

#else

JF_INLINE Vector<float> load_tail(const float* source, int n) {
  return load_first<float, Lanes<float>::count>(source, n, -std::numeric_limits<float>::infinity());
}

template <class Half>
JF_INLINE Vector<float> load_tail(const Half* source, int n) {
  constexpr uint16_t fill = std::is_same_v<Half, float16> ? kFloat16MinusInfinity : kBfloat16MinusInfinity;
  return widen(source, load_first<uint16_t, Lanes<float>::count>(&source->bits, n, fill));
}

JF_INLINE void store_tail(float* target, Vector<float> v, int n) {
  store_first<float, Lanes<float>::count>(target, v, n);
}

template <class Half>
JF_INLINE void store_tail(Half* target, Vector<float> v, int n) {
  store_first<uint16_t, Lanes<float>::count>(&target->bits, narrow(target, v), n);
}

#endif

JF_INLINE void store_tail(double* target, Vector<double> v, int n) {
  store_first<double, Lanes<double>::count>(target, v, n);
}

JF_INLINE void store(float* target, Vector<float> v) { std::memcpy(target, &v, sizeof(v)); }
JF_INLINE void store(double* target, Vector<double> v) { std::memcpy(target, &v, sizeof(v)); }

template <class Half>
JF_INLINE void store(Half* target, Vector<float> v) {
  const Float16Bits bits = narrow(target, v);
  std::memcpy(target, &bits, sizeof(bits));
}

}  // namespace jocor_fast::cpu::JF_ISA
