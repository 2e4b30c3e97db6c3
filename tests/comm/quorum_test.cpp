#include "comm/algorithms/quorum.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/open_backend.h"
#include "plain_compressed.h"
#include "support.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/numbers_of_ranks.h"
#include "tests/support/sanitized.h"
#include "tests/support/soon.h"

// Outer steps that wait for a quorum.
namespace starling::test {
namespace {

using nlohmann::json;

TEST_CASE("comm/quorum: the grace is median + 3 MAD of the spreads, within its limits") {
  CHECK(quorum_grace({}, 0.5, 1.0) == 1.0);
  CHECK(quorum_grace({}, 5.0, 1.0) == 1.0);
  CHECK(quorum_grace({0.25}, 0.0, 1.0) == 0.25);
  CHECK(quorum_grace({0.25}, 0.5, 1.0) == 0.5);
  CHECK(quorum_grace({0.25}, 5.0, 1.0) == 1.0);
  // Median 2; deviations 1, 0, 1
  CHECK(quorum_grace({3.0, 1.0, 2.0}, 0.0, 100.0) == 5.0);
  CHECK(quorum_grace({3.0, 1.0, 2.0}, 0.0, 4.0) == 4.0);
  // Median (2 + 4) / 2; deviations 2, 1, 1, 6, of which the middle ones are 1 and 2
  CHECK(quorum_grace({1.0, 4.0, 2.0, 9.0}, 0.0, 100.0) == 3.0 + 3.0 * 1.5);
  LastTimes times;
  CHECK(times.median() == 0.0);
  for (int i = 0; i < 20; ++i) times.add(i);
  CHECK(times.values().size() == 16);
  CHECK(times.values().front() == 4.0);
  CHECK(times.median() == 11.5);
}

/// Three ranks on one thread, with a clock that stands still. What rank j sends in outer step k is
/// bytes 100 j + k.
struct QuorumRanks {
  static constexpr int kCount = 3;
  static constexpr double kMostWeight = 16.0;
  double time = 0.0;
  FakeWorld world;
  std::vector<std::unique_ptr<Backend>> backends;  // one a rank, as the ranks' ends are threads
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<std::unique_ptr<Quorum>> quorums;

  /// `of_rank_1`: what that rank takes for agreed, unlike the others.
  explicit QuorumRanks(int q, double grace = 1.0, double timeout = 20.0, std::int64_t layouts = 1,
                       const std::vector<QuorumFormat>& of_rank_1 = {})
      : world(kCount, {timeout}) {
    for (int r = 0; r < kCount; ++r) {
      backends.push_back(open_backend(DeviceType::kCpu, 1));
      transports.push_back(world.transport(r));
      std::vector<QuorumFormat> formats;
      for (std::int64_t k = 0; k < layouts; ++k) formats.push_back({2, 40 + k, 500});
      if (r == 1 && !of_rank_1.empty()) formats = of_rank_1;
      quorums.push_back(std::make_unique<Quorum>(*transports.back(), *backends.back(),
                                                 QuorumSettings{q, grace, timeout, kMostWeight},
                                                 formats, [this] { return time; }));
      quorums.back()->listen(0);
    }
  }
  Quorum& operator[](int r) { return *quorums[static_cast<std::size_t>(r)]; }
  static std::uint8_t byte(int r, std::int64_t outer) {
    return static_cast<std::uint8_t>(100 * r + outer);
  }
  void send(int r, double weight = 1.0, bool stop = false) {
    Quorum& of = (*this)[r];
    if (weight != 0.0)
      std::fill_n(of.message().data<std::uint8_t>(), of.message().elements(), byte(r, of.outer()));
    of.send(weight, {.stop = stop}, of.outer());
  }
  void poll() {
    for (const auto& of : quorums) of->poll();
  }
  template <class What>
  bool becomes(const What& what) {
    return soon([&] {
      poll();
      return what();
    });
  }
  /// Lets what is under way arrive.
  void rest() {
    for (int i = 0; i < 20; ++i) {
      poll();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  /// The rank has the decision and what it takes, with these weights; then it goes on.
  void check_takes(int r, const std::vector<double>& weights) {
    Quorum& of = (*this)[r];
    CAPTURE(r);
    CAPTURE(of.outer());
    REQUIRE(becomes([&] { return of.complete(); }));
    const QuorumDecision& decision = of.await(0);
    CAPTURE(decision.weights[2]);
    CHECK(decision.weights == weights);
    for (const int j : decision.participants()) {
      const Tensor& bytes = of.difference_of(j);
      CHECK(std::all_of(bytes.data<std::uint8_t>(), bytes.data<std::uint8_t>() + bytes.elements(),
                        [&](std::uint8_t at) { return at == byte(j, of.outer()); }));
    }
    of.next();
  }
  void all_take(const std::vector<double>& weights) {
    for (int r = 0; r < kCount; ++r) check_takes(r, weights);
  }
  ~QuorumRanks() {
    std::vector<std::thread> threads;
    for (const auto& of : quorums) threads.emplace_back([&of] { of->pause(0); });
    for (std::thread& thread : threads) thread.join();
  }
};

TEST_CASE(
    "comm/quorum: an outer step waits for q ranks, then for the rest or until the grace ends") {
  QuorumRanks ranks(2);
  ranks.send(0, 8.0);
  ranks.time = 50.0;
  ranks.rest();
  CHECK(!ranks[0].decided());  // one of two
  CHECK(!ranks[2].formed());
  ranks.send(1, 5.0);
  REQUIRE(ranks.becomes([&] { return ranks[2].formed(); }));
  CHECK(ranks[2].grace_left() == 1.0);
  ranks.rest();
  CHECK(!ranks[0].decided());
  ranks.time = 50.75;
  CHECK(ranks[2].grace_left() == 0.25);
  ranks.rest();
  CHECK(!ranks[0].decided());
  ranks[0].add_inner_step(0.25);
  ranks.time = 51.0;
  ranks.all_take({8.0, 5.0, 0.0});
  // All are here: nobody waits any longer. From the second to the last it took 0.1875 s.
  ranks.send(0);
  ranks.send(2);
  ranks.rest();
  CHECK(!ranks[0].decided());
  ranks.time = 51.1875;
  ranks.send(1);
  ranks.all_take({1.0, 1.0, 1.0});
  // Spreads 0 and 0.1875: the median and the MAD are 0.09375
  ranks.send(0);
  ranks.send(1);
  REQUIRE(ranks.becomes([&] { return ranks[2].formed(); }));
  CHECK(ranks[2].grace_left() == 0.375);
  ranks.rest();
  CHECK(!ranks[0].decided());
  ranks.time = 51.5625;
  ranks.all_take({1.0, 1.0, 0.0});
}

TEST_CASE("comm/quorum: the grace lasts an inner step at least, and each rank knows it") {
  QuorumRanks ranks(2);
  for (const double seconds : {0.125, 0.25, 9.0}) ranks[0].add_inner_step(seconds);
  for (int outer = 0; outer < 2; ++outer) {
    ranks.send(0);
    ranks.send(1);
    REQUIRE(ranks.becomes([&] { return ranks[2].formed(); }));
    CHECK(ranks[2].grace_left() == (outer == 0 ? 1.0 : 0.25));
    ranks.rest();
    CHECK(!ranks[0].decided());
    ranks.time += outer == 0 ? 1.0 : 0.25;
    ranks.all_take({1.0, 1.0, 0.0});
  }
}

TEST_CASE(
    "comm/quorum: of a rank that missed three outer steps others wait for none until it came "
    "in time") {
  QuorumRanks ranks(2);
  for (int outer = 0; outer < 3; ++outer) {
    ranks.send(0);
    ranks.send(1);
    if (outer == 0) {
      ranks.rest();
      CHECK(!ranks[0].decided());
      ranks.time += 1.0;
    }
    ranks.all_take({1.0, 1.0, 0.0});
  }
  for (const double inner : {0.5, 0.5}) ranks[0].add_inner_step(inner);
  // The clock stands still
  ranks.send(0);
  ranks.send(1);
  ranks.all_take({1.0, 1.0, 0.0});
  ranks.send(2);
  ranks.send(1);
  REQUIRE(ranks.becomes([&] { return ranks[0].has_answered(1) && ranks[0].has_answered(2); }));
  ranks.send(0);
  ranks.all_take({1.0, 1.0, 1.0});
  ranks.send(0);
  ranks.send(1);
  ranks.rest();
  CHECK(!ranks[0].decided());
  ranks.time += 1.0;
  ranks.all_take({1.0, 1.0, 0.0});
}

TEST_CASE("comm/quorum: a rank that is behind takes outer step after outer step, as all did") {
  QuorumRanks ranks(2, 0.0, 20.0, 2);  // of two layouts
  for (int outer = 0; outer < 4; ++outer) {
    ranks.send(0, 1.0 + outer);
    ranks.send(1, 2.0);
    ranks.check_takes(0, {1.0 + outer, 2.0, 0.0});
    ranks.check_takes(1, {1.0 + outer, 2.0, 0.0});
  }
  // Its own difference of an outer step that was taken long ago is dropped.
  ranks.rest();
  CHECK(ranks[2].outer() == 0);
  CHECK(ranks[2].decided());
  CHECK(ranks[2].formed());
  ranks.send(2, 7.0);
  for (int outer = 0; outer < 4; ++outer) ranks.check_takes(2, {1.0 + outer, 2.0, 0.0});
  ranks.send(2, 7.0);
  ranks.send(1);
  REQUIRE(ranks.becomes([&] { return ranks[0].has_answered(1) && ranks[0].has_answered(2); }));
  ranks.send(0);
  ranks.all_take({1.0, 1.0, 7.0});
}

TEST_CASE("comm/quorum: a rank with nothing to add is not waited for, and a stop is agreed on") {
  QuorumRanks ranks(2);
  ranks[0].add_inner_step(0.25);  // the grace, as the clock stands still
  ranks.send(2, 0.0, true);
  ranks.send(0);
  ranks.send(1);
  for (int r = 0; r < 3; ++r) {
    REQUIRE(ranks.becomes([&] { return ranks[r].complete(); }));
    CHECK(ranks[r].await(0).asks.stop);
  }
  ranks.all_take({1.0, 1.0, 0.0});
  for (int r = 0; r < 3; ++r) ranks.send(r);
  REQUIRE(ranks.becomes([&] { return ranks[1].complete(); }));
  CHECK(!ranks[1].await(0).asks.stop);
  ranks.all_take({1.0, 1.0, 1.0});
}

TEST_CASE(
    "comm/quorum: a difference of another length, code or weight is dropped unread, and the outer "
    "step taken without it") {
  const auto check = [](std::vector<QuorumFormat> of_rank_1, double weight) {
    QuorumRanks ranks(2, 100.0, 20.0, 1, of_rank_1);
    for (int outer = 0; outer < 2; ++outer) {
      ranks.send(1, weight);
      ranks.send(2);
      REQUIRE(ranks.becomes([&] { return ranks[0].has_answered(1) && ranks[2].has_answered(1); }));
      CHECK(!ranks[0].formed());  // one difference, and one that does not count
      ranks.send(0);
      for (const int r : {0, 2}) ranks.check_takes(r, {1.0, 0.0, 1.0});
      REQUIRE(ranks.becomes([&] { return ranks[1].decided(); }));
      ranks[1].next();
    }
    if (!of_rank_1.empty()) return;
    // A sound one counts again. There is no grace, as the differences before came at one time.
    for (const int r : {1, 2}) ranks.send(r, 2.0);
    REQUIRE(ranks.becomes([&] { return ranks[0].has_answered(1) && ranks[0].has_answered(2); }));
    ranks.send(0, 2.0);
    ranks.all_take({2.0, 2.0, 2.0});
  };
  check({{2, 41, 500}}, 1.0);
  check({{2, 8, 500}}, 1.0);
  check({{4, 40, 500}}, 1.0);
  for (const double weight : {-1.0, 40.0, std::nan("")}) check({}, weight);
}

TEST_CASE("comm/quorum: what a word may say") {
  const QuorumSettings settings{.most_weight = 6.0};
  const QuorumFormat format{.code = 4, .bytes = 100, .most_bytes = 900};
  const auto why = [&](double weight, std::int64_t bytes, int code) {
    return QuorumWord{.outer = 1, .weight = weight, .bytes = bytes, .code = code}.why_refused(
        format, settings);
  };
  CHECK(why(12.0, 100, 4) == "");
  CHECK(why(0.0, 0, 0) == "");
  CHECK(why(12.0, 99, 4) == "99 bytes (int4) where 100 (int4) are agreed");
  CHECK(why(12.0, 0, 0) == "0 bytes (numbers as they are) where 100 (int4) are agreed");
  CHECK(why(12.0, 100, 18) == "100 bytes (sparse, 2 bits) where 100 (int4) are agreed");
  CHECK(contains(why(12.0, 100, 7), "(an unknown code, 7)"));
  for (const double weight : {12.5, 0.0, -1.0, HUGE_VAL, std::nan("")})
    CHECK(contains(why(weight, 100, 4), "which must be above 0 and at most 12"));

  const auto refusal = [](std::size_t field, double value, int from = 0) {
    std::vector<double> word = QuorumWord{
        .kind = QuorumWord::kDecision,
        .outer = 3,
        .grace = 0.5,
        .weights = {1.0, 0.0}}.numbers(2);
    word[field] = value;
    return error_of(ExitCode::kUsage, [&] { QuorumWord::read(word.data(), 2, from); });
  };
  for (const double value : {0.0, 4.0, 1.5, -1.0, HUGE_VAL, std::nan("")})
    CHECK(contains(refusal(QuorumWord::kKind, value), "a message of kind"));
  for (const double value : {-1.0, 0.5, 1e300, std::nan("")}) {
    CHECK(contains(refusal(QuorumWord::kOuter, value), "a message of outer step"));
    CHECK(contains(refusal(QuorumWord::kBytes, value), "a message of length"));
    CHECK(contains(refusal(QuorumWord::kCode, value), "a message of code"));
  }
  CHECK(contains(refusal(QuorumWord::kGrace, std::nan("")), "a grace of nan s"));
  CHECK(contains(refusal(QuorumWord::kWeights + 1, -1.0), "a decision with the weight -1"));
  CHECK(contains(refusal(QuorumWord::kWeights, 0.0), "a decision in which no rank takes part"));
  CHECK(contains(refusal(QuorumWord::kStop, 1.0, 1), "a decision, which is rank 0's to send"));
}

TEST_CASE("comm/quorum: a wait ends at its limit, and names whom it waits for") {
  QuorumRanks ranks(2, 0.0, 0.4);
  ranks.send(1);
  const std::string text = error_of(ExitCode::kLost, [&] { ranks[1].await(11); });
  CHECK(contains(text, "rank 1 waited 0.4 s (sync.timeout_s)"));
  CHECK(contains(text, "missing: rank 0"));
  ranks.rest();
  // Rank 2 takes nothing of what others send, so that they would run out of memory.
  ranks.send(0);
  for (int outer = 0; outer < 4; ++outer) {
    for (int r : {0, 1}) {
      REQUIRE(soon([&] {
        ranks[0].poll();
        ranks[1].poll();
        return ranks[r].complete();
      }));
      ranks[r].next();
    }
    if (outer == 3) break;
    ranks.send(0);
    ranks.send(1);
  }
  CHECK(contains(error_of(ExitCode::kLost, [&] { ranks[0].message(); }), "missing: rank 2"));
  for (int outer = 0; outer < 4; ++outer) ranks.check_takes(2, {1.0, 1.0, 0.0});
}

// --- DiLoCo with a quorum

/// What a rank did, in order: a step, or the outer steps after it.
struct QuorumEvent {
  bool step = false;  ///< an inner step
  int at = 0;         ///< its number, or the outer step's step
  std::vector<int> participants;
};
struct QuorumRun {
  std::vector<std::vector<double>> x;
  std::vector<std::vector<QuorumEvent>> events;             ///< by rank
  std::vector<std::map<int, std::vector<double>>> anchors;  ///< by rank and step: a and s
  int left_out() const {
    int count = 0;
    for (const QuorumEvent& event : events[0]) {
      if (!event.step && event.participants.size() < events.size()) ++count;
    }
    return count;
  }
  /// Outer steps in which a rank took part that had trained less than the period.
  int ended_early(int period) const {
    int count = 0;
    for (std::size_t r = 0; r < events.size(); ++r) {
      int trained = 0;
      for (const QuorumEvent& event : events[r]) {
        ++trained;
        if (event.step) continue;
        const auto& in = event.participants;
        if (trained - 1 < period && std::count(in.begin(), in.end(), static_cast<int>(r)) > 0)
          ++count;
        trained = 0;
      }
    }
    return count;
  }
};

/// `before_step`: called with rank and step before each step that a rank takes.
QuorumRun run_quorum(Job job, int ranks, const std::function<void(int, int)>& before_step = {}) {
  QuorumRun run;
  const auto n = static_cast<std::size_t>(ranks);
  run.x.resize(n);
  run.events.resize(n);
  run.anchors.resize(n);
  job.after_meetings = [&](int rank, int step, std::int64_t,
                           const std::vector<Algorithm::Meeting>& meetings) {
    std::vector<QuorumEvent>& of = run.events[static_cast<std::size_t>(rank)];
    of.push_back({true, step, {}});
    for (const Algorithm::Meeting& meeting : meetings)
      of.push_back({false, static_cast<int>(meeting.step), meeting.participants});
  };
  job.after_step = [&](int rank, int step, const std::vector<starling::Bucket>& buckets) {
    std::vector<double>& kept = run.anchors[static_cast<std::size_t>(rank)][step];
    for (const starling::Bucket& bucket : buckets) {
      for (const int state : {0, 1}) {
        for (const double value : numbers(bucket.sync[static_cast<std::size_t>(state)].numbers))
          kept.push_back(value);
      }
    }
  };
  std::vector<std::unique_ptr<Backend>> backends;
  for (int r = 0; r < ranks; ++r) backends.push_back(open_backend(DeviceType::kCpu, 1));
  FakeWorld(ranks, {20.0}).run([&](Transport& transport) {
    const int rank = transport.rank();
    Job own = job;
    own.lr_at = [&](int step) {
      if (before_step) before_step(rank, step);
      return job.lr;
    };
    const auto r = static_cast<std::size_t>(rank);
    run.x[r] = run_job(own, transport, *backends[r]);
  });
  return run;
}

/// All ranks agree who took part, and have equal anchors and s after steps that both took or came
/// to, and at the end.
void check_agreed(const QuorumRun& run) {
  const auto outer_steps = [&](std::size_t r) {
    std::vector<std::pair<int, std::vector<int>>> all;
    for (const QuorumEvent& event : run.events[r]) {
      if (!event.step) all.emplace_back(event.at, event.participants);
    }
    return all;
  };
  for (std::size_t r = 1; r < run.events.size(); ++r) {
    CHECK(outer_steps(r) == outer_steps(0));
    int compared = 0;
    for (const auto& [step, kept] : run.anchors[r]) {
      const auto first = run.anchors[0].find(step);
      if (first == run.anchors[0].end()) continue;
      CHECK(first->second == kept);
      ++compared;
    }
    CHECK(compared > 0);
    CHECK(run.anchors[r].rbegin()->first == run.anchors[0].rbegin()->first);
  }
}

/// The formulas of DiLoCo with a quorum, with who took part and who trained which steps as the run
/// had it. Plain SGD in fp64; one fragment.
std::vector<std::vector<double>> replay_quorum(const Job& job, const QuorumRun& run, bool carry) {
  const std::size_t n = run.events.size();
  PlainRun plain(job, static_cast<int>(n), nullptr);
  plain.begin({0, job.algorithm, job.topology}, job.steps, true);
  const bool sparse = job.exchange == "sparse";
  const double nu = plain.key("outer_lr", sparse ? 1.0 : 0.7),
               mu = plain.key("outer_momentum", sparse ? 0.0 : 0.9);
  GatheredMean gathered(plain,
                        plain.key("error_feedback", sparse) ? plain.key("error_decay", 0.95) : 0.0);
  const std::size_t size = plain.size();
  Vectors& x = plain.x;
  Vectors carried = plain.zeros();
  Vector a = x[0], s(size), trained(n), carried_weight(n);
  std::vector<std::size_t> at(n);
  const auto train = [&](std::size_t r) {  // up to the next outer step
    for (; at[r] < run.events[r].size() && run.events[r][at[r]].step; ++at[r]) {
      const Vectors g = plain.gradients(x, 0);  // of every step alike
      for (std::size_t e = 0; e < size; ++e) x[r][e] -= job.lr * g[r][e];
      ++trained[r];
    }
    return at[r] < run.events[r].size();
  };
  while (true) {
    Vectors delta = plain.zeros();
    Vector weight(n), of_participants(n);
    bool more = true;
    for (std::size_t r = 0; r < n; ++r) more = train(r) && more;
    if (!more) return x;
    for (std::size_t r = 0; r < n; ++r) {
      weight[r] = trained[r] + carried_weight[r];
      for (std::size_t e = 0; e < size && weight[r] > 0.0; ++e)
        delta[r][e] =
            (trained[r] * (a[e] - x[r][e]) + carried_weight[r] * carried[r][e]) / weight[r];
    }
    for (const int j : run.events[0][at[0]].participants)
      of_participants[static_cast<std::size_t>(j)] = weight[static_cast<std::size_t>(j)];
    const Vector mean = gathered(
        delta, [](std::size_t) { return true; }, of_participants)[0];
    for (std::size_t e = 0; e < size; ++e) {
      s[e] = mu * s[e] + mean[e];
      a[e] -= nu * (mean[e] + mu * s[e]);
    }
    for (std::size_t r = 0; r < n; ++r) {
      carried[r] = delta[r];
      carried_weight[r] = carry && of_participants[r] == 0.0 ? weight[r] : 0.0;
      trained[r] = 0.0;
      x[r] = a;
      ++at[r];
    }
  }
}

json with_quorum(int q, const json& more = {}) {
  json algorithm{{"type", "diloco"}, {"period", 6}, {"quorum", q}};
  if (!more.is_null()) algorithm.update(more);
  return algorithm;
}

TEST_CASE("comm/quorum: with all ranks in every outer step the run is DiLoCo's") {
  for (const int n : fewer_if_sanitized<int>({3, 1, 2, 5, 9})) {
    for (const json& more :
         {json::object(), json{{"fragments", 3}}, json{{"states", "reset"}}, json{{"blend", 0.3}},
          json{{"outer_nesterov", false}, {"outer_lr", 0.5}}, json{{"late", "carry"}}}) {
      Job job = exact_job(with_quorum(n, more), {}, {{"type", "adamw"}});
      job.steps = 24;
      CAPTURE(n);
      CAPTURE(more.dump());
      const QuorumRun run = run_quorum(job, n);
      CHECK(run.left_out() == 0);
      check_agreed(run);
      Job plain = job;
      for (const char* key : {"quorum", "late"}) plain.algorithm.erase(key);
      CHECK(largest_difference(run.x, run_fake(plain, n)) < 1e-12);
      job.in_backward = false;
      job.finish_every = 5;
      job.resume_after = 15;
      CHECK(run_quorum(job, n).x == run.x);
    }
  }
}

TEST_CASE("comm/quorum: ranks that come late, whenever they do, follow the formulas") {
  int late = 0, early = 0, differ = 0;
  const auto follows = [&](Job job, int n, bool carry, int turn) {
    job.steps = 48;
    job.finish_every = turn % 2 ? 12 : 0;
    CAPTURE(n);
    CAPTURE(job.exchange);
    CAPTURE(job.algorithm.dump());
    // One rank is slow at first; then some steps of each take long.
    const QuorumRun run = run_quorum(job, n, [&](int rank, int step) {
      if (step < 24 ? rank == n - 1 : (step * 7 + rank * 3) % 11 == 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    });
    check_agreed(run);
    // What a code makes of equal numbers may be a rounding to fp32 apart.
    CHECK(largest_difference(run.x, replay_quorum(job, run, carry)) <
          (job.exchange == "fp32" ? 1e-11 : 1e-6));
    late += run.left_out();
    early += run.ended_early(6);
    differ += largest_difference(run.x, replay_quorum(job, run, !carry)) > 1e-4 ? 1 : 0;
  };
  int turn = 0;
  for (const bool carry : {false, true}) {
    for (const int grace_ms : {0, 1, 20}) {
      for (const int n : {3, 4}) {
        const json keys{{"grace_ms", grace_ms}, {"late", carry ? "carry" : "drop"}};
        follows(exact_job(with_quorum(2, keys), {}, {{"type", "sgd"}}), n, carry, ++turn);
      }
    }
    for (const char* exchange : {"bf16", "int8", "int4", "sparse"}) {
      for (const bool feedback : {false, true}) {
        Job job = exact_job(with_quorum(2, {{"grace_ms", 1},
                                            {"late", carry ? "carry" : "drop"},
                                            {"error_feedback", feedback}}),
                            {}, {{"type", "sgd"}});
        job.exchange = exchange;
        if (job.exchange == "sparse")
          job.algorithm.update({{"share", 0.3}, {"aggregate", carry ? "ranks" : "senders"}});
        follows(job, 4, carry, ++turn);
      }
    }
  }
  CHECK(late > 0);
  CHECK(early > 0);
  CHECK(differ > 0);  // so that the comparison can fail
}

TEST_CASE(
    "comm/quorum: a rank that stands still stops nobody, and has what they have when it is "
    "back") {
  for (const bool carry : {false, true}) {
    for (const int fragments : {1, 3}) {
      Job job = exact_job(
          with_quorum(
              2, {{"grace_ms", 5}, {"late", carry ? "carry" : "drop"}, {"fragments", fragments}}),
          {}, {{"type", "sgd"}});
      job.steps = 48;
      std::atomic<bool> stands{false}, gone_on{false};
      std::atomic<int> through{0}, trained{0};
      std::array<bool, 2> is_through{};
      const QuorumRun run = run_quorum(job, 3, [&](int rank, int step) {
        if (rank == 2) {
          ++trained;
          if (gone_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          if (step < 3 || stands.exchange(true)) return;
          CHECK(soon([&] { return through == 2; }));
          gone_on = true;
          return;
        }
        // As far as messages are kept
        bool& mine = is_through[static_cast<std::size_t>(rank)];
        if (step >= 2) CHECK(soon([&] { return stands.load(); }));
        if (step >= 25 && !std::exchange(mine, true)) ++through;
      });
      CHECK(gone_on);
      check_agreed(run);
      CHECK(run.left_out() >= 3);
      CHECK(trained <= 48 - 20);
      if (fragments > 1) continue;
      CHECK(largest_difference(run.x, replay_quorum(job, run, carry)) < 1e-11);
      CHECK(run.x[1] == run.x[0]);  // the last outer step is the run's end
      CHECK(run.x[2] == run.x[0]);
    }
  }
}

TEST_CASE("comm/quorum: sparse differences of all ranks are diloco's; bits of a resume are kept") {
  for (const char* exchange : {"sparse", "bf16", "int8", "int4"}) {
    Job job =
        exact_job(with_quorum(1, {{"error_feedback", true}, {"fragments", 3}, {"late", "carry"}}),
                  {}, {{"type", "adamw"}});
    job.exchange = exchange;
    job.steps = 24;
    CAPTURE(job.exchange);
    Job alone = job;  // where nothing is encoded
    alone.exchange = "fp32";
    alone.algorithm.erase("error_feedback");
    for (const char* key : {"outer_lr", "outer_momentum"})
      job.algorithm[key] = alone.algorithm[key] = 0.5;
    CHECK(run_quorum(job, 1).x == run_quorum(alone, 1).x);
    job.algorithm["quorum"] = 3;
    const QuorumRun run = run_quorum(job, 3);
    CHECK(run.left_out() == 0);
    check_agreed(run);
    Job other = job;
    if (job.exchange == "sparse") {
      for (const char* key : {"quorum", "late"}) other.algorithm.erase(key);
      CHECK(largest_difference(run.x, run_fake(other, 3)) < 1e-6);
      other = job;
    }
    other.resume_after = 15;
    CHECK(run_quorum(other, 3).x == run.x);
    other.algorithm["error_feedback"] = false;
    CHECK(largest_difference(run_quorum(other, 3).x, run.x) > 1e-4);
  }
}

TEST_CASE(
    "comm/quorum: with a share of 1 sparse differences are int8's and int4's whose blocks end with "
    "the parameters") {
  const json keys{{"error_feedback", true}, {"outer_lr", 0.5}, {"outer_momentum", 0.5}};
  for (const int bits : {8, 4}) {
    Job job = exact_job(with_quorum(3, keys), {}, {{"type", "adamw"}}), sparse = job;
    job.bucket_bytes = sparse.bucket_bytes = 1;  // a bucket is a parameter
    job.exchange = bits == 8 ? "int8" : "int4";
    job.algorithm["block"] = 0;
    sparse.exchange = "sparse";
    sparse.algorithm.update({{"share", 1.0}, {"value_bits", bits}, {"block", 65536}});
    CAPTURE(bits);
    const auto expected = run_quorum(job, 3).x;
    CHECK(largest_difference(run_quorum(sparse, 3).x, expected) < 1e-6);
    sparse.algorithm["share"] = 0.5;
    CHECK(largest_difference(run_quorum(sparse, 3).x, expected) > 1e-4);
  }
}

TEST_CASE("comm/quorum: keys that do not go together") {
  const auto refusal = [](const json& more) {
    return error_of(ExitCode::kUsage, [&] { algorithm_of(with_quorum(2, more)); });
  };
  CHECK(contains(refusal({{"delay", 1}}), "sync.algorithm.delay: is 1"));
  CHECK(contains(refusal({{"states", "average"}}), "sync.algorithm.states: is average"));
  CHECK(contains(refusal({{"late", "wait"}}), "allowed: drop, carry"));
  CHECK(contains(refusal({{"quorum", -1}}), "sync.algorithm.quorum: expected an integer 0"));
  CHECK(contains(refusal({{"quorum", 0}, {"grace_ms", 10}}), "sync.algorithm.grace_ms: is for"));
  CHECK(contains(refusal({{"quorum", 0}, {"late", "carry"}}), "sync.algorithm.late: is for"));
}

}  // namespace
}  // namespace starling::test
