#include "comm/algorithms/quorum.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>
#include <utility>

#include "comm/algorithms/coded_mean.h"
#include "comm/other_ranks.h"
#include "core/error.h"
#include "core/log.h"
#include "core/running_clock.h"
#include "kernels/open_backend.h"

namespace starling {
namespace {

constexpr std::size_t kTimesKept = 16;
constexpr double kQuestionAfter = 0.5;  // seconds of a wait, and until the next one
constexpr auto kFirstSleep = std::chrono::microseconds(50),
               kLastSleep = std::chrono::microseconds(500);

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

double median_of(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2.0;
}

double quorum_grace(const std::vector<double>& spreads, double inner_step, double most) {
  if (spreads.empty()) return most;
  const double median = median_of(spreads);
  std::vector<double> deviations;
  for (const double spread : spreads) deviations.push_back(std::abs(spread - median));
  return std::min(most, std::max(inner_step, median + 3.0 * median_of(std::move(deviations))));
}

void LastTimes::add(double seconds) {
  values_.push_back(seconds);
  if (values_.size() > kTimesKept) values_.pop_front();
}

double LastTimes::mean() const {
  if (values_.empty()) return 0.0;
  return std::accumulate(values_.begin(), values_.end(), 0.0) / static_cast<double>(values_.size());
}

std::vector<int> QuorumDecision::participants() const {
  std::vector<int> ranks;
  for (std::size_t j = 0; j < weights.size(); ++j) {
    if (weights[j] > 0.0) ranks.push_back(static_cast<int>(j));
  }
  return ranks;
}

std::vector<double> QuorumWord::numbers(int ranks) const {
  std::vector<double> all(kWeights);
  all[kKind] = kind;
  all[kOuter] = static_cast<double>(outer);
  all[kWeight] = weight;
  all[kStop] = asks.stop ? 1.0 : 0.0;
  all[kJoin] = asks.join ? 1.0 : 0.0;
  all[kGrace] = grace;
  all[kBytes] = static_cast<double>(bytes);
  all[kCode] = code;
  all.insert(all.end(), weights.begin(), weights.end());
  all.resize(kWeights + static_cast<std::size_t>(ranks));
  return all;
}

QuorumWord QuorumWord::read(const double* numbers, int ranks, int from) {
  const auto number = [&](Field field, const char* what, double most) {
    const double value = numbers[field];
    // NaN is refused, too
    if (!(value >= 0.0 && value <= most && value == std::floor(value)))
      fail(ExitCode::kUsage, "quorum", "a message of {} {}", what, value);
    return value;
  };
  constexpr double kMost = 1e15;
  QuorumWord word;
  word.kind = static_cast<int>(number(kKind, "kind", kPause));
  if (word.kind < kDifference) fail(ExitCode::kUsage, "quorum", "a message of kind {}", word.kind);
  word.outer = static_cast<std::int64_t>(number(kOuter, "outer step", kMost));
  word.weight = numbers[kWeight];
  word.asks = {numbers[kStop] != 0.0, numbers[kJoin] != 0.0};
  word.bytes = static_cast<std::int64_t>(number(kBytes, "length", kMost));
  word.code = static_cast<int>(number(kCode, "code", 255));
  if (word.kind != kDecision) return word;
  if (from != 0) fail(ExitCode::kUsage, "quorum", "a decision, which is rank 0's to send");
  word.grace = numbers[kGrace];
  word.weights = {numbers + kWeights, numbers + kWeights + ranks};
  for (const double value : word.weights) {
    if (!(value >= 0.0 && value <= kMost))
      fail(ExitCode::kUsage, "quorum", "a decision with the weight {}", value);
  }
  if (std::all_of(word.weights.begin(), word.weights.end(), [](double w) { return w == 0.0; }))
    fail(ExitCode::kUsage, "quorum", "a decision in which no rank takes part");
  if (!(word.grace >= 0.0 && word.grace <= kMost))
    fail(ExitCode::kUsage, "quorum", "a decision with a grace of {} s", word.grace);
  return word;
}

std::string QuorumWord::why_refused(const QuorumFormat& format,
                                    const QuorumSettings& settings) const {
  const double most = settings.most_weight * static_cast<double>(outer + 1);
  if (bytes == 0 && weight == 0.0) return {};
  if (bytes != format.bytes || code != format.code)
    return fmt::format("{} bytes ({}) where {} ({}) are agreed", bytes, code_name(code),
                       format.bytes, code_name(format.code));
  return weight > 0.0 && weight <= most
             ? std::string()
             : fmt::format("a weight of {}, which must be above 0 and at most {}", weight, most);
}

Quorum::Quorum(Transport& transport, Backend& backend, const QuorumSettings& settings,
               std::vector<QuorumFormat> formats, Seconds now)
    : transport_(transport),
      backend_(backend),
      own_host_(backend.device() == DeviceType::kCpu ? nullptr : open_backend(DeviceType::kCpu, 1)),
      settings_(settings),
      formats_(std::move(formats)),
      now_(now ? std::move(now) : Seconds(steady_seconds)),
      to_all_{.kind = Exchange::Kind::kNeighbours},
      peers_(static_cast<std::size_t>(transport.size())),
      answers_(peers_.size()),
      grace_(settings.grace_seconds),
      messages_(formats_.size()) {
  require(settings.ranks >= 1 && settings.ranks <= ranks(), "quorum", "{} of {} ranks",
          settings.ranks, ranks());
  for (int j = 0; j < ranks(); ++j) {
    peer(j).of_layout.resize(messages_.size());
    if (j != rank()) to_all_.send_to.push_back(j);
  }
}

void Quorum::listen(std::int64_t outer) {
  require(!listening_, "quorum", "it receives already");
  listening_ = true;
  outer_ = outer;
  answers_.assign(answers_.size(), {});
  mine_ = nullptr;
  for (const int j : to_all_.send_to) {
    peer(j).paused = false;
    await_word(j);
  }
}

void Quorum::poll() {
  for (const int j : to_all_.send_to) {
    while (advance(j)) {
    }
  }
  release_sent();
  if (rank() == 0) decide_if_due();
}

bool Quorum::advance(int j) {
  Peer& from = peer(j);
  if (!from.announced) {
    if (from.word_ticket == 0 || !transport_.done(from.word_ticket)) return false;
    read_word(j);
    return true;
  }
  if (from.last.outer > outer_) return false;  // this rank is not there yet
  if (from.last.bytes > 0 && from.ticket == 0) {
    Tensor& target = from.refused ? from.dropped : from.of_layout[layout(from.last.outer)];
    if (!target || target.elements() != from.last.bytes)
      target = Tensor(backend_, Shape{from.last.bytes}, DType::kUInt8);
    const Exchange exchange{
        .kind = Exchange::Kind::kNeighbours, .receive_from = {j}, .weights = {1.0}};
    const StreamScope scope(backend_, StreamKind::kUpdate);
    from.ticket = transport_.start_exchange(exchange, target, {target},
                                            {step_, 0, from.last.outer, Lane::kAside});
  }
  if (from.ticket != 0 && !transport_.done(from.ticket)) return false;
  settle(from.ticket);
  take_answer(j);
  return true;
}

Tensor Quorum::new_word() const {
  return {own_host_ ? *own_host_ : backend_,
          Shape{static_cast<std::int64_t>(QuorumWord::kWeights) + ranks()}, DType::kFloat64};
}

void Quorum::await_word(int j) {
  Peer& from = peer(j);
  if (!from.word) from.word = new_word();
  const Exchange exchange{
      .kind = Exchange::Kind::kNeighbours, .receive_from = {j}, .weights = {1.0}};
  from.word_ticket = transport_.start_exchange(exchange, from.word, {from.word},
                                               {step_, -1, outer_, Lane::kAside});
}

void Quorum::read_word(int j) {
  Peer& from = peer(j);
  transport_.wait(std::exchange(from.word_ticket, 0));
  from.heard_at = now();
  QuorumWord word;
  try {
    word = QuorumWord::read(from.word.data<double>(), ranks(), j);
    if (word.bytes > formats_[layout(word.outer)].most_bytes)
      fail(ExitCode::kUsage, "quorum", "a difference of {} bytes", word.bytes);
  } catch (const Error& error) {
    fail(ExitCode::kLost, "quorum", {.rank = rank(), .step = step_},
         "rank {} announces {}, which no rank sends; all ranks need the same version", j,
         error.message());
  }
  if (word.kind == QuorumWord::kDifference) return read_difference(j, std::move(word));
  if (word.kind == QuorumWord::kPause) {
    from.paused = true;
    return;
  }
  decisions_[word.outer] = {word.outer, std::move(word.weights), word.asks};
  grace_ = word.grace;
  await_word(j);
}

void Quorum::read_difference(int j, QuorumWord word) {
  Peer& from = peer(j);
  const std::string why = word.why_refused(formats_[layout(word.outer)], settings_);
  if (!why.empty()) {
    if (rank() == 0 && !from.refused)  // which decides
      log::warning(
          "rank {}'s difference for outer step {} is refused, and the step taken without it: {}; "
          "all ranks need the same configuration and version",
          j, word.outer, why);
    word.weight = 0.0;
  }
  from.refused = !why.empty();
  from.announced = true;
  from.announced_at = now();
  from.last = std::move(word);
}

void Quorum::take_answer(int j) {
  Peer& from = peer(j);
  from.announced = false;
  from.heard_at = now();
  if (from.last.outer == outer_)
    answers_[static_cast<std::size_t>(j)] = {
        true, from.last.weight, now(), from.announced_at, from.last.asks, from.refused};
  await_word(j);
}

std::vector<double> Quorum::announcements() const {
  std::vector<double> times;
  for (const int j : to_all_.send_to) {
    const Peer& from = peers_[static_cast<std::size_t>(j)];
    if (answer(j).there) {
      if (answer(j).weight > 0.0) times.push_back(answer(j).announced_at);
    } else if (from.announced && (from.last.outer > outer_ ||
                                  (from.last.outer == outer_ && from.last.weight > 0.0))) {
      times.push_back(from.announced_at);
    }
  }
  std::sort(times.begin(), times.end());
  return times;
}

bool Quorum::formed() const { return std::ssize(announcements()) >= settings_.ranks; }

double Quorum::grace_left() const {
  return grace_ - (now() - announcements()[static_cast<std::size_t>(settings_.ranks - 1)]);
}

const Tensor& Quorum::message() {
  if (mine_) return mine_->bytes;
  std::deque<Message>& of = messages_[layout(outer_)];
  // A message is free once all ranks have received it.
  for (Message& message : of) {
    if (!mine_ && (message.ticket == 0 || transport_.done(message.ticket))) mine_ = &message;
  }
  if (!mine_ && of.size() < kMostKept) {
    of.push_back({Tensor(backend_, Shape{formats_[layout(outer_)].bytes}, DType::kUInt8)});
    mine_ = &of.back();
  }
  if (!mine_)
    mine_ = &*std::min_element(
        of.begin(), of.end(), [](const Message& a, const Message& b) { return a.outer < b.outer; });
  settle(mine_->ticket);
  mine_->outer = outer_;
  return mine_->bytes;
}

void Quorum::send(double weight, QuorumAsks asks, std::int64_t step) {
  Answer& own = answers_[static_cast<std::size_t>(rank())];
  require(!own.there, "quorum", "the difference of outer step {} was sent", outer_);
  step_ = step;
  own = {true, weight, now(), now(), asks};
  QuorumWord word{.weight = weight, .asks = asks};
  if (weight != 0.0) {
    word.bytes = formats_[layout(outer_)].bytes;
    word.code = formats_[layout(outer_)].code;
  }
  send_word(std::move(word), step);
  if (weight == 0.0 || ranks() == 1) return;
  const Tensor& bytes = message();
  const StreamScope scope(backend_, StreamKind::kUpdate);  // where it was written
  mine_->ticket = transport_.start_exchange(to_all_, bytes, {}, {step, 0, outer_, Lane::kAside});
}

void Quorum::send_word(QuorumWord word, std::int64_t step) {
  if (ranks() == 1) return;
  word.outer = outer_;
  Tensor numbers = new_word();
  const std::vector<double> all = word.numbers(ranks());
  std::copy(all.begin(), all.end(), numbers.data<double>());
  const Ticket ticket =
      transport_.start_exchange(to_all_, numbers, {}, {step, -1, outer_, Lane::kAside});
  words_.push_back({std::move(numbers), ticket});
}

void Quorum::decide_if_due() {
  if (!answer(0).there || decided()) return;
  std::vector<double> arrivals;
  bool waits = false;
  for (int j = 0; j < ranks(); ++j) {
    if (answer(j).there && answer(j).weight > 0.0) arrivals.push_back(answer(j).at);
    waits = waits || (!answer(j).there && peer(j).misses < kMissesBeforeUnawaited);
  }
  if (std::ssize(arrivals) < settings_.ranks) return;
  std::sort(arrivals.begin(), arrivals.end());
  const double quorum_at = arrivals[static_cast<std::size_t>(settings_.ranks - 1)];
  if (waits && now() - quorum_at < grace_) return;
  spreads_.add(arrivals.back() - quorum_at);
  decide();
}

void Quorum::decide() {
  QuorumDecision decision{.outer = outer_};
  for (int j = 0; j < ranks(); ++j) {
    const Answer& of = answer(j);
    decision.weights.push_back(of.there ? of.weight : 0.0);
    decision.asks.stop = decision.asks.stop || (of.there && of.asks.stop);
    decision.asks.join = decision.asks.join || (of.there && of.asks.join);
  }
  tell_missing(decision);
  grace_ = quorum_grace(spreads_.values(), inner_steps_.median(), settings_.grace_seconds);
  send_word({.kind = QuorumWord::kDecision,
             .asks = decision.asks,
             .grace = grace_,
             .weights = decision.weights},
            step_);
  decisions_[outer_] = std::move(decision);
}

void Quorum::tell_missing(const QuorumDecision& decision) {
  for (int j = 0; j < ranks(); ++j) {
    int& misses = peer(j).misses;
    if (decision.weights[static_cast<std::size_t>(j)] > 0.0) {
      if (misses >= kMissesBeforeUnawaited)
        log::info("rank {} takes part in outer steps again, from update {}", j, step_ + 1);
      misses = 0;
      continue;
    }
    ++misses;
    if (!answer(j).refused && !std::exchange(peer(j).told, true))
      log::warning(
          "rank {} is left out of the outer step of update {}, as it was late; metrics.jsonl has "
          "the participants of each",
          j, step_ + 1);
    if (misses == kMissesBeforeUnawaited)
      log::warning(
          "rank {} was left out of {} outer steps running; it is not waited for until a "
          "difference of its comes in time",
          j, misses);
  }
}

bool Quorum::complete() const {
  const auto it = decisions_.find(outer_);
  if (it == decisions_.end()) return false;
  return std::all_of(to_all_.send_to.begin(), to_all_.send_to.end(), [&](int j) {
    return it->second.weights[static_cast<std::size_t>(j)] == 0.0 || answer(j).there;
  });
}

const QuorumDecision& Quorum::await(std::int64_t step) {
  step_ = step;
  const auto missing = [&] {
    std::vector<int> ranks_missing;
    const auto decision = decisions_.find(outer_);
    const bool none = decision == decisions_.end();
    if (none && rank() != 0) return std::vector<int>{0};  // whose decision it is
    for (const int j : to_all_.send_to) {
      if (!answer(j).there && (none || decision->second.weights[static_cast<std::size_t>(j)] > 0.0))
        ranks_missing.push_back(j);
    }
    return ranks_missing;
  };
  wait_for([&] { return complete(); }, missing,
           fmt::format("outer step {}, of which {} ranks' differences are needed", outer_,
                       settings_.ranks),
           step);
  const QuorumDecision& decision = decisions_.at(outer_);
  for (const int j : decision.participants()) {
    if (answer(j).refused)
      fail(
          ExitCode::kLost, "quorum", {.rank = rank(), .step = step},
          "rank 0 takes rank {}'s difference for outer step {}, which this rank refused; all ranks "
          "need the same configuration and version",
          j, outer_);
  }
  return decision;
}

const Tensor& Quorum::difference_of(int j) const {
  if (j != rank()) return peers_[static_cast<std::size_t>(j)].of_layout[layout(outer_)];
  require(mine_, "quorum", "rank {} has sent no difference in outer step {}", j, outer_);
  return mine_->bytes;
}

void Quorum::next() {
  require(decided(), "quorum", "outer step {} is not decided", outer_);
  decisions_.erase(outer_);
  ++outer_;
  answers_.assign(answers_.size(), {});
  mine_ = nullptr;
}

void Quorum::pause(std::int64_t step) {
  if (!listening_) return;
  step_ = step;
  send_word({.kind = QuorumWord::kPause}, step);
  const auto missing = [&] {
    std::vector<int> open;
    for (const int j : to_all_.send_to) {
      if (!peer(j).paused) open.push_back(j);
    }
    return open;
  };
  wait_for([&] { return missing().empty(); }, missing, "all ranks to have taken their outer steps",
           step);
  for (std::deque<Message>& of : messages_) {
    for (Message& message : of) settle(message.ticket);
  }
  for (SentWord& sent : words_) transport_.wait(sent.ticket);
  words_.clear();
  listening_ = false;
}

void Quorum::wait_for(const std::function<bool()>& there,
                      const std::function<std::vector<int>()>& missing, const std::string& what,
                      std::int64_t step) {
  const ExchangeLabel label{step, -1, outer_, Lane::kAside};
  const auto begin = RunningClock::now();
  const auto known_of = [&](int j) {
    const double heard = peer(j).heard_at;
    return AwaitedRank{.rank = j, .seconds_ago = heard < 0.0 ? -1.0 : now() - heard};
  };
  LateRanks late(settings_.timeout_seconds);
  auto sleep = kFirstSleep;
  double next_question = kQuestionAfter;
  while (true) {
    poll();
    if (there()) break;
    const double waited = RunningClock::seconds_since(begin);
    const bool asks = waited > next_question;
    if (asks) next_question = waited + kQuestionAfter;
    for (const int j : missing()) {
      if (asks) transport_.ask(j);
      if (late.due(j, waited)) late.warn(known_of(j), waited, what, label);
    }
    if (waited >= settings_.timeout_seconds) {
      std::vector<AwaitedRank> awaited;
      for (const int j : missing()) awaited.push_back(known_of(j));
      fail_wait(rank(), what, label, settings_.timeout_seconds, std::move(awaited));
    }
    std::this_thread::sleep_for(sleep);
    sleep = std::min(sleep * 2, kLastSleep);
  }
  late.came(RunningClock::seconds_since(begin));
}

void Quorum::settle(Ticket& ticket) {
  if (ticket == 0) return;
  const StreamScope scope(backend_, StreamKind::kUpdate);
  transport_.wait(std::exchange(ticket, 0));
}

void Quorum::release_sent() {
  while (!words_.empty() && transport_.done(words_.front().ticket)) {
    transport_.wait(words_.front().ticket);
    words_.pop_front();
  }
}

}  // namespace starling
