#include "comm/consensus.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/error.h"
#include "core/operations/codecs.h"
#include "core/philox.h"
#include "kernels/decode_sum.h"
#include "topology/mixing.h"

namespace starling {
namespace {

constexpr std::size_t kWidth = 512;    ///< numbers per rank: whole blocks of every code
constexpr std::int64_t kRounds = 400;  ///< the floor is measured in the last quarter of them
constexpr double kRounding = 1e-6;     ///< relative rounding error of fp32

using Numbers = DisagreementModel::Numbers;
using Part = std::vector<double>;

/// Replaces each rank's `v` by what its neighbours decode.
class Coder {
 public:
  Coder(Backend& backend, Code code, std::int64_t block)
      : backend_(backend),
        code_(code),
        block_(block),
        numbers_(backend, Shape{kWidth}, DType::kFloat32),
        message_(backend, Shape{message_bytes(code, DType::kFloat32, kWidth, block)},
                 DType::kUInt8) {}
  void operator()(Part& v) {
    std::vector<float> own(kWidth);
    for (std::size_t first = 0; first < v.size(); first += kWidth) {
      for (std::size_t e = 0; e < kWidth; ++e) own[e] = static_cast<float>(v[first + e]);
      backend_.copy_from_host(own.data(), numbers_);
      backend_.encode({.x = numbers_, .message = message_, .code = code_, .block = block_});
      decode_sum(backend_, {message_}, {.weights = {1.0}, .code = code_, .block = block_}, 1.0,
                 numbers_, false);
      backend_.copy_to_host(numbers_, own.data());
      for (std::size_t e = 0; e < kWidth; ++e) v[first + e] = static_cast<double>(own[e]);
    }
  }

 private:
  Backend& backend_;
  Code code_;
  std::int64_t block_;
  Tensor numbers_, message_;
};

/// x + γ Σ_j W_ij (C(v_j) - C(v_i)), where v is x, or with error feedback x plus the residual of
/// earlier encodings.
EncodedModel differences(const Encoding& encoding) {
  return {.states = 1,
          .step = [encoding](Numbers& z, const DisagreementModel::MixOne& mix,
                             const DisagreementModel::MixOne& code) {
            const bool feedback = encoding.residual >= 0;
            Part v = z[0], &left = z[1];
            for (std::size_t e = 0; feedback && e < v.size(); ++e) v[e] += left[e];
            Part sent = v;
            code(sent);
            for (std::size_t e = 0; e < v.size(); ++e) left[e] = v[e] - sent[e];
            Part mixed = sent;
            mix(mixed);
            for (std::size_t e = 0; e < v.size(); ++e)
              z[0][e] += encoding.step * (mixed[e] - sent[e]);
          }};
}

/// The root mean square distance from the ranks' mean.
double spread(const Part& x, std::size_t ranks) {
  double sum = 0.0;
  for (std::size_t e = 0; e < kWidth; ++e) {
    double mean = 0.0;
    for (std::size_t i = 0; i < ranks; ++i) mean += x[i * kWidth + e] / static_cast<double>(ranks);
    for (std::size_t i = 0; i < ranks; ++i) sum += std::pow(x[i * kWidth + e] - mean, 2);
  }
  return std::sqrt(sum / static_cast<double>(x.size()));
}

/// Uniform in [-sqrt(3), sqrt(3]), i.e. with variance 1.
double number(std::uint64_t key, std::size_t at) {
  const Philox4x32 bits = philox(key, at, 0);
  return std::sqrt(3.0) * (2.0 * uniform_double(bits.v[0], bits.v[1]) - 1.0);
}

}  // namespace

bool encodes(const AlgorithmPlan& plan, const MixerKind& mixer) {
  return plan.growth.encoded.step ||
         (plan.messages.encoding && !plan.messages.encoding->of_means && mixer.code != Code::kNone);
}

EncodedConsensus encoded_consensus(const AlgorithmPlan& plan, const MixerKind& mixer,
                                   const Topology& topology, Backend& backend) {
  require(encodes(plan, mixer), "consensus", "{} exchanges numbers as they are", plan.label());
  const auto ranks = static_cast<std::size_t>(topology.ranks());
  if (ranks == 1) return {};
  const bool own = static_cast<bool>(plan.growth.encoded.step);
  const EncodedModel model = own ? plan.growth.encoded : differences(*plan.messages.encoding);
  Coder code(backend, own ? model.code : mixer.code,
             own ? model.block : plan.messages.encoding->block);
  Numbers z(static_cast<std::size_t>(model.states) + 1, Part(ranks * kWidth, 0.0));
  for (std::size_t at = 0; at < z[0].size(); ++at) {
    const double common = number(1, at % kWidth);
    z[0][at] = common + number(2, at);
    for (std::size_t k = 1; k < z.size() && model.states_begin_at_x; ++k) z[k][at] = common;
  }
  std::vector<double> left{spread(z[0], ranks)};
  for (std::int64_t round = 0; round < kRounds; ++round) {
    const MixingMatrix w(topology.round(round), topology.ranks());
    model.step(
        z, [&](Part& x) { w.apply(x, kWidth); }, [&](Part& x) { code(x); });
    left.push_back(spread(z[0], ranks));
  }
  EncodedConsensus result;
  for (std::size_t k = left.size() - kRounds / 4; k < left.size(); ++k)
    result.floor = std::max(result.floor, left[k]);
  // The decay is measured up to where the floor becomes visible, but over one round at least.
  std::size_t end = 1;
  while (end + 1 < left.size() && left[end] > std::max(10.0 * result.floor, kRounding)) ++end;
  result.rate = std::pow(left[end] / left[0], 1.0 / static_cast<double>(end));
  if (result.floor < kRounding) result.floor = 0.0;
  return result;
}

}  // namespace starling
