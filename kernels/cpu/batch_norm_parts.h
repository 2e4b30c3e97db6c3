#pragma once

#include "kernels/cpu/cpu_backend_detail.h"

// What the gradient of a batch norm as one operation (cpu_norm.cpp) and in steps (cpu_norm_steps.cpp) share.
namespace starling::cpu {

/// The arguments that BatchNormBackward and its steps all have.
template <class T>
struct NormInputs {
  using R = Compute<T>;
  const T *x, *dy;
  const R *mean, *inv_std, *gamma;  ///< gamma is optional

  template <class Args>
  NormInputs(const Args& args, const Matrix& matrix, const char* operation)
      : x(args.x.template data<T>()),
        dy(numbers<T>(args.dy, matrix.rows * matrix.channels, operation, "dy")),
        mean(numbers<R>(args.saved_mean, matrix.channels, operation, "saved_mean")),
        inv_std(numbers<R>(args.saved_inv_std, matrix.channels, operation, "saved_inv_std")),
        gamma(optional_numbers<R>(args.gamma, matrix.channels, operation, "gamma")) {}
};

/// dγ, dβ and the coefficients of dx = a·g + b·(x - mean) + shift, where g is the gradient before the normalisation.
template <class R>
struct NormGradients {
  const R *inv_std, *gamma;
  R *dgamma, *dbeta;  ///< optional
  R *a, *b, *shift;
  Index rows;
  bool accumulate, training;

  /// From Σ g and Σ g·x̂ of channel c.
  void take(Index c, double g, double gx) const {
    const double inv = static_cast<double>(inv_std[c]), factor = (gamma ? static_cast<double>(gamma[c]) : 1.0) * inv;
    const double share = 1.0 / static_cast<double>(rows);
    if (dgamma) dgamma[c] = static_cast<R>((accumulate ? static_cast<double>(dgamma[c]) : 0.0) + gx);
    if (dbeta) dbeta[c] = static_cast<R>((accumulate ? static_cast<double>(dbeta[c]) : 0.0) + g);
    // dx = γ/σ (g - mean(g) - x̂·mean(g·x̂)); with constant statistics only the first term is left.
    a[c] = static_cast<R>(factor);
    b[c] = static_cast<R>(training ? -factor * inv * gx * share : 0.0);
    shift[c] = static_cast<R>(training ? -factor * g * share : 0.0);
  }
  /// The coefficients cover the kernels' long rows.
  void repeat_all(Index channels) const {
    for (R* vector : {a, b, shift}) repeat(vector, channels);
  }
};

}  // namespace starling::cpu
