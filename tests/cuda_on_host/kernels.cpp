// The three steps of csrc/cuda, compiled for the host, as C functions for ctypes.
#include <cuda_runtime.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "cuda/linked_launch.cuh"
#include "joint_loss.h"

using namespace jocor_fast;

extern "C" {

const char* kernels_row_losses(const RowParams* params) { return cuda::row_losses(*params, nullptr); }

const char* kernels_select_small_loss(const SelectionParams* params) {
  return cuda::select_small_loss(*params, nullptr);
}

const char* kernels_row_losses_and_selection(const RowParams* rows, const SelectionParams* selection) {
  const size_t real = rows->pair.type == LogitType::float64 ? sizeof(double) : sizeof(float), count = rows->pair.rows;
  cuda_on_host::written_before = {{rows->per_sample, count * real}, {rows->row_state, count}};
  const char* error = cuda::row_losses_and_selection(*rows, *selection, nullptr);
  cuda_on_host::written_before.clear();
  return error;
}

const char* kernels_row_gradients(const GradientParams* params) { return cuda::row_gradients(*params, nullptr); }

const char* kernels_robust_losses(const RobustRowParams* params) { return cuda::robust_losses(*params, nullptr); }

const char* kernels_robust_losses_and_selection(const RobustRowParams* rows, const SelectionParams* selection) {
  const size_t real = rows->logits.type == LogitType::float64 ? sizeof(double) : sizeof(float);
  const size_t count = rows->logits.rows;
  cuda_on_host::written_before = {{rows->per_sample, count * real}, {rows->row_state, count}};
  const char* error = cuda::robust_losses_and_selection(*rows, *selection, nullptr);
  cuda_on_host::written_before.clear();
  return error;
}

const char* kernels_robust_gradients(const RobustGradientParams* params) {
  return cuda::robust_gradients(*params, nullptr);
}

void kernels_set_order(bool descending) { cuda_on_host::settings.descending = descending; }

void kernels_set_limits(unsigned most_threads, unsigned most_blocks) {
  cuda_on_host::settings.most_threads = most_threads;
  cuda_on_host::settings.most_blocks = most_blocks;
}

// A line for each launch since the last call: kernel, blocks, threads, whether it was linked to the one before, and
// whether it was one cluster.
const char* kernels_take_launches() {
  static std::string text;
  text.clear();
  for (const cuda_on_host::Launch& launch : cuda_on_host::launches) {
    Dl_info info{};
    dladdr(launch.kernel, &info);
    char* name = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, nullptr);
    text += std::string(name != nullptr ? name : "?") + "\t" + std::to_string(launch.blocks) + "\t" +
            std::to_string(launch.threads) + "\t" + (launch.linked ? "linked" : "alone") + "\t" +
            (launch.cluster ? "cluster" : "blocks") + "\n";
    std::free(name);
  }
  cuda_on_host::launches.clear();
  return text.c_str();
}

void kernels_refuse_questions() { cuda_on_host::settings.refuses_questions = true; }

void kernels_ask(const int* outcomes, int count, bool* answers) {
  cuda::PerDevice known;
  for (int i = 0; i < count; ++i) {
    answers[i] = known([&](bool& yes) {
      yes = outcomes[i] != 0;
      return outcomes[i] < 0 ? cudaErrorInvalidValue : cudaSuccess;
    });
  }
}

// For the Python side to notice that its view of the structs is not theirs.
size_t kernels_size_of_parameters(int step) {
  constexpr size_t sizes[] = {sizeof(RowParams), sizeof(SelectionParams), sizeof(GradientParams),
                              sizeof(RobustRowParams), sizeof(RobustGradientParams)};
  return sizes[step];
}
}
