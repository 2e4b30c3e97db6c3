#include "comm/mixers/bf16.h"

#include <cstddef>
#include <numeric>
#include <utility>

#include "comm/mixers/encoded.h"
#include "comm/mixers/messages.h"
#include "core/error.h"
#include "core/operations/codecs.h"
#include "core/operations/pointwise.h"

namespace starling {
namespace {

class Bf16Mixer final : public MessageMixer {
 public:
  /// Groups' sums are of bf16 numbers, which no communicator of their own makes.
  Bf16Mixer(Backend& backend, Transport& transport)
      : MessageMixer(backend, transport, Groups::kSummedEncoded) {}

  /// No buffers of the parameters' kind: messages need others. Nothing is read where it lies, since
  /// what was sent and what was made of it must not depend on where a neighbour is.
  std::size_t buffers_for(const Exchange&) const override { return 0; }
  Ticket start(const Exchange& exchange, const Bucket& bucket, const std::vector<Tensor>& buffers,
               std::vector<Tensor>& received, const ExchangeLabel& label) override;
  void terms(const Exchange& exchange, std::vector<Tensor>& received, const ExchangeLabel& label,
             Mix& mix) override;

 private:
  struct Encoded {
    Tensor own;                   ///< bf16: what was sent
    std::vector<Tensor> arrived;  ///< bf16, one per neighbour
    Tensor sum;                   ///< of a group, or what nodes have mixed, in the parameters' type
  };
  /// The k-th decoded tensor, large enough for any bucket so far, of the shape of `encoded`.
  Tensor scratch(std::size_t k, const Tensor& encoded);

  DType dtype_ = DType::kFloat32;
  std::vector<Encoded> encoded_;  ///< by bucket
  std::vector<Tensor> scratch_;   ///< updates are issued in order, so all buckets share it
};

/// Encodes the bucket's parameters, behind the updates issued so far.
Ticket Bf16Mixer::start(const Exchange& exchange, const Bucket& bucket, const std::vector<Tensor>&,
                        std::vector<Tensor>&, const ExchangeLabel& label) {
  if (exchange.kind == Exchange::Kind::kNone) return 0;
  require(label.bucket >= 0, "exchange", "an exchange of bucket {}", label.bucket);
  const auto b = static_cast<std::size_t>(label.bucket);
  if (encoded_.size() <= b) encoded_.resize(b + 1);
  Encoded& encoded = encoded_[b];
  const Tensor& x = bucket.parameters;
  dtype_ = x.dtype();
  require(dtype_ == DType::kFloat32, "exchange",
          "parameters of {} cannot travel as bf16; needed: fp32", name_of(dtype_));
  if (exchange.kind == Exchange::Kind::kNodes) {  // the transport encodes: only between nodes
    if (!encoded.sum) encoded.sum = Tensor(backend_, x.shape(), dtype_);
    Exchange narrow = exchange;
    narrow.bf16_between = true;
    return transport_.start_exchange(narrow, x, {encoded.sum}, label);
  }
  {
    // On the update stream, behind the update that made x: it may write to this memory at once.
    const StreamScope scope(backend_, StreamKind::kUpdate);
    if (!encoded.own) encoded.own = Tensor(backend_, x.shape(), DType::kBFloat16);
    backend_.cast({x, encoded.own});
  }
  std::vector<Tensor> places;
  if (exchange.kind == Exchange::Kind::kGroupSum) {
    if (!encoded.sum) encoded.sum = Tensor(backend_, x.shape(), dtype_);
    places = {encoded.sum};
  } else {
    while (encoded.arrived.size() < exchange.received())
      encoded.arrived.emplace_back(backend_, x.shape(), DType::kBFloat16);
    places.assign(encoded.arrived.begin(),
                  encoded.arrived.begin() + static_cast<std::ptrdiff_t>(exchange.received()));
  }
  return transport_.start_exchange(exchange, encoded.own, places, label);
}

/// The terms are valid for the next update of this bucket, and overwritten by the next call.
void Bf16Mixer::terms(const Exchange& exchange, std::vector<Tensor>&, const ExchangeLabel& label,
                      Mix& mix) {
  const auto b = static_cast<std::size_t>(label.bucket);
  require(b < encoded_.size() && (encoded_[b].own || encoded_[b].sum), "exchange",
          "bucket {} was not exchanged", label.bucket);
  const Encoded& encoded = encoded_[b];
  if (exchange.kind == Exchange::Kind::kNodes) {
    mix.self_weight = exchange.self_weight;
    mix.received = {encoded.sum};
    mix.weights = exchange.weights;
    return;
  }
  const StreamScope scope(backend_, StreamKind::kUpdate);
  const auto add = [&](const Tensor& decoded, double weight) {
    mix.received.push_back(decoded);
    mix.weights.push_back(weight);
  };
  const auto add_encoded = [&](const Tensor& numbers, double weight) {
    const Tensor decoded = scratch(mix.received.size(), numbers);
    backend_.cast({numbers, decoded});
    add(decoded, weight);
  };
  double moved = 0.0;  // the weight that the differences have in all
  if (exchange.kind == Exchange::Kind::kGroupSum) {
    moved = exchange.weights[0] * static_cast<double>(exchange.group.size());
    add_encoded(encoded.own, -moved);
    add(encoded.sum, exchange.weights[0]);
  } else {
    moved = std::accumulate(exchange.weights.begin(), exchange.weights.end(), 0.0);
    add_encoded(encoded.own, -moved);
    for (std::size_t k = 0; k < exchange.weights.size(); ++k)
      add_encoded(encoded.arrived[k], exchange.weights[k]);
  }
  mix.self_weight = exchange.self_weight + moved;
}

Tensor Bf16Mixer::scratch(std::size_t k, const Tensor& encoded) {
  if (scratch_.size() <= k) scratch_.resize(k + 1);
  if (!scratch_[k] || scratch_[k].elements() < encoded.elements())
    scratch_[k] = Tensor(backend_, Shape{encoded.elements()}, dtype_);
  return scratch_[k].elements() == encoded.elements()
             ? scratch_[k]
             : scratch_[k].slice(0, Shape{encoded.elements()});
}

}  // namespace

MixerKind bf16_mixer() {
  return {[](Backend& backend, Transport& transport,
             const Encoding& encoding) -> std::unique_ptr<Mixer> {
            if (!encoding.plain())
              return make_encoded_mixer(backend, transport, Code::kBf16, encoding);
            return std::make_unique<Bf16Mixer>(backend, transport);
          },
          0.5, true, Code::kBf16};
}

}  // namespace starling
