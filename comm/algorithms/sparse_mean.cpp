#include "comm/algorithms/sparse_mean.h"

#include <utility>

namespace starling {

SparseMean::SparseMean(const AlgorithmSite& site, const DifferenceCode& code, Residuals residuals)
    : backend_(site.backend),
      transport_(site.transport),
      messages_(site, code),
      residuals_(std::move(residuals)),
      states_(site.buckets.size()) {
  for (std::size_t b = 0; b < states_.size(); ++b) {
    for (int j = 0; j < transport_.size(); ++j)
      states_[b].messages.emplace_back(backend_, Shape{messages_.bytes(static_cast<int>(b))},
                                       DType::kUInt8);
  }
}

void SparseMean::start(int bucket, const Tensor& numbers, const Tensor& minus, const Tensor& out,
                       std::int64_t step) {
  const auto b = static_cast<std::size_t>(bucket);
  const int rank = transport_.rank();
  State& state = states_[b];
  state.out = out;
  const Tensor& own = state.messages[static_cast<std::size_t>(rank)];
  {
    const StreamScope scope(backend_, StreamKind::kUpdate);
    messages_.encode(bucket, numbers, minus,
                     residuals_.of_numbers.empty() ? Tensor() : residuals_.of_numbers[b], own);
  }
  Exchange exchange;
  exchange.kind = Exchange::Kind::kNeighbours;
  std::vector<Tensor> received;
  for (int j = 0; j < transport_.size(); ++j) {
    if (j == rank) continue;
    exchange.send_to.push_back(j);
    received.push_back(state.messages[static_cast<std::size_t>(j)]);
  }
  exchange.receive_from = exchange.send_to;
  const StreamScope scope(backend_, StreamKind::kUpdate);
  state.ticket = transport_.start_exchange(exchange, own, received, {step, bucket, step});
}

void SparseMean::finish(int bucket, const Wait& wait) {
  State& state = states_[static_cast<std::size_t>(bucket)];
  wait(std::exchange(state.ticket, 0), bucket);
  const StreamScope scope(backend_, StreamKind::kUpdate);
  messages_.mean(bucket, state.messages, std::vector<double>(state.messages.size(), 1.0),
                 state.out);
}

}  // namespace starling
