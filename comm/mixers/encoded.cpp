#include "comm/mixers/encoded.h"

#include <numeric>

#include "comm/exchange_plan.h"
#include "comm/mixers/messages.h"
#include "core/error.h"
#include "core/operations/pointwise.h"
#include "kernels/decode_sum.h"

namespace starling {

EncodedMessages::Messages& EncodedMessages::of(int bucket) {
  const auto b = static_cast<std::size_t>(bucket);
  if (messages_.size() <= b) messages_.resize(b + 1);
  return messages_[b];
}

Tensor EncodedMessages::message_of(const Tensor& numbers) const {
  return Tensor(backend_, Shape{message_bytes(code_, numbers.dtype(), numbers.elements(), block_)},
                DType::kUInt8);
}

void EncodedMessages::encode(int bucket, const Tensor& numbers) {
  Messages& messages = of(bucket);
  const StreamScope scope(backend_, StreamKind::kUpdate);
  if (!messages.own) messages.own = message_of(numbers);
  backend_.encode({.x = numbers, .message = messages.own, .code = code_, .block = block_});
}

Ticket EncodedMessages::send(const Exchange& exchange, const Tensor& numbers,
                             const ExchangeLabel& label) {
  encode(label.bucket, numbers);
  Messages& messages = of(label.bucket);
  while (messages.received.size() < exchange.receive_from.size())
    messages.received.push_back(message_of(numbers));
  const auto end =
      messages.received.begin() + static_cast<std::ptrdiff_t>(exchange.receive_from.size());
  return transport_.start_exchange(exchange, messages.own, {messages.received.begin(), end}, label);
}

Ticket EncodedMessages::sum(const Exchange& exchange, const Tensor& numbers, const Tensor& sum,
                            const ExchangeLabel& label) {
  encode(label.bucket, numbers);
  const Tensor own(of(label.bucket).own.storage(), 0, numbers.shape(), DType::kBFloat16);
  return transport_.start_exchange(exchange, own, {sum}, label);
}

void EncodedMessages::add_up(int bucket, double own_weight, const std::vector<double>& weights,
                             const Tensor& out, bool accumulate) {
  Mix mix;
  this->mix(bucket, own_weight, weights, 1.0, mix);
  if (own_weight == 0.0) {
    mix.received.erase(mix.received.begin());
    mix.encoded.weights.erase(mix.encoded.weights.begin());
  }
  const StreamScope scope(backend_, StreamKind::kUpdate);
  decode_sum(backend_, mix.received, mix.encoded, 1.0, out, accumulate);
}

void EncodedMessages::mix(int bucket, double own_weight, const std::vector<double>& weights,
                          double share, Mix& mix) const {
  const Messages& messages = messages_[static_cast<std::size_t>(bucket)];
  const auto end = messages.received.begin() + static_cast<std::ptrdiff_t>(weights.size());
  mix.received = {messages.own};
  mix.received.insert(mix.received.end(), messages.received.begin(), end);
  mix.encoded = {.weights = {own_weight}, .code = code_, .block = block_};
  mix.encoded.weights.insert(mix.encoded.weights.end(), weights.begin(), weights.end());
  mix.self_weight = 1.0;
  mix.weights = {share};
  mix.sum = true;
}

void EncodedMessages::add_received(int bucket, std::size_t k, const Tensor& out) {
  const StreamScope scope(backend_, StreamKind::kUpdate);
  decode_sum(backend_, {of(bucket).received[k]}, {.weights = {1.0}, .code = code_, .block = block_},
             1.0, out, true);
}

namespace {

class EncodedMixer final : public MessageMixer {
 public:
  EncodedMixer(Backend& backend, Transport& transport, Code code, const Encoding& encoding)
      : MessageMixer(backend, transport,
                     sums(code, encoding) ? Groups::kSummedEncoded : Groups::kMessages),
        encoding_(encoding),
        code_(code),
        messages_(backend, transport, code, encoding.block) {}

  std::unique_ptr<Mixer> another() const override {
    Encoding encoding = encoding_;
    encoding.residual = -1;
    return std::make_unique<EncodedMixer>(backend_, transport_, code_, encoding);
  }
  /// messages_ has its own buffers. Shared memory is never used, so that the bits do not depend on
  /// where neighbours run.
  std::size_t buffers_for(const Exchange&) const override { return 0; }
  Ticket start(const Exchange& exchange, const Bucket& bucket, const std::vector<Tensor>&,
               std::vector<Tensor>&, const ExchangeLabel& label) override {
    if (exchange.kind == Exchange::Kind::kNone) return 0;
    const Tensor& x = bucket.parameters;
    Sent& sent = sent_of(label.bucket);
    sent.bucket = &bucket;
    if (is_summed(exchange)) {
      require(x.dtype() == DType::kFloat32, "exchange",
              "parameters of {} cannot travel as bf16; needed: fp32", name_of(x.dtype()));
      if (!sent.sum) sent.sum = Tensor(backend_, x.shape(), x.dtype());
      if (exchange.kind == Exchange::Kind::kGroupSum)
        return messages_.sum(exchange, x, sent.sum, label);
      Exchange narrow = exchange;  // the transport encodes: only between nodes
      narrow.bf16_between = true;
      return transport_.start_exchange(narrow, x, {sent.sum}, label);
    }
    Tensor numbers = x;
    if (encoding_.residual >= 0) {
      const StreamScope scope(backend_, StreamKind::kUpdate);
      numbers = scratch(x);
      backend_.weighted_sum(
          {.in = {x, residual(bucket)}, .weight = {1.0, 1.0}, .terms = 2, .out = numbers});
    }
    return messages_.send(as_messages(exchange, transport_.rank()), numbers, label);
  }
  /// The terms are valid for the next update of this bucket, and overwritten by the next call.
  void terms(const Exchange& exchange, std::vector<Tensor>&, const ExchangeLabel& label,
             Mix& mix) override {
    const Sent& sent = sent_of(label.bucket);
    if (is_summed(exchange)) {
      const bool group = exchange.kind == Exchange::Kind::kGroupSum;
      if (group) {  // Σ_j C(x_j) - m·C(x): differences alone
        const auto members = static_cast<double>(exchange.group.size());
        messages_.add_up(label.bucket, -members, {}, sent.sum, true);
      }
      mix.self_weight = group ? 1.0 : exchange.self_weight;
      mix.received = {sent.sum};
      mix.weights = exchange.weights;
      return;
    }
    const Bucket& bucket = *sent.bucket;
    const std::vector<double> weights = as_messages(exchange, transport_.rank()).weights;
    if (encoding_.residual >= 0) {  // δ' = (x + δ) - C(x + δ)
      const StreamScope scope(backend_, StreamKind::kUpdate);
      const Tensor left = residual(bucket);
      backend_.weighted_sum({.in = {bucket.parameters},
                             .weight = {1.0},
                             .terms = 1,
                             .out = left,
                             .accumulate = true});
      messages_.add_up(label.bucket, -1.0, {}, left, true);
    }
    const double own = -std::accumulate(weights.begin(), weights.end(), 0.0);
    messages_.mix(label.bucket, own, weights, encoding_.step, mix);
  }

 private:
  struct Sent {
    const Bucket* bucket = nullptr;
    Tensor sum;  ///< of a group, or what nodes have mixed
  };
  Sent& sent_of(int bucket) {
    const auto b = static_cast<std::size_t>(bucket);
    if (sent_.size() <= b) sent_.resize(b + 1);
    return sent_[b];
  }
  /// Numbers rounded to bf16 can be added up on the way; other codes' messages go to each.
  static bool sums(Code code, const Encoding& encoding) {
    return code == Code::kBf16 && encoding.plain();
  }
  bool is_summed(const Exchange& exchange) const {
    return sums(code_, encoding_) &&
           (exchange.kind == Exchange::Kind::kGroupSum || exchange.kind == Exchange::Kind::kNodes);
  }
  const Tensor& residual(const Bucket& bucket) const {
    return bucket.sync[static_cast<std::size_t>(encoding_.residual)].numbers;
  }
  /// Large enough for any bucket so far; updates are issued in order, so all buckets share it.
  Tensor scratch(const Tensor& like) {
    if (!scratch_ || scratch_.elements() < like.elements())
      scratch_ = Tensor(backend_, like.shape(), like.dtype());
    return scratch_.slice(0, Shape{like.elements()});
  }

  Encoding encoding_;
  Code code_;
  EncodedMessages messages_;
  std::vector<Sent> sent_;  ///< by bucket
  Tensor scratch_;
};

}  // namespace

MixerKind encoded_mixer(Code code, double wire) {
  return {[code](Backend& backend, Transport& transport, const Encoding& encoding) {
            return std::make_unique<EncodedMixer>(backend, transport, code, encoding);
          },
          wire, true, code, code != Code::kBf16};
}

}  // namespace starling
