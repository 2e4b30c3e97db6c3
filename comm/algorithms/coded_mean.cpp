#include "comm/algorithms/coded_mean.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/operations/pointwise.h"
#include "kernels/decode_sum.h"

namespace starling {
namespace {

constexpr std::int64_t kAlignment = 32;

std::int64_t chunk_size(std::int64_t elements, int ranks) {
  return ((elements + ranks - 1) / ranks + kAlignment - 1) / kAlignment * kAlignment;
}

Exchange between(std::vector<int> to, std::vector<int> from) {
  return {.kind = Exchange::Kind::kNeighbours,
          .send_to = std::move(to),
          .receive_from = std::move(from)};
}

}  // namespace

std::string code_name(int number) {
  switch (number) {
    case static_cast<int>(Code::kNone): return "numbers as they are";
    case static_cast<int>(Code::kBf16): return "bf16";
    case static_cast<int>(Code::kInt8): return "int8";
    case static_cast<int>(Code::kInt4): return "int4";
    default: break;
  }
  const int bits = number - DifferenceCode::kSparse;
  return bits == 2 || bits == 4 || bits == 8 ? fmt::format("sparse, {} bits", bits)
                                             : fmt::format("an unknown code, {}", number);
}

DifferenceMessages::DifferenceMessages(const AlgorithmSite& site, DifferenceCode code)
    : backend_(site.backend), buckets_(site.buckets), code_(code) {
  if (!code_.sparse) return;
  for (const Bucket& bucket : buckets_) {
    std::vector<std::pair<std::int64_t, std::int64_t>> parts;
    for (const BucketSlot& slot : bucket.layout->slots)
      parts.emplace_back(slot.offset, slot.elements);
    std::sort(parts.begin(), parts.end());
    layouts_.emplace_back(backend_, bucket.parameters.elements(), parts, code_.sparse->block,
                          code_.sparse->share, code_.sparse->value_bits);
  }
}

std::int64_t DifferenceMessages::bytes(int bucket) const {
  const auto b = static_cast<std::size_t>(bucket);
  if (code_.sparse) return layouts_[b].bytes;
  const Tensor& numbers = buckets_[b].parameters;
  return message_bytes(code_.compressor.code, numbers.dtype(), numbers.elements(),
                       code_.compressor.block);
}

void DifferenceMessages::encode(int bucket, const Tensor& numbers, const Tensor& minus,
                                const Tensor& residual, const Tensor& message) {
  if (code_.sparse) {
    backend_.sparse_encode({.x = numbers,
                            .message = message,
                            .layout = layouts_[static_cast<std::size_t>(bucket)],
                            .minus = minus,
                            .residual = residual,
                            .decay = code_.error_decay});
  } else {
    backend_.encode({.x = numbers,
                     .message = message,
                     .code = code_.compressor.code,
                     .block = code_.compressor.block,
                     .minus = minus,
                     .residual = residual,
                     .decay = code_.error_decay});
  }
}

void DifferenceMessages::mean(int bucket, const std::vector<Tensor>& messages,
                              const std::vector<double>& weights, const Tensor& out) {
  if (code_.sparse) {
    backend_.sparse_decode({.messages = messages,
                            .weights = {weights.begin(), weights.end()},
                            .out = out,
                            .layout = layouts_[static_cast<std::size_t>(bucket)],
                            .of_all = code_.sparse->of_all});
    return;
  }
  EncodedTerms terms{.code = code_.compressor.code, .block = code_.compressor.block};
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (const double weight : weights) terms.weights.push_back(weight / all);
  decode_sum(backend_, messages, terms, 1.0, out, false);
}

EncodedMean::EncodedMean(const AlgorithmSite& site, const Compressor& compressor, double divisor,
                         Residuals residuals)
    : backend_(site.backend),
      transport_(site.transport),
      compressor_(compressor),
      divisor_(divisor),
      residuals_(std::move(residuals)),
      states_(site.buckets.size()) {}

std::int64_t EncodedMean::first(const Tensor& numbers, int chunk) const {
  return std::min(numbers.elements(), chunk * chunk_size(numbers.elements(), transport_.size()));
}
std::int64_t EncodedMean::size(const Tensor& numbers, int chunk) const {
  return first(numbers, chunk + 1) - first(numbers, chunk);
}
Tensor EncodedMean::chunk_of(const Tensor& numbers, int chunk) const {
  return numbers.slice(first(numbers, chunk), Shape{size(numbers, chunk)});
}
std::int64_t EncodedMean::bytes(DType dtype, std::int64_t elements) const {
  return message_bytes(compressor_.code, dtype, elements, compressor_.block);
}
Tensor EncodedMean::part(const Tensor& message, const Tensor& numbers) const {
  return message.slice(0, Shape{bytes(numbers.dtype(), numbers.elements())});
}
void EncodedMean::encode(const Tensor& numbers, const Tensor& minus, const Tensor& residual,
                         const Tensor& message) {
  backend_.encode({.x = numbers,
                   .message = part(message, numbers),
                   .code = compressor_.code,
                   .block = compressor_.block,
                   .minus = minus,
                   .residual = residual,
                   .decay = residuals_.decay});
}

void EncodedMean::start(int bucket, const Tensor& numbers, const Tensor& minus, const Tensor& out,
                        std::int64_t step) {
  const int ranks = transport_.size(), rank = transport_.rank();
  const auto b = static_cast<std::size_t>(bucket);
  State& state = states_[b];
  state.out = out;
  state.tickets.clear();  // left by an aborted step
  const std::int64_t mine = size(numbers, rank);
  const StreamScope scope(backend_, StreamKind::kUpdate);
  if (state.sent.empty()) {
    // The mean is computed in fp32 unless numbers are sent unencoded. All messages have the size of
    // a full chunk.
    const DType wide = compressor_.code == Code::kNone ? numbers.dtype() : DType::kFloat32;
    if (mine > 0) state.chunk = Tensor(backend_, Shape{mine}, wide);
    const auto message = [&](bool wanted) {
      return wanted
                 ? Tensor(backend_, Shape{bytes(numbers.dtype(), size(numbers, 0))}, DType::kUInt8)
                 : Tensor();
    };
    for (int j = 0; j < ranks; ++j) {
      state.sent.push_back(message(size(numbers, j) > 0));
      state.received.push_back(message(mine > 0 && j != rank));
      state.means.push_back(message(size(numbers, j) > 0));
    }
  }
  const Tensor residual = residuals_.of_numbers.empty() ? Tensor() : residuals_.of_numbers[b];
  for (int j = 0; j < ranks; ++j) {
    if (size(numbers, j) == 0) continue;
    encode(chunk_of(numbers, j), minus ? chunk_of(minus, j) : minus,
           residual ? chunk_of(residual, j) : residual, state.sent[static_cast<std::size_t>(j)]);
  }
  for (int shift = 1; shift < ranks; ++shift) {
    const int to = (rank + shift) % ranks, from = (rank + ranks - shift) % ranks;
    const bool sends = size(numbers, to) > 0;
    if (!sends && mine == 0) continue;
    const Exchange exchange = between(sends ? std::vector<int>{to} : std::vector<int>{},
                                      mine > 0 ? std::vector<int>{from} : std::vector<int>{});
    std::vector<Tensor> places;
    if (mine > 0) places.push_back(state.received[static_cast<std::size_t>(from)]);
    state.tickets.push_back(transport_.start_exchange(
        exchange, sends ? state.sent[static_cast<std::size_t>(to)] : state.sent[0], places,
        {step, bucket, step}));
  }
}

void EncodedMean::gather(int bucket, std::int64_t step, const Wait& wait) {
  const int ranks = transport_.size(), rank = transport_.rank();
  State& state = states_[static_cast<std::size_t>(bucket)];
  settle(state, bucket, wait);
  const StreamScope scope(backend_, StreamKind::kUpdate);
  const auto me = static_cast<std::size_t>(rank);
  if (state.chunk) {
    std::vector<Tensor> messages;
    for (int j = 0; j < ranks; ++j) {
      const Tensor& message =
          j == rank ? state.sent[me] : state.received[static_cast<std::size_t>(j)];
      messages.push_back(part(message, state.chunk));
    }
    decode_sum(backend_, messages, terms(std::vector<double>(messages.size(), 1.0)), 1.0,
               state.chunk, false, divisor_);
    // The residual is at the chunk's offset, since checkpoints do not include padding.
    const std::vector<Tensor>& left = residuals_.of_chunks;
    encode(state.chunk, {},
           left.empty() ? Tensor() : chunk_of(left[static_cast<std::size_t>(bucket)], rank),
           state.means[me]);
  }
  std::vector<int> others, senders;
  std::vector<Tensor> places;
  for (int j = 0; j < ranks; ++j) {
    if (j == rank) continue;
    if (state.chunk) others.push_back(j);
    if (!state.means[static_cast<std::size_t>(j)]) continue;
    senders.push_back(j);
    places.push_back(state.means[static_cast<std::size_t>(j)]);
  }
  if (others.empty() && senders.empty()) return;
  state.tickets.push_back(transport_.start_exchange(between(others, senders),
                                                    state.chunk ? state.means[me] : state.sent[0],
                                                    places, {step, bucket, step}));
}

void EncodedMean::finish(int bucket, const Wait& wait) {
  State& state = states_[static_cast<std::size_t>(bucket)];
  settle(state, bucket, wait);
  const StreamScope scope(backend_, StreamKind::kUpdate);
  for (int j = 0; j < transport_.size(); ++j) {
    const Tensor& mean = state.means[static_cast<std::size_t>(j)];
    if (!mean) continue;
    const Tensor out = chunk_of(state.out, j);
    decode_sum(backend_, {part(mean, out)}, terms({1.0}), 1.0, out, false);
  }
}

void EncodedMean::settle(State& state, int bucket, const Wait& wait) {
  for (const Ticket ticket : state.tickets) wait(ticket, bucket);
  state.tickets.clear();
}

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
  std::vector<int> others;
  std::vector<Tensor> received;
  for (int j = 0; j < transport_.size(); ++j) {
    if (j == rank) continue;
    others.push_back(j);
    received.push_back(state.messages[static_cast<std::size_t>(j)]);
  }
  const StreamScope scope(backend_, StreamKind::kUpdate);
  state.ticket =
      transport_.start_exchange(between(others, others), own, received, {step, bucket, step});
}

void SparseMean::finish(int bucket, const Wait& wait) {
  State& state = states_[static_cast<std::size_t>(bucket)];
  wait(std::exchange(state.ticket, 0), bucket);
  const StreamScope scope(backend_, StreamKind::kUpdate);
  messages_.mean(bucket, state.messages, std::vector<double>(state.messages.size(), 1.0),
                 state.out);
}

}  // namespace starling
