#include "comm/mixer.h"

#include "comm/flight.h"
#include "comm/mixers/encoded.h"
#include "comm/mixers/messages.h"
#include "core/error.h"

namespace starling {

Mixer::Mixer(Backend& backend, Transport& transport, Groups groups)
    : backend_(backend), transport_(transport), groups_(groups), wait_(backend) {}

void Mixer::open(const MixSite& site) {
  const Topology* topology = transport_.size() > 1 ? site.topology : nullptr;
  require(topology || transport_.size() == 1, "mixer", "mixing over {} ranks needs a topology",
          transport_.size());
  require(!site.topology || site.topology->ranks() == transport_.size(), "mixer",
          "a topology of {} ranks in a world of {}", site.topology ? site.topology->ranks() : 0,
          transport_.size());
  buckets_ = &site.buckets;
  overlap_ = site.overlap;
  start_at_begin_ = site.start_at_begin;
  incoming_.clear();
  incoming_.resize(site.buckets.size());
  const bool flat = (!site.messages && share(site.buckets)) || groups_ == Groups::kMessages;
  schedule_ = ExchangeSchedule(topology, transport_.rank(), flat);
  if (topology) {
    std::vector<std::vector<int>> groups;
    if (groups_ != Groups::kMessages)
      groups = summed_groups(*topology, flat, groups_ == Groups::kSummedEncoded);
    sums_ = !groups.empty();
    transport_.prepare(groups);
  }
  const std::size_t most =
      schedule_.most_over_period([&](const Exchange& exchange) { return buffers_for(exchange); });
  for (std::size_t b = 0; b < incoming_.size(); ++b) grow(b, most);
}

void Mixer::begin(std::int64_t step, std::int64_t round) {
  if (!start_at_begin_ || round < 0) return;
  for (std::size_t b = 0; b < incoming_.size(); ++b) start_round(static_cast<int>(b), step, round);
}

const Mix& Mixer::receive(int bucket, std::int64_t step, std::int64_t round) {
  Incoming& in = incoming_[static_cast<std::size_t>(bucket)];
  const ExchangeLabel label{step, bucket, round};
  mix_.self_weight = 1.0;
  mix_.received.clear();
  mix_.weights.clear();
  mix_.sum = false;
  mix_.encoded = {};
  if (round >= 0) {
    require(in.round == round, "mixer",
            "step {} of bucket {} would mix round {}, not {}; resume({}) was not called", step,
            bucket, in.round, round, step);
    settle(bucket);
    const Exchange& exchange = schedule_.round(round);
    if (exchange.kind != Exchange::Kind::kNone) terms(exchange, in.received, label, mix_);
    note_flight(FlightEvent::kMixed, label);
  }
  const Bucket& of = (*buckets_)[static_cast<std::size_t>(bucket)];
  if (of.spare) wait_("readers of", bucket, [&] { wait_until_writable(of, label); });
  return mix_;
}

void Mixer::publish(int bucket, std::int64_t step, std::int64_t round) {
  {
    const StreamScope scope(backend_, StreamKind::kUpdate);
    release({step, bucket, incoming_[static_cast<std::size_t>(bucket)].round});
  }
  note_flight(FlightEvent::kPublished, {step, bucket, round});
  if (!start_at_begin_ && round >= 0) start_round(bucket, step, round);
  mix_.received.clear();  // may be other ranks' memory
}

void Mixer::settle() {
  for (std::size_t b = 0; b < incoming_.size(); ++b) settle(static_cast<int>(b));
}

Mixer::Arrived Mixer::arrived(int bucket) {
  const Incoming& in = incoming_[static_cast<std::size_t>(bucket)];
  if (in.round < 0 || in.received.empty()) return {};
  require(!in.in_flight, "mixer", "the exchange of bucket {} is still in flight", bucket);
  return {&schedule_.round(in.round), &in.received};
}

std::unique_ptr<Mixer> Mixer::another() const { return make_message_mixer(backend_, transport_); }

void Mixer::resume(std::int64_t step, const std::function<std::int64_t(int bucket)>& round) {
  settle();
  const Event loaded = backend_.record();  // the sent tensors are read on the update stream
  {
    const StreamScope scope(backend_, StreamKind::kUpdate);
    backend_.wait(loaded);
  }
  for (std::size_t b = 0; b < incoming_.size(); ++b) {
    const int bucket = static_cast<int>(b);
    incoming_[b].round = -1;
    incoming_[b].received.clear();
    const std::int64_t again = round(bucket);
    release({step, bucket, again});
    if (again >= 0 && !start_at_begin_) start_round(bucket, step - 1, again);
  }
}

void Mixer::grow(std::size_t bucket, std::size_t count) {
  auto& buffers = incoming_[bucket].buffers;
  const Tensor& like = (*buckets_)[bucket].parameters;
  while (buffers.size() < count) buffers.emplace_back(backend_, like.shape(), like.dtype());
}

void Mixer::start_round(int bucket, std::int64_t step, std::int64_t round) {
  const auto b = static_cast<std::size_t>(bucket);
  Incoming& in = incoming_[b];
  const Exchange& exchange = schedule_.round(round);
  in.round = round;
  grow(b, buffers_for(exchange));
  in.ticket = start(exchange, (*buckets_)[b], in.buffers, in.received, {step, bucket, round});
  in.in_flight = in.ticket != 0;  // a step that was given up may have left one in flight
  if (!overlap_) settle(bucket);
}

void Mixer::settle(int bucket) {
  Incoming& in = incoming_[static_cast<std::size_t>(bucket)];
  if (!in.in_flight) return;
  wait_("exchange", bucket, [&] { wait(in.ticket); });
  in.in_flight = false;
}

MixerKinds& mixers() {
  static MixerKinds kinds = [] {
    MixerKinds builtin("exchange format");
    builtin.add(
        "fp32",
        [] {
          return MixerKind{[](Backend& backend, Transport& transport, const Encoding&) {
            return transport.make_mixer(backend);
          }};
        },
        "parameters unchanged, by messages or in shared memory");
    builtin.add(
        "bf16", [] { return encoded_mixer(Code::kBf16, 0.5); },
        "half the bytes; differences of rounded numbers keep the ranks' mean");
    builtin.add(
        "int8", [] { return encoded_mixer(Code::kInt8, 0.25); },
        "a quarter of the bytes, by the same differences, so the mean stays");
    builtin.add(
        "int4", [] { return encoded_mixer(Code::kInt4, 0.125); },
        "an eighth of the bytes, likewise");
    builtin.add(
        "sparse",
        [] {
          MixerKind kind = mixers().make("fp32", "");  // of a run's other parts
          kind.encodes = kind.sparse = true;
          return kind;
        },
        "diloco alone: the largest of the numbers, a sixteenth or another share, in 14 bits each");
    return builtin;
  }();
  return kinds;
}

}  // namespace starling
