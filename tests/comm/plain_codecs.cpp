#include "plain_codecs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "core/error.h"

namespace starling::test {
namespace {

/// A result in fp32 that no compiler joins with the next operation.
float rounded(float value) {
  volatile float result = value;
  return result;
}

float through_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  std::uint32_t upper = bits >> 16;
  const std::uint32_t rest = bits & 0xffffu;
  if (rest > 0x8000u || (rest == 0x8000u && upper % 2 == 1)) ++upper;  // to nearest, a tie to even
  return std::bit_cast<float>(upper << 16);
}

void through_whole(float* x, std::size_t count, float most) {
  float largest = 0.0f;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(x[i]));
  const float s = rounded(largest / most);
  for (std::size_t i = 0; i < count; ++i) {
    if (s == 0.0f) {
      x[i] = 0.0f;
      continue;
    }
    const float code = std::clamp(std::rint(rounded(x[i] / s)), -most, most);
    x[i] = rounded(static_cast<float>(static_cast<std::int8_t>(code)) * s);
  }
}

void through_minmax8(float* x, std::size_t count) {
  const float low = *std::min_element(x, x + count), high = *std::max_element(x, x + count);
  const float range = rounded(rounded(high - low) + 1e-7f), scale = rounded(255.0f / range);
  const float top = std::rint(rounded(high * scale)), bottom = rounded(top - 255.0f);  // T and L
  for (std::size_t i = 0; i < count; ++i) {
    const float level = std::min(std::rint(rounded(x[i] * scale)), top);
    const auto code = static_cast<std::uint8_t>(std::clamp(rounded(level - bottom), 0.0f, 255.0f));
    x[i] = rounded(rounded(static_cast<float>(code) + bottom) / scale);
  }
}

}  // namespace

std::vector<float> decoded(const PlainCodec& codec, const std::vector<float>& message) {
  std::vector<float> result = message;
  if (codec.type == "none") return result;
  if (codec.type == "bf16") {
    for (float& x : result) x = through_bf16(x);
    return result;
  }
  const std::size_t block =
      codec.block > 0 ? codec.block : std::max<std::size_t>(message.size(), 1);
  for (std::size_t begin = 0; begin < message.size(); begin += block) {
    const std::size_t count = std::min(block, message.size() - begin);
    if (codec.type == "int8") {
      through_whole(result.data() + begin, count, 127.0f);
    } else if (codec.type == "int4") {
      through_whole(result.data() + begin, count, 7.0f);
    } else if (codec.type == "minmax8") {
      through_minmax8(result.data() + begin, count);
    } else {
      fail(ExitCode::kInternal, "test", "no plain rewriting of the codec '{}'", codec.type);
    }
  }
  return result;
}

std::vector<double> decoded(const PlainCodec& codec, const std::vector<double>& message) {
  std::vector<float> rounded_message;
  for (const double x : message) rounded_message.push_back(static_cast<float>(x));
  const std::vector<float> result = decoded(codec, rounded_message);
  return {result.begin(), result.end()};
}

}  // namespace starling::test
