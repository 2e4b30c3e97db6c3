#include "plain_exchange.h"

#include <cstddef>

#include "core/error.h"

namespace starling::test {

Vectors decoded(const PlainRun& run, const PlainCodec& codec, const Vectors& v) {
  if (run.n == 1) return v;  // nothing is compressed
  Vectors result = v;
  for (std::size_t i = 0; i < v.size(); ++i) {
    for (std::size_t b = 0; b < run.buckets; ++b)
      run.read_message(decoded(codec, run.message(v[i], b)), b, result[i]);
  }
  return result;
}

PlainExchange::PlainExchange(const PlainRun& run, const std::string& exchange)
    : exact_(exchange == "fp32"),
      codec_{exchange, run.key("block", std::size_t{256})},
      feedback_(run.key("error_feedback", false)),
      gamma_(run.key("consensus_step", 1.0)),
      residual_(run.zeros()) {
  require(!exact_ || (!feedback_ && gamma_ == 1.0), "test",
          "error_feedback and consensus_step are about bf16 and int8");
}

PlainExchange PlainExchange::without_feedback() const {
  PlainExchange result = *this;
  result.feedback_ = false;
  return result;
}

Vectors PlainExchange::mixed(const PlainRun& run, const Vectors& v, const Round& round) {
  if (exact_ || run.n == 1) return PlainRun::mixed(v, round);
  require(round.ranks_per_node == 1, "test",
          "no plain rewriting of encoded exchanges between nodes");
  const Vectors sent = feedback_ ? PlainRun::sum({{1.0, &v}, {1.0, &residual_}}) : v,
                heard = decoded(run, codec_, sent);
  Vectors c = v;
  for (std::size_t i = 0; i < run.n; ++i) {
    const auto row = Topology::row(round, static_cast<int>(i));
    if (row.size() == 1) continue;  // alone in this round: it sends nothing
    for (std::size_t e = 0; e < run.size(); ++e) {
      double moved = 0.0;
      for (const auto& [j, w] : row)
        moved += w * (heard[static_cast<std::size_t>(j)][e] - heard[i][e]);
      c[i][e] += gamma_ * moved;
      if (feedback_) residual_[i][e] = sent[i][e] - heard[i][e];
    }
  }
  return c;
}

}  // namespace starling::test
