#include <doctest/doctest.h>

#include <ctime>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/planner/measure_network.h"
#include "comm/planner/network_model.h"
#include "comm/transports/forwarding.h"
#include "core/error.h"
#include "kernels/open_backend.h"
#include "tests/comm/planner_networks.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/errors.h"

namespace starling::tests {
namespace {

TEST_CASE("planner/network: a file comes back as it was, and a bad one names its key") {
  NetworkModel network = hosts(4, 1.0);
  network.ranks_per_host = 2;
  network.host_bandwidth = {1e8, 2e8};
  network.between.latency = 1e-4;
  network.spare_cores = false;
  network.sum_bandwidth = 5e7;
  network.replica = 3;
  const NetworkModel again = network_from_json(to_json(network), "net.json");
  CHECK(again.ranks == 4);
  CHECK(again.ranks_per_host == 2);
  CHECK(again.replica == 3);
  CHECK(again.host_bandwidth.size() == 2);
  CHECK(again.host_bandwidth[1] == doctest::Approx(2e8));
  CHECK(again.between.latency == doctest::Approx(1e-4));
  CHECK(!again.spare_cores);
  CHECK(again.sum_bandwidth == doctest::Approx(5e7));
  const auto message = [](const std::string& text) {
    return test::error_of(ExitCode::kUsage, [&] { network_from_json(text, "net.json"); });
  };
  CHECK(message("{").find("net.json") != std::string::npos);
  CHECK(message("[]").find("an object") != std::string::npos);
  nlohmann::json json = nlohmann::json::parse(to_json(network));
  json["sum_bandwidth_gbs"] = -1;
  CHECK(message(json.dump()).find("sum_bandwidth_gbs") != std::string::npos);
  json.erase("sum_bandwidth_gbs");  // as older files are
  CHECK(network_from_json(json.dump(), "net.json").sum_bandwidth == 0.0);
  json["between"]["bandwidth_gbs"] = 0;
  CHECK(message(json.dump()).find("between.bandwidth_gbs") != std::string::npos);
  json = nlohmann::json::parse(to_json(network));
  json["hosts_bandwidth_gbs"] = {1.0};
  CHECK(message(json.dump()).find("hosts_bandwidth_gbs") != std::string::npos);
  json.erase("ranks");
  CHECK(message(json.dump()).find("'ranks'") != std::string::npos);
}

constexpr double kSlowLink = 5e6;  ///< bytes a second
/// Connections of that, as many at once as there are peers, but one sum at a
/// time. `half`: one direction at a time, so that an exchange of both takes twice as long as one of
/// them. It takes no time but that of its own clock, which besides goes on while this thread
/// computes: a busy machine changes nothing.
class SlowLink final : public ForwardingTransport {
 public:
  SlowLink(Transport& inner, bool half) : ForwardingTransport(inner), half_(half) {}
  Ticket start_exchange(const Exchange& exchange, const Tensor& send,
                        const std::vector<Tensor>& receive, const ExchangeLabel& label,
                        std::shared_ptr<Flow> flow) override {
    carry(send, half_ ? static_cast<double>(exchange.send_to.size() + exchange.receive_from.size())
                      : 1.0);
    return ForwardingTransport::start_exchange(exchange, send, receive, label, std::move(flow));
  }
  Ticket start_sum(const Tensor& in, const Tensor& out, const ExchangeLabel& label,
                   std::shared_ptr<Flow> flow) override {
    carry(in, 1.0);
    return ForwardingTransport::start_sum(in, out, label, std::move(flow));
  }
  double now() const {
    timespec computed{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &computed);
    return carried_ + static_cast<double>(computed.tv_sec) +
           1e-9 * static_cast<double>(computed.tv_nsec);
  }

 private:
  void carry(const Tensor& send, double ways) {
    carried_ += static_cast<double>(send.bytes()) * ways / kSlowLink;
  }

  bool half_;
  double carried_ = 0.0;  ///< seconds
};

/// Looks at the network that each of some replicas finds, all on hosts of their own, whose ranks
/// have slow links each.
void measure_slow_links(int replicas, bool half,
                        const std::function<void(const NetworkModel&)>& look, int replica = 1) {
  FakeWorldOptions options;
  options.ranks_per_host = replica;
  FakeWorld world(replicas * replica, options);
  world.run([&](Transport& transport) {
    SlowLink link(transport, half);
    MeasureSettings settings;
    settings.seconds = 0.8;
    settings.replica = replica;
    settings.now = [&link] { return link.now(); };
    look(measure_network(link, *open_backend(DeviceType::kCpu, 1), settings));
  });
}

TEST_CASE("planner/measure: a half-duplex link is noticed, a full-duplex one is not called so") {
  for (const bool half : {false, true}) {
    CAPTURE(half);
    measure_slow_links(2, half, [half](const NetworkModel& model) {
      const std::vector<std::string> warnings = network_warnings(model);
      REQUIRE(warnings.size() == (half ? 1 : 0));
      CHECK(network_from_json(to_json(model), "net.json").both_directions ==
            doctest::Approx(model.both_directions));
      if (half) CHECK(warnings[0].find("btl_tcp_flags") != std::string::npos);
    });
  }
}

TEST_CASE("planner/network: a link that kernels' buffers do not fill is named, with their sizes") {
  NetworkModel model{.ranks = 2};
  model.between = {0.05, 0.9 * model.window / 0.1};
  REQUIRE(network_warnings(model).size() == 1);
  CHECK(network_warnings(model)[0].find("hold 4 MiB of a connection, which limits a pair of hosts "
                                        "50 ms apart to some 41.9 MB/s") != std::string::npos);
  CHECK(network_warnings(model)[0].find("tcp_wmem='4096 16384 67108864'") != std::string::npos);
  CHECK(network_from_json(to_json(model), "net.json").window == model.window);
  model.between.bandwidth *= 0.5;
  CHECK(network_warnings(model).empty());
  model.window = 64 << 20;
  model.between.bandwidth = 1e9;
  CHECK(network_warnings(model).empty());
}

TEST_CASE(
    "planner/measure: a host's link is what several peers reach, sums have a rate of their own") {
  measure_slow_links(3, false, [](const NetworkModel& model) {
    CHECK(model.between.bandwidth <= 1.1 * kSlowLink);
    CHECK(model.typical_link() > 1.4 * model.between.bandwidth);
    CHECK(model.sum_bandwidth > 0.0);
    CHECK(model.sum_bandwidth <= 1.1 * kSlowLink * 4 / 3);  // 2 (n - 1) / n of the bytes
    CHECK(model.sum_bandwidth < model.typical_link());
  });
}

TEST_CASE("planner/measure: all ranks of a replica send at once, each to its like") {
  for (const int hosts : {2, 3}) {
    measure_slow_links(
        hosts, false,
        [&](const NetworkModel& model) {
          CHECK(model.ranks == hosts);
          CHECK(model.ranks_per_host == 1);
          CHECK(model.replica == 2);
          CHECK(model.between.bandwidth > 1.8 * kSlowLink);
          CHECK(model.between.bandwidth < 2.2 * kSlowLink);
          CHECK(model.typical_link() > (hosts > 2 ? 2.8 : 1.8) * kSlowLink);
          CHECK(model.sum_bandwidth > 0.8 * kSlowLink);
        },
        2);
  }
}

TEST_CASE("planner/measure: every rank gets one model, and a slow message shows") {
  FakeWorldOptions options;
  options.ranks_per_host = 2;
  options.most_delay_seconds = 0.004;
  FakeWorld world(4, options);
  std::mutex mutex;
  std::vector<NetworkModel> models;
  world.run([&](Transport& transport) {
    const auto backend = open_backend(DeviceType::kCpu, 1);
    const NetworkModel model = measure_network(transport, *backend, {.seconds = 0.5});
    const std::scoped_lock lock(mutex);
    models.push_back(model);
  });
  REQUIRE(models.size() == 4);
  for (const NetworkModel& model : models) {
    CHECK(model.ranks_per_host == 2);
    CHECK(model.hosts() == 2);
    CHECK(model.between.latency == models[0].between.latency);
    CHECK(model.inside.bandwidth == models[0].inside.bandwidth);
    CHECK(model.memory_bandwidth > 1e8);
    REQUIRE(model.host_bandwidth.size() == 2);
    for (const double bandwidth : model.host_bandwidth) CHECK(bandwidth > 1e6);
    CHECK(model.between.latency > 2e-4);  // half of the messages take 2 ms and more
    CHECK(model.between.latency < 0.1);
  }
}

}  // namespace
}  // namespace starling::tests
