#include "comm/bf16_exchange.h"

#include <cstddef>
#include <numeric>

#include "core/error.h"

namespace starling {

Bf16Exchange::Bf16Exchange(Backend& backend, Transport& transport) : backend_(backend), transport_(transport) {}

Ticket Bf16Exchange::start(const Exchange& exchange, const Bucket& bucket, const ExchangeLabel& label) {
  if (exchange.kind == Exchange::Kind::kNone) return 0;
  require(label.bucket >= 0, "exchange", "an exchange of bucket {}", label.bucket);
  const auto b = static_cast<std::size_t>(label.bucket);
  if (buckets_.size() <= b) buckets_.resize(b + 1);
  Encoded& encoded = buckets_[b];
  const Tensor& x = bucket.parameters;
  dtype_ = x.dtype();
  require(dtype_ == DType::kFloat32, "exchange", "parameters of {} cannot travel as bf16; needed: fp32", name_of(dtype_));
  if (exchange.kind == Exchange::Kind::kNodes) {  // the transport encodes: only between nodes
    if (!encoded.sum) encoded.sum = Tensor(backend_, x.shape(), dtype_);
    Exchange narrow = exchange;
    narrow.bf16_between = true;
    return transport_.start_exchange(narrow, x, {encoded.sum}, label);
  }
  if (!encoded.own) encoded.own = Tensor(backend_, x.shape(), DType::kBFloat16);
  {
    const StreamScope scope(backend_, StreamKind::kUpdate);  // behind the update that made x
    backend_.cast({x, encoded.own});
  }
  std::vector<Tensor> places;
  if (exchange.kind == Exchange::Kind::kGroupSum) {
    if (!encoded.sum) encoded.sum = Tensor(backend_, x.shape(), dtype_);
    places = {encoded.sum};
  } else {
    while (encoded.arrived.size() < exchange.received()) encoded.arrived.emplace_back(backend_, x.shape(), DType::kBFloat16);
    places.assign(encoded.arrived.begin(), encoded.arrived.begin() + static_cast<std::ptrdiff_t>(exchange.received()));
  }
  return transport_.start_exchange(exchange, encoded.own, places, label);
}

Bf16Exchange::Terms Bf16Exchange::decode(const Exchange& exchange, const ExchangeLabel& label) {
  Terms terms;
  if (exchange.kind == Exchange::Kind::kNone) return terms;
  const auto b = static_cast<std::size_t>(label.bucket);
  require(b < buckets_.size() && (buckets_[b].own || buckets_[b].sum), "exchange", "bucket {} was not exchanged", label.bucket);
  const Encoded& encoded = buckets_[b];
  if (exchange.kind == Exchange::Kind::kNodes) return {exchange.self_weight, {encoded.sum}, exchange.weights};
  const StreamScope scope(backend_, StreamKind::kUpdate);
  const auto add = [&](const Tensor& decoded, double weight) {
    terms.received.push_back(decoded);
    terms.weights.push_back(weight);
  };
  const auto add_encoded = [&](const Tensor& numbers, double weight) {
    const Tensor decoded = scratch(terms.received.size(), numbers);
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
    for (std::size_t k = 0; k < exchange.weights.size(); ++k) add_encoded(encoded.arrived[k], exchange.weights[k]);
  }
  terms.self_weight = exchange.self_weight + moved;
  return terms;
}

Tensor Bf16Exchange::scratch(std::size_t k, const Tensor& encoded) {
  if (scratch_.size() <= k) scratch_.resize(k + 1);
  if (!scratch_[k] || scratch_[k].elements() < encoded.elements()) scratch_[k] = Tensor(backend_, Shape{encoded.elements()}, dtype_);
  return scratch_[k].elements() == encoded.elements() ? scratch_[k] : scratch_[k].slice(0, Shape{encoded.elements()});
}

}  // namespace starling
