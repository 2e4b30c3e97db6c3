#include "comm/staged_transport.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "kernels/optimizer.h"

namespace starling {
namespace {

bool on_host(const Tensor& tensor) { return !tensor || tensor.backend().device() == DeviceType::kCpu; }

class StagedTransport final : public Transport {
 public:
  explicit StagedTransport(std::unique_ptr<Transport> inner) : host_(open_backend(DeviceType::kCpu, 1)), inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  int local_rank() const override { return inner_->local_rank(); }
  int local_size() const override { return inner_->local_size(); }
  std::string name() const override { return inner_->name() + ", through host memory"; }

  Ticket start_exchange(const Exchange& exchange, const Tensor& send, const std::vector<Tensor>& receive,
                        const ExchangeLabel& label) override {
    if (on_host(send)) return inner_->start_exchange(exchange, send, receive, label);
    std::vector<Arrival> arrivals;
    std::vector<Tensor> targets;
    for (const Tensor& tensor : receive) {
      arrivals.push_back({Tensor(*host_, tensor.shape(), tensor.dtype()), tensor});
      targets.push_back(arrivals.back().host);
    }
    const Ticket ticket = inner_->start_exchange(exchange, to_host(send), targets, label);
    pending_.emplace(ticket, std::move(arrivals));
    return ticket;
  }

  Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel& label) override {
    if (on_host(in)) return inner_->start_sum(in, out, label);
    const Tensor host = to_host(in);
    const Ticket ticket = inner_->start_sum(host, host, label);
    pending_.emplace(ticket, std::vector<Arrival>{{host, out}});
    return ticket;
  }

  bool done(Ticket ticket) override { return inner_->done(ticket); }

  void wait(Ticket ticket) override {
    inner_->wait(ticket);
    const auto it = pending_.find(ticket);
    if (it == pending_.end()) return;
    for (const Arrival& arrival : it->second) to_device(arrival);
    pending_.erase(it);
  }

  void barrier() override { inner_->barrier(); }
  void broadcast(void* data, std::size_t bytes, int root) override { inner_->broadcast(data, bytes, root); }
  std::vector<std::string> all_gather(const std::string& mine) override { return inner_->all_gather(mine); }
  void sum(double* values, std::size_t count) override { inner_->sum(values, count); }
  void max(double* values, std::size_t count) override { inner_->max(values, count); }

 private:
  struct Arrival {
    Tensor host, device;
  };

  /// Records what a stream holds now.
  static Event mark(Backend& device, StreamKind stream) {
    const StreamScope scope(device, stream);
    return device.record();
  }

  /// A copy in host memory. The host waits for the copy, and so for the work before it; the device goes on with what it has.
  Tensor to_host(const Tensor& tensor) {
    Backend& device = tensor.backend();
    Tensor host(*host_, tensor.shape(), tensor.dtype());
    const Event computed = mark(device, StreamKind::kCompute), updated = mark(device, StreamKind::kUpdate);
    const StreamScope scope(device, StreamKind::kCommunication);
    device.wait(computed);
    device.wait(updated);
    device.copy_to_host(tensor, host.raw());
    return host;
  }

  /// Nothing on the device reads the target any more: the communication stream waited for that at the start.
  static void to_device(const Arrival& arrival) {
    Backend& device = arrival.device.backend();
    Event arrived;
    {
      const StreamScope scope(device, StreamKind::kCommunication);
      device.copy_from_host(arrival.host.raw(), arrival.device);
      arrived = device.record();
    }
    for (const StreamKind stream : {StreamKind::kCompute, StreamKind::kUpdate}) {
      const StreamScope scope(device, stream);
      device.wait(arrived);
    }
  }

  std::unique_ptr<Backend> host_;  ///< outlives the transport, which may hold its tensors
  std::unique_ptr<Transport> inner_;
  std::map<Ticket, std::vector<Arrival>> pending_;
};

}  // namespace

std::unique_ptr<Transport> make_staged_transport(std::unique_ptr<Transport> inner) {
  return std::make_unique<StagedTransport>(std::move(inner));
}

}  // namespace starling
