#include <doctest/doctest.h>
#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "../async_log.h"
#include "../support.h"
#include "comm/mpi/pulse.h"
#include "comm/mpi/watch.h"
#include "comm/transports/sums.h"
#include "core/error.h"
#include "kernels/open_backend.h"
#include "tests/support/numbers_of_ranks.h"
#include "tests/support/soon.h"
#include "world.h"

using namespace starling;
using test::Job;
using test::session;

namespace {

double number(int rank, std::int64_t i) {
  return std::sin(0.1 * static_cast<double>(i) + rank) * std::pow(10.0, rank % 3);
}

Tensor filled(Backend& backend, std::int64_t count, DType dtype, int rank) {
  Tensor tensor(backend, Shape{count}, dtype);
  test::set_numbers(tensor, [&](std::int64_t i) { return number(rank, i); });
  return tensor;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

/// The sum over `group`, made here.
Tensor expected_sum(Backend& backend, const std::vector<int>& group, std::int64_t count,
                    DType dtype) {
  std::vector<Tensor> terms;
  std::vector<const std::byte*> in;
  for (const int r : group) terms.push_back(filled(backend, count, dtype, r));
  for (const Tensor& term : terms) in.push_back(term.raw());
  Tensor out(backend, Shape{count}, dtype);
  sum_in_order(dtype, in, nullptr, count, out.raw());
  return out;
}

}  // namespace

TEST_CASE("comm/mpi: the control plane") {
  const auto t = session().make_transport(20.0);
  const int n = t->size(), r = t->rank();
  REQUIRE(n > 1);
  CHECK(t->name() == "mpi");
  CHECK(t->world().local_size() == n);
  CHECK(t->world().local_rank() == r);
  t->world().barrier();
  std::vector<std::uint32_t> data(1 << 20, static_cast<std::uint32_t>(r));
  t->world().broadcast(data.data(), data.size() * 4, n - 1);
  CHECK(data.front() == static_cast<std::uint32_t>(n - 1));
  CHECK(data.back() == static_cast<std::uint32_t>(n - 1));
  const auto all = t->world().all_gather(
      std::string(static_cast<std::size_t>(1000 * r), static_cast<char>('a' + r)));
  for (int j = 0; j < n; ++j)
    CHECK(all[static_cast<std::size_t>(j)] ==
          std::string(static_cast<std::size_t>(1000 * j), static_cast<char>('a' + j)));
  std::vector<double> values(5000, 0.1 * (r + 1)), most(3, r);
  double expected = 0.1;
  for (int j = 1; j < n; ++j) expected += 0.1 * (j + 1);
  t->world().sum(values.data(), values.size());
  CHECK(values.front() == expected);
  CHECK(values.back() == expected);
  t->world().max(most.data(), most.size());
  CHECK(most[2] == n - 1);
}

TEST_CASE("comm/mpi: the session gives Open MPI what exchanges over TCP want") {
  const char* given = std::getenv("OMPI_MCA_btl_tcp_flags");
  REQUIRE(given != nullptr);
  CHECK(std::string(given).find("put") == std::string::npos);
  // And Open MPI took it: the flags as bits, where PUT is 2.
  int provided = 0, variables = 0, found = -1;
  REQUIRE(MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) == MPI_SUCCESS);
  MPI_T_cvar_get_num(&variables);
  for (int i = 0; i < variables && found < 0; ++i) {
    std::array<char, 256> name{};
    int length = name.size(), verbosity = 0, bind = 0, scope = 0;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_T_enum values = MPI_T_ENUM_NULL;
    if (MPI_T_cvar_get_info(i, name.data(), &length, &verbosity, &type, &values, nullptr, nullptr,
                            &bind, &scope) == MPI_SUCCESS &&
        std::string(name.data()) == "btl_tcp_flags")
      found = i;
  }
  if (found >= 0) {  // otherwise TCP is not part of this Open MPI
    MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
    int count = 0;
    unsigned flags = 0;
    REQUIRE(MPI_T_cvar_handle_alloc(found, nullptr, &handle, &count) == MPI_SUCCESS);
    CHECK(MPI_T_cvar_read(handle, &flags) == MPI_SUCCESS);
    CHECK((flags & 1u) == 1u);
    CHECK((flags & 2u) == 0u);
    MPI_T_cvar_handle_free(&handle);
  }
  MPI_T_finalize();
}

TEST_CASE(
    "comm/mpi: neighbour exchanges of many sizes, several in flight, waited for in another order") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  const auto t = session().make_transport(20.0);
  const int n = t->size(), r = t->rank();
  Exchange exchange;  // a directed ring, and for more than two ranks a second neighbour
  exchange.kind = Exchange::Kind::kNeighbours;
  for (const int step : {1, 2}) {
    if (step >= n) continue;
    exchange.send_to.push_back((r + step) % n);
    exchange.receive_from.push_back((r - step + n) % n);
  }
  std::sort(exchange.send_to.begin(), exchange.send_to.end());
  std::sort(exchange.receive_from.begin(), exchange.receive_from.end());
  const std::vector<std::int64_t> sizes{1, 32, 1000, 70'000, 300'000, 5'000'000, 64};
  std::vector<Ticket> tickets;
  std::vector<std::vector<Tensor>> received;
  for (std::size_t b = 0; b < sizes.size(); ++b) {
    received.emplace_back();
    for (std::size_t k = 0; k < exchange.receive_from.size(); ++k)
      received.back().emplace_back(*backend, Shape{sizes[b]}, DType::kFloat32);
    tickets.push_back(t->start_exchange(exchange, filled(*backend, sizes[b], DType::kFloat32, r),
                                        received.back(), {1, static_cast<int>(b), 0}));
  }
  for (std::size_t b = sizes.size(); b-- > 0;) t->wait(tickets[b]);
  for (std::size_t b = 0; b < sizes.size(); ++b) {
    for (std::size_t k = 0; k < received[b].size(); ++k) {
      CHECK(same_bits(received[b][k],
                      filled(*backend, sizes[b], DType::kFloat32, exchange.receive_from[k])));
    }
  }
}

TEST_CASE(
    "comm/mpi: sums have the bits of rank order for every size, in fp32 and fp64, in place or not, "
    "in groups") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  const auto t = session().make_transport(20.0);
  const int n = t->size(), r = t->rank();
  std::vector<int> everyone;
  for (int j = 0; j < n; ++j) everyone.push_back(j);
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    std::vector<Ticket> tickets;
    std::vector<Tensor> outs;
    const std::vector<std::int64_t> sizes{1, 31, 32, 33, 4096, 20'001, 1'000'003, 128};
    for (std::size_t b = 0; b < sizes.size(); ++b) {
      const Tensor in = filled(*backend, sizes[b], dtype, r);
      outs.push_back(b % 2 ? in : Tensor(*backend, Shape{sizes[b]}, dtype));
      tickets.push_back(t->start_sum(in, outs.back(), {2, static_cast<int>(b), 0}));
    }
    for (const Ticket ticket : tickets) t->wait(ticket);
    for (std::size_t b = 0; b < sizes.size(); ++b) {
      CAPTURE(sizes[b]);
      CHECK(same_bits(outs[b], expected_sum(*backend, everyone, sizes[b], dtype)));
    }
  }
  if (n < 4) return;
  Exchange exchange;  // ranks 0, 1, 3 sum; 2 does something else with everyone afterwards
  exchange.kind = Exchange::Kind::kGroupSum;
  exchange.group = {0, 1, 3};
  const Tensor in = filled(*backend, 50'000, DType::kFloat32, r),
               out(*backend, Shape{50'000}, DType::kFloat32);
  const Tensor sum(*backend, Shape{50'000}, DType::kFloat32);
  Ticket first = 0;
  if (r != 2) first = t->start_exchange(exchange, in, {out}, {3, 0, 0});
  t->wait(t->start_sum(in, sum, {3, 1, 0}));
  if (r != 2) {
    t->wait(first);
    CHECK(same_bits(out, expected_sum(*backend, exchange.group, 50'000, DType::kFloat32)));
  }
  CHECK(same_bits(sum, expected_sum(*backend, everyone, 50'000, DType::kFloat32)));
}

TEST_CASE("comm/mpi: ranks may start exchanges of two lanes in different orders") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  const auto t = session().make_transport(20.0);
  test::check_lanes(*t, *backend);
}

TEST_CASE("comm/mpi: asynchronous averages wait in no step for a rank that stands still") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  const auto t = session().make_transport(20.0);
  const int n = t->size(), r = t->rank();
  Job job;
  job.algorithm = {{"type", "async"}, {"interval_ms", 0}};
  job.dtype = DType::kFloat64;
  job.start_apart = true;
  job.steps = 40;
  job.lr = 0.0;  // so that the mean of what ranks start from is where they end
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("starling-async-{}", getppid());
  std::filesystem::create_directories(folder);
  const auto file = [&](int rank) { return folder / fmt::format("{}-of-{}", rank, n); };
  std::filesystem::remove(file(r));
  t->world().barrier();
  Job mine = job;
  mine.lr_at = [&](int step) {
    // No message tells rank 1: whoever waited for it in a step would do so until the limit.
    if (r != 1 && step == job.steps - 1) std::ofstream(file(r)) << step;
    for (int other = 0; r == 1 && step == 3 && other < n; ++other) {
      if (other != 1) CHECK(test::soon([&] { return std::filesystem::exists(file(other)); }));
    }
    return job.lr;
  };
  test::AverageLog log;
  const std::vector<double> x = test::run_job_logged(mine, *t, *backend, log);
  double begun[2] = {static_cast<double>(log.begun()), -static_cast<double>(log.begun())};
  t->world().max(begun, 2);
  CHECK(begun[0] == -begun[1]);
  CHECK(begun[0] >= 1);
  CHECK(log.events.size() == 2 * log.begun());
  std::vector<double> mean;
  for (std::size_t e = 0; e < x.size(); ++e) {
    mean.push_back(0.0);
    for (int j = 0; j < n; ++j)
      mean[e] += test::start_value(j, true, static_cast<std::int64_t>(e)) / n;
  }
  CHECK(test::largest_difference({x}, {mean}) < 1e-13);
  std::filesystem::remove(file(r));
}

TEST_CASE(
    "comm/mpi: a rank is asked for a sign of life once a second at least, and five times within "
    "its limit") {
  CHECK(detail::question_interval(0.5) == doctest::Approx(0.1));
  CHECK(detail::question_interval(60.0) == 1.0);
}

TEST_CASE("comm/mpi: a muster waits for the ranks that are late") {
  if (session().rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(150));
  CHECK(detail::MpiPulse::instance()->muster([](int) { return false; }, 20.0).empty());
}

TEST_CASE("comm/mpi: a slow rank is named with what it does, and late messages do no harm") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  const Tensor in = filled(*backend, 300'000, DType::kFloat32, session().rank()),
               out(*backend, in.shape(), in.dtype());
  {
    const auto t = session().make_transport(session().rank() == 0 ? 2.2 : 20.0);
    t->wait(t->start_sum(in, out, {7, 2, 7}));
    if (session().rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(6000));
    const Ticket ticket = t->start_sum(in, out, {8, 4, 8});
    if (session().rank() == 0) {
      const std::string text = test::error_text([&] { t->wait(ticket); });
      CAPTURE(text);
      for (const char* part :
           {"rank 0 waited 2.2 s", "step 8, bucket 4", "rank 1 on host ", "last heard of",
            "alive, last started the exchange of step 7, bucket 2"}) {
        CHECK(text.find(part) != std::string::npos);
      }
      CHECK(test::error_text([&] { t->world().barrier(); }).find("earlier wait") !=
            std::string::npos);
      std::this_thread::sleep_for(std::chrono::milliseconds(5800));
    } else {
      CHECK(test::error_text([&] { t->wait(ticket); }) == "");
    }
  }
}
