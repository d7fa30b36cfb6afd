// Stands in for the toolkit's header of this name.
#pragma once

#include <cstdint>
#include <cstring>

struct __half {
  _Float16 value;
};

inline float __half2float(__half half) { return static_cast<float>(half.value); }
inline __half __float2half_rn(float value) { return {static_cast<_Float16>(value)}; }
