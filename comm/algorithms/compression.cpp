#include "comm/algorithms/compression.h"

#include <algorithm>

#include "comm/exchange_plan.h"

namespace starling {
std::int64_t read_block(ConfigSection& config) {
  const std::int64_t block = config.integer(
      "block", 256, Range::closed(0, 1e9),
      "numbers that share a range where 8 or 4 bits travel, a multiple of 32; 0: a whole bucket");
  if (block % 32 != 0)
    config.error("block", "is {}; allowed: multiples of 32, or 0 for a whole bucket", block);
  return block;
}

Encoding read_encoding(ConfigSection& config, std::vector<KeptState>& states) {
  Encoding encoding;
  encoding.block = read_block(config);
  if (config.boolean(
          "error_feedback", false,
          "what encoding leaves out of an exchange (sync.exchange) goes into the next")) {
    encoding.residual = static_cast<int>(states.size());
    states.push_back({.name = "residual"});
  }
  encoding.step = read_consensus_step(config);
  return encoding;
}

double read_consensus_step(ConfigSection& config) {
  return config.number("consensus_step", 1.0, Range{0.0, 1.0, true, false},
                       "part of the way to its neighbours' mix that a rank goes");
}

Compressor read_compressor(ConfigSection& config, Code standard) {
  Compressor compressor{.code = standard};
  config.read(
      "compressor", compressor.code,
      {{"int8", Code::kInt8}, {"minmax8", Code::kMinMax8}, {"none", Code::kNone}},
      "how numbers travel: 8 bits by the largest of a block, or from its least to its largest");
  compressor.block = read_block(config);
  return compressor;
}

EncodedBucketwise::EncodedBucketwise(const AlgorithmSite& site, const Compressor& compressor)
    : Bucketwise(site),
      messages_(site.backend, site.transport, compressor.code, compressor.block),
      tickets_(site.buckets.size()) {
  site_.transport.prepare({});
  const int rank = site_.transport.rank();
  if (ranks() > 1)
    exchange_ = as_messages(plan_exchange(site_.topology->round(0), rank, true), rank);
  std::int64_t largest = 0;
  for (const Bucket& bucket : site.buckets)
    largest = std::max(largest, bucket.parameters.elements());
  if (largest > 0)
    moved_ = Tensor(site.backend, Shape{largest}, site.buckets[0].parameters.dtype());
}

void EncodedBucketwise::send(int b, std::int64_t step) {
  tickets_[static_cast<std::size_t>(b)] = messages_.send(exchange_, moved(b), {step, b, step});
  if (!site_.overlap) settle(b);
}

}  // namespace starling
