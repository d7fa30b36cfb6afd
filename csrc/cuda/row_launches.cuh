// From sizes and addresses to a row kernel's template arguments: the line of the mapping table and the vector width.
#pragma once

#include <cstdint>
#include <type_traits>

#include "launches.h"
#include "row_gradients.cuh"
#include "row_losses.cuh"
#include "row_mapping.h"
#include "rows_and_selection.cuh"

namespace jocor_fast::cuda {

template <int value>
using Int = std::integral_constant<int, value>;

// --- vector width ---------------------------------------------------------------------------------------------------

inline bool is_multiple(const void* address, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

// Whether every row of both matrices starts at a multiple of `bytes`.
template <class Logit>
bool rows_are_aligned(const LogitPair& pair, int64_t bytes) {
  const int64_t columns = bytes / static_cast<int64_t>(sizeof(Logit));
  const bool strides = pair.rows == 1 || (pair.row_stride1 % columns == 0 && pair.row_stride2 % columns == 0);
  return strides && is_multiple(pair.logits1, bytes) && is_multiple(pair.logits2, bytes);
}

// Calls body(columns in a vector): 16 bytes where the rows allow, else 4, with which a warp still covers 128 bytes,
// else one logit. 8 bytes lie between and are not worth a fourth kernel.
template <class Logit, class IsAligned, class Body>
cudaError_t with_vector_width(IsAligned is_aligned, Body body) {
  if (is_aligned(16)) return body(Int<16 / sizeof(Logit)>{});
  if constexpr (sizeof(Logit) < 4) {
    if (is_aligned(4)) return body(Int<4 / sizeof(Logit)>{});
  }
  return body(Int<1>{});
}

// --- mapping --------------------------------------------------------------------------------------------------------

// Whether a lane's columns are whole chunks of such logits, and fit into its registers.
template <class Logit>
constexpr bool is_mapping_of(const RowMapping& mapping) {
  return mapping.columns % kChunk<Logit> == 0 &&
         mapping.columns * static_cast<int>(sizeof(RealOf<Logit>)) <= kRegisterBytes;
}

// The line of the table for rows of this many classes, or kMappings: a block loops over each row.
template <class Logit>
int mapping_of(int64_t classes) {
  for (int i = 0; i < kMappings; ++i) {
    if (classes <= kRowMappings[i].classes_up_to && is_mapping_of<Logit>(kRowMappings[i])) return i;
  }
  return kMappings;
}

// Calls body(index) with the index as a template argument; lines for which `exists` is false are not compiled.
template <int index, class Exists, class Body>
cudaError_t with_mapping(int wanted, Exists exists, Body body) {
  if constexpr (index < kMappings) {
    if constexpr (exists(Int<index>{})) {
      if (wanted == index) return body(Int<index>{});
    }
    return with_mapping<index + 1>(wanted, exists, body);
  }
  return cudaErrorInvalidValue;
}

// --- launches -------------------------------------------------------------------------------------------------------

// Launches one of two kernels: for_registers(mapping index), or the one that loops over rows.
template <class Logit, class ForRegisters, class Looping, class Params>
cudaError_t launch_by_mapping(const Params& params, cudaStream_t stream, ForRegisters for_registers, Looping looping) {
  const LogitPair& pair = params.pair;
  const int mapping = mapping_of<Logit>(pair.classes);
  if (mapping == kMappings) return launch(looping, pair.rows, kBlockRowThreads, stream, After::everything, params);
  constexpr auto exists = [](auto i) { return is_mapping_of<Logit>(kRowMappings[decltype(i)::value]); };
  return with_mapping<0>(mapping, exists, [&](auto index) {
    constexpr RowMapping line = kRowMappings[decltype(index)::value];
    const int64_t blocks = divide_up(pair.rows, line.threads / line.lanes);
    return launch(for_registers(index), blocks, line.threads, stream, After::everything, params);
  });
}

template <class Logit>
cudaError_t launch_row_losses(const RowParams& params, cudaStream_t stream) {
  const auto aligned = [&](int64_t bytes) { return rows_are_aligned<Logit>(params.pair, bytes); };
  return with_vector_width<Logit>(aligned, [&](auto width) {
    constexpr int N = decltype(width)::value;
    const auto for_registers = [](auto index) { return row_losses_in_registers<Logit, decltype(index)::value, N>; };
    return launch_by_mapping<Logit>(params, stream, for_registers, row_losses_by_block<Logit, N>);
  });
}

template <class Logit>
bool fits_single_block(const RowParams& rows, const SelectionParams& selection) {
  const int mapping = mapping_of<Logit>(rows.pair.classes);
  if (mapping == kMappings || kRowMappings[mapping].columns > kSingleBlockColumns) return false;
  const int64_t rows_per_round = kSingleBlockThreads<RealOf<Logit>> / kRowMappings[mapping].lanes;
  return selection.rows <= kCountingRows && rows.pair.rows <= kSingleBlockRounds * rows_per_round;
}

template <class Logit>
cudaError_t launch_rows_and_selection(const RowParams& rows, const SelectionParams& selection, cudaStream_t stream) {
  const auto aligned = [&](int64_t bytes) { return rows_are_aligned<Logit>(rows.pair, bytes); };
  return with_vector_width<Logit>(aligned, [&](auto width) {
    constexpr auto exists = [](auto i) {
      constexpr RowMapping line = kRowMappings[decltype(i)::value];
      return is_mapping_of<Logit>(line) && line.columns <= kSingleBlockColumns;
    };
    return with_mapping<0>(mapping_of<Logit>(rows.pair.classes), exists, [&](auto index) {
      const int64_t lanes = rows.pair.rows * kRowMappings[decltype(index)::value].lanes;
      return launch(rows_and_selection_by_block<Logit, decltype(index)::value, decltype(width)::value>, 1,
                    threads_in_whole_warps(lanes, kSingleBlockThreads<RealOf<Logit>>), stream, After::everything, rows,
                    selection);
    });
  });
}

template <class Logit>
cudaError_t launch_row_gradients(const GradientParams& params, cudaStream_t stream) {
  const auto aligned = [&](int64_t bytes) {  // a row of a gradient has no gap behind it
    const bool whole = params.pair.classes % (bytes / static_cast<int64_t>(sizeof(Logit))) == 0;
    return whole && rows_are_aligned<Logit>(params.pair, bytes) && is_multiple(params.grad1, bytes) &&
           is_multiple(params.grad2, bytes);
  };
  return with_vector_width<Logit>(aligned, [&](auto width) {
    constexpr int N = decltype(width)::value;
    const auto for_registers = [](auto index) { return row_gradients_in_registers<Logit, decltype(index)::value, N>; };
    return launch_by_mapping<Logit>(params, stream, for_registers, row_gradients_by_block<Logit, N>);
  });
}

#define JF_COMPILE_ROW_KERNELS(Logit)                                                                            \
  template cudaError_t launch_row_losses<Logit>(const RowParams&, cudaStream_t);                                 \
  template bool fits_single_block<Logit>(const RowParams&, const SelectionParams&);                              \
  template cudaError_t launch_rows_and_selection<Logit>(const RowParams&, const SelectionParams&, cudaStream_t); \
  template cudaError_t launch_row_gradients<Logit>(const GradientParams&, cudaStream_t)

}  // namespace jocor_fast::cuda
