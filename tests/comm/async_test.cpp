#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/transports/forwarding.h"
#include "core/error.h"
#include "kernels/open_backend.h"
#include "plain_run.h"
#include "support.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/errors.h"
#include "tests/support/numbers_of_ranks.h"
#include "tests/support/soon.h"

// Algorithm async. When ranks begin and add averages depends on the clock, so no two runs have the
// same numbers. But each run notes when they did, and a plain rewriting that does it then has its
// numbers.

namespace starling::test {
namespace {

using nlohmann::json;
using Numbers = NumbersOfRanks;

const json kSgd = {{"type", "sgd"}, {"momentum", 0.7}, {"weight_decay", 0.05}};
const json kBare = {{"type", "sgd"}};
const json kAdamW = {{"type", "adamw"}, {"betas", {0.8, 0.95}}};

constexpr int kApart = 5;

/// Times at which a rank began averages and added them, in order.
struct AverageLog {
  struct Event {
    int before_step = 0;
    bool begins = false;  ///< or is added
  };
  std::vector<Event> events;
  std::size_t begun() const {
    return static_cast<std::size_t>(std::count_if(events.begin(), events.end(),
                                                  [](const Event& event) { return event.begins; }));
  }
};

/// Another transport, whose averages are written down: the begin of the first bucket's and the end
/// of the last. What comes after the control plane was asked is after the step's end.
class AverageRecorder final : public ForwardingTransport {
 public:
  AverageRecorder(Transport& inner, AverageLog& log)
      : ForwardingTransport(inner, world_),
        world_(inner.world(), [this] { before_step_ = step_ + 1; }),
        log_(log) {}
  void begin_step(int step) { before_step_ = step_ = step; }
  /// Waits until the average under way may be added; a moment at most, as others may have taken
  /// their last step already.
  void await_average() {
    for (int looks = 0; looks < 50 && !std::all_of(under_way_.begin(), under_way_.end(),
                                                   [&](Ticket ticket) { return done(ticket); });
         ++looks)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel& label,
                   std::shared_ptr<Flow> flow) override {
    const Ticket ticket = ForwardingTransport::start_sum(in, out, label, std::move(flow));
    if (label.lane != Lane::kAside) return ticket;
    under_way_.push_back(ticket);
    if (label.bucket == 0) log_.events.push_back({before_step_, true});
    return ticket;
  }
  void wait(Ticket ticket) override {
    ForwardingTransport::wait(ticket);
    if (std::erase(under_way_, ticket) > 0 && under_way_.empty())
      log_.events.push_back({before_step_, false});
  }

 private:
  CheckedWorld world_;
  AverageLog& log_;
  int step_ = -1, before_step_ = 0;
  std::vector<Ticket> under_way_;
};

/// Runs the job and keeps a log. With `apart` above 0, in one of so many steps a rank waits a
/// moment for the average under way, so that several come.
std::vector<double> run_job_logged(const Job& job, Transport& transport, Backend& backend,
                                   AverageLog& log, int apart = 0) {
  AverageRecorder recorder(transport, log);
  Job mine = job;
  mine.lr_at = [&](int step) {
    const double lr = job.lr_at ? job.lr_at(step) : job.lr;
    recorder.begin_step(step);
    if (apart > 0 && step % apart == apart - 1) recorder.await_average();
    return lr;
  };
  return run_job(mine, recorder, backend);
}

/// An average is always under way.
Job always_averaging(const json& optimizer = kBare) {
  Job job;
  job.algorithm = {{"type", "async"}, {"interval_ms", 0}};
  job.optimizer = optimizer;
  job.dtype = DType::kFloat64;
  job.start_apart = true;
  job.steps = 30;
  return job;
}

struct Run {
  Numbers x;
  std::vector<AverageLog> logs;  ///< by rank
};

Run run_logged(const Job& job, int ranks, const FakeWorldOptions& options = {}) {
  Run run{Numbers(static_cast<std::size_t>(ranks)),
          std::vector<AverageLog>(static_cast<std::size_t>(ranks))};
  std::vector<std::unique_ptr<Backend>> backends;
  for (int r = 0; r < ranks; ++r) backends.push_back(open_backend(DeviceType::kCpu, 1));
  FakeWorld world(ranks, options);
  world.run([&](Transport& transport) {
    const auto r = static_cast<std::size_t>(transport.rank());
    run.x[r] = run_job_logged(job, transport, *backends[r], run.logs[r], kApart);
  });
  return run;
}

/// The same numbers from the formulas: each rank's own steps, and x + mean of all snapshots - its
/// own where the rank did so.
Numbers replay(const Job& job, const std::vector<AverageLog>& logs) {
  const std::size_t n = logs.size();
  PlainRun run(job, static_cast<int>(n), nullptr);
  run.begin({0, job.algorithm, job.topology}, job.steps, true);
  struct Rank {
    Vectors snapshots = {};
    std::size_t events = 0, added = 0;
    int step = 0;
  };
  std::vector<Rank> ranks(n);
  const auto event = [&](std::size_t i) {  // false: others' snapshots are missing
    Rank& rank = ranks[i];
    if (logs[i].events[rank.events].begins) {
      rank.snapshots.push_back(run.x[i]);
    } else {
      const std::size_t k = rank.added;
      if (std::any_of(ranks.begin(), ranks.end(),
                      [&](const Rank& other) { return other.snapshots.size() <= k; }))
        return false;
      for (std::size_t e = 0; e < run.size(); ++e) {
        double mean = 0.0;
        for (const Rank& other : ranks) mean += other.snapshots[k][e] / static_cast<double>(n);
        run.x[i][e] += mean - rank.snapshots[k][e];
      }
      ++rank.added;
    }
    ++rank.events;
    return true;
  };
  const auto train = [&](std::size_t i) {
    const int t = ranks[i].step++;
    if (!run.skips(i, t))
      run.x[i] = run.optimizers[i].update(run.x[i], run.gradients(run.x, t)[i], job.lr);
  };
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t i = 0; i < n; ++i) {
      while (true) {
        Rank& rank = ranks[i];
        const bool more = rank.events < logs[i].events.size();
        if (more && logs[i].events[rank.events].before_step <= rank.step) {
          if (!event(i)) break;
        } else if (rank.step < job.steps) {
          train(i);
        } else {
          break;
        }
        moved = true;
      }
    }
  }
  for (std::size_t i = 0; i < n; ++i) CHECK(ranks[i].events == logs[i].events.size());
  return run.x;
}

void check_counts(const Run& run, int least) {
  for (const AverageLog& log : run.logs) {
    CHECK(log.begun() == log.events.size() / 2);  // what has begun was added
    CHECK(log.begun() == run.logs[0].begun());
    CHECK(log.begun() >= static_cast<std::size_t>(least));
  }
}

TEST_CASE(
    "comm/async: averages that are under way all the time follow the formula, whenever they come") {
  std::size_t turn = 0, averages = 0;
  for (const int n : {2, 3, 5, 8}) {
    for (const json& optimizer : {kBare, kSgd, kAdamW}) {
      Job job = always_averaging(optimizer);
      ++turn;
      if (turn % 2) job.rank_curvature = 0.3;
      if (turn % 3 == 0) job.slow_rank = 1;
      if (turn % 4 == 0) job.finish_every = 7;
      if (turn % 5 == 0) job.bucket_bytes = 1e9;
      if (turn % 2) job.in_backward = false;
      CAPTURE(n);
      CAPTURE(optimizer.dump());
      const Run run =
          run_logged(job, n, {20.0, turn % 3 == 1 ? 0.002 : 0.0, turn, 0, turn % 4 == 2});
      check_counts(run, 1);
      averages += run.logs[0].begun();
      CHECK(largest_difference(run.x, replay(job, run.logs)) < 1e-11);
      std::vector<AverageLog> fewer = run.logs;  // the comparison can fail
      for (AverageLog& log : fewer) log.events.resize(0);
      CHECK(largest_difference(run.x, replay(job, fewer)) > 1e-3);
    }
  }
  CHECK(averages >= 3 * turn);
}

TEST_CASE("comm/async: a rank that overflows takes no step, and its averages go on") {
  Job job = always_averaging(kSgd);
  job.in_backward = false;
  job.check_overflow = true;
  job.loss_scale = 1024;
  job.overflows = {{0, 0}, {2, 3}, {2, 4}, {1, 7}, {3, 29}};
  const Run run = run_logged(job, 4);
  check_counts(run, 1);
  CHECK(largest_difference(run.x, replay(job, run.logs)) < 1e-11);
  Job without = job;
  without.overflows.clear();
  CHECK(largest_difference(run.x, replay(without, run.logs)) > 1e-4);
}

TEST_CASE("comm/async: the low-precision copy follows, and a run goes on after a resume") {
  Job job = always_averaging(kAdamW);
  job.dtype = DType::kFloat32;
  job.compute = DType::kBFloat16;
  job.resume_after = 11;
  const Run run = run_logged(job, 3);
  check_counts(run, 1);
  CHECK(largest_difference(run.x, replay(job, run.logs)) < 1e-4);
}

TEST_CASE("comm/async: warm-up is all-reduce to the bit, and without averages ranks train alone") {
  for (const int n : {1, 2, 4}) {
    Job job = always_averaging(kAdamW);
    job.dtype = DType::kFloat32;
    job.steps = 9;
    job.algorithm = {{"type", "async"}, {"interval_ms", 0}, {"warmup", 9}};
    Job other = job;
    other.algorithm = "allreduce";
    CAPTURE(n);
    CHECK(run_fake(job, n) == run_fake(other, n));
    job.algorithm = {{"type", "async"}, {"interval_ms", 1'000'000}, {"warmup", 4}};
    other.algorithm = {{"type", "local_sgd"}, {"period", 1000}, {"start", 4}};
    job.finish_every = other.finish_every = 3;
    CHECK(run_fake(job, n) == run_fake(other, n));
    job.algorithm["interval_ms"] = 0;
    CHECK((run_fake(job, n) == run_fake(other, n)) == (n == 1));
  }
}

TEST_CASE("comm/async: no step waits for a rank that stands still") {
  const int n = 4;
  const auto ranks = static_cast<std::size_t>(n);
  std::vector<AverageLog> logs(ranks);
  std::vector<std::unique_ptr<Backend>> backends;
  for (int r = 0; r < n; ++r) backends.push_back(open_backend(DeviceType::kCpu, 1));
  Job job = always_averaging();
  job.steps = 40;
  Numbers x(ranks);
  std::atomic<int> through{0};
  FakeWorld world(n, {20.0});
  world.run([&](Transport& transport) {
    const auto r = static_cast<std::size_t>(transport.rank());
    Job mine = job;
    mine.lr_at = [&](int t) {
      // A step of the others that waited for rank 2 would wait until its limit.
      if (r == 2 && t == 3) CHECK(soon([&] { return through == n - 1; }));
      if (r != 2 && t == job.steps - 1) ++through;
      return job.lr;
    };
    x[r] = run_job_logged(mine, transport, *backends[r], logs[r]);
  });
  CHECK(through == n - 1);
  for (std::size_t r = 0; r < ranks; ++r) {
    CHECK(logs[r].begun() == logs[0].begun());
    if (r == 2) continue;
    // Those of rank 2's three steps, and one of which nothing came while it stood: the others took
    // most of their steps meanwhile.
    const auto within = std::count_if(
        logs[r].events.begin(), logs[r].events.end(),
        [&](const auto& event) { return event.begins && event.before_step < job.steps; });
    CHECK(within <= 4);
  }
  CHECK(largest_difference(x, replay(job, logs)) < 1e-11);
}

TEST_CASE("comm/async: a lost rank is named within the limit") {
  const int n = 3;
  std::vector<std::string> texts(static_cast<std::size_t>(n));
  std::vector<std::unique_ptr<Backend>> backends;
  for (int r = 0; r < n; ++r) backends.push_back(open_backend(DeviceType::kCpu, 1));
  const Job job = always_averaging();
  std::atomic<int> ended{0};
  FakeWorld world(n, {2.0});
  const auto body = [&](Transport& transport) {
    const auto r = static_cast<std::size_t>(transport.rank());
    Job mine = job;
    mine.lr_at = [&](int t) {
      if (r == 2 && t == 5) {
        world.stop(2);
        soon([&] { return ended == n - 1; });
        fail(ExitCode::kInternal, "test", "over");
      }
      return job.lr;
    };
    if (r == 2) {
      run_job(mine, transport, *backends[r]);
    } else {
      texts[r] = error_of(ExitCode::kLost, [&] { run_job(mine, transport, *backends[r]); });
      ++ended;
      soon([&] { return ended == n - 1; });
      // so that the transports' ends do not wait their time once more
      fail(ExitCode::kInternal, "test", "over");
    }
  };
  CHECK(error_text([&] { world.run(body); }) == "[test] over");
  for (const std::size_t r : {0, 1}) {
    CHECK(contains(texts[r], "rank " + std::to_string(r) + " waited 2 s (sync.timeout_s)"));
    CHECK(contains(texts[r], "missing: rank 2"));
  }
}

}  // namespace
}  // namespace starling::test
