#include "comm/engine/wire.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace starling::detail {
namespace {

int tag_of(std::uint32_t sequence, Lane lane) {
  return static_cast<int>(sequence % kTagCycle + kTagCycle * static_cast<std::uint32_t>(lane)) * 2;
}

}  // namespace

std::vector<int> RequestSet::peers() const {
  std::vector<int> peers;
  for (const Entry& entry : entries_) peers.push_back(entry.peer);
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

void Wire::set_ranks(int rank, int size, int local_rank, int local_size) {
  rank_ = rank;
  size_ = size;
  local_rank_ = local_rank;
  local_size_ = local_size;
  for (auto& counts : sent_) counts.resize(static_cast<std::size_t>(size));
  for (auto& counts : received_) counts.resize(static_cast<std::size_t>(size));
  windows_.resize(static_cast<std::size_t>(size));
}

int Wire::next_send_tag(int peer, Lane lane) {
  return tag_of(sent_[static_cast<std::size_t>(lane)][static_cast<std::size_t>(peer)]++, lane);
}
int Wire::next_receive_tag(int peer, Lane lane) {
  return tag_of(received_[static_cast<std::size_t>(lane)][static_cast<std::size_t>(peer)]++, lane);
}

std::vector<std::byte> Wire::take_scratch(std::size_t bytes) {
  // The largest first: buckets repeat, so every request soon finds memory that fits.
  const auto largest =
      std::max_element(scratch_.begin(), scratch_.end(),
                       [](const auto& a, const auto& b) { return a.size() < b.size(); });
  std::vector<std::byte> scratch;
  if (largest != scratch_.end()) {
    scratch = std::move(*largest);
    scratch_.erase(largest);
  }
  if (scratch.size() < bytes) scratch.resize(bytes);
  return scratch;
}

void fail_wrong_length(int peer) {
  fail(ExitCode::kLost, "transport",
       "the message that rank {} has sent is of another length than this rank awaits: ranks "
       "exchange different things, such as where one leaves an exchange out; `starling-doctor "
       "blame` says what each issued",
       peer);
}

std::string last_started(std::int64_t step, std::int64_t bucket) {
  if (step < 0) return {};
  if (bucket < 0) return fmt::format("last started to sum the numbers of step {}", step);
  return fmt::format("last started the exchange of step {}, bucket {}", step, bucket);
}

std::string alive_text(std::int64_t step, std::int64_t bucket) {
  const std::string text = last_started(step, bucket);
  return "alive, " + (text.empty() ? "no exchange of a step started" : text);
}

}  // namespace starling::detail
