#include "comm/algorithms/sparse_mean.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace starling {

SparseMean::SparseMean(const AlgorithmSite& site, const SparseSettings& settings,
                       Residuals residuals)
    : backend_(site.backend),
      transport_(site.transport),
      settings_(settings),
      residuals_(std::move(residuals)) {
  for (const Bucket& bucket : site.buckets) {
    std::vector<std::pair<std::int64_t, std::int64_t>> parts;
    for (const BucketSlot& slot : bucket.layout->slots)
      parts.emplace_back(slot.offset, slot.elements);
    std::sort(parts.begin(), parts.end());
    State& state = states_.emplace_back();
    state.layout = SparseLayout(backend_, bucket.parameters.elements(), parts, settings.block,
                                settings.share, settings.value_bits);
    for (int j = 0; j < transport_.size(); ++j)
      state.messages.emplace_back(backend_, Shape{state.layout.bytes}, DType::kUInt8);
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
    backend_.sparse_encode(
        {.x = numbers,
         .message = own,
         .layout = state.layout,
         .minus = minus,
         .residual = residuals_.of_numbers.empty() ? Tensor() : residuals_.of_numbers[b],
         .decay = residuals_.decay});
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
  backend_.sparse_decode({.messages = state.messages,
                          .out = state.out,
                          .layout = state.layout,
                          .of_all = settings_.of_all});
}

}  // namespace starling
