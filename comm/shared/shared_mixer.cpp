#include "comm/shared/shared_mixer.h"

#include <cstddef>
#include <iterator>
#include <utility>

#include "comm/flight.h"
#include "comm/transports/checks.h"
#include "core/error.h"
#include "core/log.h"

namespace starling::detail {

bool SharedMixer::share(std::vector<Bucket>& buckets) {
  const auto all_are_read = [&] { return kind_.may_be_flat && one_host_ && shares(); };
  if (!may_share(buckets)) return false;
  const auto is_own = [&](const Tensor& x) { return x && x.raw() == mappings_[0].own[0].raw(); };
  // Whether these are the buckets of the last call. A rank alone on its host cannot tell, as it
  // shares no memory.
  const bool same = shares() ? mappings_.size() == buckets.size() &&
                                   (is_own(buckets[0].parameters) || is_own(buckets[0].spare))
                             : share_called_ || local_.size() == 1;
  share_called_ = true;
  World& world = transport_.world();
  const std::vector<std::string> all = world.all_gather(same ? "same" : "other");
  if (std::count(all.begin(), all.end(), "other") == 0) return all_are_read();
  require(operations_.empty(), "mixer",
          "other buckets were shared while {} exchanges are in flight", operations_.size());
  unmap();
  const std::string refusal = map(buckets);
  if (!refusal.empty()) {
    log::info("ranks of one host exchange by {}, because their {} cannot be shared: {}",
              transport_.name(), kind_.memory, refusal);
    return false;
  }
  world.barrier();  // all ranks' counters exist
  return all_are_read();
}

SharedMixer::BucketMapping& SharedMixer::mapping_of(int bucket) {
  require(bucket >= 0 && static_cast<std::size_t>(bucket) < mappings_.size(), "mixer",
          "bucket {} is not shared", bucket);
  return mappings_[static_cast<std::size_t>(bucket)];
}

bool SharedMixer::reads_sum(const Exchange& exchange) const {
  return kind_.reads_sums && exchange.kind == Exchange::Kind::kGroupSum &&
         std::all_of(exchange.group.begin(), exchange.group.end(),
                     [&](int r) { return is_local(r); });
}

std::size_t SharedMixer::buffers_for(const Exchange& exchange) const {
  if (!shares()) return exchange.received();
  if (exchange.kind != Exchange::Kind::kNeighbours)
    return reads_sum(exchange) ? 0 : exchange.received();
  return static_cast<std::size_t>(std::count_if(exchange.receive_from.begin(),
                                                exchange.receive_from.end(),
                                                [&](int r) { return !is_local(r); }));
}

/// Divides an exchange into reads of shared memory and messages, and starts the latter. Returns the
/// ranks that read this one.
std::vector<int> SharedMixer::divide(const Exchange& exchange, const Bucket& bucket,
                                     const std::vector<Tensor>& buffers,
                                     std::vector<Tensor>& received, Operation& operation) {
  BucketMapping& mapping = mapping_of(operation.label.bucket);
  const std::size_t at = mapping.active(bucket);  // the same on all ranks
  std::vector<int> readers;
  received.clear();
  const auto send = [&](const Exchange& messages, const std::vector<Tensor>& places) {
    operation.messages =
        transport_.start_exchange(messages, bucket.parameters, places, operation.label);
    operation.has_messages = true;
  };
  if (exchange.kind == Exchange::Kind::kNeighbours) {
    Exchange rest;
    rest.kind = Exchange::Kind::kNeighbours;
    std::vector<Tensor> places;
    for (const int peer : exchange.send_to)
      (is_local(peer) ? readers : rest.send_to).push_back(peer);
    for (const int peer : exchange.receive_from) {
      if (is_local(peer)) {
        operation.read.push_back(peer);
        received.push_back(mapping.others.at(peer)[at]);
      } else {
        rest.receive_from.push_back(peer);
        places.push_back(buffers[places.size()]);
        received.push_back(places.back());
      }
    }
    if (!rest.send_to.empty() || !rest.receive_from.empty()) send(rest, places);
  } else if (reads_sum(exchange)) {
    for (const int member : exchange.group) {
      received.push_back(member == transport_.rank() ? bucket.parameters
                                                     : mapping.others.at(member)[at]);
      if (member != transport_.rank()) readers.push_back(member);
    }
    operation.read = readers;
  } else if (exchange.kind != Exchange::Kind::kNone) {
    received.push_back(buffers[0]);
    send(exchange, received);
  }
  return readers;
}

Ticket SharedMixer::start(const Exchange& exchange, const Bucket& bucket,
                          const std::vector<Tensor>& buffers, std::vector<Tensor>& received,
                          const ExchangeLabel& label) {
  if (!shares()) return MessageMixer::start(exchange, bucket, buffers, received, label);
  check();
  BucketMapping& mapping = mapping_of(label.bucket);
  const std::size_t at = mapping.active(bucket);
  require(bucket.parameters.raw() == mapping.own[at].raw(), "mixer",
          "bucket {} is not the one that was shared", label.bucket);
  require(buffers.size() >= buffers_for(exchange), "mixer",
          "{} buffers for an exchange that needs {}", buffers.size(), buffers_for(exchange));
  Operation operation{exchange, label, mapping.now.count + 1, {}, 0, false};
  const std::vector<int> readers = divide(exchange, bucket, buffers, received, operation);

  Progress& now = mapping.now;
  now.count = operation.count;
  now.label = label;
  Progress::Contents& contents = now.contents[at];
  contents.count = now.count;
  for (const int reader : readers) {
    if (std::find(contents.readers.begin(), contents.readers.end(), reader) ==
        contents.readers.end())
      contents.readers.push_back(reader);
  }
  if (!readers.empty() || !operation.read.empty()) {
    std::vector<int> with;
    std::set_union(readers.begin(), readers.end(), operation.read.begin(), operation.read.end(),
                   std::back_inserter(with));
    note_flight(FlightEvent::kStart, label, with);
  }
  signal_published(now);
  if (operation.read.empty() && !operation.has_messages) return 0;
  operations_.emplace(++last_, std::move(operation));
  return last_;
}

void SharedMixer::wait(Ticket ticket) {
  if (!shares()) return MessageMixer::wait(ticket);
  if (ticket == 0) return;
  check();
  const auto it = find_ticket(operations_, ticket, "mixer");
  const Operation& operation = it->second;
  if (!operation.read.empty()) note_flight(FlightEvent::kWait, operation.label, operation.read);
  await_published(operation);
  if (!operation.read.empty()) {
    note_flight(FlightEvent::kWaited, operation.label);
    note_flight(FlightEvent::kArrived, operation.label);
  }
  if (operation.has_messages) transport_.wait(operation.messages);
  operations_.erase(it);
}

void SharedMixer::release(const ExchangeLabel& label) {
  if (!shares()) return MessageMixer::release(label);
  check();
  signal_released(label, mapping_of(label.bucket).now.count);
}

void SharedMixer::wait_until_writable(const Bucket& bucket, const ExchangeLabel& label) {
  if (!shares()) return MessageMixer::wait_until_writable(bucket, label);
  check();
  BucketMapping& mapping = mapping_of(label.bucket);
  Progress& now = mapping.now;
  if (now.count == 0) return;
  Progress::Contents& contents = now.contents[1 - mapping.active(bucket)];
  if (!contents.readers.empty()) note_flight(FlightEvent::kReaders, label, contents.readers);
  await_readers(contents, now, label);
  if (!contents.readers.empty()) note_flight(FlightEvent::kWaited, label);
  contents.readers.clear();
}

}  // namespace starling::detail
