#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace starling::test {

/// How a message is encoded (algorithms.md, section 5).
struct PlainCodec {
  std::string type = "none";  ///< none, bf16, int8, int4 or minmax8
  std::size_t block = 256;    ///< of all but bf16, in elements; 0: the whole message
};

/// Numbers that a receiver makes of a message, and its sender too: encoded and decoded in fp32.
std::vector<float> decoded(const PlainCodec& codec, const std::vector<float>& message);
/// Decodes fp64 numbers: rounded to fp32 on their way in, whatever the codec.
std::vector<double> decoded(const PlainCodec& codec, const std::vector<double>& message);

}  // namespace starling::test
