// How the columns of a row come to the lanes of vectors; steps 1 and 3 share it. The last, partial vector is filled
// with -inf, a class of probability 0: the formulas need no tail of their own, and a row's result does not depend on
// its place in the batch.
//
// Included by one .cpp file per instruction set (see simd.h).
#pragma once

#include <array>

#include "../joint_loss.h"
#include "../joint_loss_math.h"
#include "../labels.h"
#include "simd.h"

namespace jocor_fast::cpu::JF_ISA {

// Calls body(first column, columns in this vector, whether it is whole) for the columns from `column` to `end`.
template <class Real, class Body>
JF_INLINE void for_each_vector(int64_t column, int64_t end, Body body) {
  constexpr int lanes = Lanes<Real>::count;
  for (; column + lanes <= end; column += lanes) body(column, lanes, std::true_type{});
  if (column < end) body(column, static_cast<int>(end - column), std::false_type{});
}

template <class Real, class Body>
JF_INLINE void for_each_vector(int64_t classes, Body body) {
  for_each_vector<Real>(0, classes, body);
}

// Sums over a row of what body(first column, columns, whether whole, sums) adds to the lanes of N `sums`. A long row is
// added up in parts: at 40,000 columns in one go the 4 lanes of the narrowest vectors lose 1.3e-6.
constexpr int64_t kColumnsOfPart = 4096;

template <class Real, int N, class Body>
JF_INLINE std::array<Vector<Real>, N> vector_sums_over_columns(int64_t classes, Body body) {
  std::array<Vector<Real>, N> totals = {};
  for (int64_t first = 0; first < classes; first += kColumnsOfPart) {
    Vector<Real> sums[N] = {};
    const int64_t end = classes - first < kColumnsOfPart ? classes : first + kColumnsOfPart;
    for_each_vector<Real>(
        first, end, [&](int64_t j, int n, auto whole) __attribute__((always_inline)) { body(j, n, whole, sums); });
    for (int s = 0; s < N; ++s) totals[s] += sums[s];
  }
  return totals;
}

template <class Real, int N, class Body>
JF_INLINE std::array<Real, N> sums_over_columns(int64_t classes, Body body) {
  const std::array<Vector<Real>, N> totals = vector_sums_over_columns<Real, N>(classes, body);
  std::array<Real, N> result;
  for (int s = 0; s < N; ++s) result[s] = sum_of_lanes<Real>(totals[s]);
  return result;
}

template <class Logit, class Whole>
JF_INLINE auto load_columns(const Logit* row, int64_t column, int n, Whole) {
  if constexpr (Whole::value) {
    return load(row + column);
  } else {
    return load_tail(row + column, n);
  }
}

template <class Real, class Whole>
JF_INLINE Vector<Real> load_columns_or_zeros(const Real* row, int64_t column, int n, Whole) {
  if constexpr (Whole::value) {
    return load(row + column);
  } else {
    return load_tail_or_zeros(row + column, n);
  }
}

template <class Logit, class V, class Whole>
JF_INLINE void store_columns(Logit* row, int64_t column, int n, V value, Whole) {
  if constexpr (Whole::value) {
    store(row + column, value);
  } else {
    store_tail(row + column, value, n);
  }
}

template <class Logit>
JF_INLINE RealOf<Logit> logit_at(const Logit* row, int64_t column) {
  if constexpr (std::is_same_v<Logit, float> || std::is_same_v<Logit, double>) {
    return row[column];
  } else {
    return to_float(row[column]);
  }
}

template <class Logit>
int64_t arg_max(const Logit* row, int64_t classes) {
  int64_t best = 0;
  for (int64_t column = 1; column < classes; ++column) {
    if (logit_at(row, column) > logit_at(row, best)) best = column;
  }
  return best;
}

// The largest of what value_of(first column, columns, whether whole) gives.
template <class Real, class Value>
JF_INLINE Real largest_of_columns(int64_t classes, Value value_of) {
  Vector<Real> largest = broadcast(-std::numeric_limits<Real>::infinity());
  for_each_vector<Real>(classes, [&](int64_t j, int n, auto whole) __attribute__((always_inline)) {
    largest = larger(value_of(j, n, whole), largest);
  });
  return max_of_lanes<Real>(largest);
}

template <class Logit, class Real = RealOf<Logit>>
JF_INLINE std::pair<Vector<Real>, Vector<Real>> vector_maxima(const Logit* z1, const Logit* z2, int64_t classes) {
  Vector<Real> max1 = broadcast(-std::numeric_limits<Real>::infinity()), max2 = max1;
  for_each_vector<Real>(classes, [&](int64_t j, int n, auto whole) __attribute__((always_inline)) {
    max1 = larger(load_columns(z1, j, n, whole), max1);
    max2 = larger(load_columns(z2, j, n, whole), max2);
  });
  return {max1, max2};
}

template <class Logit, class Real = RealOf<Logit>>
JF_INLINE std::pair<Real, Real> row_maxima(const Logit* z1, const Logit* z2, int64_t classes) {
  const auto maxima = vector_maxima(z1, z2, classes);
  return {max_of_lanes<Real>(maxima.first), max_of_lanes<Real>(maxima.second)};
}

// Rows are taken in blocks, and each block goes through phases: maxima, exponentials and their sums, logarithms,
// divergences. Within a phase the rows do not depend on each other: a processor works on several at once, where one row
// from start to end is one long chain (128 x 10: 1.6 times as long).
constexpr int64_t kBlockRows = 16;

// Reduces the vector of each row of a block to a number; where that is faster, of as many rows as fill whole vectors.
template <class Real, class Op>
JF_INLINE void reduce_rows(const Vector<Real>* vectors, int64_t rows, Real* results, Op op) {
  if (rows <= Lanes<Real>::count / 4) {
    for (int64_t r = 0; r < rows; ++r) results[r] = reduce<Real, Lanes<Real>::count>(vectors[r], op);
    return;
  }
  for (int64_t r = 0; r < rows; r += Lanes<Real>::count) store(results + r, reduce_each<Real>(vectors + r, op));
}

template <class Real>
JF_INLINE void sum_rows(const Vector<Real>* vectors, int64_t rows, Real* sums) {
  reduce_rows(vectors, rows, sums, [](auto a, auto b) __attribute__((always_inline)) { return a + b; });
}

template <class Real>
JF_INLINE void take_logarithms(const Real* sums, Real* logarithms) {
  for (int64_t r = 0; r < kBlockRows; r += Lanes<Real>::count) store(logarithms + r, logarithm(load(sums + r)));
}

// 1 / (the sum of a row's exponentials), computed from its logarithm, for the logarithm is what a gradient is given:
// the bits are the same wherever this is computed.
template <class Real>
JF_INLINE Vector<Real> inverse_sums(Vector<Real> log_sums) {
  return exp_nonpositive(-log_sums);
}

template <class Logit>
JF_INLINE void zero_row(Logit* gradient, int64_t classes) {
  if (gradient != nullptr) std::memset(static_cast<void*>(gradient), 0, classes * sizeof(Logit));
}

// Calls body(a null pointer of the logit type).
template <class Body>
JF_INLINE auto with_logit_type(LogitType type, Body body) {
  switch (type) {
    case LogitType::float16:
      return body(static_cast<float16*>(nullptr));
    case LogitType::bfloat16:
      return body(static_cast<bfloat16*>(nullptr));
    case LogitType::float64:
      return body(static_cast<double*>(nullptr));
    case LogitType::float32:
      break;
  }
  return body(static_cast<float*>(nullptr));
}

// Calls body(a null pointer of the logit type, whether KL is evaluated).
template <class Body>
JF_INLINE auto with_types(const LogitPair& pair, Body body) {
  return with_logit_type(pair.type, [&](auto type) {
    return pair.co_lambda != 0.0 ? body(type, std::true_type{}) : body(type, std::false_type{});
  });
}

}  // namespace jocor_fast::cpu::JF_ISA
