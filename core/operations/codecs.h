#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/operations/accesses.h"
#include "core/tensor.h"

// Numbers in fewer bytes.
namespace starling {

/// How numbers travel in fewer bytes. The arithmetic is fp32's (kernels/math/codec.h); numbers of
/// fp64 are rounded to it first.
enum class Code : std::uint8_t {
  kNone,     ///< as they are
  kBf16,     ///< rounded to nearest even
  kInt8,     ///< q·s, s = max|x| / 127 of a block
  kMinMax8,  ///< 256 steps between the least and the largest number of a block
};

/// Of a message of so many elements of `dtype` (fp32 or fp64), a multiple of 4: its codes one after
/// another, then each block's few numbers. `block`: a multiple of 32; 0: the whole message is one.
std::int64_t message_bytes(Code code, DType dtype, std::int64_t elements, std::int64_t block);

/// message = x, encoded: uint8 [message_bytes()].
struct Encode {
  Tensor x, message;
  Code code = Code::kNone;
  std::int64_t block = 0;
  Accesses accesses() const { return Accesses().read({x}).write({message}); }
};

/// out = (Σ_k weight_k · what message k holds) / divisor, at most 8 terms, added up one after
/// another in out's type; with `accumulate` the sum begins with what out holds. The messages have
/// the code, block and number of elements of `out`.
struct Decode {
  std::array<Tensor, 8> messages;
  std::array<double, 8> weight{};
  int terms = 0;
  Tensor out;
  Code code = Code::kNone;
  std::int64_t block = 0;
  double divisor = 1.0;
  bool accumulate = false;
  Accesses accesses() const {
    Accesses result;
    for (int i = 0; i < terms; ++i) result.read({messages[static_cast<std::size_t>(i)]});
    return result.output(accumulate, {out});
  }
};

/// How an update's `received` are encoded: Σ_k weights[k] · what message k holds is the one term
/// that it mixes.
struct EncodedTerms {
  std::vector<double> weights;  ///< empty: they are numbers as they are
  Code code = Code::kNone;
  std::int64_t block = 0;
  /// Of a message's numbers those from `first` on are this update's; 0: they are as many
  std::int64_t first = 0, elements = 0;
  explicit operator bool() const { return !weights.empty(); }
};

/// Throws Error(kInternal) where the message does not fit so many numbers.
void check_message(const char* operation, const Tensor& message, DType dtype, std::int64_t elements,
                   Code code, std::int64_t block);

}  // namespace starling
