#include "transport_contract.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "comm/exchange_plan.h"
#include "comm/transports/staged.h"
#include "comm/transports/sums.h"
#include "core/error.h"
#include "kernels/cpu/cpu_backend.h"
#include "played_flow.h"
#include "tests/support/errors.h"
#include "tests/support/numbers_of_ranks.h"
#include "tests/support/sanitized.h"
#include "tests/support/soon.h"

namespace starling::test {
namespace {

using nlohmann::json;

using Bytes = std::vector<std::byte>;

CpuBackend& host() {
  thread_local CpuBackend backend(1);
  return backend;
}

/// What a rank sends: numbers of three magnitudes, so that the order of a sum shows. Made once.
const Bytes& bytes_of(int rank, std::int64_t count, DType dtype) {
  static std::mutex mutex;
  static std::map<std::tuple<int, std::int64_t, DType>, Bytes> all;
  const std::scoped_lock lock(mutex);
  Bytes& bytes = all[{rank, count, dtype}];
  if (bytes.empty()) {
    const Tensor wide(host(), Shape{count}, DType::kFloat64), narrow(host(), Shape{count}, dtype);
    const double scale = std::pow(10.0, rank % 3) / 700.0;
    auto* numbers = wide.data<double>();
    for (std::int64_t i = 0; i < count; ++i)
      numbers[i] = scale * static_cast<double>((i * 193 + 71 * rank) % 1409 - 700);
    host().cast({wide, narrow});
    bytes.assign(narrow.raw(), narrow.raw() + narrow.bytes());
  }
  return bytes;
}
Tensor filled(Backend& backend, int rank, std::int64_t count, DType dtype) {
  const Tensor tensor(backend, Shape{count}, dtype);
  backend.copy_from_host(bytes_of(rank, count, dtype).data(), tensor);
  return tensor;
}
Bytes bytes_in(const Tensor& tensor) {
  Bytes bytes(tensor.bytes());
  tensor.backend().copy_to_host(tensor, bytes.data());
  return bytes;
}
bool holds(const Tensor& tensor, const Bytes& bytes) {
  return tensor.bytes() == bytes.size() &&
         std::memcmp(bytes_in(tensor).data(), bytes.data(), bytes.size()) == 0;
}
std::vector<double> wide(const Bytes& bytes, DType dtype) {
  const Shape shape{static_cast<std::int64_t>(bytes.size() / size_of(dtype))};
  const Tensor narrow(host(), shape, dtype), wide(host(), shape, DType::kFloat64);
  std::copy(bytes.begin(), bytes.end(), narrow.raw());
  host().cast({narrow, wide});
  return numbers(wide);
}
/// Whether `found` is the sum of what these ranks send.
void check_sum_of(const Tensor& found, const std::vector<int>& group, DType dtype, bool in_order) {
  std::vector<const std::byte*> in;
  for (const int r : group) in.push_back(bytes_of(r, found.elements(), dtype).data());
  Bytes sum(found.bytes());
  sum_in_order(dtype, in, nullptr, found.elements(), sum.data());
  CAPTURE(found.elements());
  if (in_order) {
    CHECK(holds(found, sum));
  } else {
    CHECK(largest_difference({wide(bytes_in(found), found.dtype())}, {wide(sum, found.dtype())}) <
          (dtype == DType::kFloat64 ? 1e-12 : 2e-5));
  }
}

std::vector<int> everyone(const Transport& t) {
  std::vector<int> ranks;
  for (int r = 0; r < t.size(); ++r) ranks.push_back(r);
  return ranks;
}
Exchange sum_of(std::vector<int> group) {
  Exchange exchange;
  exchange.kind = Exchange::Kind::kGroupSum;
  exchange.group = std::move(group);
  return exchange;
}
/// To the next rank, and to the one after it where there are more than two.
Exchange ring(const Transport& t, int most = 2) {
  Exchange exchange;
  exchange.kind = Exchange::Kind::kNeighbours;
  for (int step = 1; step <= most && step < t.size(); ++step) {
    exchange.send_to.push_back((t.rank() + step) % t.size());
    exchange.receive_from.push_back((t.rank() - step + t.size()) % t.size());
  }
  std::sort(exchange.send_to.begin(), exchange.send_to.end());
  std::sort(exchange.receive_from.begin(), exchange.receive_from.end());
  return exchange;
}

void check_control_plane(World& world) {
  const int n = world.size(), r = world.rank();
  world.barrier();
  std::vector<std::uint32_t> data(1 << 20, static_cast<std::uint32_t>(r));
  world.broadcast(data.data(), data.size() * 4, n - 1);
  CHECK(data.front() == static_cast<std::uint32_t>(n - 1));
  CHECK(data.back() == static_cast<std::uint32_t>(n - 1));
  const auto text = [](int rank) {
    return std::string(static_cast<std::size_t>(1000 * rank), static_cast<char>('a' + rank));
  };
  const auto all = world.all_gather(text(r));
  REQUIRE(all.size() == static_cast<std::size_t>(n));
  for (int j = 0; j < n; ++j) CHECK(all[static_cast<std::size_t>(j)] == text(j));
  std::vector<double> values(5000, 0.1 * (r + 1)), most(3, r);
  double expected = 0.1;
  for (int j = 1; j < n; ++j) expected += 0.1 * (j + 1);
  world.sum(values.data(), values.size());
  CHECK(values == std::vector<double>(5000, expected));
  world.max(most.data(), most.size());
  CHECK(most[2] == n - 1);
}

void check_neighbours(Transport& t, Backend& backend) {
  const std::int64_t piece = kPieceElements;
  const std::vector<std::int64_t> sizes{1,         33,        1000, 70'000,    piece,
                                        piece + 1, 1'300'003, 5001, 2 * piece, 64};
  const Exchange exchange = ring(t);
  if (exchange.send_to.empty()) return;
  std::vector<Ticket> tickets;
  std::vector<std::vector<Tensor>> received;
  for (std::size_t b = 0; b < sizes.size(); ++b) {
    received.emplace_back();
    for (std::size_t k = 0; k < exchange.received(); ++k)
      received.back().emplace_back(backend, Shape{sizes[b]}, DType::kFloat32);
    tickets.push_back(t.start_exchange(exchange,
                                       filled(backend, t.rank(), sizes[b], DType::kFloat32),
                                       received.back(), {1, static_cast<int>(b), 0}));
  }
  for (std::size_t b = sizes.size(); b-- > 0;) t.wait(tickets[b]);  // in another order
  for (std::size_t b = 0; b < sizes.size(); ++b) {
    CAPTURE(sizes[b]);
    for (std::size_t k = 0; k < received[b].size(); ++k)
      CHECK(holds(received[b][k], bytes_of(exchange.receive_from[k], sizes[b], DType::kFloat32)));
  }
}

void check_sums(Transport& t, Backend& backend, bool in_order) {
  const std::vector<std::int64_t> sizes{1, 31, 32, 33, 4096, 20'001, 300'001, 128};
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    std::vector<Ticket> tickets;
    std::vector<Tensor> outs;
    for (std::size_t b = 0; b < sizes.size(); ++b) {
      const Tensor in = filled(backend, t.rank(), sizes[b], dtype);
      outs.push_back(b % 2 ? in : Tensor(backend, in.shape(), dtype));
      tickets.push_back(t.start_sum(in, outs.back(), {2, static_cast<int>(b), 0}));
    }
    for (const Ticket ticket : tickets) t.wait(ticket);
    for (const Tensor& out : outs) check_sum_of(out, everyone(t), dtype, in_order);
  }
  if (t.size() < 4) return;
  // Ranks 0, 1, 3 sum, which nobody prepared, and so by shards; all do something else afterwards.
  const Tensor in = filled(backend, t.rank(), 50'000, DType::kFloat32),
               out(backend, in.shape(), in.dtype()), sum(backend, in.shape(), in.dtype());
  const bool member = t.rank() == 0 || t.rank() == 1 || t.rank() == 3;
  Ticket first = 0;
  if (member) first = t.start_exchange(sum_of({0, 1, 3}), in, {out}, {3, 0, 0});
  t.wait(t.start_sum(in, sum, {3, 1, 0}));
  if (member) t.wait(first);
  if (member) check_sum_of(out, {0, 1, 3}, in.dtype(), true);
  check_sum_of(sum, everyone(t), in.dtype(), in_order);
}

/// Topologies for so many ranks: every type; of nodes of every size; and rounds given by rows, or
/// by groups that overlap.
std::vector<json> every_topology(int ranks) {
  std::vector<json> all;
  for (const auto& [type, topology] : topologies_for({ranks, ranks}))
    all.push_back({{"type", type}});
  for (int per_node = 2; per_node < ranks; ++per_node) {
    if (ranks % per_node != 0) continue;
    for (const char* inter : {"static-ring", "complete", "star", "directed-exp"})
      all.push_back({{"type", "hierarchical"}, {"ranks_per_node", per_node}, {"inter", inter}});
  }
  if (ranks == 5) {
    all.push_back(json::parse(R"({"type": "custom", "rounds": [
      [{"ranks": [0, 1, 2], "weight": 0.5}, {"ranks": [3, 4], "weight": 0.25}],
      [{"ranks": [1, 3], "weight": 0.5}, {"ranks": [0, 2, 4], "weight": 0.5}],
      {"rows": [[[0, 0.5], [1, 0.3], [4, 0.2]], [[0, 0.6], [1, 0.4]], [[2, 1.0]], [[1, 0.1], [3, 0.9]], [[2, 0.5], [4, 0.5]]]}]})"));
  }
  return all;
}

/// Every round of a topology brings what its matrix says.
void check_rounds(Transport& t, Backend& backend, const Topology& topology) {
  struct Buffer {
    std::int64_t elements;
    DType dtype;
  };
  // the second has no equal shards for nodes; the third, for nodes alone, several pieces
  const Buffer buffers[] = {{96, DType::kFloat32},
                            {77, DType::kFloat64},
                            {kPieceElements + 50, DType::kFloat32},
                            {160, DType::kBFloat16}};
  t.prepare(summed_groups(topology, false));
  const std::int64_t rounds =
      topology.period() == 0 ? 3 : std::min<std::int64_t>(topology.period() + 1, 4);
  for (std::int64_t k = 0; k < rounds; ++k) {
    CAPTURE(k);
    const Round round = topology.round(k);
    const Exchange exchange = plan_exchange(round, t.rank());
    std::vector<Ticket> tickets;
    std::vector<std::vector<Tensor>> received;
    const bool large = k == 0 && exchange.kind == Exchange::Kind::kNodes;
    const auto takes = [&](std::size_t b) {
      if (exchange.kind == Exchange::Kind::kNone || (b == 2 && !large)) return false;
      return exchange.kind != Exchange::Kind::kNodes || buffers[b].dtype != DType::kBFloat16;
    };
    for (std::size_t b = 0; b < std::size(buffers); ++b) {
      received.emplace_back();
      tickets.push_back(0);
      if (!takes(b)) continue;
      const auto& [elements, dtype] = buffers[b];
      const bool sum = exchange.kind == Exchange::Kind::kGroupSum;
      for (std::size_t j = 0; j < exchange.received(); ++j)
        received.back().emplace_back(backend, Shape{elements}, sum ? sum_type(dtype) : dtype);
      tickets.back() = t.start_exchange(exchange, filled(backend, t.rank(), elements, dtype),
                                        received.back(), {k, static_cast<int>(b), k});
    }
    const auto row = Topology::row(over_ranks(round), t.rank());
    for (std::size_t b = 0; b < std::size(buffers); ++b) {
      if (!takes(b)) continue;
      t.wait(tickets[b]);
      const auto& [elements, dtype] = buffers[b];
      const std::vector<double> own = wide(bytes_of(t.rank(), elements, dtype), dtype);
      std::vector<double> found, expected(own.size(), 0.0);
      for (const double x : own) found.push_back(exchange.self_weight * x);
      for (std::size_t j = 0; j < received[b].size(); ++j) {
        const auto term = wide(bytes_in(received[b][j]), received[b][j].dtype());
        for (std::size_t i = 0; i < own.size(); ++i) found[i] += exchange.weights[j] * term[i];
      }
      for (const auto& [j, weight] : row) {
        const auto term = wide(bytes_of(j, elements, dtype), dtype);
        for (std::size_t i = 0; i < own.size(); ++i) expected[i] += weight * term[i];
      }
      CAPTURE(name_of(dtype));
      CHECK(largest_difference({found}, {expected}) < (dtype == DType::kFloat64 ? 1e-12 : 1e-5));
    }
  }
}

/// A reduce-scatter, and an all-gather of what it brought, in unequal parts of several pieces.
void check_parts(Transport& t, Backend& backend) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    Exchange exchange = sum_of(everyone(t));
    exchange.parts = {0};
    for (int r = 0; r < t.size(); ++r)
      exchange.parts.push_back(exchange.parts.back() + 32 * (r + 1) + (r == 1 ? 300'000 : 0));
    const std::int64_t size = exchange.parts.back();
    const auto me = static_cast<std::size_t>(t.rank());
    const Tensor whole(backend, Shape{size}, dtype),
        part(backend, Shape{exchange.parts[me + 1] - exchange.parts[me]}, dtype);
    exchange.kind = Exchange::Kind::kScatterSum;
    t.wait(t.start_exchange(exchange, filled(backend, t.rank(), size, dtype), {part}, {1, 0, 1}));
    exchange.kind = Exchange::Kind::kGather;
    t.wait(t.start_exchange(exchange, part, {whole}, {1, 1, 1}));
    check_sum_of(whole, everyone(t), dtype, true);
    const Tensor in_place = whole.slice(exchange.parts[me], part.shape());
    t.wait(t.start_exchange(exchange, in_place, {whole}, {1, 2, 1}));
    check_sum_of(whole, everyone(t), dtype, true);
  }
}

/// Three sums of each lane, the lanes' in another order on every rank: of a transport that has
/// exchanged nothing yet, so that what numbers the messages of the lanes is alike.
void check_lanes(Transport& t, Backend& backend, bool in_order) {
  struct Sum {
    Tensor numbers;
    Ticket ticket;
  };
  std::vector<Sum> sums[kLanes];
  // whose numbers a rank sends: others in each sum
  const auto sent_by = [](int rank, std::size_t lane, std::size_t k) {
    return rank + static_cast<int>(1000 * lane + 100 * k);
  };
  for (int place = 0; place < 6; ++place) {
    const bool aside = t.rank() % 3 == 0   ? place % 2 == 0
                       : t.rank() % 3 == 1 ? place < 3
                                           : place >= 3;
    const Lane lane = aside ? Lane::kAside : Lane::kSteps;
    auto& of_lane = sums[aside];
    const auto k = static_cast<std::int64_t>(of_lane.size());
    const Tensor numbers =
        filled(backend, sent_by(t.rank(), aside, of_lane.size()), 1000, DType::kFloat64);
    of_lane.push_back({numbers, t.start_sum(numbers, numbers, {k, 0, k, lane})});
  }
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    REQUIRE(sums[lane].size() == 3);
    for (std::size_t k = 0; k < 3; ++k) {
      t.wait(sums[lane][k].ticket);
      std::vector<int> senders;
      for (const int rank : everyone(t)) senders.push_back(sent_by(rank, lane, k));
      check_sum_of(sums[lane][k].numbers, senders, DType::kFloat64, in_order);
    }
  }
}

void check_late_piece(Transport& t, Backend& backend, bool sums_by_pieces) {
  const int from = ring(t, 1).receive_from[0];
  const std::int64_t size = 3 * kPieceElements + 9;
  const Tensor own = filled(backend, t.rank(), size, DType::kFloat32),
               came(backend, Shape{size}, DType::kFloat32);
  const auto flow = std::make_shared<PlayedFlow>(own.bytes(), 1);
  const Ticket late = t.start_exchange(ring(t, 1), own, {came}, {1, 0, 1}, flow);
  flow->set_ready(kStagedPieceBytes);
  CHECK(soon([&] { return !t.done(late) && flow->come(0) == kStagedPieceBytes; }));

  // Others pass: an exchange, and a sum whose own flow is late after it.
  const Tensor small = filled(backend, t.rank(), 100, DType::kFloat32),
               small_came(backend, Shape{100}, DType::kFloat32);
  t.wait(t.start_exchange(ring(t, 1), small, {small_came}, {1, 1, 1}));
  CHECK(holds(small_came, bytes_of(from, 100, DType::kFloat32)));
  const Tensor sum = filled(backend, t.rank(), 2'000'000, DType::kFloat32);
  const auto sum_flow = std::make_shared<PlayedFlow>(sum.bytes(), 1);
  const Ticket summing = t.start_sum(sum, sum, {1, 3, 1}, sum_flow);
  sum_flow->set_ready(sum.bytes() - 4);
  if (sums_by_pieces) CHECK(soon([&] { return sum_flow->come(0) > 0; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(!t.done(summing));
  CHECK(sum_flow->come(0) < sum.bytes());
  CHECK(!t.done(late));
  CHECK(flow->come(0) == kStagedPieceBytes);
  t.world().barrier();  // all have looked
  sum_flow->set_ready(sum.bytes());
  t.wait(summing);
  CHECK(sum_flow->come(0) == sum.bytes());
  check_sum_of(sum, everyone(t), DType::kFloat32, true);

  flow->set_ready(own.bytes());
  t.wait(late);
  CHECK(flow->come(0) == own.bytes());
  CHECK(holds(came, bytes_of(from, size, DType::kFloat32)));
}

}  // namespace

void check_transport(const TransportKind& kind) {
  for (const int ranks : fewer_if_sanitized(kind.ranks)) {
    std::vector<std::pair<json, std::unique_ptr<Topology>>> topologies;
    register_builtin_topologies();
    std::size_t turn = static_cast<std::size_t>(ranks);
    for (const json& config : every_topology(ranks)) {
      // every second on each number of ranks: transports know exchanges and no topology
      if (++turn % 2 == 0 && config["type"] != "custom") continue;
      ConfigSection section(config, "test");
      topologies.emplace_back(config, make_unchecked_topology(section, {ranks, ranks}));
    }
    kind.run(ranks, 20.0, [&](Transport& t, Backend& backend) {
      CAPTURE(t.name());
      CAPTURE(ranks);
      CHECK(t.size() == ranks);
      if (kind.lanes) check_lanes(t, backend, kind.sums_in_order);
      check_control_plane(t.world());
      check_neighbours(t, backend);
      check_sums(t, backend, kind.sums_in_order);
      check_parts(t, backend);
      for (const auto& [config, topology] : topologies) {
        CAPTURE(config.dump());
        check_rounds(t, backend, *topology);
      }
      t.world().barrier();
    });
  }
}

void check_flows(const TransportKind& kind, bool sums_by_pieces) {
  for (const int ranks : kind.ranks) {
    if (ranks == 1) continue;
    kind.run(ranks, 20.0,
             [&](Transport& t, Backend& backend) { check_late_piece(t, backend, sums_by_pieces); });
  }
}

void check_late_rank(const TransportKind& kind) {
  for (const bool group : {true, false}) {
    std::vector<std::string> texts(3);
    std::atomic<int> ended{0};
    const auto body = [&](Transport& t, Backend& backend) {
      const auto r = static_cast<std::size_t>(t.rank());
      t.world().barrier();  // within the limit too: no pause of a busy machine's is to reach it
      if (r != 2) {
        const Tensor own = filled(backend, t.rank(), 100, DType::kFloat32),
                     came(backend, own.shape(), own.dtype()),
                     other(backend, own.shape(), own.dtype());
        const auto begin = std::chrono::steady_clock::now();
        const Exchange exchange = group ? sum_of({0, 1, 2}) : ring(t);
        const Ticket ticket = t.start_exchange(
            exchange, own, group ? std::vector{came} : std::vector{came, other}, {5, 1, 4});
        texts[r] = error_text(ExitCode::kLost, [&] { t.wait(ticket); });
        CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
      }
      ended += r != 2;
      soon([&] { return ended == 2; });
      // so that the transports' ends do not wait their time once more
      fail(ExitCode::kInternal, "test", "over");
    };
    CHECK(error_text([&] { kind.run(3, 2.0, body); }) == "[test] over");
    for (std::size_t r = 0; r < 2; ++r) {
      CAPTURE(texts[r]);
      const std::string whom = group    ? " in the group of ranks 0, 1, 2"
                               : r == 0 ? " with ranks 1, 2"
                                        : " with ranks 0, 2";
      for (const std::string& part : {"rank " + std::to_string(r) + " waited 2 s (sync.timeout_s)",
                                      "the exchange of step 5, bucket 1, round 4" + whom,
                                      std::string("missing: rank 2 last heard of")})
        CHECK(contains(texts[r], part));
      CHECK(texts[r].find("the device") == std::string::npos);
    }
  }
}

std::vector<ContractJob> contract_jobs(int ranks) {
  register_builtin_topologies();
  const json sgd = {{"type", "sgd"}, {"momentum", 0.8}, {"weight_decay", 0.05}},
             adamw = {{"type", "adamw"}, {"eps", 1e-3}},
             nodes = {{"type", "hierarchical"}, {"ranks_per_node", 2}, {"inter", "complete"}};
  struct Row {
    json algorithm;
    json topology = "static-ring";
    json optimizer;
    bool reads = false;
    std::string exchange = "fp32";
  };
  const std::vector<Row> rows = {
      {{{"type", "gossip"}}, "static-ring", adamw, true},
      {{{"type", "gossip"}}, "ring", adamw, true},
      {{{"type", "gossip"}}, "complete", adamw, true},
      {{{"type", "gossip"}}, "directed-exp", adamw, true},
      {{{"type", "gossip"}}, "random-matching", adamw, true},
      {{{"type", "gossip"}}, nodes, adamw, true},
      {{{"type", "gossip"}}, nodes, adamw, false, "bf16"},
      {{{"type", "gossip"}, {"mix_states", 2}, {"global_every", 3}}, "base-2", adamw, true},
      {{{"type", "gossip"}, {"order", "atc"}}, "complete", adamw},
      {{{"type", "gossip"}, {"global_above", 0.02}, {"check_every", 2}}, "base-2", sgd, true},
      {{{"type", "gossip"}, {"error_feedback", true}}, "static-ring", sgd, false, "int8"},
      {{{"type", "gossip"}}, "static-ring", sgd, false, "bf16"},
      {{{"type", "gossip"}}, "complete", adamw, false, "bf16"},
      {{{"type", "gossip"}}, "base-2", adamw, false, "bf16"},
      {{{"type", "qgm"}}, "base-2", sgd},
      {{{"type", "qgm"}, {"order", "awc"}}, "base-2", sgd, true},
      {{{"type", "decentlam"}}, "static-ring", sgd},
      {{{"type", "gradient_tracking"}}, "base-2", adamw, true},
      {{{"type", "momentum_tracking"}}, "static-ring", sgd, true},
      {{{"type", "exact_diffusion"}}, "static-ring", adamw},
      {{{"type", "push_sum"}}, "directed-exp", adamw},
      {{{"type", "allreduce"}}, "ring", sgd},
      {{{"type", "allreduce"}, {"scatter_gather", true}}, "ring", sgd},
      {{{"type", "allreduce"}, {"hierarchical", true}, {"ranks_per_node", 2}}, "ring", sgd},
      {{{"type", "local_sgd"}, {"period", 3}, {"start", 2}, {"states", "average"}}, "ring", sgd},
      {{{"type", "local_sgd"}, {"period", 4}, {"gradients", "node"}, {"ranks_per_node", 2}},
       "ring",
       sgd},
      {{{"type", "local_sgd"}, {"period", 2}, {"average", "topology"}}, "base-2", sgd},
      {{{"type", "slowmo"}, {"period", 3}}, "ring", sgd},
      {{{"type", "slowmo"}, {"period", 4}, {"inner", "gossip"}}, "static-ring", sgd, true},
      {{{"type", "diloco"}, {"period", 4}, {"fragments", 2}, {"delay", 1}}, "ring", sgd},
      {{{"type", "diloco"}, {"period", 4}, {"fragments", 2}, {"quorum", ranks}}, "ring", sgd},
      {{{"type", "gossip_diloco"}, {"period", 4}, {"fragments", 2}}, "static-ring", sgd},
      {{{"type", "choco"}, {"block", 32}}, "static-ring", sgd},
      {{{"type", "low_precision"}, {"interval", 2}}, "static-ring", sgd},
      {{{"type", "bytegrad"}}, "ring", sgd},
      {{{"type", "qadam"}, {"warmup", 3}}, "complete", adamw},
  };
  std::vector<ContractJob> jobs;
  for (const Row& row : rows) {
    Job job;
    job.algorithm = row.algorithm;
    job.topology = row.topology.is_string() ? json{{"type", row.topology}} : row.topology;
    job.optimizer = row.optimizer;
    job.exchange = row.exchange;
    const bool odd = ranks % 2 != 0;
    if (job.algorithm.contains("ranks_per_node") && odd) job.algorithm["ranks_per_node"] = ranks;
    const std::string type = job.topology["type"];
    if ((type == "hierarchical" && (odd || ranks < 4)) ||
        (type == "ring" && odd && job.algorithm["type"] == "gossip"))
      continue;
    job.steps = 9;
    job.finish_every = 4;
    job.resume_after = 3;
    job.start_apart = job.algorithm["type"] == "gossip";
    job.in_backward = jobs.size() % 2 == 0;
    jobs.push_back({job, row.reads, row.reads && type == "hierarchical"});
  }
  return jobs;
}

void check_jobs(const TransportKind& kind) {
  for (const int ranks : kind.ranks) {
    for (const ContractJob& one : contract_jobs(ranks)) {
      CAPTURE(ranks);
      CAPTURE(one.job.algorithm.dump());
      CAPTURE(one.job.topology.dump());
      CAPTURE(one.job.exchange);
      const auto expected = run_fake(one.job, ranks);
      kind.run(ranks, 20.0, [&](Transport& t, Backend& backend) {
        CHECK(run_job(one.job, t, backend) == expected[static_cast<std::size_t>(t.rank())]);
      });
    }
  }
}

}  // namespace starling::test
