#pragma once

#include <cstddef>
#include <vector>

namespace starling {

struct SymmetricEigen {
  std::vector<double> values;  ///< largest first
  /// Row k is the eigenvector of value k, normalised, with a positive largest component (the first
  /// of equal ones)
  std::vector<double> vectors;
};

/// Eigenvalues and eigenvectors of a symmetric n×n matrix, by Jacobi rotations (Golub and Van Loan,
/// Matrix Computations, section 8.5). For small matrices.
SymmetricEigen symmetric_eigen(std::vector<double> matrix, std::size_t n);

}  // namespace starling
