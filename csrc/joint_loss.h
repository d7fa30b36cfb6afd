// What the kernels take: pointers, int64 strides and sizes. No torch. ops.cpp fills these structs; cpu/ and cuda/ hold
// one implementation each of the three steps: rows -> selection -> gradient.
//
// A loss that ranks rows and trains two networks on chosen ones is a setting of these structs, not a kernel: JoCoR
// ranks by the joint loss; Co-teaching (lambda = 0) ranks each network by its own cross-entropy and exchanges the
// masks; Decoupling (lambda = 0) keeps every row on which the predictions differ.
#pragma once

#include <cstdint>
#include <vector>

#include "joint_loss_math.h"

namespace jocor_fast {

enum class LogitType { float16, bfloat16, float32, float64 };
enum class LabelType { uint8, int8, uint16, int16, uint32, int32, uint64, int64 };

// Rows that have a label each.
struct LabelledRows {
  int64_t rows;
  int64_t classes;
  LabelType label_type;
  const void* labels;
  int64_t label_stride;
  bool has_ignore_index;
  int64_t ignore_index;
};

// Two logit matrices [rows, classes] with contiguous columns and any row stride, and their labels [rows].
// Losses and statistics are float32, for float64 logits float64: "real" below.
struct LogitPair : LabelledRows, JointLossSettings {
  LogitType type;
  const void* logits1;
  const void* logits2;
  int64_t row_stride1;
  int64_t row_stride2;
};

// What a row is to the selection. A bool tensor of eligible rows is read by the same rule: nonzero is eligible.
enum RowState : uint8_t {
  kIneligible = 0,                    // its label is ignore_index
  kEligible = 1,                      // it is not
  kEligibleAndPredictionsDiffer = 2,  // and, where asked, the arg-maxes of z1 and z2 differ (the lowest on ties)
  kEligibleAndInSieve = 2,            // of a robust loss: and, where asked, in its sieve, or its loss is not finite
};

// What turns a row's exponentials, exp(z - max), into probabilities. Kept on the CPU where the gradient is computed
// right after the loss.
template <class Real>
struct alignas(4 * sizeof(Real)) KeptRow {
  Real max1, max2;
  Real scale1, scale2;  // exp(-log_sum)
};

// Step 1, every row: the loss and what the gradient needs again. A label outside [0, classes) that is not ignored
// makes the row's loss NaN.
struct RowParams {
  LogitPair pair;
  void* per_sample;          // real [rows]: joint loss; 0 for ignored rows
  void* statistics;          // RowStatistics<real> [rows]
  void* cross_entropy1;      // real [rows], or null
  void* cross_entropy2;      // real [rows], or null
  uint8_t* row_state;        // RowState [rows], or null
  bool compare_predictions;  // row_state tells whether the arg-maxes differ
  // For a gradient that is computed next, which then need not compute the exponentials again; all three or none. On the
  // CPU, for float32 and float64 logits.
  void* exponentials1;  // real [rows, classes], contiguous
  void* exponentials2;
  void* kept_rows;  // KeptRow<real> [rows]
};

// Which eligible rows are candidates, by whether the two predictions differ.
enum class Disagreement : uint8_t {
  ignored,    // all of them
  preferred,  // those that differ; where none do, all (Co-teaching+)
  required,   // those that differ (Decoupling)
};

// Step 2: the k rows with the smallest finite losses; ties go to the lower row; -0 equals +0.
struct SelectionParams {
  bool is_double;  // type of `losses`, `also_finite`, `mean_of`, `mean_offset` and `mean`
  int64_t rows;
  const void* losses;         // ranks the rows
  const void* also_finite;    // or null: rows where this is not finite are not chosen either
  const uint8_t* row_state;   // or null: all eligible. May be `selected` itself, which is written last
  Disagreement disagreement;  // null row_state: ignored
  // k: exactly one of four
  const int64_t* num_keep_pointer;    // on the device, or null
  int64_t num_keep;                   // >= 0, or -1: by the forget rate
  const double* forget_rate_pointer;  // on the device, or null
  double forget_rate;                 // of the candidates, counted here
  bool round_down;                    // the k of a forget rate
  uint8_t* selected;                  // bool [rows]
  int64_t* num_selected;              // or null
  int64_t* num_nonfinite;             // or null: eligible rows with a loss that is not finite
  const void* mean_of;                // or null
  const void* mean_offset;            // or null: a number that is added to the mean; may be `mean` itself
  void* mean;                         // mean of `mean_of` over the selected rows, 0 where there are none
};

// Step 3: gradients of  sum_i weight_i * l_i  with respect to both logit matrices; every element is written. weight_i
// of network n: 0 where l_i is not finite, grad_output[i * grad_stride] / num_selected_n on rows of selected_n, else 0.
struct GradientParams {
  LogitPair pair;
  const void* statistics;   // RowStatistics<real> [rows], of step 1
  const void* grad_output;  // real; grad_stride 0: one number for all rows
  int64_t grad_stride;
  const uint8_t* selected1;      // bool [rows]: rows that train network 1; null: all that are not ignored
  const uint8_t* selected2;      // likewise network 2
  const int64_t* num_selected1;  // or null: 1
  const int64_t* num_selected2;
  void* grad1;  // logit type, contiguous [rows, classes], or null: not wanted
  void* grad2;
  const void* kept_rows;  // of step 1, or null. If set, so are grad1 and grad2, which hold the exponentials until now
};

// One logit matrix, as those of a pair.
struct Logits : LabelledRows {
  LogitType type;
  const void* logits;
  int64_t row_stride;
};

// Forward correction, without a selection. On the CPU only.
struct CorrectedLogits : Logits {
  const void* log_transition_t;  // real [classes, classes], contiguous: row y holds log T[:, y]
};

struct CorrectedRowParams {
  CorrectedLogits logits;
  void* per_sample;  // real [rows]
  void* statistics;  // CorrectedStatistics<real> [rows]
};

// The gradient of  sum_i grad_output[i * grad_stride] * scale * l_i; rows whose loss is not finite get zeros.
struct CorrectedGradientParams {
  CorrectedLogits logits;
  const void* statistics;   // CorrectedStatistics<real> [rows]
  const void* grad_output;  // real; grad_stride 0: one number for all rows
  int64_t grad_stride;
  double scale;
  void* grad;  // logit type, contiguous [rows, classes]
};

// A robust loss of one network: step 1, as RowParams. The selection is step 2's.
struct RobustRowParams {
  Logits logits;
  RobustSettings settings;
  void* per_sample;    // real [rows]; 0 for ignored rows
  void* statistics;    // RobustStatistics<real> [rows]
  uint8_t* row_state;  // RowState [rows], or null
  bool sieve;          // row_state tells which rows the sieve keeps
};

// Step 3, as GradientParams. The statistics hold all that it needs to know of the loss.
struct RobustGradientParams {
  Logits logits;
  const void* statistics;   // RobustStatistics<real> [rows]
  const void* grad_output;  // real; grad_stride 0: one number for all rows
  int64_t grad_stride;
  const uint8_t* selected;      // bool [rows], or null: all that are not ignored
  const int64_t* num_selected;  // or null: 1
  void* grad;                   // logit type, contiguous [rows, classes]
};

namespace cpu {

constexpr int64_t kNoBadLabel = -1;

// Rows [begin, end): callers split the batch over threads. Returns the first row with an invalid label, or kNoBadLabel.
int64_t row_losses(const RowParams& params, int64_t begin, int64_t end);
void row_gradients(const GradientParams& params, int64_t begin, int64_t end);
int64_t corrected_losses(const CorrectedRowParams& params, int64_t begin, int64_t end);
void corrected_gradients(const CorrectedGradientParams& params, int64_t begin, int64_t end);
int64_t robust_losses(const RobustRowParams& params, int64_t begin, int64_t end);
void robust_gradients(const RobustGradientParams& params, int64_t begin, int64_t end);
void select_small_loss(const SelectionParams& params);
const char* instruction_set();                // the one in use: "avx512", "avx2" or "portable"
std::vector<const char*> instruction_sets();  // those compiled in

}  // namespace cpu

#ifdef JOCOR_FAST_CUDA
namespace cuda {

// `stream` is a cudaStream_t on the current device. Nothing here waits for the device. They return the text of a
// launch's error, or null.
const char* row_losses(const RowParams& params, void* stream);
const char* select_small_loss(const SelectionParams& params, void* stream);
const char* row_losses_and_selection(const RowParams& rows, const SelectionParams& selection, void* stream);
const char* row_gradients(const GradientParams& params, void* stream);
const char* robust_losses(const RobustRowParams& params, void* stream);
const char* robust_losses_and_selection(const RobustRowParams& rows, const SelectionParams& selection, void* stream);
const char* robust_gradients(const RobustGradientParams& params, void* stream);

}  // namespace cuda
#endif

}  // namespace jocor_fast
