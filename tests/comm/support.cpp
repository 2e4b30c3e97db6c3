#include "support.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <thread>

#include "comm/replica.h"
#include "comm/scheduler.h"
#include "core/config.h"
#include "core/error.h"
#include "core/philox.h"
#include "kernels/open_backend.h"
#include "kernels/optimizer.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/fakes/transport/thread_sharing.h"

namespace starling::test {
namespace {

bool overflows(const Job& job, int rank, int step) {
  return std::find(job.overflows.begin(), job.overflows.end(), std::array<int, 2>{rank, step}) !=
         job.overflows.end();
}

template <class Low>
void check_low(const Tensor& parameters, const Tensor& low) {
  for (std::int64_t i = 0; i < low.elements(); ++i) {
    const float value = parameters.dtype() == DType::kFloat64
                            ? static_cast<float>(parameters.data<double>()[i])
                            : parameters.data<float>()[i];
    require(low.data<Low>()[i].bits == Low(value).bits, "test",
            "element {} of the low-precision copy is another number", i);
  }
}

std::uint32_t noise(int a, std::int64_t b) {
  return philox(7, static_cast<std::uint64_t>(a), static_cast<std::uint64_t>(b)).v[0];
}

}  // namespace

const std::vector<Shape>& job_shapes() {
  static const std::vector<Shape> shapes{Shape{7, 5}, Shape{33},    Shape{6, 3, 3, 2}, Shape{1},
                                         Shape{100},  Shape{17, 9}, Shape{32}};
  return shapes;
}

double start_value(int rank, bool apart, std::int64_t i) {
  return std::sin(0.37 * static_cast<double>(i)) + (apart ? 0.5 * rank : 0.0);
}
double target(int rank, std::int64_t i) {
  return 0.3 * rank + std::cos(0.11 * static_cast<double>(i) * (rank + 1));
}
double curvature(std::size_t parameter) { return 1.0 + static_cast<double>(parameter) / 4.0; }

std::vector<double> numbers(const Tensor& tensor) {
  const auto all = [&](const auto* first) {
    return std::vector<double>(first, first + tensor.elements());
  };
  return tensor.dtype() == DType::kFloat64 ? all(tensor.data<double>()) : all(tensor.data<float>());
}

void set_numbers(const Tensor& tensor, const std::function<double(std::int64_t)>& value) {
  const auto set = [&]<class T>(T* to) {
    for (std::int64_t i = 0; i < tensor.elements(); ++i) to[i] = static_cast<T>(value(i));
  };
  tensor.dtype() == DType::kFloat64 ? set(tensor.data<double>()) : set(tensor.data<float>());
}

TinyModel::TinyModel(const std::vector<Shape>& shapes) {
  for (const Shape& shape : shapes) {
    auto parameter = std::make_unique<Parameter>();
    parameter->index = static_cast<int>(parameters.size());
    parameter->name = "p" + std::to_string(parameters.size());
    parameter->shape = shape;
    order.insert(order.begin(), parameter.get());
    parameters.push_back(std::move(parameter));
  }
}

std::unique_ptr<Topology> make_test_topology(const nlohmann::json& config, int ranks,
                                             TopologyKind kind) {
  register_builtin_topologies();
  ConfigSection section(config, "test");
  return make_topology(section, {ranks, ranks}, kind);
}

Job exact_job(const nlohmann::json& algorithm, const nlohmann::json& topology,
              const nlohmann::json& optimizer) {
  Job job;
  job.algorithm = algorithm;
  job.topology = topology;
  job.optimizer = optimizer;
  job.dtype = DType::kFloat64;
  return job;
}

std::vector<double> run_job(const Job& job, Transport& all, Backend& backend, std::string* way) {
  register_builtin_algorithms();
  register_builtin_optimizers();
  require(job.switches.empty() && !job.reset_omega, "test",
          "a job of one algorithm, as it is, is needed");
  std::unique_ptr<Replica> replica;
  if (job.replica > 1)
    replica = (job.exchanging ? make_exchanging_replica : make_shared_replica)(
        all, job.replica, make_thread_sharing("one", false), 20.0);
  Transport& transport = replica ? replica->between() : all;
  const int rank = transport.rank();
  const double apart =
      replica ? (replica->place() - 0.5 * (job.replica - 1)) * job.apart_in_replica : 0.0;
  TinyModel model(job_shapes());
  BucketPlan plan = plan_buckets(model.order, {}, job.dtype, job.bucket_bytes);
  agree_on_plan(plan, job.dtype, all);
  ConfigSection section(job.optimizer, "test");
  section.text("type", "sgd", "");
  const auto rule = optimizers().make(job.optimizer["type"], "optimizer.type", section);
  const MixerKind exchange = mixers().make(job.exchange, "sync.exchange");
  const AlgorithmPlan algorithm_plan = exchanged_by(algorithm_of(job.algorithm), exchange);
  if (replica)
    split_buckets(plan, job.replica, std::max<std::int64_t>(algorithm_plan.messages.block, 32),
                  rule->facts().measures_layers || exchange.sparse);
  std::vector<starling::Bucket> buckets =
      make_buckets(plan, backend, job.dtype, *rule, false, job.compute,
                   replica ? GradientMemory::kPassing : GradientMemory::kAlways, replica.get());
  if (replica) replica->open(buckets);
  std::unique_ptr<Topology> topology;
  if (algorithm_plan.topology != TopologyKind::kNone)
    topology = make_test_topology(job.topology, transport.size(), algorithm_plan.topology);
  Encoding encoding = algorithm_plan.messages.encoding.value_or(Encoding());
  encoding.dtype = job.dtype;
  const auto mixer = exchange.make(backend, transport, encoding);
  const AlgorithmSite site{.backend = backend,
                           .transport = transport,
                           .mixer = *mixer,
                           .rule = *rule,
                           .buckets = buckets,
                           .topology = topology.get(),
                           .clip = job.clip,
                           .in_backward = job.in_backward,
                           .overlap = job.overlap,
                           .check_overflow = job.check_overflow,
                           .replica = replica.get()};
  auto algorithm = make_algorithm(algorithm_plan, site);
  std::optional<BucketScheduler> scheduler(std::in_place, plan, buckets, *algorithm, false);

  std::int64_t at = 0;
  std::vector<std::int64_t> first;
  for (const auto& parameter : model.parameters) {
    first.push_back(at);
    at += parameter->shape.elements();
  }
  const auto begins = [&](const BucketSlot& slot) {
    return first[static_cast<std::size_t>(slot.parameter->index)];
  };
  for (const starling::Bucket& bucket : buckets) {
    if (replica && replica->place() > 0 && replica->shares_memory()) continue;
    fill_in(replica.get(), bucket, bucket.parameters, false, [&](const Tensor& whole) {
      for (const BucketSlot& slot : bucket.layout->slots)
        set_numbers(whole.slice(slot.offset, slot.parameter->shape), [&](std::int64_t i) {
          return start_value(rank, job.start_apart, begins(slot) + i);
        });
    });
    if (bucket.divided) replica->show(bucket, bucket.parameters, bucket.low, bucket.vectors);
  }
  if (replica) replica->barrier();
  const auto whole = [&](const starling::Bucket& bucket) {
    return whole_in(replica.get(), bucket, bucket.parameters);
  };
  const auto values = [&] {  // by parameter
    std::vector<std::vector<double>> result(model.parameters.size());
    for (const starling::Bucket& bucket : buckets) {
      const Tensor parameters = whole(bucket);
      for (const BucketSlot& slot : bucket.layout->slots)
        result[static_cast<std::size_t>(slot.parameter->index)] =
            numbers(parameters.slice(slot.offset, slot.parameter->shape));
    }
    return result;
  };
  double loss_scale = job.loss_scale;
  double largest_lr = 0.0;
  std::int64_t optimizer_step = 1;
  for (int step = 0; step < job.steps; ++step) {
    const double lr = job.lr_at ? job.lr_at(step) : job.lr;
    largest_lr = std::max(largest_lr, lr);
    scheduler->begin_step({step, optimizer_step, loss_scale, lr, largest_lr});
    // All gradients belong to x(t), the parameters before this step's mix: so they are computed
    // before any bucket is updated.
    const std::vector<std::vector<double>> before = values();
    std::vector<Parameter*> order = model.order;
    if (job.ready_shuffle) {
      for (std::size_t i = order.size() - 1; i > 0; --i)
        std::swap(order[i],
                  order[noise(job.ready_shuffle + all.rank(), step * 100 + static_cast<int>(i)) %
                        (i + 1)]);
    }
    for (Parameter* parameter : order) {
      const auto p = static_cast<std::size_t>(parameter->index);
      scheduler->begun(*parameter);
      set_numbers(parameter->grad, [&](std::int64_t i) {
        return loss_scale *
               ((1.0 + job.rank_curvature * rank) * curvature(p) *
                    (before[p][static_cast<std::size_t>(i)] - target(rank, first[p] + i)) +
                apart);
      });
      if (p == 2 && overflows(job, rank, step))
        backend.fill(parameter->grad.slice(5, Shape{1}), std::numeric_limits<double>::infinity());
      if (all.rank() == job.slow_rank) std::this_thread::sleep_for(std::chrono::microseconds(700));
      scheduler->ready(*parameter);
    }
    scheduler->end_backward();
    const Tensor control = algorithm->control();
    require(static_cast<bool>(control) == job.check_overflow, "test",
            "a control comes with an overflow check alone");
    if (control && numbers(control)[1] != 0.0) {
      loss_scale /= 2;
    } else {
      ++optimizer_step;
    }
    const std::int64_t left_out = algorithm->take_left_out();
    const std::vector<Algorithm::Meeting> meetings = algorithm->take_meetings();
    if (job.after_meetings) job.after_meetings(rank, step, left_out, meetings);
    step += static_cast<int>(left_out);
    if (job.after_step) job.after_step(rank, step, buckets);
    if (job.finish_every && (step + 1) % job.finish_every == 0) {
      algorithm->finish();
      std::vector<Tensor> in;
      for (const starling::Bucket& bucket : buckets) in.push_back(whole(bucket));
      mean_model(all, in);
    }
    if (job.resume_after == step + 1) {
      algorithm->finish();
      scheduler.reset();
      algorithm = make_algorithm(algorithm_plan, site);
      algorithm->resume(step + 1);
      scheduler.emplace(plan, buckets, *algorithm, false);
    }
  }
  algorithm->finish();
  if (way) *way = mixer->name();
  for (const starling::Bucket& bucket : buckets) {
    if (job.compute == DType::kBFloat16) check_low<BFloat16>(whole(bucket), bucket.low);
    if (job.compute == DType::kFloat16) check_low<Float16>(whole(bucket), bucket.low);
  }
  std::vector<double> result;
  for (const std::vector<double>& of : values()) result.insert(result.end(), of.begin(), of.end());
  if (!buckets.empty() && buckets[0].divided) {
    for (const auto& parameter : model.parameters) {
      const auto begin = result.begin() + first[static_cast<std::size_t>(parameter->index)];
      if (!parameter->is_weight())
        require(std::ranges::equal(numbers(parameter->value),
                                   std::span(begin, begin + parameter->shape.elements())),
                "test", "vector {} that layers compute with is another one", parameter->name);
    }
  }
  return result;
}

std::vector<std::vector<double>> run_fake(const Job& job, int ranks, const FakeRun& fake) {
  std::vector<std::vector<double>> results(static_cast<std::size_t>(ranks));
  std::vector<std::unique_ptr<Backend>> backends;  // outlive the world, whose messages hold tensors
  for (int r = 0; r < ranks; ++r) backends.push_back(open_backend(DeviceType::kCpu, fake.threads));
  FakeWorld world(ranks, {20.0, fake.most_delay_seconds, fake.seed, fake.ranks_per_host,
                          fake.direct, fake.refuse});
  world.run([&](Transport& transport) {
    const auto r = static_cast<std::size_t>(transport.rank());
    results[r] = run_job(job, transport, *backends[r]);
  });
  return results;
}

std::string ways_that_change_bits(const Job& job, const std::vector<std::vector<double>>& expected,
                                  bool any_buckets, const FakeRun& fake) {
  std::string result;
  const auto check = [&](const std::string& way, const std::function<void(Job&)>& change,
                         const std::optional<FakeRun>& in = {}) {
    Job other = job;
    change(other);
    if (run_fake(other, static_cast<int>(expected.size()), in.value_or(fake)) != expected)
      result += way + "\n";
  };
  const auto as_it_is = [](Job&) {};
  check("delays", as_it_is, FakeRun{.most_delay_seconds = 0.0005, .seed = 3});
  check("direct reads", as_it_is, FakeRun{.direct = true});
  // between hosts by messages
  check("direct reads within a host", as_it_is, FakeRun{.direct = true, .ranks_per_host = 2});
  check("threads and direct reads", as_it_is, FakeRun{.direct = true, .threads = 2});
  check("updates after the backward pass", [](Job& other) { other.in_backward = false; });
  check("no overlap", [](Job& other) { other.overlap = false; });
  check("a slow rank, and another order", [](Job& other) {
    other.slow_rank = 2;
    other.ready_shuffle = 5;
  });
  const auto evaluates = [](Job& other) { other.finish_every = 1; };
  check("evaluation", evaluates);
  check("evaluation and direct reads", evaluates, FakeRun{.direct = true});
  for (const int after : {1, 7, 8}) {
    check("a resume after " + std::to_string(after),
          [&](Job& other) { other.resume_after = after; });
  }
  for (const double bytes : {1.0, 600.0, 1e9}) {
    if (any_buckets) check("bucket size", [&](Job& other) { other.bucket_bytes = bytes; });
  }
  return result;
}

}  // namespace starling::test
