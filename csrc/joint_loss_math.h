// The formulas of JoCoR, once, for every device: each function takes scalars, or the CPU kernels' vectors of them.
// Source: Wei et al., CVPR 2020, equations 1 to 5. No torch here: nvcc and the host compiler read the same text.
//
// Notation: z1, z2 the logits of one row, p = softmax(z1), q = softmax(z2), lse the log-sum-exp of a row, and
//   delta_j = (z1_j - lse1) - (z2_j - lse2) = log p_j - log q_j.
#pragma once

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define JF_INLINE __host__ __device__ __forceinline__
#else
#define JF_INLINE inline __attribute__((always_inline))
#endif

namespace jocor_fast {

// What a row keeps for its backward pass: 4 numbers, one 16-byte load in float32. log_sum is log sum_j exp(z_j - max):
// lse itself is as large as the logits, and rounding it would cost the probabilities as many digits as the logits are
// above 1 (at 100: a gradient wrong by 1e-5). So the gradient looks the maximum up again, and takes it off first.
// log_sum1 is NaN where the row's loss is not finite: this tells the gradient, even if a caller has changed the losses.
template <class T>
struct alignas(4 * sizeof(T)) RowStatistics {
  T log_sum1, log_sum2;
  T kl12, kl21;  // KL(p || q), KL(q || p); 0 where lambda = 0, which does not evaluate them
};

// probability * log_ratio, and 0 where the probability is 0: a class that a network rules out (logit -inf, or so low
// that its probability underflows) has log_ratio = +-inf or NaN, and 0 * inf would turn the whole row into NaN.
template <class T>
JF_INLINE T expected_log_ratio(T probability, T log_ratio) {
  return probability != T{} ? probability * log_ratio : T{};
}

// What the joint loss is made of; part of every LogitPair.
struct JointLossSettings {
  double co_lambda;
};

// l = (1 - lambda) (CE1 + CE2) + lambda J with the agreement term J = KL(p || q) + KL(q || p), and its gradient. A term
// whose weight is 0 is not evaluated: it may be infinite. `Real` is the type of a row's numbers, T a scalar or vector.
template <class Real>
struct JointLoss {
  Real supervised, agreement;  // the weights 1 - lambda and lambda

  // From lambda as a double: 1 - lambda would lose its digits where lambda, rounded to float32 first, is near 1.
  JF_INLINE explicit JointLoss(const JointLossSettings& settings)
      : supervised(static_cast<Real>(1.0 - settings.co_lambda)), agreement(static_cast<Real>(settings.co_lambda)) {}

  // Adds one class's shares of KL(p || q), KL(q || p) and J = sum_j (p_j - q_j) delta_j. Every share of J is >= 0, so
  // the sum keeps its digits where the networks nearly agree; KL(p || q) + KL(q || p) would lose them.
  template <class T>
  JF_INLINE void add_class(T p, T q, T delta, T* sums) const {
    sums[0] += expected_log_ratio(p, delta);
    sums[1] += expected_log_ratio(q, -delta);
    sums[2] += expected_log_ratio(p - q, delta);
  }

  // The same if every delta is finite, and faster. If one is not, neither are the sums, by which the caller notices.
  template <class T>
  JF_INLINE void add_finite_class(T p, T q, T delta, T* sums) const {
    sums[0] += p * delta;
    sums[1] -= q * delta;
    sums[2] += (p - q) * delta;
  }

  JF_INLINE Real of_row(Real cross_entropy1, Real cross_entropy2, Real symmetric_kl) const {
    const Real first = supervised == Real(0) ? Real(0) : supervised * (cross_entropy1 + cross_entropy2);
    const Real second = agreement == Real(0) ? Real(0) : agreement * symmetric_kl;
    return first + second;
  }

  // dl/dz1_j without its label's part: (1 - lambda) p_j + lambda (p_j (delta_j - KL(p || q)) + p_j - q_j). The label's
  // part, -(1 - lambda) at j = y, is `label_gradient`. `kl` is KL(p || q); dl/dz2_j is the same with p, q exchanged,
  // -delta and KL(q || p). delta is finite. At lambda = 0 it is p_j alone, and neither q nor delta may be used:
  // callers skip this function.
  template <class T>
  JF_INLINE T class_gradient(T p, T q, T delta, T kl) const {
    return supervised * p + agreement * (p * (delta - kl) + (p - q));
  }

  JF_INLINE Real label_gradient() const { return -supervised; }
};

// delta_j for the gradient, and 0 where it is not finite. Only rows with a finite loss have a gradient, and in those
// such a class had probability 0 when the loss was computed: computed again, one that underflowed may come out above 0,
// and would make the gradient infinite.
template <class T>
JF_INLINE T finite_or_zero(T delta) {
  return delta - delta == T{} ? delta : T{};
}

template <class T>
JF_INLINE T finite_log_ratio(T log_p, T log_q) {
  return finite_or_zero(T(log_p - log_q));
}

// Forward correction (Patrini et al., CVPR 2017): l = -log((p T)[y]), T[j, y] = P(label y | class j), of one network.
// With shifted_j = z_j - max and joint_j = shifted_j + log T[j, y]: l = log_sum - (top + log_top_sum), where log_sum is
// log sum_j exp(shifted_j), top the largest joint_j, and log_top_sum is log sum_j exp(joint_j - top), and
// dl/dz_j = exp(shifted_j - log_sum) - exp((joint_j - top) - log_top_sum). In logarithms from end to end, for the
// product p T itself would underflow. What the gradient needs is kept; max is NaN where the loss is not finite.
template <class T>
struct alignas(4 * sizeof(T)) CorrectedStatistics {
  T max, log_sum, top, log_top_sum;
};

// Infinite where no class can have the label, and NaN where a logit is NaN or infinite.
template <class Real>
JF_INLINE Real corrected_loss(const CorrectedStatistics<Real>& row) {
  const bool impossible = row.top == Real(-INFINITY) && row.log_sum - row.log_sum == Real(0);
  return impossible ? Real(INFINITY) : row.log_sum - (row.top + row.log_top_sum);
}

// The losses of one network that resist wrong labels, of three numbers of a row: n = -log p_y, the number C of classes
// that are not masked (logit -inf), and S = -sum_c log p_c over those. With A = dl/dn and B = dl/dS, and R = 4 log 10
// (1 - p_y), which is the cross-entropy of the prediction with the label's one-hot, whose log 0 is read as log 1e-4:
//
//   dl/dz_j = A (p_j - [j = y]) + B (C p_j - [j is not masked])
//
//   gce      l = (1 - p_y^a) / a      A = p_y^a                            (Zhang and Sabuncu, NeurIPS 2018)
//   sce      l = a n + b R            A = a + b 4 log 10 p_y               (Wang et al., ICCV 2019)
//   nce_rce  l = a n / S + b R        the same with a / S; B = -a n / S^2  (Ma et al., ICML 2020)
//   cores    l = n - b S / C          A = 1; B = -b / C                    (Cheng et al., ICLR 2021)
enum class RobustKind : uint8_t { gce, sce, nce_rce, cores };
constexpr int kRobustKinds = 4;

struct RobustSettings {
  RobustKind kind;
  double a, b;
};

// What the gradient needs again; log_sum is NaN where the loss is not finite.
template <class T>
struct alignas(4 * sizeof(T)) RobustStatistics {
  T log_sum, scale, label, unmasked;  // log sum_j exp(z_j - max), A + B C, A, B
};

// 1 - exp(x) for x <= 0, given `power` = exp(x). Where that is near 1 the difference inherits its rounding error, and
// so does its logarithm: x / logarithm(power) takes it out again (Kahan).
template <class Real, class Logarithm>
JF_INLINE Real complement(Real x, Real power, Logarithm logarithm) {
  const Real difference = Real(1) - power;
  if (difference == Real(0)) return -x;
  return difference == Real(1) ? difference : difference * (x / logarithm(power));
}

template <class Real>
struct RobustRow {
  Real loss;
  RobustStatistics<Real> statistics;
  bool in_sieve;  // n <= S / C: the label is at least as probable as the geometric mean of all classes
};

template <class Real>
struct RobustLoss {
  static constexpr Real kReverse = Real(9.210340371976184);  // -log 1e-4

  RobustKind kind;
  Real a, b;

  JF_INLINE explicit RobustLoss(const RobustSettings& settings)
      : kind(settings.kind), a(static_cast<Real>(settings.a)), b(static_cast<Real>(settings.b)) {}

  JF_INLINE bool takes_class_sum() const { return kind == RobustKind::nce_rce || kind == RobustKind::cores; }

  // A row's loss, from its log_sum, from its label's logit minus the maximum, and from the classes that are not masked:
  // the sum of such differences, and their number. `exponential` (for x <= 0) and `logarithm` (for x > 0) are the
  // device's. A term whose weight is 0 is not evaluated: it may be infinite.
  template <class Exponential, class Logarithm>
  JF_INLINE RobustRow<Real> of_row(Real log_sum, Real shifted_label, Real shifted_sum, Real classes,
                                   Exponential exponential, Logarithm logarithm) const {
    const Real n = log_sum - shifted_label, sum = classes * log_sum - shifted_sum;
    Real loss = 0, label = 0, unmasked = 0;
    if (kind == RobustKind::gce) {
      label = exponential(-a * n);
      loss = complement(-a * n, label, logarithm) / a;
    } else if (kind == RobustKind::cores) {
      loss = b == Real(0) ? n : n - b * (sum / classes);
      label = Real(1);
      unmasked = -b / classes;
    } else {
      if (a != Real(0) && kind == RobustKind::sce) {
        loss = a * n;
        label = a;
      } else if (a != Real(0) && classes > Real(1)) {
        const Real share = n / sum;
        loss = a * share;
        label = a / sum;
        unmasked = -label * share;
      } else if (a != Real(0)) {  // n is all of S, or the label is masked and n infinite
        loss = a * (Real(1) + n);
      }
      if (b != Real(0)) {
        const Real p = exponential(-n);
        loss += b * kReverse * complement(-n, p, logarithm);
        label += b * kReverse * p;
      }
    }
    const bool finite = loss - loss == Real(0);
    const Real tells = finite ? log_sum : loss - loss;  // of an infinite loss this is NaN too
    return {loss, {tells, label + unmasked * classes, label, unmasked}, n * classes <= sum};
  }
};

// a * b, rounded: never fused with the addition that follows. num_keep must be the same number on every device.
JF_INLINE double rounded_product(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  const volatile double product = a * b;
  return product;
#endif
}

// How many of n rows a forget rate in [0, 1) keeps, at least one. The slack undoes the rounding of the rate itself:
// 0.3 of 10 rows keeps seven, though (1 - 0.3) * 10 is not 7 in binary.
JF_INLINE int64_t num_keep(int64_t n, double forget_rate, bool round_up) {
  if (n <= 0) return 0;
  const double exact = rounded_product(1.0 - forget_rate, static_cast<double>(n));
  const double slack = rounded_product(1e-9, static_cast<double>(n));
  const int64_t k = static_cast<int64_t>(round_up ? ceil(exact - slack) : floor(exact + slack));
  return k < 1 ? 1 : (k > n ? n : k);
}

}  // namespace jocor_fast
