#pragma once

#include <cstddef>
#include <vector>

namespace starling {

struct SymmetricEigen {
  std::vector<double> values;  ///< largest first
  /// Row k belongs to value k; of length 1, its largest component (the first of equal ones)
  /// positive
  std::vector<double> vectors;
};

/// Eigenvalues and vectors of a symmetric n×n matrix, by Jacobi's rotations (Golub and Van Loan,
/// Matrix Computations, section 8.5). For small matrices.
SymmetricEigen symmetric_eigen(std::vector<double> matrix, std::size_t n);

}  // namespace starling
