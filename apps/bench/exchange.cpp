#include "apps/bench/benches.h"

#include <fmt/format.h>
#include <mpi.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/training/run.h"
#include "comm/bucket.h"
#include "comm/mixer.h"
#include "comm/shared/direct_transport.h"
#include "core/backend.h"
#include "core/config.h"
#include "core/console.h"
#include "core/error.h"
#include "core/host.h"
#include "core/operations/updates.h"
#include "core/text.h"
#include "kernels/cpu/update.h"
#include "kernels/math/rules.h"
#include "kernels/open_backend.h"
#include "kernels/optimizer.h"

namespace starling {
namespace {

struct ExchangeBench {
  double mb = 25.0;  ///< bucket size in MiB
  std::string optimizer = "adamw";
  int threads = 1, repeats = 30;
  int buckets = 1;  ///< used in rotation: many buckets mean cold caches, one means warm caches
  bool json = false;
};

/// Plain averaging: the mixing without an update.
class AverageRule : public OptimizerRule {
 public:
  AverageRule() : OptimizerRule({}) {}
  int bytes_per_parameter(int element_size) const override { return 2 * element_size; }

 private:
  template <class T>
  static CpuStep<T> mix() {
    return {.update = [](const UpdateSpan<T>& span) {
      cpu::IsaLaunch::run(rules::MixStep<T>{}, span);
    }};
  }
  CpuStep<float> step_fp32(double, std::int64_t) const override { return mix<float>(); }
  CpuStep<double> step_fp64(double, std::int64_t) const override { return mix<double>(); }
};

std::unique_ptr<OptimizerRule> make_rule(const std::string& type) {
  if (type == "average") return std::make_unique<AverageRule>();
  return make_bench_rule(type);
}

/// Buckets of one parameter each, with optimizer states; used cyclically.
struct ExchangeSubject {
  ExchangeSubject(Backend& backend, const OptimizerRule& rule, std::int64_t elements, int count)
      : parameters(static_cast<std::size_t>(count)) {
    std::vector<Parameter*> order;
    for (Parameter& parameter : parameters) {
      parameter.name = fmt::format("p{}", order.size());
      parameter.shape = Shape{elements};
      parameter.index = static_cast<int>(order.size());
      order.push_back(&parameter);
    }
    plan = plan_buckets(order, {}, DType::kFloat32, 1.0);
    buckets = make_buckets(plan, backend, DType::kFloat32, rule, true);
    for (const Bucket& bucket : buckets) {
      backend.fill(bucket.parameters, 0.5);
      backend.fill(bucket.gradients, 1e-3);
      received.emplace_back(backend, bucket.parameters.shape(), DType::kFloat32);
      backend.fill(received.back(), 0.25);
    }
  }
  int next() { return at = (at + 1) % static_cast<int>(buckets.size()); }
  std::vector<Parameter> parameters;
  BucketPlan plan;
  std::vector<Bucket> buckets;
  std::vector<Tensor> received;  ///< by bucket
  int at = 0;
};

struct Line {
  const char* name;
  std::function<void()> work;
  std::vector<double> seconds = {};  ///< per repeat
};

class ExchangeTimer {
 public:
  ExchangeTimer(const ExchangeBench& settings, MpiSession& session)
      : settings_(settings),
        backend_(open_backend(DeviceType::kCpu, settings.threads)),
        rule_(make_rule(settings.optimizer)),
        transport_(
            make_direct_transport(session.make_transport(60.0),
                                  {60.0, usable_cores() >= session.size() * settings.threads})) {}

  int run() {
    const int size = transport_->size(), rank = transport_->rank();
    if (size < 2 || size % 2 != 0) {
      fail(ExitCode::kUsage, "bench",
           "exchange measures pairs of ranks; start it with mpirun -n 2 (here: {})",
           counted(size, "rank"));
    }
    const auto elements = static_cast<std::int64_t>(settings_.mb * 1024 * 1024 / 4);
    ExchangeSubject direct(*backend_, *rule_, elements, settings_.buckets),
        plain(*backend_, *rule_, elements, settings_.buckets);
    const std::unique_ptr<Mixer> mixer = transport_->make_mixer(*backend_);
    mixer->share(direct.buckets);
    const int peer = rank ^ 1;
    Exchange pair;
    pair.kind = Exchange::Kind::kNeighbours;
    pair.send_to = pair.receive_from = {peer};
    std::vector<Tensor> buffers(
        direct.received.begin(),
        direct.received.begin() + static_cast<std::ptrdiff_t>(mixer->buffers_for(pair)));
    std::vector<Tensor> places;

    std::int64_t step = 0;
    std::vector<Line> lines;
    // Calls work(bucket, its receive buffer, its index) for the next bucket of a subject.
    const auto on_next = [](ExchangeSubject& subject, const auto& work) {
      const int at = subject.next();
      const auto index = static_cast<std::size_t>(at);
      work(subject.buckets[index], subject.received[index], at);
    };
    lines.push_back(
        {!direct.buckets[0].spare ? "exchange + update (not direct)" : "direct exchange + update",
         [&] {
           on_next(direct, [&](Bucket& bucket, const Tensor&, int at) {
             const ExchangeLabel label{step++, at, step};
             const Ticket ticket = mixer->start(pair, bucket, buffers, places, label);
             mixer->wait(ticket);
             mixer->wait_until_writable(bucket, label);
             update(bucket, places);
             mixer->release(label);
           });
         }});
    lines.push_back({"MPI_Sendrecv + update", [&] {
                       on_next(plain, [&](Bucket& bucket, const Tensor& received, int) {
                         sendrecv(bucket.parameters, received, peer);
                         update(bucket, {received});
                       });
                     }});
    lines.push_back(
        {"update alone",
         [&] { on_next(plain, [&](Bucket& bucket, const Tensor&, int) { update(bucket, {}); }); }});
    for (int repeat = -2; repeat < settings_.repeats; ++repeat) {  // two rounds of warm-up
      for (Line& line : lines) {
        // First once over all buckets, so that the caches are as this line leaves them.
        for (int i = 0; i < settings_.buckets; ++i) line.work();
        // the tightest synchronisation available; the remaining skew counts as waiting
        MPI_Barrier(MPI_COMM_WORLD);
        const double took = seconds_of(line.work);
        if (repeat >= 0) line.seconds.push_back(took);
      }
    }
    for (Line& line : lines) transport_->world().max(line.seconds.data(), line.seconds.size());
    if (rank == 0) report(lines, mixer->name());
    return 0;
  }

 private:
  void update(Bucket& bucket, const std::vector<Tensor>& received) {
    UpdateArgs args;
    args.x = bucket.parameters;
    args.x_out = bucket.target();
    args.gradient = bucket.gradients;
    args.states = bucket.states;
    args.received = received;
    args.weights.assign(received.size(), 0.5);
    args.self_weight = received.empty() ? 1.0 : 0.5;
    args.decay = bucket.decay;
    args.lr = 1e-6;
    if (rule_->facts().measures_layers) {
      // The same for all buckets
      if (!layers_.owner) layers_ = update_layers(*backend_, *rule_, bucket);
      args.layers = layers_;
    }
    run_update(*backend_, *rule_, args);
    bucket.flip();
  }

  static void sendrecv(const Tensor& from, const Tensor& to, int peer) {
    constexpr std::size_t kMost = INT_MAX / 2;
    for (std::size_t first = 0; first < from.bytes(); first += kMost) {
      const int count = static_cast<int>(std::min(kMost, from.bytes() - first));
      MPI_Sendrecv(from.raw() + first, count, MPI_BYTE, peer, 77, to.raw() + first, count, MPI_BYTE,
                   peer, 77, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
  }

  /// The median over repeats of a's time over b's.
  static double ratio(const Line& a, const Line& b) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < a.seconds.size(); ++i)
      ratios.push_back(a.seconds[i] / b.seconds[i]);
    return median(ratios);
  }

  void report(const std::vector<Line>& lines, const std::string& transport) const {
    const double faster = ratio(lines[1], lines[0]);
    const auto least = [](const Line& line) {
      return 1e3 * *std::ranges::min_element(line.seconds);
    };
    if (settings_.json) {
      nlohmann::json document = {{"transport", transport}, {"speedup_over_sendrecv", faster}};
      for (const Line& line : lines) {
        document["ms"][line.name] = 1e3 * median(line.seconds);
        document["least_ms"][line.name] = least(line);
      }
      answer("{}\n", document.dump());
      return;
    }
    answer("{}, {} ranks, {} of {:.4g} MiB, {}, {} a rank, transport {}; slowest rank\n\n",
           backend_->description(), transport_->size(), counted(settings_.buckets, "bucket"),
           settings_.mb, settings_.optimizer, counted(settings_.threads, "thread"), transport);
    answer("{:<32}{:>9}{:>10}\n", "ms", "median", "least");
    for (const Line& line : lines)
      answer("{:<32}{:>9.3f}{:>10.3f}\n", line.name, 1e3 * median(line.seconds), least(line));
    answer("\nagainst MPI_Sendrecv + update {:.2f} x faster\n", faster);
  }

  ExchangeBench settings_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<OptimizerRule> rule_;
  UpdateLayers layers_;  ///< if the rule measures layers
  std::unique_ptr<Transport> transport_;
};

int bench_exchange(const ExchangeBench& settings) {
  return run_under_mpirun("starling-bench", [&](MpiSession& session) {
    return ExchangeTimer(settings, session).run();
  });
}

}  // namespace

std::unique_ptr<OptimizerRule> make_bench_rule(const std::string& type) {
  const nlohmann::json none = nlohmann::json::object();
  ConfigSection section(none, "bench");
  return optimizers().make(type, "--optimizer", section);
}

Command add_exchange_bench(CLI::App& app) {
  const auto given = std::make_shared<ExchangeBench>();
  ExchangeBench& settings = *given;
  CLI::App* command = app.add_subcommand(
      "exchange",
      "under mpirun -n 2: exchange and mixed update of one bucket, against MPI_Sendrecv");
  command->add_flag("--json", settings.json, "one JSON object");
  add_number(*command, "--mb", settings.mb, "MiB of the bucket", 0.001, 16384.0);
  command
      ->add_option("--optimizer", settings.optimizer,
                   "average (plain averaging), or see starling-train --list optimizers")
      ->capture_default_str();
  add_number(*command, "--threads", settings.threads, "compute threads of a rank", 1, 1024);
  add_number(*command, "--buckets", settings.buckets,
             "buckets taken in turn; many find the caches cold", 1, 1024);
  add_number(*command, "--repeats", settings.repeats, "runs to take the median of", 1, 100000);
  return {command, [given] { return bench_exchange(*given); }};
}

}  // namespace starling
