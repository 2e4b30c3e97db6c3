#include "plain_run.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "core/config.h"
#include "core/error.h"

namespace starling::test {

PlainRun::PlainRun(const Job& job, int ranks, const PlainProblem* problem)
    : n(static_cast<std::size_t>(ranks)), job_(job), problem_(problem), exchange_(job.exchange) {
  if (problem) {
    x = problem->start;
    decays_ = problem->decays;
    bucket_of_ = problem->bucket_of;
    place_of_ = problem->place_of;
    message_sizes_ = problem->message_sizes;
    curvatures_.assign(decays_.size(), 1.0);
    buckets = 1 + *std::max_element(bucket_of_.begin(), bucket_of_.end());
  } else {
    lay_out();
    x = zeros();
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t e = 0; e < size(); ++e)
        x[i][e] = start_value(static_cast<int>(i), job.start_apart, static_cast<std::int64_t>(e));
    }
  }
  reset_optimizers();
}

void PlainRun::begin(const Switch& phase, int end, bool last) {
  algorithm_ = phase.algorithm;
  if (algorithm_.is_string()) algorithm_ = nlohmann::json{{"type", algorithm_}};
  if (!phase.topology.is_null()) topology_config_ = phase.topology;
  topology_.reset();
  first_ = phase.step;
  steps = end - phase.step;
  hands_over = !last;
}

void PlainRun::hand_over() {
  x = mean(x);
  average_states(mean);
  int s = 0;
  for (const PlainOptimizer& optimizer : optimizers) s = std::max(s, optimizer.s);
  for (PlainOptimizer& optimizer : optimizers) optimizer.s = s;
}

void PlainRun::lay_out() {
  std::vector<std::size_t> bucket(job_shapes().size()), place(job_shapes().size());
  bool open = false;
  // gradients are ready in the reversed order
  for (std::size_t p = job_shapes().size(); p-- > 0;) {
    if (!open) message_sizes_.push_back(0);
    bucket[p] = message_sizes_.size() - 1;
    place[p] = message_sizes_.back();
    message_sizes_.back() += (static_cast<std::size_t>(job_shapes()[p].elements()) + 31) / 32 * 32;
    open =
        static_cast<double>(message_sizes_.back()) * (job_.dtype == DType::kFloat64 ? 8.0 : 4.0) <
        job_.bucket_bytes;
  }
  buckets = message_sizes_.size();
  for (std::size_t p = 0; p < job_shapes().size(); ++p) {
    const auto count = static_cast<std::size_t>(job_shapes()[p].elements());
    parameters_.emplace_back(curvatures_.size(), count);
    curvatures_.insert(curvatures_.end(), count, curvature(p));
    const Shape& shape = job_shapes()[p];
    const std::int64_t rows = shape.rank() >= 2 ? shape[0] : 0;
    layers_.push_back({.first = static_cast<std::int64_t>(decays_.size()),
                       .elements = shape.elements(),
                       .weight = rows > 0,
                       .rows = rows,
                       .columns = rows > 0 ? shape.elements() / rows : 0});
    decays_.insert(decays_.end(), count, rows > 0);
    bucket_of_.insert(bucket_of_.end(), count, bucket[p]);
    for (std::size_t e = 0; e < count; ++e) place_of_.push_back(place[p] + e);
  }
}

double PlainRun::largest_lr(int t) const {
  double largest = 0.0;
  for (int step = 0; step <= first_ + t; ++step) largest = std::max(largest, lr_at(step));
  return largest;
}

bool PlainRun::skips(std::size_t rank, int t) const {
  const std::array<int, 2> here{static_cast<int>(rank), first_ + t};
  return std::find(job_.overflows.begin(), job_.overflows.end(), here) != job_.overflows.end();
}

Vectors PlainRun::sum(const std::vector<std::pair<double, const Vectors*>>& terms) {
  Vectors result = *terms.front().second;
  for (std::size_t i = 0; i < result.size(); ++i) {
    for (std::size_t e = 0; e < result[i].size(); ++e) {
      result[i][e] = 0.0;
      for (const auto& [factor, vectors] : terms) result[i][e] += factor * (*vectors)[i][e];
    }
  }
  return result;
}

Vectors PlainRun::mean(const Vectors& v) {
  Vector total(v[0].size(), 0.0);
  for (const Vector& of_rank : v) {
    for (std::size_t e = 0; e < total.size(); ++e) total[e] += of_rank[e];
  }
  for (double& value : total) value /= static_cast<double>(v.size());
  return Vectors(v.size(), total);
}

Round PlainRun::round(int k) {
  if (!topology_) {  // the type may need none, and the job's not fit these ranks
    register_builtin_topologies();
    ConfigSection section(topology_config_, "test");
    // push-sum's need columns alone
    topology_ = make_unchecked_topology(section, {static_cast<int>(n), static_cast<int>(n)});
  }
  return topology_->round(k);
}

Vectors PlainRun::mixed(const Vectors& v, const Round& round) {
  Vectors result(v.size(), Vector(v[0].size(), 0.0));
  for (std::size_t i = 0; i < v.size(); ++i) {
    for (const auto& [j, w] : Topology::row(round, static_cast<int>(i))) {
      for (std::size_t e = 0; e < v[i].size(); ++e)
        result[i][e] += w * v[static_cast<std::size_t>(j)][e];
    }
  }
  return result;
}

Vectors PlainRun::gradients(const Vectors& at, int t) const {
  if (problem_) return problem_->gradients(at, first_ + t);
  Vectors g = zeros();
  for (std::size_t i = 0; i < n; ++i) {
    const double steeper = 1.0 + job_.rank_curvature * static_cast<double>(i);
    for (std::size_t e = 0; e < size(); ++e) {
      g[i][e] = curvatures_[e] * steeper *
                (at[i][e] - target(static_cast<int>(i), static_cast<std::int64_t>(e)));
    }
  }
  return g;
}

void PlainRun::clip(Vector& g) const {
  if (job_.clip.norm <= 0.0) return;
  const auto part = [&](std::size_t e) { return job_.clip.per_bucket ? bucket_of_[e] : 0; };
  Vector squares(buckets, 0.0);
  for (std::size_t e = 0; e < g.size(); ++e) squares[part(e)] += g[e] * g[e];
  for (std::size_t e = 0; e < g.size(); ++e)
    g[e] *= std::min(1.0, job_.clip.norm / (std::sqrt(squares[part(e)]) + 1e-6));
}

Vectors PlainRun::own_gradients(int t) const {
  Vectors g = gradients(x, t);
  for (std::size_t i = 0; i < n; ++i) {
    clip(g[i]);
    if (skips(i, t)) g[i].assign(size(), 0.0);
  }
  return g;
}

Vectors PlainRun::decayed_gradients(int t) const {
  Vectors g = own_gradients(t);
  for (std::size_t i = 0; i < n; ++i) {
    if (skips(i, t)) continue;
    for (std::size_t e = 0; e < size(); ++e) g[i][e] += optimizers[i].weight_decay(e) * x[i][e];
  }
  return g;
}

Vectors PlainRun::updated(const Vectors& c, const Vectors& g, int t) {
  Vectors result = c;
  for (std::size_t i = 0; i < n; ++i) {
    if (!skips(i, t)) result[i] = optimizers[i].update(c[i], g[i], lr(t));
  }
  return result;
}

void PlainRun::step_with_average(int t, const Average& average) {
  for (std::size_t i = 0; i < n; ++i) {
    if (skips(i, t)) return;  // the sum carries an overflow to all
  }
  Vectors g = average(gradients(x, t));
  for (Vector& of_rank : g) clip(of_rank);
  x = updated(x, g, t);
}

Vectors PlainRun::optimizer_states(std::size_t k) const {
  Vectors of_ranks;
  for (const PlainOptimizer& optimizer : optimizers) of_ranks.push_back(optimizer.states[k]);
  return of_ranks;
}

void PlainRun::average_states(const Average& average, const std::vector<bool>& part) {
  for (std::size_t k = 0; k < optimizers[0].states.size(); ++k) {
    const Vectors averaged = average(optimizer_states(k));
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t e = 0; e < size(); ++e) {
        if (part.empty() || part[e]) optimizers[i].states[k][e] = averaged[i][e];
      }
    }
  }
}

void PlainRun::reset_optimizers() {
  optimizers.assign(n, PlainOptimizer(job_.optimizer, decays_, layers_));
}

Vector PlainRun::message(const Vector& v, std::size_t bucket) const {
  require(place_of_.size() == v.size() && bucket < message_sizes_.size(), "test",
          "the problem does not say where its elements lie");
  Vector result(message_sizes_[bucket], 0.0);
  for (std::size_t e = 0; e < v.size(); ++e) {
    if (bucket_of_[e] == bucket) result[place_of_[e]] = v[e];
  }
  return result;
}

void PlainRun::read_message(const Vector& message, std::size_t bucket, Vector& v) const {
  for (std::size_t e = 0; e < v.size(); ++e) {
    if (bucket_of_[e] == bucket) v[e] = message[place_of_[e]];
  }
}

}  // namespace starling::test
