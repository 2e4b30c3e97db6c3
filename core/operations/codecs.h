#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/operations/accesses.h"
#include "core/tensor.h"

// Encodings of messages in fewer bytes.
namespace starling {

/// Encodings. Computed in fp32 (kernels/math/codec.h); fp64 is rounded to fp32 first.
enum class Code : std::uint8_t {
  kNone,
  kBf16,     ///< rounded to nearest even
  kInt8,     ///< q·s with s = max|x| / 127 of each block
  kMinMax8,  ///< 256 levels between minimum and maximum of each block
};

/// Size of a message of `elements` (a multiple of 4) of `dtype` (fp32 or fp64): the codes, then
/// each block's parameters. `block`: elements per block, a multiple of 32; 0: one block.
std::int64_t message_bytes(Code code, DType dtype, std::int64_t elements, std::int64_t block);

/// message = encoded x: uint8 [message_bytes()].
struct Encode {
  Tensor x, message;
  Code code = Code::kNone;
  std::int64_t block = 0;
  Accesses accesses() const { return Accesses().read({x}).write({message}); }
};

/// out = (Σ_k weight_k · decoded message k) / divisor, of at most 8 terms, summed in order in out's
/// type; with `accumulate` starting from out. All messages have the same code and block, and as
/// many elements as `out`.
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

/// Describes encoded `received` of an update, which mixes one term: Σ_k weights[k] · decoded
/// message k.
struct EncodedTerms {
  std::vector<double> weights;  ///< empty: not encoded
  Code code = Code::kNone;
  std::int64_t block = 0;
  /// Elements per message (0: as many as the update has), and the first one for this update
  std::int64_t first = 0, elements = 0;
  explicit operator bool() const { return !weights.empty(); }
};

/// Throws Error(kInternal) if the message does not have the right size.
void check_message(const char* operation, const Tensor& message, DType dtype, std::int64_t elements,
                   Code code, std::int64_t block);

}  // namespace starling
