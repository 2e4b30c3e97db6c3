#include <algorithm>

#include "comm/engine/operation.h"
#include "comm/flight.h"

namespace starling::detail {
namespace {

constexpr std::size_t kCallPieceBytes = 16u << 20;

/// Every rank sends to every other one what that needs: calls are small.
class MessageCall final : public WireCall {
 public:
  MessageCall(Wire& wire, int tag, Wire::Call kind, std::string what, std::vector<std::byte> mine,
              const std::vector<int>& counts, int root)
      : WireCall(std::move(what), partners_of(nullptr, wire.size(), wire.rank())),
        rank_(wire.rank()),
        requests_(wire.make_requests()),
        tag_(tag),
        kind_(kind),
        mine_(std::move(mine)),
        offsets_{0},
        root_(root) {
    for (const int count : counts)
      offsets_.push_back(offsets_.back() + static_cast<std::size_t>(count));
    all_.resize(kind == Wire::Call::kBarrier ? static_cast<std::size_t>(wire.size())
                                             : offsets_.back());
  }
  const std::vector<std::byte>& bytes() const override {
    return kind_ == Wire::Call::kGather ? all_ : mine_;
  }
  std::vector<int> missing() const override { return requests_->peers(); }

  bool advance() override {
    bool moved = false;
    if (!std::exchange(posted_, true)) {
      post();
      moved = true;
    }
    if (requests_->test([](int) {}) > 0) moved = true;
    if (requests_->empty()) finish();
    return moved;
  }

 private:
  void post() {
    const std::byte sign{};
    switch (kind_) {
      case Wire::Call::kBarrier:
        for (const int peer : partners()) {
          receive(&all_[static_cast<std::size_t>(peer)], 1, peer);
          send(&sign, 1, peer);
        }
        break;
      case Wire::Call::kGather:
        for (const int peer : partners()) {
          const auto k = static_cast<std::size_t>(peer);
          receive(all_.data() + offsets_[k], offsets_[k + 1] - offsets_[k], peer);
          send(mine_.data(), mine_.size(), peer);
        }
        std::copy(
            mine_.begin(), mine_.end(),
            all_.begin() + static_cast<std::ptrdiff_t>(offsets_[static_cast<std::size_t>(rank_)]));
        break;
      case Wire::Call::kBroadcast:
        if (rank_ != root_) {
          receive(mine_.data(), mine_.size(), root_);
        } else {
          for (const int peer : partners()) send(mine_.data(), mine_.size(), peer);
        }
        break;
    }
  }
  void send(const std::byte* data, std::size_t bytes, int peer) {
    for (std::size_t at = 0; at < bytes; at += kCallPieceBytes)
      requests_->send(data + at, std::min(kCallPieceBytes, bytes - at), peer, {tag_, at}, 0);
  }
  void receive(std::byte* data, std::size_t bytes, int peer) {
    for (std::size_t at = 0; at < bytes; at += kCallPieceBytes)
      requests_->receive(data + at, std::min(kCallPieceBytes, bytes - at), peer, {tag_, at}, 0);
  }

  int rank_;
  std::unique_ptr<RequestSet> requests_;
  int tag_;
  Wire::Call kind_;
  std::vector<std::byte> mine_, all_;
  std::vector<std::size_t> offsets_;
  int root_;
  bool posted_ = false;
};

}  // namespace

std::shared_ptr<WireCall> make_message_call(Wire& wire, int tag, Wire::Call kind, std::string what,
                                            std::vector<std::byte> mine,
                                            const std::vector<int>& counts, int root) {
  return std::make_shared<MessageCall>(wire, tag, kind, std::move(what), std::move(mine), counts,
                                       root);
}

}  // namespace starling::detail
