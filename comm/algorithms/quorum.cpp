#include "comm/algorithms/quorum.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <thread>
#include <utility>

#include "comm/other_ranks.h"
#include "core/error.h"
#include "core/log.h"
#include "core/running_clock.h"
#include "kernels/open_backend.h"

namespace starling {
namespace {

constexpr std::size_t kTimesKept = 16;
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

Quorum::Quorum(Transport& transport, Backend& backend, const QuorumSettings& settings,
               std::int64_t layouts, MakeMessage make, Seconds now)
    : transport_(transport),
      backend_(backend),
      own_host_(backend.device() == DeviceType::kCpu ? nullptr : open_backend(DeviceType::kCpu, 1)),
      settings_(settings),
      layouts_(layouts),
      make_(std::move(make)),
      now_(now ? std::move(now) : Seconds(steady_seconds)),
      to_all_{.kind = Exchange::Kind::kNeighbours},
      peers_(static_cast<std::size_t>(transport.size())),
      answers_(peers_.size()),
      grace_(settings.grace_seconds),
      messages_(static_cast<std::size_t>(layouts)) {
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
  if (from.announced && from.tickets.empty()) {
    if (from.outer > outer_) return false;  // this rank is not there yet
    if (from.weight == 0.0) {
      take_answer(j);
      return true;
    }
    std::vector<Tensor>& target = from.of_layout[static_cast<std::size_t>(from.outer % layouts_)];
    if (target.empty()) target = make_(from.outer % layouts_);
    const Exchange exchange{
        .kind = Exchange::Kind::kNeighbours, .receive_from = {j}, .weights = {1.0}};
    for (std::size_t k = 0; k < target.size(); ++k) {
      const StreamScope scope(backend_, StreamKind::kUpdate);
      from.tickets.push_back(
          transport_.start_exchange(exchange, target[k], {target[k]},
                                    {step_, static_cast<int>(k), from.outer, Lane::kAside}));
    }
  }
  if (from.announced) {
    if (!is_done(from.tickets)) return false;
    settle(from.tickets);
    take_answer(j);
    return true;
  }
  if (from.word_ticket == 0 || !transport_.done(from.word_ticket)) return false;
  read_word(j);
  return true;
}

Tensor Quorum::new_word() const {
  return {own_host_ ? *own_host_ : backend_, Shape{static_cast<std::int64_t>(kWeights) + ranks()},
          DType::kFloat64};
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
  const double* word = from.word.data<double>();
  const auto outer = static_cast<std::int64_t>(word[kOuter]);
  switch (static_cast<int>(word[kKind])) {
    case kDifference:
      from.announced = true;
      from.outer = outer;
      from.weight = word[kWeight];
      from.stop = word[kStop] != 0.0;
      from.announced_at = now();
      return;
    case kDecision:
      decisions_[outer] = {outer, {word + kWeights, word + kWeights + ranks()}, word[kStop] != 0.0};
      grace_ = word[kGrace];
      await_word(j);
      return;
    case kPause: from.paused = true; return;
    default:
      fail(ExitCode::kLost, "quorum", {.rank = rank(), .step = step_},
           "rank {} sent a message of unknown kind {}; all ranks need the same version", j,
           word[kKind]);
  }
}

void Quorum::take_answer(int j) {
  Peer& from = peer(j);
  from.announced = false;
  from.heard_at = now();
  if (from.outer == outer_)
    answers_[static_cast<std::size_t>(j)] = {true, from.weight, now(), from.announced_at,
                                             from.stop};
  await_word(j);
}

std::vector<double> Quorum::announcements() const {
  std::vector<double> times;
  for (const int j : to_all_.send_to) {
    const Peer& from = peers_[static_cast<std::size_t>(j)];
    if (answer(j).there) {
      if (answer(j).weight > 0.0) times.push_back(answer(j).announced_at);
    } else if (from.announced &&
               (from.outer > outer_ || (from.outer == outer_ && from.weight > 0.0))) {
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

const std::vector<Tensor>& Quorum::message() {
  if (mine_) return mine_->tensors;
  std::deque<Message>& of = messages_[layout()];
  // A message is free once all ranks have received it.
  for (Message& message : of) {
    if (!mine_ && is_done(message.tickets)) mine_ = &message;
  }
  if (!mine_ && of.size() < kMostKept) {
    of.push_back({make_(static_cast<std::int64_t>(layout())), {}, 0});
    mine_ = &of.back();
  }
  if (!mine_)
    mine_ = &*std::min_element(
        of.begin(), of.end(), [](const Message& a, const Message& b) { return a.outer < b.outer; });
  settle(mine_->tickets);
  mine_->outer = outer_;
  return mine_->tensors;
}

void Quorum::send(double weight, bool stop, std::int64_t step) {
  Answer& own = answers_[static_cast<std::size_t>(rank())];
  require(!own.there, "quorum", "the difference of outer step {} was sent", outer_);
  step_ = step;
  own = {true, weight, now(), now(), stop};
  std::vector<double> word(kWeights);
  word[kKind] = kDifference;
  word[kWeight] = weight;
  word[kStop] = stop ? 1.0 : 0.0;
  send_word(std::move(word), step);
  if (weight == 0.0 || ranks() == 1) return;
  const std::vector<Tensor>& tensors = message();
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    const StreamScope scope(backend_, StreamKind::kUpdate);  // where it was written
    mine_->tickets.push_back(transport_.start_exchange(
        to_all_, tensors[k], {}, {step, static_cast<int>(k), outer_, Lane::kAside}));
  }
}

void Quorum::send_word(std::vector<double> word, std::int64_t step) {
  if (ranks() == 1) return;
  word.resize(kWeights + peers_.size());
  word[kOuter] = static_cast<double>(outer_);
  Tensor numbers = new_word();
  std::copy(word.begin(), word.end(), numbers.data<double>());
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
    decision.stop = decision.stop || (of.there && of.stop);
  }
  tell_missing(decision);
  grace_ = quorum_grace(spreads_.values(), inner_steps_.median(), settings_.grace_seconds);
  std::vector<double> word(kWeights);
  word[kKind] = kDecision;
  word[kStop] = decision.stop ? 1.0 : 0.0;
  word[kGrace] = grace_;
  word.insert(word.end(), decision.weights.begin(), decision.weights.end());
  send_word(std::move(word), step_);
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
    if (!std::exchange(peer(j).told, true))
      log::warning(
          "rank {} is left out of the outer step of update {}, as it was late; metrics.jsonl has "
          "the "
          "participants of each",
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
  return decisions_.at(outer_);
}

const std::vector<Tensor>& Quorum::difference_of(int j) const {
  if (j != rank()) return peers_[static_cast<std::size_t>(j)].of_layout[layout()];
  require(mine_, "quorum", "rank {} has sent no difference in outer step {}", j, outer_);
  return mine_->tensors;
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
  std::vector<double> word(kWeights);
  word[kKind] = kPause;
  send_word(std::move(word), step);
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
    for (Message& message : of) settle(message.tickets);
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
  while (true) {
    poll();
    if (there()) break;
    const double waited = RunningClock::seconds_since(begin);
    for (const int j : missing()) {
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

bool Quorum::is_done(const std::vector<Ticket>& tickets) {
  return std::all_of(tickets.begin(), tickets.end(),
                     [&](Ticket ticket) { return transport_.done(ticket); });
}

void Quorum::settle(std::vector<Ticket>& tickets) {
  const StreamScope scope(backend_, StreamKind::kUpdate);
  for (const Ticket ticket : tickets) transport_.wait(ticket);
  tickets.clear();
}

void Quorum::release_sent() {
  while (!words_.empty() && transport_.done(words_.front().ticket)) {
    transport_.wait(words_.front().ticket);
    words_.pop_front();
  }
}

}  // namespace starling
