// The vocabulary of the row kernels: the four logit types, the type they are computed in, and columns read and written
// 16, 4 or fewer bytes at a time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace jocor_fast::cuda {

// "Real": the type in which a logit type is computed.
template <class Logit>
using RealOf = std::conditional_t<std::is_same_v<Logit, double>, double, float>;

__device__ __forceinline__ float to_real(float value) { return value; }
__device__ __forceinline__ double to_real(double value) { return value; }
__device__ __forceinline__ float to_real(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_real(__nv_bfloat16 value) { return __bfloat162float(value); }

__device__ __forceinline__ void from_real(float value, float& logit) { logit = value; }
__device__ __forceinline__ void from_real(double value, double& logit) { logit = value; }
__device__ __forceinline__ void from_real(float value, __half& logit) { logit = __float2half_rn(value); }
__device__ __forceinline__ void from_real(float value, __nv_bfloat16& logit) { logit = __float2bfloat16_rn(value); }

__device__ __forceinline__ float minus_infinity(float) { return -__int_as_float(0x7f800000); }
__device__ __forceinline__ double minus_infinity(double) { return -__longlong_as_double(0x7ff0000000000000); }
template <class Real>
__device__ __forceinline__ Real minus_infinity() {
  return minus_infinity(Real{});
}

// exp(x) for x <= 0, as 2^(x log2 e): near 0 it is as good as expf. Where the rounding of the product shows (for a
// result of 1e-30 in the sixth digit) the result adds nothing to a loss or a gradient. Results below the smallest
// normal number are 0, as the CPU's may be (simd.h); exp2f, which scales its argument and its result to keep them,
// takes three instructions more.
__device__ __forceinline__ float exponential(float x) {
#ifdef __CUDACC__
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
  return power;
#else
  const float power = exp2f(x * 1.44269504f);
  return power < 0x1p-126f ? 0.0f : power;
#endif
}
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float logarithm(float x) { return logf(x); }
__device__ __forceinline__ double logarithm(double x) { return log(x); }
__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }    // a NaN is dropped: the sum of
__device__ __forceinline__ double larger(double a, double b) { return fmax(a, b); }  // exponentials meets it again
template <class Whole>
__device__ __forceinline__ Whole larger(Whole a, Whole b) {
  return a < b ? b : a;
}

// The integer type that moves `bytes` in one instruction.
template <int bytes>
struct Chunk;
template <>
struct Chunk<16> {
  using type = uint4;
};
template <>
struct Chunk<8> {
  using type = uint2;
};
template <>
struct Chunk<4> {
  using type = uint32_t;
};
template <>
struct Chunk<2> {
  using type = uint16_t;
};

// N neighbouring columns in one load. The address must be a multiple of their size.
template <int N, class Logit>
__device__ __forceinline__ void load_columns(const Logit* source, RealOf<Logit>* values) {
  using Raw = typename Chunk<N * sizeof(Logit)>::type;
  const Raw raw = *reinterpret_cast<const Raw*>(source);
  Logit logits[N];
  memcpy(logits, &raw, sizeof(raw));
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = to_real(logits[i]);
}

// The same where the row ends within the N columns: those past its end become -inf, a class of probability 0.
template <int N, class Logit>
__device__ __forceinline__ void load_last_columns(const Logit* source, int64_t left, RealOf<Logit>* values) {
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = i < left ? to_real(source[i]) : minus_infinity<RealOf<Logit>>();
}

template <int N, class Logit>
__device__ __forceinline__ void store_columns(Logit* target, const RealOf<Logit>* values) {
  using Raw = typename Chunk<N * sizeof(Logit)>::type;
  Logit logits[N];
#pragma unroll
  for (int i = 0; i < N; ++i) from_real(values[i], logits[i]);
  Raw raw;
  memcpy(&raw, logits, sizeof(raw));
  *reinterpret_cast<Raw*>(target) = raw;
}

template <int N, class Logit>
__device__ __forceinline__ void store_zeros(Logit* target) {
  *reinterpret_cast<typename Chunk<N * sizeof(Logit)>::type*>(target) = {};
}

}  // namespace jocor_fast::cuda
