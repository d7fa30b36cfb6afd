// From sizes and addresses to a row kernel's template arguments: the line of the mapping table and the vector width.
#pragma once

#include <algorithm>
#include <cstdint>

#include "launches.h"
#include "robust_loss.cuh"
#include "row_gradients.cuh"
#include "row_losses.cuh"
#include "row_mapping.h"
#include "rows_and_selection.cuh"

namespace jocor_fast::cuda {

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

template <class Logit>
bool rows_are_aligned(const Logits& logits, int64_t bytes) {
  const int64_t columns = bytes / static_cast<int64_t>(sizeof(Logit));
  return (logits.rows == 1 || logits.row_stride % columns == 0) && is_multiple(logits.logits, bytes);
}

// Calls body<columns in a vector>(): 16 bytes where the rows allow, else 4, with which a warp still covers 128 bytes,
// else one logit. 8 bytes lie between and are not worth a fourth kernel.
template <class Logit, class IsAligned, class Body>
cudaError_t with_vector_width(IsAligned is_aligned, Body body) {
  if (is_aligned(16)) return body.template operator()<16 / sizeof(Logit)>();
  if constexpr (sizeof(Logit) < 4) {
    if (is_aligned(4)) return body.template operator()<4 / sizeof(Logit)>();
  }
  return body.template operator()<1>();
}

// --- mapping --------------------------------------------------------------------------------------------------------

// Columns of one network that a lane's registers hold.
template <class Logit>
constexpr int kMostColumns = kRegisterBytes / sizeof(RealOf<Logit>);

// Whether a line of the table serves this type: a lane's columns are whole chunks, and no more than most_columns.
template <class Logit>
constexpr bool is_mapping_of(const RowMapping& mapping, int most_columns = kMostColumns<Logit>) {
  return mapping.columns % kChunk<Logit> == 0 && mapping.columns <= most_columns;
}

// The line of the table for rows of this many classes, or kMappings: a block loops over each row.
template <class Logit>
int mapping_of(int64_t classes) {
  for (int i = 0; i < kMappings; ++i) {
    if (classes <= kRowMappings[i].classes_up_to && is_mapping_of<Logit>(kRowMappings[i])) return i;
  }
  return kMappings;
}

// Calls body<index>() with the index of a line of at most so many columns; the other lines are not compiled.
template <class Logit, int most_columns, int index = 0, class Body>
cudaError_t with_mapping(int wanted, Body body) {
  if constexpr (index < kMappings) {
    if constexpr (is_mapping_of<Logit>(kRowMappings[index], most_columns)) {
      if (wanted == index) return body.template operator()<index>();
    }
    return with_mapping<Logit, most_columns, index + 1>(wanted, body);
  }
  return cudaErrorInvalidValue;
}

// --- launches -------------------------------------------------------------------------------------------------------

// Launches for_registers<index>(), the kernel of a line of the table, or the one that loops over rows.
template <class Logit, class ForRegisters, class Looping, class Params>
cudaError_t launch_by_mapping(const LabelledRows& rows, const Params& params, cudaStream_t stream,
                              ForRegisters for_registers, Looping looping) {
  const int mapping = mapping_of<Logit>(rows.classes);
  if (mapping == kMappings) return launch(looping, {rows.rows, kBlockRowThreads}, stream, After::everything, params);
  return with_mapping<Logit, kMostColumns<Logit>>(mapping, [&]<int index>() {
    constexpr RowMapping line = kRowMappings[index];
    const int64_t blocks = divide_up(rows.rows, line.threads / line.lanes);
    return launch(for_registers.template operator()<index>(), {blocks, line.threads}, stream, After::everything,
                  params);
  });
}

template <class Logit>
cudaError_t launch_row_losses(const RowParams& params, cudaStream_t stream) {
  const auto aligned = [&](int64_t bytes) { return rows_are_aligned<Logit>(params.pair, bytes); };
  return with_vector_width<Logit>(aligned, [&]<int N>() {
    const auto for_registers = [&]<int index>() { return row_losses_in_registers<Logit, index, N>; };
    return launch_by_mapping<Logit>(params.pair, params, stream, for_registers, row_losses_by_block<Logit, N>);
  });
}

template <class Logit>
bool fits_single_block(const LogitPair& pair) {
  const int mapping = mapping_of<Logit>(pair.classes);
  if (mapping == kMappings || !is_mapping_of<Logit>(kRowMappings[mapping], kSingleBlockColumns)) return false;
  const int64_t rows_per_round = kSingleBlockThreads<RealOf<Logit>> / kRowMappings[mapping].lanes;
  return pair.rows <= std::min(kCountingRows, kSingleBlockRounds * rows_per_round);
}

template <class Logit>
cudaError_t launch_rows_and_selection(const RowParams& rows, const SelectionParams& selection, cudaStream_t stream) {
  const auto aligned = [&](int64_t bytes) { return rows_are_aligned<Logit>(rows.pair, bytes); };
  return with_vector_width<Logit>(aligned, [&]<int N>() {
    return with_mapping<Logit, kSingleBlockColumns>(mapping_of<Logit>(rows.pair.classes), [&]<int index>() {
      const int64_t lanes = rows.pair.rows * kRowMappings[index].lanes;
      const int threads = threads_in_whole_warps(lanes, kSingleBlockThreads<RealOf<Logit>>);
      return launch(rows_and_selection_by_block<Logit, index, N>, {1, threads}, stream, After::everything, rows,
                    selection);
    });
  });
}

template <class Logit>
cudaError_t launch_row_gradients(const GradientParams& params, cudaStream_t stream) {
  const auto aligned = [&](int64_t bytes) {  // gradients have no gaps: the vector's width must divide a row
    const bool whole = params.pair.classes % (bytes / static_cast<int64_t>(sizeof(Logit))) == 0;
    return whole && rows_are_aligned<Logit>(params.pair, bytes) && is_multiple(params.grad1, bytes) &&
           is_multiple(params.grad2, bytes);
  };
  return with_vector_width<Logit>(aligned, [&]<int N>() {
    const auto for_registers = [&]<int index>() { return row_gradients_in_registers<Logit, index, N>; };
    return launch_by_mapping<Logit>(params.pair, params, stream, for_registers, row_gradients_by_block<Logit, N>);
  });
}

template <class Logit>
cudaError_t launch_robust_losses(const RobustRowParams& params, cudaStream_t stream) {
  const auto aligned = [&](int64_t bytes) { return rows_are_aligned<Logit>(params.logits, bytes); };
  return with_vector_width<Logit>(aligned, [&]<int N>() {
    const auto for_registers = [&]<int index>() { return robust_losses_in_registers<Logit, index, N>; };
    return launch_by_mapping<Logit>(params.logits, params, stream, for_registers, robust_losses_by_block<Logit, N>);
  });
}

template <class Logit>
cudaError_t launch_robust_gradients(const RobustGradientParams& params, cudaStream_t stream) {
  const auto aligned = [&](int64_t bytes) {
    const bool whole = params.logits.classes % (bytes / static_cast<int64_t>(sizeof(Logit))) == 0;
    return whole && rows_are_aligned<Logit>(params.logits, bytes) && is_multiple(params.grad, bytes);
  };
  return with_vector_width<Logit>(aligned, [&]<int N>() {
    const auto for_registers = [&]<int index>() { return robust_gradients_in_registers<Logit, index, N>; };
    return launch_by_mapping<Logit>(params.logits, params, stream, for_registers, robust_gradients_by_block<Logit, N>);
  });
}

#define JF_COMPILE_ROW_KERNELS(Logit)                                                                            \
  template cudaError_t launch_row_losses<Logit>(const RowParams&, cudaStream_t);                                 \
  template bool fits_single_block<Logit>(const LogitPair&);                                                      \
  template cudaError_t launch_rows_and_selection<Logit>(const RowParams&, const SelectionParams&, cudaStream_t); \
  template cudaError_t launch_row_gradients<Logit>(const GradientParams&, cudaStream_t);                         \
  template cudaError_t launch_robust_losses<Logit>(const RobustRowParams&, cudaStream_t);                        \
  template cudaError_t launch_robust_gradients<Logit>(const RobustGradientParams&, cudaStream_t)

}  // namespace jocor_fast::cuda
