#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/transport.h"

namespace starling {

/// The middle of the values, of an even number the mean of the two middle ones; 0 of none.
double median_of(std::vector<double> values);

/// Seconds that an outer step waits for the other ranks after its q-th difference: the median + 3
/// MAD (median absolute deviation) of the last `spreads` (q-th arrival to the last), at least
/// `inner_step`, at most `most`. Without a spread: `most`.
double quorum_grace(const std::vector<double>& spreads, double inner_step, double most);

/// The newest 16 of a series of times.
class LastTimes {
 public:
  void add(double seconds);
  double median() const { return median_of(values()); }
  double mean() const;  ///< 0 of none
  std::vector<double> values() const { return {values_.begin(), values_.end()}; }

 private:
  std::deque<double> values_;
};

struct QuorumSettings {
  int ranks = 1;                   ///< q
  double grace_seconds = 1.0;      ///< the most that others are waited for
  double timeout_seconds = 300.0;  ///< of waits, which then throw Error(kLost)
  double most_weight = 1e9;        ///< of a difference, for each outer step up to its own
};

/// What a rank asks of all at the next decision: to stop, or to let in a rank that waits to join.
struct QuorumAsks {
  bool stop = false, join = false;
};

/// What all ranks' differences of a kind are like.
struct QuorumFormat {
  int code = 0;  ///< DifferenceCode::number()
  std::int64_t bytes = 0;
  std::int64_t most_bytes = 0;  ///< that any code would take
};

/// The numbers that a rank sends to all others ahead of a difference, or instead of one.
struct QuorumWord {
  enum Kind : int { kDifference = 1, kDecision, kPause };
  enum Field : std::size_t {
    kKind,
    kOuter,
    kWeight,
    kStop,
    kJoin,
    kGrace,
    kBytes,
    kCode,
    kWeights
  };
  int kind = kDifference;
  std::int64_t outer = 0;
  double weight = 0.0;
  QuorumAsks asks;
  double grace = 0.0;
  std::int64_t bytes = 0;  ///< of the difference that follows; 0: none does
  int code = 0;
  std::vector<double> weights;  ///< of a decision, by rank

  std::vector<double> numbers(int ranks) const;
  /// Reads what rank `from` sent, kWeights + `ranks` numbers. Error(kUsage): they are no word.
  static QuorumWord read(const double* numbers, int ranks, int from);
  /// Why a difference that is announced so cannot be used; empty: it can.
  std::string why_refused(const QuorumFormat& format, const QuorumSettings& settings) const;
};

/// Who takes part in an outer step, and what else was agreed with it. Equal on all ranks.
struct QuorumDecision {
  std::int64_t outer = -1;
  std::vector<double> weights;  ///< by rank; 0: its difference was not there in time
  QuorumAsks asks;              ///< of any rank that answered
  std::vector<int> participants() const;
};

/// Outer steps that wait for a quorum of the ranks. Each rank sends its difference and a weight to
/// all others. Rank 0 decides who takes part: once q differences have arrived, its own among them,
/// and then all others' have, or the grace has passed. A rank that missed three outer steps running
/// is not waited for until one of its differences arrives in time. Rank 0 tells all others its
/// decision, so that they know by one message of one rank.
///
/// A rank takes part in the outer steps 0, 1, … in order. One that is behind finds what it needs in
/// the others' sends, which stay in their memory until it takes them: after kMostKept of them a
/// sender waits for it. Between two ranks, messages are taken in the order in which they were sent:
/// a word, after one that announces a difference that. What arrives for an outer step that was
/// decided without it is dropped. So is a difference of another length, code or weight than there
/// can be: the rank has then nothing to add to that outer step.
///
/// For use by one thread. Only send(), await(), pause() and message() may wait.
class Quorum {
 public:
  static constexpr int kMissesBeforeUnawaited = 3;
  static constexpr std::size_t kMostKept = 4;  ///< messages of one layout under way
  using Seconds = std::function<double()>;

  /// `backend`: of the differences. `formats`: outer step k's differences have the k-th, in turn.
  /// `now`: empty for the steady clock.
  Quorum(Transport& transport, Backend& backend, const QuorumSettings& settings,
         std::vector<QuorumFormat> formats, Seconds now = {});

  /// Begins to receive, at the start or after pause(); `outer` is this rank's next outer step.
  void listen(std::int64_t outer);
  bool listening() const { return listening_; }
  /// Moves messages on. On rank 0 also decides.
  void poll();
  std::int64_t outer() const { return outer_; }
  /// Whether q others have begun to send a difference for this outer step or are past it.
  bool formed() const;
  /// Seconds of the grace that are left, as far as this rank knows. Only once it has formed().
  double grace_left() const;
  /// Whether a rank's difference for this outer step is here, or its word that it has none.
  bool has_answered(int rank) const { return answer(rank).there; }
  bool decided() const { return decisions_.count(outer_) > 0; }

  /// Memory for this rank's difference of the outer step, in bytes. May wait for ranks that are far
  /// behind.
  const Tensor& message();
  /// Starts sending what is in message(). With weight 0 it sends the word alone: that this rank has
  /// nothing to add and need not be waited for. Once an outer step at most.
  void send(double weight, QuorumAsks asks, std::int64_t step);
  /// Whether the decision and all differences that it takes are here.
  bool complete() const;
  /// Waits for that. `step`: of the outer step, for errors.
  const QuorumDecision& await(std::int64_t step);
  /// After await(): what a rank that takes part has sent. Valid until next().
  const Tensor& difference_of(int rank) const;
  /// On to the next outer step.
  void next();
  /// Waits until no message of any rank is under way. Collective, when all ranks have reached the
  /// same outer step. Afterwards listen() continues.
  void pause(std::int64_t step);

  /// For the grace's lower limit: how long an inner step took.
  void add_inner_step(double seconds) { inner_steps_.add(seconds); }
  /// Seconds that this rank's inner steps take on average, the long ones too.
  double pace() const { return inner_steps_.mean(); }
  double now() const { return now_(); }

 private:
  struct Peer {
    Tensor word;
    Ticket word_ticket = 0;
    /// A difference that was announced and not yet received
    bool announced = false;
    QuorumWord last;
    bool refused = false;  ///< the last difference; its weight is 0
    double announced_at = 0.0;
    Ticket ticket = 0;              ///< while it is being received
    std::vector<Tensor> of_layout;  ///< where differences are received
    Tensor dropped;                 ///< one that is refused
    double heard_at = -1.0;         ///< the last word or difference; negative: none
    bool paused = false;
    int misses = 0;     ///< outer steps running without it; on rank 0
    bool told = false;  ///< that it was left out
  };
  /// A rank's answer in this outer step.
  struct Answer {
    bool there = false;
    double weight = 0.0, at = 0.0, announced_at = 0.0;
    QuorumAsks asks;
    bool refused = false;
  };
  struct Message {
    Tensor bytes;
    Ticket ticket = 0;
    std::int64_t outer = 0;
  };
  struct SentWord {
    Tensor numbers;
    Ticket ticket;
  };

  Tensor new_word() const;
  int rank() const { return transport_.rank(); }
  int ranks() const { return transport_.size(); }
  std::size_t layout(std::int64_t outer) const {
    return static_cast<std::size_t>(outer) % formats_.size();
  }
  Peer& peer(int j) { return peers_[static_cast<std::size_t>(j)]; }
  const Answer& answer(int j) const { return answers_[static_cast<std::size_t>(j)]; }
  /// Continues with one message of a rank; false if there is nothing to do.
  bool advance(int j);
  void await_word(int j);
  void read_word(int j);
  void read_difference(int j, QuorumWord word);
  void take_answer(int j);
  void send_word(QuorumWord word, std::int64_t step);
  /// When each of the others announced its difference for this outer step, ascending.
  std::vector<double> announcements() const;
  void decide_if_due();
  void decide();
  void tell_missing(const QuorumDecision& decision);
  void settle(Ticket& ticket);
  void release_sent();
  /// Polls until there() is true; past the limit fails and names the ranks that missing() returns.
  void wait_for(const std::function<bool()>& there,
                const std::function<std::vector<int>()>& missing, const std::string& what,
                std::int64_t step);

  Transport& transport_;
  Backend& backend_;
  std::unique_ptr<Backend> own_host_;  ///< for words, which are in host memory; null on a CPU
  QuorumSettings settings_;
  std::vector<QuorumFormat> formats_;
  Seconds now_;
  Exchange to_all_;  ///< a send to all others

  std::vector<Peer> peers_;
  std::vector<Answer> answers_;  ///< by rank, this one included
  std::map<std::int64_t, QuorumDecision> decisions_;
  std::int64_t outer_ = 0, step_ = 0;
  bool listening_ = false;
  double grace_;
  LastTimes inner_steps_, spreads_;

  std::vector<std::deque<Message>> messages_;  ///< of each layout
  Message* mine_ = nullptr;                    ///< of this outer step
  std::deque<SentWord> words_;
};

}  // namespace starling
