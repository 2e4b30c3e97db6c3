#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/operations/products.h"
#include "kernels/cuda/libraries/libraries.h"
#include "kernels/cuda/runtime/runtime.h"

// Matrices here are row-major, cuBLASLt's are column-major. A row-major matrix is the transpose of
// the column-major one in the same memory, so c = op(a)·op(b) is computed as cᵀ = op(b)ᵀ·op(a)ᵀ: b
// is cuBLASLt's A, a its B, and a vector over c's columns is its bias over rows.
namespace starling::cuda {

namespace {

constexpr std::size_t kWorkspaceLimit = std::size_t{32} << 20;
constexpr std::size_t kWorkspaceAlignment = 256;

void check(cublasStatus_t status, const char* call, const char* step = "") {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail(status == CUBLAS_STATUS_ALLOC_FAILED ? ExitCode::kMemory : ExitCode::kInternal, "cublas",
       "{}{}: {} ({})", call, step, cublasLtGetStatusName(status), cublasLtGetStatusString(status));
}

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return CUDA_R_32F;
    case DType::kFloat64: return CUDA_R_64F;
    case DType::kBFloat16: return CUDA_R_16BF;
    case DType::kFloat16: return CUDA_R_16F;
    default: break;
  }
  fail(ExitCode::kInternal, "cublas", "matmul: a {} matrix", name_of(dtype));
}

/// The alignment of an address; cuBLASLt considers at most 256 bytes.
std::uint32_t alignment_of(const void* address) {
  const auto bits =
      static_cast<unsigned>(std::countr_zero(reinterpret_cast<std::uintptr_t>(address)));
  return std::uint32_t{1} << std::min(bits, 8u);
}

/// Everything that the choice of an algorithm depends on.
struct Problem {
  std::int64_t m = 0, n = 0, k = 0;  ///< of the row-major product
  std::int64_t batch = 1;
  /// Of a, b, c: distance between rows, and between the matrices of a batch
  std::array<std::int64_t, 3> line{}, next{};
  DType input = DType::kFloat32, output = DType::kFloat32;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  DType bias_type = DType::kFloat32;
  /// Of a, b, c, the vector (bias or row sums) and GELU's argument
  std::array<std::uint32_t, 5> alignment{};
  bool has_vector() const {
    return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || epilogue == CUBLASLT_EPILOGUE_BGRADB;
  }
  bool has_matrix() const {
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_DGELU;
  }
  /// Whether NaN of the product may be lost: of an activation.
  bool may_lose_nan() const {
    return epilogue != CUBLASLT_EPILOGUE_DEFAULT && epilogue != CUBLASLT_EPILOGUE_BIAS &&
           epilogue != CUBLASLT_EPILOGUE_BGRADB && epilogue != CUBLASLT_EPILOGUE_DGELU;
  }
  auto operator<=>(const Problem&) const = default;
};

/// A descriptor of cuBLASLt, with the functions to make, set and destroy one, whose names start
/// with `name`.
template <class Handle, auto kCreate, auto kSetAttribute, auto kDestroy>
class Descriptor {
 public:
  template <class... Parts>
  explicit Descriptor(const char* name, Parts... parts) : name_(name) {
    check(kCreate(&handle_, parts...), name_, "Create");
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { kDestroy(handle_); }
  template <class Attribute, class T>
  void set(Attribute attribute, const T& value) {
    check(kSetAttribute(handle_, attribute, &value, sizeof(value)), name_, "SetAttribute");
  }
  Handle get() const { return handle_; }

 private:
  const char* name_;
  Handle handle_ = nullptr;
};
using Description = Descriptor<cublasLtMatmulDesc_t, cublasLtMatmulDescCreate,
                               cublasLtMatmulDescSetAttribute, cublasLtMatmulDescDestroy>;
using Layout = Descriptor<cublasLtMatrixLayout_t, cublasLtMatrixLayoutCreate,
                          cublasLtMatrixLayoutSetAttribute, cublasLtMatrixLayoutDestroy>;
using Preference =
    Descriptor<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceCreate,
               cublasLtMatmulPreferenceSetAttribute, cublasLtMatmulPreferenceDestroy>;

/// Of a row-major matrix, as the column-major one in the same memory.
Layout layout(DType dtype, std::int64_t rows, std::int64_t columns, bool transposed,
              std::int64_t line) {
  if (transposed) std::swap(rows, columns);
  return Layout("cublasLtMatrixLayout", data_type(dtype), static_cast<std::uint64_t>(columns),
                static_cast<std::uint64_t>(rows), line);
}

/// The descriptors of a problem and its best algorithm, if there is one.
struct Plan {
  Plan(cublasLtHandle_t handle, const Problem& problem, bool tf32);

  Description description;
  Layout a, b, c;  ///< cuBLASLt's: a is the row-major b
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t workspace = 0;
  bool found = false;
  bool keeps_nan = false;  ///< with an activation: a test has shown that it preserves NaN

 private:
  static cublasComputeType_t compute_type(const Problem& problem, bool tf32) {
    if (problem.input == DType::kFloat64) return CUBLAS_COMPUTE_64F;
    return problem.input == DType::kFloat32 && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                    : CUBLAS_COMPUTE_32F;
  }
};

Plan::Plan(cublasLtHandle_t handle, const Problem& problem, bool tf32)
    : description("cublasLtMatmulDesc", compute_type(problem, tf32),
                  problem.input == DType::kFloat64 ? CUDA_R_64F : CUDA_R_32F),
      a(layout(problem.input, problem.k, problem.n, problem.transpose_b, problem.line[1])),
      b(layout(problem.input, problem.m, problem.k, problem.transpose_a, problem.line[0])),
      c(layout(problem.output, problem.m, problem.n, false, problem.line[2])) {
  const auto repeat = [&](Layout& matrices, std::int64_t elements) {
    if (problem.batch == 1) return;
    matrices.set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(problem.batch));
    matrices.set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, elements);
  };
  repeat(a, problem.next[1]);
  repeat(b, problem.next[0]);
  repeat(c, problem.next[2]);
  const auto operation = [](bool transpose) {
    return static_cast<std::int32_t>(transpose ? CUBLAS_OP_T : CUBLAS_OP_N);
  };
  description.set(CUBLASLT_MATMUL_DESC_TRANSA, operation(problem.transpose_b));
  description.set(CUBLASLT_MATMUL_DESC_TRANSB, operation(problem.transpose_a));
  // Only documented for a vector of the output's type; another would be misread.
  if (problem.has_vector() && problem.bias_type != problem.output) return;
  // Epilogues but the bias are not documented for it
  if (problem.epilogue != CUBLASLT_EPILOGUE_DEFAULT && problem.epilogue != CUBLASLT_EPILOGUE_BIAS &&
      problem.input == DType::kFloat64)
    return;
  if (problem.has_matrix()) {
    constexpr std::int64_t kLines = 8;  // lines are a multiple of it
    constexpr std::uint32_t kBytes = 16;
    if (!is_low_precision(problem.output) || problem.line[2] % kLines != 0 ||
        problem.alignment[4] < kBytes)
      return;
    description.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, problem.line[2]);
    description.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                    reinterpret_cast<const void*>(std::uintptr_t{problem.alignment[4]}));
  }
  // The sums of a row are written, not added.
  if (problem.epilogue == CUBLASLT_EPILOGUE_BGRADB && problem.accumulate) return;
  if ((problem.epilogue == CUBLASLT_EPILOGUE_BGRADB || problem.has_matrix()) && problem.batch != 1)
    return;
  if (problem.epilogue != CUBLASLT_EPILOGUE_DEFAULT)
    description.set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(problem.epilogue));
  if (problem.has_vector()) {
    description.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                    static_cast<std::int32_t>(data_type(problem.bias_type)));
    // The heuristic uses the address's alignment only; calls set the real address.
    description.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                    reinterpret_cast<const void*>(std::uintptr_t{problem.alignment[3]}));
  }
  Preference preference("cublasLtMatmulPreference");
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kWorkspaceLimit});
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, problem.alignment[1]);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, problem.alignment[0]);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, problem.alignment[2]);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, problem.alignment[2]);
  // Partial sums of a split k in bf16 or fp16 would round and overflow, where callers expect fp32
  // accumulation.
  if (is_low_precision(problem.output)) {
    preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                   static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  }

  cublasLtMatmulHeuristicResult_t best{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, description.get(), a.get(), b.get(), c.get(), c.get(),
                                     preference.get(), 1, &best, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return;
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  if (count == 0 || best.state != CUBLAS_STATUS_SUCCESS) return;
  algorithm = best.algo;
  workspace = best.workspaceSize;
  found = true;
}

class BlasLt final : public Blas {
 public:
  BlasLt(const LibrarySettings& settings, WorkspaceSource& workspaces)
      : tf32_(settings.tf32), workspaces_(workspaces) {
    check(cublasLtCreate(&handle_), "cublasLtCreate");
  }
  ~BlasLt() override {
    plans_.clear();
    cublasLtDestroy(handle_);
  }

  bool matmul(const Matmul& args, StreamHandle stream) override;

  std::string version() const override {
    const std::size_t number = cublasLtGetVersion();
    return fmt::format("cuBLASLt {}.{}.{}", number / 10000, number / 100 % 100, number % 100);
  }

 private:
  Plan& plan(const Problem& problem) {
    const auto place = plans_.find(problem);
    if (place != plans_.end()) return *place->second;
    return *plans_.emplace(problem, std::make_unique<Plan>(handle_, problem, tf32_)).first->second;
  }
  void run(Plan& plan, const Problem& problem, const Matmul& args, const void* b,
           StreamHandle stream);
  bool keeps_nan(Plan& plan, const Problem& problem, const Matmul& args, StreamHandle stream);

  bool tf32_;
  WorkspaceSource& workspaces_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Problem, std::unique_ptr<Plan>> plans_;
};

/// The first address in `storage` with the alignment that cuBLASLt may assume.
void* aligned(const Storage& storage, std::size_t bytes) {
  void* place = storage.data();
  std::size_t space = storage.bytes();
  require(std::align(kWorkspaceAlignment, bytes, place, space) != nullptr, "cublas",
          "a workspace of {} bytes for {}", storage.bytes(), bytes);
  return place;
}

/// What the epilogue reads or writes besides c.
const Tensor& vector_of(const Matmul& args) { return args.row_sums ? args.row_sums : args.bias; }
const Tensor& matrix_of(const Matmul& args) {
  return args.gelu_input ? args.gelu_input : args.before_gelu;
}

Problem problem_of(const Matmul& args) {
  Problem problem;
  const Shape& c = args.c.shape();
  problem.batch = c[0];
  problem.m = c[1];
  problem.n = c[2];
  problem.k = args.a.shape()[2];
  const FactorLayout a = factor_layout(args.a), b = factor_layout(args.b);
  problem.transpose_a = a.transposed;
  problem.transpose_b = b.transposed;
  problem.line = {a.line, b.line, factor_layout(args.c).line};
  if (problem.batch > 1) problem.next = {args.a.stride(0), args.b.stride(0), args.c.stride(0)};
  problem.input = args.a.dtype();
  problem.output = args.c.dtype();
  problem.accumulate = args.accumulate;
  problem.epilogue =
      args.row_sums     ? CUBLASLT_EPILOGUE_BGRADB
      : args.gelu_input ? CUBLASLT_EPILOGUE_DGELU
      : args.before_gelu
          ? (args.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX)
      : args.relu ? (args.bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU)
      : args.bias ? CUBLASLT_EPILOGUE_BIAS
                  : CUBLASLT_EPILOGUE_DEFAULT;
  problem.alignment = {alignment_of(args.a.raw()), alignment_of(args.b.raw()),
                       alignment_of(args.c.raw()), 1, 1};
  if (problem.has_vector()) {
    problem.bias_type = vector_of(args).dtype();
    problem.alignment[3] = alignment_of(vector_of(args).raw());
  }
  if (problem.has_matrix()) problem.alignment[4] = alignment_of(matrix_of(args).raw());
  return problem;
}

// The epilogue supports a bias of c's type only; otherwise returns false, and the backend converts
// the bias.
bool BlasLt::matmul(const Matmul& args, StreamHandle stream) {
  const Problem problem = problem_of(args);
  if (problem.m == 0 || problem.n == 0) return true;
  if (problem.k == 0) return false;
  const auto known = plans_.find(problem);
  Plan& chosen = known != plans_.end() ? *known->second : plan(problem);
  if (!chosen.found) return false;
  if (problem.may_lose_nan()) {
    if (known == plans_.end()) chosen.keeps_nan = keeps_nan(chosen, problem, args, stream);
    if (!chosen.keeps_nan) return false;
  }
  run(chosen, problem, args, args.b.raw(), stream);
  return true;
}

/// Computes the product into args.c, with `b` instead of args.b's data.
void BlasLt::run(Plan& plan, const Problem& problem, const Matmul& args, const void* b,
                 StreamHandle stream) {
  if (problem.has_vector())
    plan.description.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                         static_cast<const void*>(vector_of(args).raw()));
  if (problem.has_matrix())
    plan.description.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                         static_cast<const void*>(matrix_of(args).raw()));
  std::shared_ptr<Storage> storage;
  void* workspace = nullptr;
  if (plan.workspace > 0) {
    storage = workspaces_.workspace(plan.workspace + kWorkspaceAlignment);
    workspace = aligned(*storage, plan.workspace);
  }
  const auto product = [&](const auto& one, const auto& beta) {
    check(cublasLtMatmul(handle_, plan.description.get(), &one, b, plan.a.get(), args.a.raw(),
                         plan.b.get(), &beta, args.c.raw(), plan.c.get(), args.c.raw(),
                         plan.c.get(), &plan.algorithm, workspace, plan.workspace,
                         static_cast<cudaStream_t>(stream)),
          "cublasLtMatmul");
  };
  if (problem.input == DType::kFloat64) {
    product(1.0, problem.accumulate ? 1.0 : 0.0);
  } else {
    product(1.0f, problem.accumulate ? 1.0f : 0.0f);
  }
}

// NVIDIA does not document what an epilogue's activation makes of NaN, and it may depend on the
// algorithm. So each plan is tested before its first use: with b all NaN every element of the
// product is NaN, and the first ones are read back. c is overwritten afterwards anyway. Costs one
// host wait per plan.
bool BlasLt::keeps_nan(Plan& plan, const Problem& problem, const Matmul& args,
                       StreamHandle stream) {
  constexpr std::size_t kLook = 4096;
  const std::size_t bytes_b = static_cast<std::size_t>(args.b.reach()) * size_of(args.b.dtype()),
                    bytes_c = static_cast<std::size_t>(args.c.reach()) * size_of(args.c.dtype());
  std::shared_ptr<Storage> storage;
  try {
    storage = workspaces_.workspace(bytes_b + kWorkspaceAlignment);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kMemory) throw;
    return false;  // out of memory: apply the activation separately
  }
  void* b = aligned(*storage, bytes_b);
  set_async(b, 0xff, bytes_b, stream);  // all bits set is NaN in fp32, bf16 and fp16
  run(plan, problem, args, b, stream);
  std::vector<std::byte> found(std::min(bytes_c, kLook));
  copy_async(found.data(), args.c.raw(), found.size(), CopyKind::kDeviceToHost, stream);
  host_wait_stream(stream);
  const auto all_nan = [&](auto type) {
    using T = decltype(type);
    for (std::size_t i = 0; i + sizeof(T) <= found.size(); i += sizeof(T)) {
      T value;
      std::memcpy(&value, found.data() + i, sizeof(T));
      if (!std::isnan(static_cast<float>(value))) return false;
    }
    return true;
  };
  switch (problem.output) {
    case DType::kFloat32: return all_nan(float{});
    case DType::kBFloat16: return all_nan(BFloat16{});
    default: return all_nan(Float16{});
  }
}

}  // namespace

std::unique_ptr<Blas> open_blas(const LibrarySettings& settings, WorkspaceSource& workspaces) {
  return std::make_unique<BlasLt>(settings, workspaces);
}

}  // namespace starling::cuda
