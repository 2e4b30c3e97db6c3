#include "plain_compressed.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>

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

PlainCodec codec_of(const PlainRun& run, const char* usual) {
  return {run.key<std::string>("compressor", usual), run.key("block", std::size_t{256})};
}

bool any_skips(const PlainRun& run, int t) {
  for (std::size_t i = 0; i < run.n; ++i) {
    if (run.skips(i, t)) return true;
  }
  return false;
}

void add(Vector& to, const Vector& from) {
  for (std::size_t e = 0; e < to.size(); ++e) to[e] += from[e];
}

void choco(PlainRun& run) {
  const PlainCodec codec = codec_of(run, "int8");
  const double gamma = run.key("consensus_step", 1.0);
  Vectors estimate = run.x, r = run.x, q = run.zeros();  // x̂, r; q is in flight
  for (int t = 0; t < run.steps; ++t) {
    if (t > 0) {
      estimate = PlainRun::sum({{1.0, &estimate}, {1.0, &q}});
      const Vectors heard = run.mixed(q, t - 1);
      r = PlainRun::sum({{1.0, &r}, {1.0, &heard}});
    }
    const Vectors c = PlainRun::sum({{1.0, &run.x}, {gamma, &r}, {-gamma, &estimate}});
    run.x = run.updated(c, run.own_gradients(t), t);
    q = decoded(run, codec, PlainRun::sum({{1.0, &run.x}, {-1.0, &estimate}}));
  }
}

void low_precision(PlainRun& run) {
  const PlainCodec codec = codec_of(run, "minmax8");
  const int interval = run.key("interval", 1);
  std::vector<Vectors> replicas;  // [i][j]: rank i's X_j; X itself is [i][i]
  for (std::size_t i = 0; i < run.n; ++i) replicas.emplace_back(run.n, run.x[i]);
  for (int t = 0, exchanges = 0; t < run.steps; ++t) {
    const Vectors h = run.updated(run.x, run.own_gradients(t), t);
    run.x = h;
    if (run.n > 1 && (t + 1) % interval == 0) {
      const Round round = run.round(exchanges++);
      Vectors difference = h;
      for (std::size_t i = 0; i < run.n; ++i) {
        const Vector& own = replicas[i][i];
        for (std::size_t e = 0; e < run.size(); ++e) {
          difference[i][e] -= own[e];
          for (const auto& [j, w] : Topology::row(round, static_cast<int>(i))) {
            difference[i][e] += w * (replicas[i][static_cast<std::size_t>(j)][e] - own[e]);
          }
        }
      }
      const Vectors q = decoded(run, codec, difference);
      for (Vectors& of_rank : replicas) {
        for (std::size_t j = 0; j < run.n; ++j) add(of_rank[j], q[j]);
      }
      for (std::size_t i = 0; i < run.n; ++i) run.x[i] = replicas[i][i];
    }
  }
}

void bytegrad(PlainRun& run) {
  ChunkedMean mean(run, codec_of(run, "minmax8"), 0.0);
  for (int t = 0; t < run.steps; ++t) {
    run.step_with_average(t, [&](const Vectors& g) { return mean(g); });
  }
}

void qadam(PlainRun& run) {
  const int warmup = run.key("warmup", 100);
  ChunkedMean mean(run, codec_of(run, "minmax8"), run.key("error_feedback", false) ? 1.0 : 0.0);
  const int frozen_at = run.optimizers[0].s + warmup;
  for (int t = 0; t < run.steps; ++t) {
    if (run.optimizers[0].s < frozen_at) {
      run.step_with_average(t, PlainRun::mean);
    } else if (!any_skips(run, t)) {
      const Vectors g = run.own_gradients(t);
      Vectors m = run.optimizer_states(0);
      for (std::size_t i = 0; i < run.n; ++i) {
        const PlainOptimizer& optimizer = run.optimizers[i];
        for (std::size_t e = 0; e < run.size(); ++e) {
          const double decay =
              optimizer.rule.type == "adam" ? optimizer.weight_decay(e) * run.x[i][e] : 0.0;
          m[i][e] =
              optimizer.rule.beta1 * m[i][e] + (1.0 - optimizer.rule.beta1) * (g[i][e] + decay);
        }
      }
      m = mean(m);
      for (std::size_t i = 0; i < run.n; ++i) {
        PlainOptimizer& optimizer = run.optimizers[i];
        optimizer.states[0] = m[i];
        ++optimizer.s;
        const double step_size = run.lr(t) / (1.0 - std::pow(optimizer.rule.beta1, optimizer.s));
        for (std::size_t e = 0; e < run.size(); ++e) {
          const double v =
              optimizer.states[1][e] / (1.0 - std::pow(optimizer.rule.beta2, frozen_at));
          if (optimizer.rule.type == "adamw")
            run.x[i][e] *= 1.0 - run.lr(t) * optimizer.weight_decay(e);
          run.x[i][e] -= step_size * m[i][e] / (std::sqrt(v) + optimizer.rule.eps);
        }
      }
    }
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
  require(!exact_ || !feedback_, "test", "error_feedback is about bf16 and int8");
}

PlainExchange PlainExchange::without_feedback() const {
  PlainExchange result = *this;
  result.feedback_ = false;
  return result;
}

Vectors PlainExchange::mixed(const PlainRun& run, const Vectors& v, const Round& round) {
  if (run.n == 1) return v;
  if (exact_) {
    const Vectors mix = PlainRun::mixed(v, round);
    return gamma_ == 1.0 ? mix : PlainRun::sum({{1.0 - gamma_, &v}, {gamma_, &mix}});
  }
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

Vectors ChunkedMean::operator()(const Vectors& v, const std::function<bool(std::size_t)>& takes) {
  if (run_.n == 1) return v;
  Vector result(run_.size(), 0.0);
  for (std::size_t b = 0; b < run_.buckets; ++b) {
    if (takes && !takes(b)) continue;
    Vectors sent, heard;
    for (std::size_t i = 0; i < run_.n; ++i) {
      sent.push_back(run_.message(v[i], b));
      if (decay_ > 0.0) add(sent[i], run_.message(residuals_[i], b));
      heard.push_back(sent[i]);
    }
    const std::size_t elements = sent[0].size(),
                      chunk = ((elements + run_.n - 1) / run_.n + 31) / 32 * 32;
    Vector residual = run_.message(mean_residual_, b), mean(elements);
    for (std::size_t begin = 0; begin < elements; begin += chunk) {
      mean_of_chunk(begin, std::min(begin + chunk, elements), sent, heard, residual, mean);
    }
    run_.read_message(mean, b, result);
    if (decay_ == 0.0) continue;
    run_.read_message(residual, b, mean_residual_);
    for (std::size_t i = 0; i < run_.n; ++i) {
      for (std::size_t k = 0; k < elements; ++k) heard[i][k] = decay_ * (sent[i][k] - heard[i][k]);
      run_.read_message(heard[i], b, residuals_[i]);
    }
  }
  return Vectors(run_.n, result);
}

/// A chunk is a message of its own: its blocks count from its start. Its mean, its residual and
/// their sum are fp32.
void ChunkedMean::mean_of_chunk(std::size_t begin, std::size_t end, const Vectors& sent,
                                Vectors& heard, Vector& residual, Vector& mean) const {
  const auto from = static_cast<std::ptrdiff_t>(begin), to = static_cast<std::ptrdiff_t>(end);
  std::vector<float> total(end - begin, 0.0f);
  for (std::size_t i = 0; i < run_.n; ++i) {
    const Vector part = decoded(codec_, Vector(sent[i].begin() + from, sent[i].begin() + to));
    std::copy(part.begin(), part.end(), heard[i].begin() + from);
    for (std::size_t k = 0; k < part.size(); ++k) total[k] += static_cast<float>(part[k]);
  }
  for (std::size_t k = 0; k < total.size(); ++k) {
    total[k] /= static_cast<float>(run_.n);
    if (decay_ > 0.0) total[k] += static_cast<float>(residual[begin + k]);
  }
  const std::vector<float> back = decoded(codec_, total);
  std::copy(back.begin(), back.end(), mean.begin() + from);
  for (std::size_t k = 0; k < total.size(); ++k)
    residual[begin + k] = static_cast<float>(decay_) * (total[k] - back[k]);
}

void GatheredMean::through_largest(const Vector& sent, std::size_t begin, std::size_t end,
                                   Vector& c, Vector& chosen) const {
  const int bits = run_.key("value_bits", 2);
  std::vector<std::size_t> order;
  for (std::size_t e = begin; e < end; ++e) order.push_back(e);
  const auto key = [&](std::size_t e) { return std::abs(static_cast<float>(sent[e])); };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return key(a) > key(b); });
  order.resize(static_cast<std::size_t>(
      std::ceil(run_.key("share", 1.0 / 16.0) * static_cast<double>(end - begin))));
  const float s = key(order[0]);
  std::vector<float> values;
  for (const std::size_t e : order) values.push_back(static_cast<float>(sent[e]));
  if (bits != 2) values = decoded({bits == 8 ? "int8" : "int4", 0}, values);
  for (std::size_t k = 0; k < order.size(); ++k) {
    if (bits == 2) {
      volatile float level = values[k] / s + 1.0f;
      volatile float whole = std::clamp(std::rint(level * 1.5f), 0.0f, 3.0f) / 1.5f - 1.0f;
      values[k] = s == 0.0f ? 0.0f : whole * s;
    }
    c[order[k]] = static_cast<double>(values[k]);
    chosen[order[k]] = 1.0;
  }
}

Vectors GatheredMean::operator()(const Vectors& v, const std::function<bool(std::size_t)>& takes,
                                 Vector weights) {
  if (run_.n == 1) return v;
  if (weights.empty()) weights.assign(run_.n, 1.0);
  const bool sparse = run_.exchange() == "sparse";
  const PlainCodec codec{run_.exchange() == "fp32" ? "none" : run_.exchange(),
                         run_.key("block", std::size_t{256})};
  const std::size_t block = run_.key("block", std::size_t{4096});
  Vector total(run_.size(), 0.0), over(run_.size(), 0.0);
  for (std::size_t i = 0; i < run_.n; ++i) {
    if (weights[i] == 0.0) continue;
    Vector sent = v[i], c(run_.size(), 0.0), chosen(run_.size(), sparse ? 0.0 : 1.0);
    if (decay_ > 0.0) add(sent, residuals_[i]);
    for (const auto& [first, size] : run_.parameters()) {
      for (std::size_t begin = first; sparse && begin < first + size; begin += block)
        through_largest(sent, begin, std::min(begin + block, first + size), c, chosen);
    }
    for (std::size_t b = 0; !sparse && b < run_.buckets; ++b) {
      const Vector message = run_.message(sent, b);
      run_.read_message(codec.type == "none" ? message : decoded(codec, message), b, c);
    }
    for (std::size_t e = 0; e < c.size(); ++e) {
      if (!takes(run_.bucket_of(e))) continue;
      total[e] += weights[i] * c[e];
      over[e] += weights[i] * chosen[e];
      residuals_[i][e] = decay_ * (sent[e] - c[e]);
    }
  }
  const bool of_all = run_.key<std::string>("aggregate", "senders") == "ranks";
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t e = 0; e < total.size(); ++e) {
    if (over[e] > 0.0) total[e] /= of_all ? all : over[e];
  }
  return Vectors(run_.n, total);
}

bool train_compressed(PlainRun& run) {
  const std::string type = run.key<std::string>("type", "");
  if (type == "choco") {
    choco(run);
  } else if (type == "low_precision") {
    low_precision(run);
  } else if (type == "bytegrad") {
    bytegrad(run);
  } else if (type == "qadam") {
    qadam(run);
  } else {
    return false;
  }
  return true;
}

}  // namespace starling::test
