#include "tests/blas_lt/fake_cublaslt.h"

#include <cublasLt.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "core/dtype.h"
#include "kernels/cuda/runtime/runtime.h"

using starling::BFloat16;
using starling::Float16;
using starling::tests::fake_blas;

namespace starling::tests {

FakeBlasCounters& fake_blas() {
  static FakeBlasCounters counters;
  return counters;
}

}  // namespace starling::tests

// The runtime's calls that blas_lt.cpp makes, at once and on host memory.
namespace starling::cuda {

void set_async(void* memory, int byte, std::size_t bytes, StreamHandle) {
  ++fake_blas().probes;
  std::memset(memory, byte, bytes);
}
void copy_async(void* to, const void* from, std::size_t bytes, CopyKind, StreamHandle) {
  std::memcpy(to, from, bytes);
}
void host_wait_stream(StreamHandle) { ++fake_blas().host_waits; }

}  // namespace starling::cuda

namespace {

struct Description {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  std::int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N, bias_type = -1;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void *bias = nullptr, *aux = nullptr;
  std::int64_t aux_line = 0;
};
struct Layout {
  cudaDataType_t type;
  std::uint64_t rows, columns;
  std::int64_t leading;
  std::int32_t batch = 1;
  std::int64_t offset = 0;  ///< of a batch's matrices
};
struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  // a, b, c, d, as the library assumes them unless told
  std::uint32_t alignment[4] = {256, 256, 256, 256};
};
/// What the fake's algorithm remembers of the question that it answers.
struct Algorithm {
  std::uint32_t alignment[4];
  std::uint64_t workspace;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

template <class T, class Opaque>
T& as(Opaque* handle) {
  return *reinterpret_cast<T*>(handle);
}
template <class T, class Opaque>
cublasStatus_t create(Opaque** handle, T value) {
  *handle = reinterpret_cast<Opaque*>(new T(value));
  ++fake_blas().handles;
  return CUBLAS_STATUS_SUCCESS;
}
template <class T, class Opaque>
cublasStatus_t destroy(Opaque* handle) {
  delete reinterpret_cast<T*>(handle);
  --fake_blas().handles;
  return CUBLAS_STATUS_SUCCESS;
}
template <class T>
cublasStatus_t take(T& to, const void* from, std::size_t size) {
  if (size != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, size);
  return CUBLAS_STATUS_SUCCESS;
}

double load(cudaDataType_t type, const void* data, std::uint64_t i) {
  switch (type) {
    case CUDA_R_32F: return static_cast<const float*>(data)[i];
    case CUDA_R_64F: return static_cast<const double*>(data)[i];
    case CUDA_R_16BF:
      return static_cast<double>(static_cast<float>(static_cast<const BFloat16*>(data)[i]));
    case CUDA_R_16F:
      return static_cast<double>(static_cast<float>(static_cast<const Float16*>(data)[i]));
    default: throw std::logic_error("fake cuBLASLt: a type");
  }
}
void store(cudaDataType_t type, void* data, std::uint64_t i, double value) {
  switch (type) {
    case CUDA_R_32F: static_cast<float*>(data)[i] = static_cast<float>(value); break;
    case CUDA_R_64F: static_cast<double*>(data)[i] = value; break;
    case CUDA_R_16BF: static_cast<BFloat16*>(data)[i] = BFloat16(static_cast<float>(value)); break;
    case CUDA_R_16F: static_cast<Float16*>(data)[i] = Float16(static_cast<float>(value)); break;
    default: throw std::logic_error("fake cuBLASLt: a type");
  }
}

bool biased(std::uint32_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS ||
         epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool sums(std::uint32_t epilogue) { return epilogue == CUBLASLT_EPILOGUE_BGRADB; }
bool gelu(std::uint32_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool has_aux(std::uint32_t epilogue) {
  return gelu(epilogue) || epilogue == CUBLASLT_EPILOGUE_DGELU;
}
bool relu(std::uint32_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_RELU || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
}

/// The table of supported types in cuBLASLt's documentation, cut down to the types of this project.
bool supported(const Description& d, const Layout& a, const Layout& b, const Layout& c) {
  const bool low = a.type == CUDA_R_16BF || a.type == CUDA_R_16F;
  if (a.type != b.type) return false;
  if (a.type == CUDA_R_64F ? d.compute != CUBLAS_COMPUTE_64F || d.scale != CUDA_R_64F
                           : (d.compute != CUBLAS_COMPUTE_32F &&
                              !(d.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && !low)) ||
                                 d.scale != CUDA_R_32F) {
    return false;
  }
  if (c.type != a.type && !(low && c.type == CUDA_R_32F)) return false;
  if (a.type == CUDA_R_64F && (relu(d.epilogue) || sums(d.epilogue))) return false;
  if (has_aux(d.epilogue) &&
      (fake_blas().without_gelu || !low || c.type != a.type || d.aux_line % 8 != 0 ||
       d.aux_line < static_cast<std::int64_t>(c.rows) || !d.aux))
    return false;
  if (!biased(d.epilogue) && !sums(d.epilogue))
    return relu(d.epilogue) || has_aux(d.epilogue) || d.epilogue == CUBLASLT_EPILOGUE_DEFAULT;
  return d.bias_type == -1 || d.bias_type == c.type;
}

bool fits(const Description& d, const Layout& a, const Layout& b, const Layout& c) {
  const std::uint64_t m = d.transpose_a == CUBLAS_OP_N ? a.rows : a.columns,
                      k = d.transpose_a == CUBLAS_OP_N ? a.columns : a.rows;
  const std::uint64_t k2 = d.transpose_b == CUBLAS_OP_N ? b.rows : b.columns,
                      n = d.transpose_b == CUBLAS_OP_N ? b.columns : b.rows;
  const auto dense = [](const Layout& x) { return x.leading >= static_cast<std::int64_t>(x.rows); };
  return k == k2 && c.rows == m && c.columns == n && dense(a) && dense(b) && dense(c) &&
         a.batch == c.batch && b.batch == c.batch;
}

bool aligned(const void* address, std::uint32_t alignment) {
  return reinterpret_cast<std::uintptr_t>(address) % alignment == 0;
}

/// The tanh form of GELU, and its derivative.
double gelu_of(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double gelu_derivative(double x) {
  const double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

}  // namespace

extern "C" {

std::size_t cublasLtGetVersion() { return 130100; }
const char* cublasLtGetStatusName(cublasStatus_t) { return "CUBLAS_STATUS_FAKE"; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "the fake refused"; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  ++fake_blas().handles;
  *handle = reinterpret_cast<cublasLtHandle_t>(new int(0));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy<int>(handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* handle, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  fake_blas().tf32 = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  return create(handle, Description{.compute = compute, .scale = scale});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t handle) {
  return destroy<Description>(handle);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t size) {
  auto& description = as<Description>(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return take(description.transpose_a, value, size);
    case CUBLASLT_MATMUL_DESC_TRANSB: return take(description.transpose_b, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return take(description.epilogue, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return take(description.bias, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return take(description.bias_type, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return take(description.aux, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return take(description.aux_line, value, size);
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* handle, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t leading) {
  return create(handle, Layout{type, rows, columns, leading});
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, std::size_t size) {
  auto& layout = as<Layout>(handle);
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return take(layout.batch, value, size);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return take(layout.offset, value, size);
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle) {
  return destroy<Layout>(handle);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* handle) {
  return create(handle, Preference{});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t handle) {
  return destroy<Preference>(handle);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t size) {
  auto& preference = as<Preference>(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return take(preference.workspace, value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return take(preference.alignment[0], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return take(preference.alignment[1], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return take(preference.alignment[2], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return take(preference.alignment[3], value, size);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return take(preference.reductions, value, size);
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* count) {
  ++fake_blas().heuristics;
  *count = 0;
  const auto& asked = as<Description>(description);
  const auto& limits = as<Preference>(preference);
  fake_blas().workspace_limit = limits.workspace;
  fake_blas().reductions = limits.reductions;
  if (wanted < 1 || !fits(asked, as<Layout>(a), as<Layout>(b), as<Layout>(c)) ||
      as<Layout>(c).type != as<Layout>(d).type) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!supported(asked, as<Layout>(a), as<Layout>(b), as<Layout>(c)))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  results[0] = {};
  const std::uint64_t depth =
      asked.transpose_a == CUBLAS_OP_N ? as<Layout>(a).columns : as<Layout>(a).rows;
  Algorithm algorithm{};
  std::memcpy(algorithm.alignment, limits.alignment, sizeof(algorithm.alignment));
  algorithm.workspace =
      depth > starling::tests::kFakeWorkspaceDepth ? starling::tests::kFakeWorkspace : 0;
  std::memcpy(&results[0].algo, &algorithm, sizeof(algorithm));
  results[0].workspaceSize = algorithm.workspace;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t la, const void* b,
                              cublasLtMatrixLayout_t lb, const void* beta, const void* c,
                              cublasLtMatrixLayout_t lc, void* d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t* algo, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t) {
  ++fake_blas().products;
  const auto& asked = as<Description>(description);
  const auto &A = as<Layout>(la), &B = as<Layout>(lb), &C = as<Layout>(lc), &D = as<Layout>(ld);
  Algorithm algorithm{};
  std::memcpy(&algorithm, algo, sizeof(algorithm));
  if (!fits(asked, A, B, C) || !supported(asked, A, B, C)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!aligned(a, algorithm.alignment[0]) || !aligned(b, algorithm.alignment[1]) ||
      !aligned(c, algorithm.alignment[2]) || !aligned(d, algorithm.alignment[3])) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (algorithm.workspace > 0 &&
      (!workspace || workspace_bytes < algorithm.workspace || !aligned(workspace, 256))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (algorithm.workspace > 0) std::memset(workspace, 0x5a, algorithm.workspace);
  const bool with_bias = biased(asked.epilogue), with_relu = relu(asked.epilogue);
  const bool with_sums = sums(asked.epilogue);
  if ((with_bias || with_sums) && !asked.bias) return CUBLAS_STATUS_INVALID_VALUE;
  if (has_aux(asked.epilogue) && !aligned(asked.aux, 16)) return CUBLAS_STATUS_INVALID_VALUE;
  if (has_aux(asked.epilogue)) ++fake_blas().gelus;
  const double one = load(asked.scale, alpha, 0), old = load(asked.scale, beta, 0);
  const std::uint64_t depth = asked.transpose_a == CUBLAS_OP_N ? A.columns : A.rows;
  std::int64_t matrix = 0;  // of the batch
  const auto at = [&](const Layout& x, std::uint64_t row, std::uint64_t column) {
    return static_cast<std::uint64_t>(matrix * x.offset) + row +
           column * static_cast<std::uint64_t>(x.leading);
  };
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(C.batch) * C.rows; ++i) {
    matrix = static_cast<std::int64_t>(i / C.rows);
    const std::uint64_t row = i % C.rows;
    for (std::uint64_t column = 0; column < C.columns; ++column) {
      double sum = 0.0;
      for (std::uint64_t k = 0; k < depth; ++k) {
        sum +=
            load(A.type, a, asked.transpose_a == CUBLAS_OP_N ? at(A, row, k) : at(A, k, row)) *
            load(B.type, b, asked.transpose_b == CUBLAS_OP_N ? at(B, k, column) : at(B, column, k));
      }
      sum *= one;
      if (old != 0.0) sum += old * load(C.type, c, at(C, row, column));
      if (with_bias)
        sum += load(asked.bias_type == -1 ? D.type : static_cast<cudaDataType_t>(asked.bias_type),
                    asked.bias, row);
      const std::uint64_t beside = row + column * static_cast<std::uint64_t>(asked.aux_line);
      if (asked.epilogue == CUBLASLT_EPILOGUE_DGELU)
        sum *= gelu_derivative(load(D.type, asked.aux, beside));
      if (gelu(asked.epilogue)) {
        store(D.type, const_cast<void*>(asked.aux), beside, sum);
        sum = gelu_of(sum);
      }
      const bool dropped = fake_blas().relu_drops_nan && std::isnan(sum);
      if ((with_relu && sum < 0.0) || ((with_relu || gelu(asked.epilogue)) && dropped)) sum = 0.0;
      store(D.type, d, at(D, row, column), sum);
    }
  }
  for (std::uint64_t column = 0; with_sums && column < C.columns; ++column) {
    double sum = 0.0;
    for (std::uint64_t k = 0; k < depth; ++k)
      sum +=
          load(B.type, b, asked.transpose_b == CUBLAS_OP_N ? at(B, k, column) : at(B, column, k));
    store(D.type, const_cast<void*>(asked.bias), column, sum);
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
