// The kernels of ../sparse_linear.h.
//
// Included by one .cpp file per instruction set (see simd.h).
#pragma once

#include "../sparse_linear.h"
#include "simd.h"

namespace jocor_fast::cpu::JF_ISA {

constexpr int kLanes = Lanes<float>::count;

// Calls tile(number of vectors, first column) for the columns j … last − 1: kTileVectors vectors at a time, which are
// summed in registers, then fewer for the columns that remain.
template <int kTileVectors, class Tile>
JF_INLINE void for_each_tile(int64_t j, int64_t last, const Tile& tile) {
  static_assert(kTileVectors * kLanes % kWidthUnit == 0, "columns would be left out");
  for (; j + kTileVectors * kLanes <= last; j += kTileVectors * kLanes) {
    tile(std::integral_constant<int, kTileVectors>{}, j);
  }
  constexpr bool kHalves = kTileVectors % 2 == 0 && kTileVectors / 2 * kLanes % kWidthUnit == 0;
  constexpr int kNext = kHalves ? kTileVectors / 2 : kWidthUnit / kLanes;
  if constexpr (kNext < kTileVectors) for_each_tile<kNext>(j, last, tile);
}

// sums += sum of values[e] * (rows + indices[e] * width) in columns j …, in the order of the entries.
template <int vectors>
JF_INLINE void add_weighted(Vector<float> (&sums)[vectors], const float* rows, int64_t width, const int32_t* indices,
                            const float* values, int64_t begin, int64_t end, int64_t j) {
  for (int64_t e = begin; e < end; ++e) {
    const float* row = rows + indices[e] * width + j;
    const Vector<float> value = broadcast(values[e]);
    for (int v = 0; v < vectors; ++v) sums[v] += value * load(row + v * kLanes);
  }
}

// A tile of several rows at once: while one waits, another computes.
template <int vectors, int rows>
JF_INLINE void linear_tile(const SparseLinearParams& params, int64_t i, int64_t j) {
  const SparseRows& input = params.input;
  const float* weight = params.weight + j;
  const int64_t width = params.width;
  Vector<float> sums[rows][vectors];
  int64_t together = input.starts[i + 1] - input.starts[i];
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) sums[r][v] = load(params.bias + j + v * kLanes);
    const int64_t length = input.starts[i + r + 1] - input.starts[i + r];
    together = length < together ? length : together;
  }
  for (int64_t e = 0; e < together; ++e) {
    for (int r = 0; r < rows; ++r) {
      const int64_t entry = input.starts[i + r] + e;
      const float* row = weight + input.columns[entry] * width;
      const Vector<float> value = broadcast(input.values[entry]);
      for (int v = 0; v < vectors; ++v) sums[r][v] += value * load(row + v * kLanes);
    }
  }
  for (int r = 0; r < rows; ++r) {
    add_weighted(sums[r], params.weight, width, input.columns, input.values, input.starts[i + r] + together,
                 input.starts[i + r + 1], j);
    for (int v = 0; v < vectors; ++v) store(params.outputs + (i + r) * width + j + v * kLanes, sums[r][v]);
  }
}

// Tile by tile, several rows at once, where a tile of the weight stays in the cache; else row by row, and each row of
// the weight is read whole, or as much of it as half of the registers can sum. The sums are the same.
inline void sparse_linear(const SparseLinearParams& params, const Share& share) {
  constexpr int kNarrow = kTileWidth / kLanes, kRows = JF_VECTOR_BYTES == 64 ? 4 : 2,
                kWide = JF_VECTOR_BYTES == 64 ? 16 : 8;
  if (tile_stays_in_cache(params.inputs)) {
    for_each_tile<kNarrow>(share.first, share.last, [&](auto vectors, int64_t j) __attribute__((always_inline)) {
      int64_t i = share.begin;
      for (; i + kRows <= share.end; i += kRows) linear_tile<vectors, kRows>(params, i, j);
      for (; i < share.end; ++i) linear_tile<vectors, 1>(params, i, j);
    });
  } else {
    for (int64_t i = share.begin; i < share.end; ++i) {
      for_each_tile<kWide>(share.first, share.last, [&](auto vectors, int64_t j) __attribute__((always_inline)) {
        linear_tile<vectors, 1>(params, i, j);
      });
    }
  }
}

// Every group reads rows of `grad`, of which there is one for each row of the batch: a tile of them stays in the L1
// cache.
constexpr int kGradientVectors = kTileWidth / kLanes * (JF_VECTOR_BYTES == 64 ? 2 : 1);

template <int vectors>
JF_INLINE void gradient_tile(const SparseGradientParams& params, int64_t u, int64_t j, Vector<float> (&sums)[vectors]) {
  for (int v = 0; v < vectors; ++v) sums[v] = Vector<float>{};
  add_weighted(sums, params.grad, params.width, params.rows, params.values, params.starts[u], params.starts[u + 1], j);
}

inline void sparse_gradients(const SparseGradientParams& params, const Share& share) {
  for_each_tile<kGradientVectors>(share.first, share.last, [&](auto vectors, int64_t j) __attribute__((always_inline)) {
    for (int64_t u = share.begin; u < share.end; ++u) {
      Vector<float> sums[vectors];
      gradient_tile<vectors>(params, u, j, sums);
      for (int v = 0; v < vectors; ++v) store(params.gradients + u * params.width + j + v * kLanes, sums[v]);
    }
  });
}

JF_INLINE Vector<float> square_root(Vector<float> x) {
#if defined(JF_ISA_AVX512)
  return bit_cast<Vector<float>>(_mm512_maskz_sqrt_ps(0xffff, bit_cast<__m512>(x)));
#elif defined(JF_ISA_AVX2)
  return bit_cast<Vector<float>>(_mm256_sqrt_ps(bit_cast<__m256>(x)));
#else
  for (int lane = 0; lane < kLanes; ++lane) x[lane] = std::sqrt(x[lane]);
  return x;
#endif
}

// The updates are made one after the other, each rounded to float32: the bits do not depend on how often a row is
// caught up in between. Updates below 1e-8 of the first are left out: added in float32 they would not change the sum of
// the others.
inline void row_catch_up(const SparseAdamParams& params, int64_t row, int64_t first, int64_t last) {
  constexpr int kSteps = 128;  // at a time
  constexpr double kNegligible = 1e-8;
  const int32_t seen = params.seen[row];
  if (seen > 0 && params.current[row] < params.step) {
    float* p = params.parameters + row * params.width;
    const float* m = params.moments + row * params.width;
    const float* squares = params.squares + row * params.width;
    const double root_beta2 = std::sqrt(params.beta2);
    double decay1 = 1, decay2 = 1;
    int32_t s = seen + 1;
    while (s <= params.step && decay1 >= kNegligible * decay2) {
      float rate[kSteps], root[kSteps];
      int steps = 0;
      for (; steps < kSteps && s <= params.step && decay1 >= kNegligible * decay2; ++s) {
        const AdamStep& step = params.steps[s - 1];
        decay1 *= step.beta1;
        decay2 *= root_beta2;
        if (s <= params.current[row]) continue;
        rate[steps] = static_cast<float>(step.rate * decay1);
        root[steps] = static_cast<float>(step.root * decay2);
        ++steps;
      }
      constexpr int vectors = kWidthUnit / kLanes;
      for (int64_t j = first; j < last; j += kWidthUnit) {
        Vector<float> parameter[vectors], moment[vectors], deviation[vectors];
        for (int v = 0; v < vectors; ++v) {
          parameter[v] = load(p + j + v * kLanes);
          moment[v] = load(m + j + v * kLanes);
          deviation[v] = square_root(load(squares + j + v * kLanes));
        }
        for (int k = 0; k < steps; ++k) {
          for (int v = 0; v < vectors; ++v) {
            parameter[v] -= moment[v] * rate[k] / (deviation[v] * root[k] + params.epsilon);
          }
        }
        for (int v = 0; v < vectors; ++v) store(p + j + v * kLanes, parameter[v]);
      }
    }
  }
}

inline void sparse_adam_catch_up(const SparseAdamParams& params, const int32_t* rows, const Share& share) {
  for (int64_t i = share.begin; i < share.end; ++i) row_catch_up(params, rows[i], share.first, share.last);
}

inline void sparse_adam_step(const SparseAdamParams& params, const SparseGradientParams& gradient,
                             const int32_t* columns, const Share& share) {
  constexpr int kGroups = 512;  // at a time
  const AdamStep& step = params.steps[params.step - 1];
  const float add1 = static_cast<float>(1 - step.beta1), add2 = static_cast<float>(1 - params.beta2);
  const float rate = static_cast<float>(step.rate), root = static_cast<float>(step.root);
  const int64_t width = params.width;
  for (int64_t first = share.begin; first < share.end; first += kGroups) {
    const int64_t last = share.end - first < kGroups ? share.end : first + kGroups;
    float keep1[kGroups], keep2[kGroups];  // the parts of the moments that remain since the row's last gradient
    for (int64_t u = first; u < last; ++u) {
      const int32_t seen = params.seen[columns[u]];
      double decay1 = 1, decay2 = params.beta2;
      for (int32_t s = seen + 1; s <= params.step && decay1 > 0; ++s) decay1 *= params.steps[s - 1].beta1;
      if (seen + 1 < params.step) decay2 = std::pow(params.beta2, params.step - seen);
      keep1[u - first] = static_cast<float>(decay1);
      keep2[u - first] = static_cast<float>(decay2);
    }
    for_each_tile<kGradientVectors>(
        share.first, share.last, [&](auto vectors, int64_t j) __attribute__((always_inline)) {
          for (int64_t u = first; u < last; ++u) {
            Vector<float> g[vectors];
            gradient_tile<vectors>(gradient, u, j, g);
            const int64_t at = columns[u] * width + j;
            float *p = params.parameters + at, *m = params.moments + at, *squares = params.squares + at;
            for (int v = 0; v < vectors; ++v) {
              const Vector<float> moment = load(m + v * kLanes) * keep1[u - first] + g[v] * add1;
              const Vector<float> square = load(squares + v * kLanes) * keep2[u - first] + g[v] * g[v] * add2;
              store(m + v * kLanes, moment);
              store(squares + v * kLanes, square);
              store(p + v * kLanes,
                    load(p + v * kLanes) - moment * rate / (square_root(square) * root + params.epsilon));
            }
          }
        });
  }
}

}  // namespace jocor_fast::cpu::JF_ISA
