// The kernels of ../sparse_linear.h.
//
// Included by one .cpp file per instruction set (see simd.h).
#pragma once

#include "../sparse_linear.h"
#include "simd.h"

namespace jocor_fast::cpu::JF_ISA {

constexpr int kLanes = Lanes<float>::count;
// Accumulators of a tile: half of the registers, or three quarters of AVX-512's thirty-two at 256 outputs.
constexpr int kTileVectors = JF_VECTOR_BYTES == 64 ? 16 : 8;

// Calls tile(number of vectors, first column) for columns 0 … width − 1.
template <class Tile>
JF_INLINE void for_each_tile(int64_t width, const Tile& tile) {
  int64_t j = 0;
  for (; j + kTileVectors * kLanes <= width; j += kTileVectors * kLanes) {
    tile(std::integral_constant<int, kTileVectors>{}, j);
  }
  for (; j < width; j += kWidthUnit) tile(std::integral_constant<int, kWidthUnit / kLanes>{}, j);
}

// target = first + sum of values[e] * (rows + indices[e] * width), in the order of the entries.
JF_INLINE void weighted_sum(const float* first, const float* rows, int64_t width, const int32_t* indices,
                            const float* values, int64_t begin, int64_t end, float* target) {
  for_each_tile(width, [&](auto vectors, int64_t j) __attribute__((always_inline)) {
    Vector<float> sums[vectors];
    for (int v = 0; v < vectors; ++v) sums[v] = first == nullptr ? Vector<float>{} : load(first + j + v * kLanes);
    for (int64_t e = begin; e < end; ++e) {
      const float* row = rows + indices[e] * width + j;
      const Vector<float> value = broadcast(values[e]);
      for (int v = 0; v < vectors; ++v) sums[v] += value * load(row + v * kLanes);
    }
    for (int v = 0; v < vectors; ++v) store(target + j + v * kLanes, sums[v]);
  });
}

inline void sparse_linear(const SparseLinearParams& params, int64_t begin, int64_t end) {
  const SparseRows& input = params.input;
  for (int64_t i = begin; i < end; ++i) {
    weighted_sum(params.bias, params.weight, params.width, input.columns, input.values, input.starts[i],
                 input.starts[i + 1], params.outputs + i * params.width);
  }
}

inline void sparse_gradients(const SparseGradientParams& params, int64_t begin, int64_t end) {
  for (int64_t u = begin; u < end; ++u) {
    weighted_sum(nullptr, params.grad, params.width, params.rows, params.values, params.starts[u], params.starts[u + 1],
                 params.gradients + u * params.width);
  }
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

// Step after step, each rounded to float32: the same bits however often a row is caught up on the way. What is less
// than 1e-8 of the first update is left out: by float32 the others do not change by it.
inline void sparse_adam_catch_up(const SparseAdamParams& params, int64_t row) {
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
      for (int64_t j = 0; j < params.width; j += kWidthUnit) {
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
  params.current[row] = params.step;
}

inline void sparse_adam_step(const SparseAdamParams& params, int64_t row, const float* gradient) {
  const AdamStep& step = params.steps[params.step - 1];
  double decay1 = 1;
  for (int32_t s = params.seen[row] + 1; s <= params.step && decay1 > 0; ++s) decay1 *= params.steps[s - 1].beta1;
  const float keep1 = static_cast<float>(decay1), add1 = static_cast<float>(1 - step.beta1);
  const float keep2 = static_cast<float>(std::pow(params.beta2, params.step - params.seen[row]));
  const float add2 = static_cast<float>(1 - params.beta2);
  const float rate = static_cast<float>(step.rate), root = static_cast<float>(step.root);
  float* p = params.parameters + row * params.width;
  float* m = params.moments + row * params.width;
  float* squares = params.squares + row * params.width;
  for (int64_t j = 0; j < params.width; j += kLanes) {
    const Vector<float> g = load(gradient + j);
    const Vector<float> moment = load(m + j) * keep1 + g * add1;
    const Vector<float> square = load(squares + j) * keep2 + g * g * add2;
    store(m + j, moment);
    store(squares + j, square);
    store(p + j, load(p + j) - moment * rate / (square_root(square) * root + params.epsilon));
  }
  params.seen[row] = params.current[row] = params.step;
}

}  // namespace jocor_fast::cpu::JF_ISA
