#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/operations/accesses.h"
#include "core/operations/code.h"
#include "core/tensor.h"

// Encodings of messages in fewer bytes.
namespace starling {

/// Size of a message of `elements` (a multiple of 4; of 8 for int4) of `dtype` (fp32 or fp64): the
/// codes, then each block's parameters. `block`: elements per block, a multiple of 32; 0: one
/// block.
std::int64_t message_bytes(Code code, DType dtype, std::int64_t elements, std::int64_t block);

/// message = C(v), uint8 [message_bytes()], of v = x - minus + residual, and residual' = decay ·
/// (v - decoded C(v)). `minus` and `residual` are optional, of x's type and size. v and the
/// residual are computed in that type.
struct Encode {
  Tensor x, message;
  Code code = Code::kNone;
  std::int64_t block = 0;
  Tensor minus = {}, residual = {};
  double decay = 1.0;
  Accesses accesses() const {
    return Accesses().read({x, minus}).write({message}).change({residual});
  }
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
