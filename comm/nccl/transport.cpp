#include "comm/nccl/transport.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "comm/agreement.h"
#include "comm/capture.h"
#include "comm/flight.h"
#include "comm/nccl/watchdog.h"
#include "comm/transports/checks.h"
#include "comm/transports/sums.h"
#include "core/device_trace.h"
#include "core/operations/pointwise.h"
#include "core/trace.h"
#include "kernels/cuda_plugin.h"
#include "kernels/decode_sum.h"

namespace starling {
namespace {

/// Remedy in errors. After a failed call a communicator can only be aborted, so the run cannot
/// continue without graphs.
constexpr const char* kWithoutGraphs = "\"cuda_graphs\": false issues every step";

/// Runs local work on every rank; if it fails anywhere, all ranks throw the reason of the lowest
/// such rank.
void agreed(World& world, const std::function<void()>& work) {
  const auto error = try_on_all_ranks(world, work);
  if (!error) return;
  const std::string text = error->message(), prefix = fmt::format("rank {} ", error->rank());
  throw NcclSetupError(text.starts_with(prefix) ? text : prefix + "says: " + text);
}

/// A tensor divided between the members of a group: by the exchange's parts, or equally but for the
/// last ones.
struct Shards {
  Shards(const Exchange& exchange, std::int64_t elements)
      : begins(exchange.parts), members(std::ssize(exchange.group)) {
    if (!begins.empty()) return;
    equal = elements % members == 0;
    std::int64_t each = (elements + members - 1) / members;
    if (!equal) each = (each + 31) / 32 * 32;  // aligned for vector loads
    for (std::int64_t k = 0; k <= members; ++k) begins.push_back(std::min(k * each, elements));
  }
  std::int64_t first(std::size_t k) const { return begins[k]; }
  std::int64_t count(std::size_t k) const { return begins[k + 1] - begins[k]; }

  std::vector<std::int64_t> begins;
  std::int64_t members;
  bool equal = false;  ///< as NCCL's collective calls need it
};

/// Partitions groups into sets of disjoint groups, each of which can be made by one split.
std::vector<std::vector<std::vector<int>>> disjoint(const std::vector<std::vector<int>>& groups,
                                                    int ranks) {
  std::vector<std::vector<std::vector<int>>> splits;
  std::vector<std::vector<char>> taken;
  for (const std::vector<int>& group : groups) {
    std::size_t at = 0;
    const auto meets = [&](int rank) { return taken[at][static_cast<std::size_t>(rank)] != 0; };
    while (at < splits.size() && std::any_of(group.begin(), group.end(), meets)) ++at;
    if (at == splits.size()) {
      splits.emplace_back();
      taken.emplace_back(static_cast<std::size_t>(ranks));
    }
    splits[at].push_back(group);
    for (const int rank : group) taken[at][static_cast<std::size_t>(rank)] = 1;
  }
  return splits;
}

class NcclTransport final : public Transport {
 public:
  NcclTransport(std::unique_ptr<Transport>& control, Backend& backend, std::unique_ptr<Nccl> nccl,
                const NcclSettings& settings)
      : Transport(world_),
        world_(control->world(), [this] { watchdog_.check(); }),
        backend_(backend),
        nccl_(std::move(nccl)),
        rank_(control->rank()),
        size_(control->size()),
        watchdog_(nccl_, backend, rank_, settings.timeout_seconds, settings.watch_seconds),
        exceptions_at_start_(std::uncaught_exceptions()) {
    NcclId id;
    const auto what = [this] { return fmt::format("the communicator of all {} ranks", size_); };
    agreed(*control, [&] {
      if (rank_ == 0) watchdog_.call(what, [&] { id = nccl_->make_id(); });
    });
    control->world().broadcast(id.bytes.data(), id.bytes.size(), 0);
    watchdog_.during(what, [&] {
      // A rank that cannot start reports that before the others wait for it.
      agreed(*control, [&] {
        watchdog_.call(what, [&] { everyone_ = nccl_->init(id, size_, rank_, settings.max_ctas); });
        watchdog_.add(everyone_);
      });
      agreed(*control, [&] { watchdog_.settle(everyone_, what); });
    });
    control_ = std::move(control);
  }

  /// Waits for exchanges in flight; during an exception, or after a loss, aborts instead.
  ~NcclTransport() override {
    if (std::uncaught_exceptions() > exceptions_at_start_ || !watchdog_.drain()) return;
    try {
      watchdog_.call([] { return std::string("the end"); },
                     [&] {
                       for (const auto& [key, buffer] : registered_) {
                         if (buffer.handle)
                           nccl_->deregister_buffer(std::get<0>(key), buffer.handle);
                       }
                     });
    } catch (const Error&) {
      return;
    }
    watchdog_.close();
  }

  std::string name() const override {
    return fmt::format("NCCL {}, control by {}", nccl_->version(), control_->name());
  }

  void prepare(const std::vector<std::vector<int>>& groups) override {
    watchdog_.check();
    std::vector<std::vector<int>> wanted;
    for (const std::vector<int>& group : groups) {
      require(!group.empty() && group.front() >= 0 && group.back() < size_ &&
                  std::is_sorted(group.begin(), group.end()),
              "nccl", "a group to prepare must ascend within {} ranks", size_);
      const bool whole = static_cast<int>(group.size()) == size_;
      if (group.size() > 1 && !whole &&
          std::find(wanted.begin(), wanted.end(), group) == wanted.end() &&
          prepared_.count(group) == 0)
        wanted.push_back(group);
    }
    for (const auto& split : disjoint(wanted, size_)) make_communicators(split);
  }

  Ticket start_exchange(const Exchange& exchange, const Tensor& send,
                        const std::vector<Tensor>& receive, const ExchangeLabel& label,
                        std::shared_ptr<Flow> flow) override {
    if (on_host(send))
      return of_control(control_->start_exchange(exchange, send, receive, label, std::move(flow)));
    check_device_call(flow);
    check_exchange(rank_, size_, exchange, send, receive, DeviceType::kCuda);
    return issue({exchange, label, false, backend_.capturing()},
                 [&](void* stream, const NcclWork& work) {
                   if (exchange.kind == Exchange::Kind::kNeighbours)
                     return exchange_with_neighbours(exchange, send, receive, stream, work);
                   exchange_in_group(exchange, send, receive[0], stream, work);
                 });
  }

  Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel& label,
                   std::shared_ptr<Flow> flow) override {
    if (on_host(in)) return of_control(control_->start_sum(in, out, label, std::move(flow)));
    check_device_call(flow);
    check_sum(in, out, DeviceType::kCuda);
    return issue({{}, label, true, backend_.capturing()}, [&](void* stream, const NcclWork& work) {
      all_reduce(everyone_, in, out, stream, work);
    });
  }

  bool done(Ticket ticket) override {
    if (is_of_control(ticket)) return control_->done(ticket / 2);
    watchdog_.check();
    const UnderWay& exchange = find_ticket(under_way_, ticket)->second;
    return exchange.captured || backend_.done(exchange.through);
  }

  void wait(Ticket ticket) override {
    if (is_of_control(ticket)) return control_->wait(ticket / 2);
    watchdog_.check();
    const auto it = find_ticket(under_way_, ticket);
    if (!it->second.captured || backend_.capturing()) backend_.wait(it->second.through);
    under_way_.erase(it);
  }

  std::string why_not_captured() const override { return {}; }
  std::unique_ptr<CapturePart> join_capture(std::int64_t step) override {
    return std::make_unique<Part>(*this, step);
  }

 private:
  /// The transport's state for a capture. Its tickets are valid until the graph's first launch.
  class Part final : public CapturePart {
   public:
    Part(NcclTransport& transport, std::int64_t step)
        : transport_(transport), graph_(std::make_shared<NcclGraph>()) {
      graph_->step = step;
      transport_.capture_ = graph_;
    }
    ~Part() override { end(); }
    void launched(std::int64_t step) override {
      transport_.watchdog_.check();
      end();
      if (graph_->works.empty()) return;
      const StreamScope scope(transport_.backend_, StreamKind::kCompute);
      transport_.watchdog_.follow([graph = graph_, step] { return graph->text(step); }, Event{},
                                  transport_.backend_.record());
    }

   private:
    void end() {
      if (transport_.capture_ != graph_) return;
      std::erase_if(transport_.under_way_,
                    [](const auto& exchange) { return exchange.second.captured; });
      transport_.capture_.reset();
    }
    NcclTransport& transport_;
    std::shared_ptr<NcclGraph> graph_;
  };
  struct Registered {
    void* handle = nullptr;
    Tensor tensor;  ///< keeps registered memory from being returned to the driver
  };
  struct UnderWay {
    Event through;          ///< recorded after the exchange
    bool captured = false;  ///< part of a graph
    Lane lane = Lane::kSteps;
  };
  using BufferKey = std::tuple<NcclComm, const std::byte*, std::size_t>;

  // Tickets of the control transport are even, others odd.
  static Ticket of_control(Ticket ticket) { return 2 * ticket; }
  static bool is_of_control(Ticket ticket) { return ticket % 2 == 0; }

  void check_device_call(const std::shared_ptr<Flow>& flow) {
    watchdog_.check();
    require(!flow, "transport", "NCCL moves a GPU's own buffers, and does not support a Flow");
  }

  /// Collective: makes the communicators of disjoint groups.
  void make_communicators(const std::vector<std::vector<int>>& groups) {
    int color = -1;
    for (std::size_t k = 0; k < groups.size(); ++k) {
      if (std::binary_search(groups[k].begin(), groups[k].end(), rank_))
        color = static_cast<int>(k);
    }
    const auto what = [&] {
      return fmt::format("the communicator{} of {} group{}", groups.size() == 1 ? "" : "s",
                         groups.size(), groups.size() == 1 ? "" : "s");
    };
    const auto joined = std::make_shared<NcclComm>(nullptr);
    pending_splits_.push_back(joined);  // a failed split may still write to it
    try {
      watchdog_.during(what, [&] {
        agreed(*control_, [&] {
          watchdog_.call(what, [&] { nccl_->split(everyone_, color, rank_, *joined); });
        });
        agreed(*control_, [&] {
          watchdog_.settle(everyone_, what);
          if (color < 0) return;
          watchdog_.add(*joined);
          watchdog_.settle(*joined, what);
        });
      });
    } catch (const NcclSetupError& error) {
      watchdog_.give_up(error);  // the world's communicator may stay busy
      throw;
    }
    for (const std::vector<int>& group : groups) prepared_[group] = nullptr;
    if (color >= 0) prepared_[groups[static_cast<std::size_t>(color)]] = *joined;
  }

  /// The group's communicator; null if it was not prepared.
  NcclComm communicator(const std::vector<int>& group) const {
    if (static_cast<int>(group.size()) == size_) return everyone_;
    const auto it = prepared_.find(group);
    return it == prepared_.end() ? nullptr : it->second;
  }

  /// Records an event on a stream.
  Event mark(StreamKind stream) {
    const StreamScope scope(backend_, stream);
    return backend_.record();
  }

  /// Issues work to the communication stream, after the work on the compute and update streams:
  /// then the sent data is final, and no receive buffer is overwritten while an update reads it. A
  /// sum started on the compute stream waits for that stream only: pending updates do not write
  /// what it reads, and waiting for them would delay each sum of a backward pass by one update. A
  /// sum started on the update stream sums results of updates.
  template <class Operations>
  Ticket issue(NcclWork work, const Operations& operations) {
    const bool captured = work.captured;
    require(!captured || capture_, "transport",
            "an exchange is captured without a Capture (comm/capture.h)");
    // One communicator and stream execute operations in the order of issue, so all in flight must
    // be of one lane.
    const Lane lane = work.label.lane;
    require(under_way_.empty() || under_way_.begin()->second.lane == lane, "transport",
            "with NCCL a lane's exchanges start when no other lane has any under way");
    if (!captured)
      note_flight(FlightEvent::kStart, work.label,
                  partners_of(work.sum ? nullptr : &work.exchange, size_, rank_));
    const Event computed = mark(StreamKind::kCompute);
    Event updated;
    if (!work.sum || backend_.stream() == StreamKind::kUpdate) updated = mark(StreamKind::kUpdate);
    Event before;  // in a capture: earlier exchanges must complete before the graph's own begin
    if (captured) {
      watchdog_.expect_graphs();  // from the first call on the communicator is tied to the graph
      before = mark(StreamKind::kCommunication);
    }
    const StreamScope scope(backend_, StreamKind::kCommunication);
    for (const Event event : {before, computed, updated}) backend_.wait(event);
    const Event ready = captured ? Event{} : backend_.record();
    Event through;
    watchdog_.during([&] { return work.text(); },
                     [&] {
                       {
                         const TraceRange range("exchange", timeline_name(work.label));
                         const DeviceSpan span(TraceLane::kDeviceExchange, "exchange",
                                               timeline_name(work.label));
                         operations(backend_.native_stream(), work);
                       }
                       through = backend_.record();
                       if (!captured)
                         watchdog_.follow([work] { return work.text(); }, ready, through);
                     },
                     captured ? kWithoutGraphs : "");
    if (captured) capture_->works.push_back(std::move(work));
    last_ += 2;
    under_way_.emplace(last_, UnderWay{through, captured, lane});
    return last_;
  }

  /// Issues operations of one communicator as a group.
  void group(NcclComm comm, const NcclWork& work, const std::function<void()>& operations) {
    const auto what = [&] { return work.text(); };
    watchdog_.call(what, [&] {
      nccl_->group_start();
      try {
        operations();
      } catch (...) {
        try {
          nccl_->group_end();
        } catch (const Error&) {  // report the first error
        }
        throw;
      }
      nccl_->group_end();
    });
    watchdog_.settle(comm, what);
  }

  /// Registers a buffer that is used repeatedly, once. Buffers of the mean model and of
  /// measurements (step -1) are temporary and not registered.
  void register_once(NcclComm comm, const Tensor& tensor, const NcclWork& work) {
    // Registration calls the driver, which is not allowed during a capture
    if (work.label.step < 0 || tensor.bytes() == 0 || backend_.capturing()) return;
    const BufferKey key{comm, tensor.raw(), tensor.bytes()};
    if (registered_.count(key) != 0) return;
    watchdog_.call(
        [&] { return work.text(); },
        [&] {
          registered_[key] = {nccl_->register_buffer(comm, tensor.raw(), tensor.bytes()), tensor};
        });
  }

  void exchange_with_neighbours(const Exchange& exchange, const Tensor& numbers,
                                const std::vector<Tensor>& places, void* stream,
                                const NcclWork& work) {
    if (numbers.bytes() == 0) return;
    register_once(everyone_, numbers, work);
    for (const Tensor& place : places) register_once(everyone_, place, work);
    swap(exchange, numbers, places, stream, work);
  }
  /// Sends to and receives from the exchange's neighbours, or peers on other nodes.
  void swap(const Exchange& exchange, const Tensor& numbers, const std::vector<Tensor>& places,
            void* stream, const NcclWork& work) {
    group(everyone_, work, [&] {
      for (const int peer : exchange.send_to) send(numbers, peer, stream);
      for (std::size_t k = 0; k < exchange.receive_from.size(); ++k)
        receive(places[k], exchange.receive_from[k], stream);
    });
  }

  void all_reduce(NcclComm comm, const Tensor& in, const Tensor& out, void* stream,
                  const NcclWork& work) {
    if (in.bytes() == 0) return;
    register_once(comm, in, work);
    register_once(comm, out, work);
    group(comm, work, [&] {
      nccl_->all_reduce(in.raw(), out.raw(), static_cast<std::size_t>(in.elements()), in.dtype(),
                        comm, stream);
    });
  }

  /// A sum over a group, or a round over nodes, where the group is a node. Each member sums its
  /// shard, in a round over nodes mixes it with those of its peers, and the members gather the
  /// shards.
  void exchange_in_group(const Exchange& exchange, const Tensor& in, const Tensor& out,
                         void* stream, const NcclWork& work) {
    if (!exchange.parts.empty()) return exchange_parts(exchange, in, out, stream, work);
    const std::vector<int>& members = exchange.group;
    const bool nodes = exchange.kind == Exchange::Kind::kNodes;
    NcclComm comm = in.dtype() == out.dtype() ? communicator(members) : nullptr;
    if (comm && !nodes) return all_reduce(comm, in, out, stream, work);
    const Shards shards(exchange, in.elements());
    if (!shards.equal) comm = nullptr;
    const std::size_t me = place_in(members);
    const std::int64_t mine = shards.count(me);
    Tensor sum, result;
    if (mine > 0) {
      result = out.slice(shards.first(me), Shape{mine});
      sum = nodes ? Tensor(backend_, result.shape(), out.dtype()) : result;
    }
    if (comm && mine > 0) {
      register_once(comm, in, work);
      register_once(comm, out, work);
      group(comm, work, [&] {
        nccl_->reduce_scatter(in.raw(), sum.raw(), static_cast<std::size_t>(mine), in.dtype(), comm,
                              stream);
      });
    } else if (!comm) {
      sum_shard(members, shards, in, sum, stream, work);
    }
    if (nodes && mine > 0) mix_means(exchange, sum, result, stream, work);
    if (!comm) return gather_shards(members, shards, out, stream, work);
    if (mine == 0) return;
    group(comm, work, [&] {
      nccl_->all_gather(result.raw(), out.raw(), static_cast<std::size_t>(mine), out.dtype(), comm,
                        stream);
    });
  }
  /// A reduce-scatter in rank order, or an all-gather.
  void exchange_parts(const Exchange& exchange, const Tensor& in, const Tensor& out, void* stream,
                      const NcclWork& work) {
    const Shards shards(exchange, 0);
    const std::size_t me = place_in(exchange.group);
    const std::int64_t mine = shards.count(me);
    if (exchange.kind == Exchange::Kind::kScatterSum)
      return sum_shard(exchange.group, shards, in, mine > 0 ? out : Tensor(), stream, work);
    const Tensor own = mine > 0 ? out.slice(shards.first(me), Shape{mine}) : Tensor();
    if (own && own.raw() != in.raw()) backend_.copy(in, own);
    register_once(everyone_, out, work);
    gather_shards(exchange.group, shards, out, stream, work);
  }
  std::size_t place_in(const std::vector<int>& members) const {
    return static_cast<std::size_t>(std::lower_bound(members.begin(), members.end(), rank_) -
                                    members.begin());
  }

  /// Sums this rank's shard over the members in rank order; `sum` is empty if the shard is.
  void sum_shard(const std::vector<int>& members, const Shards& shards, const Tensor& in,
                 const Tensor& sum, void* stream, const NcclWork& work) {
    const std::size_t me = place_in(members);
    const std::int64_t mine = shards.count(me);
    Tensor terms;
    if (mine > 0) {
      terms = Tensor(backend_, Shape{mine * shards.members}, in.dtype());
      backend_.copy(in.slice(shards.first(me), Shape{mine}),
                    terms.slice(static_cast<std::int64_t>(me) * mine, Shape{mine}));
    }
    group(everyone_, work, [&] {
      for (std::size_t k = 0; k < members.size(); ++k) {
        if (k == me) continue;
        if (shards.count(k) > 0)
          send(in.slice(shards.first(k), Shape{shards.count(k)}), members[k], stream);
        if (mine > 0)
          receive(terms.slice(static_cast<std::int64_t>(k) * mine, Shape{mine}), members[k],
                  stream);
      }
    });
    if (mine == 0) return;
    const Tensor wide = decoded(terms, sum.dtype());
    std::vector<Tensor> parts;
    for (std::int64_t k = 0; k < shards.members; ++k)
      parts.push_back(wide.slice(k * mine, Shape{mine}));
    weighted_sum(backend_, parts, std::vector<double>(parts.size(), 1.0), sum);
  }

  /// Sends every member's shard of `out` to all members.
  void gather_shards(const std::vector<int>& members, const Shards& shards, const Tensor& out,
                     void* stream, const NcclWork& work) {
    const std::size_t me = place_in(members);
    const auto shard = [&](std::size_t k) {
      return out.slice(shards.first(k), Shape{shards.count(k)});
    };
    group(everyone_, work, [&] {
      for (std::size_t k = 0; k < members.size(); ++k) {
        if (k == me) continue;
        if (shards.count(me) > 0) send(shard(me), members[k], stream);
        if (shards.count(k) > 0) receive(shard(k), members[k], stream);
      }
    });
  }

  void send(const Tensor& tensor, int peer, void* stream) {
    nccl_->send(tensor.raw(), tensor.bytes(), peer, everyone_, stream);
  }
  void receive(const Tensor& tensor, int peer, void* stream) {
    nccl_->receive(tensor.raw(), tensor.bytes(), peer, everyone_, stream);
  }

  /// The tensor converted to `dtype`.
  Tensor decoded(const Tensor& tensor, DType dtype) {
    if (tensor.dtype() == dtype) return tensor;
    Tensor wide(backend_, tensor.shape(), dtype);
    backend_.cast({tensor, wide});
    return wide;
  }

  /// Divides a shard's sum over the node to get its mean, and mixes it with other nodes' means.
  void mix_means(const Exchange& exchange, const Tensor& sum, const Tensor& mixed, void* stream,
                 const NcclWork& work) {
    const double share = 1.0 / static_cast<double>(exchange.group.size());
    std::vector<double> weights = node_weights(exchange);
    Tensor sent = sum;
    std::vector<Tensor> terms, arrived;
    if (exchange.bf16_between) {
      const Tensor mean(backend_, sum.shape(), sum.dtype());
      weighted_sum(backend_, {sum}, {share}, mean);
      sent = Tensor(backend_, sum.shape(), DType::kBFloat16);
      backend_.cast({mean, sent});
      terms = {mean, decoded(sent, sum.dtype())};
    } else {  // the weights include the division, since nodes have equal sizes
      for (double& weight : weights) weight *= share;
      terms = {sum};
    }
    for (std::size_t k = 0; k < exchange.receive_from.size(); ++k)
      arrived.emplace_back(backend_, sent.shape(), sent.dtype());
    swap(exchange, sent, arrived, stream, work);
    for (const Tensor& tensor : arrived) terms.push_back(decoded(tensor, sum.dtype()));
    in_node_order(exchange, terms);
    weighted_sum(backend_, terms, weights, mixed);
  }

  CheckedWorld world_;
  std::unique_ptr<Transport> control_;
  Backend& backend_;
  std::shared_ptr<Nccl> nccl_;
  const int rank_, size_;
  NcclComm everyone_ = nullptr;
  std::vector<std::shared_ptr<NcclComm>> pending_splits_;
  std::map<BufferKey, Registered> registered_;
  std::map<std::vector<int>, NcclComm> prepared_;  ///< null: this rank is not in the group
  std::unordered_map<Ticket, UnderWay> under_way_;
  Ticket last_ = 1;
  /// The graph being captured; null after its first launch
  std::shared_ptr<NcclGraph> capture_;
  NcclWatchdog watchdog_;
  int exceptions_at_start_;
};

}  // namespace

std::unique_ptr<Transport> make_nccl_transport(std::unique_ptr<Transport>&& control,
                                               Backend& backend, std::unique_ptr<Nccl> nccl,
                                               const NcclSettings& settings) {
  require(backend.device() == DeviceType::kCuda, "nccl", "NCCL connects GPUs");
  return std::make_unique<NcclTransport>(control, backend, std::move(nccl), settings);
}

std::unique_ptr<Nccl> open_nccl(std::string& why) {
  std::string missing;
  const auto open =
      reinterpret_cast<StarlingNcclOpen>(cuda_plugin_function(kStarlingNcclEntry, missing));
  if (!open) {
    why = "NCCL needs " + missing;
    return nullptr;
  }
  StarlingNcclOpening opening{};
  opening.abi = kStarlingCudaAbi;
  const std::uint32_t abi = open(&opening);
  if (abi != kStarlingCudaAbi) {
    why = fmt::format(
        "the plug-in {} speaks version {} of the interface, this program {}; build both from the "
        "same source",
        kStarlingCudaLibrary, abi, kStarlingCudaAbi);
    return nullptr;
  }
  opening.message[sizeof(opening.message) - 1] = '\0';
  if (!opening.nccl) why = opening.message;
  return std::unique_ptr<Nccl>(opening.nccl);
}

}  // namespace starling
