#include <doctest/doctest.h>
#include <mpi.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "../late_device.h"
#include "../played_flow.h"
#include "../support.h"
#include "../transport_contract.h"
#include "comm/mpi/pulse.h"
#include "comm/mpi/watch.h"
#include "comm/transports/staged.h"
#include "core/error.h"
#include "kernels/open_backend.h"
#include "tests/support/errors.h"
#include "world.h"

using namespace starling;
using test::session;

TEST_CASE(
    "comm/mpi: messages, and a late device's tensors through host memory, keep the contract") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  test::TransportKind kind;
  kind.ranks = {session().size()};
  kind.run = [&](int, double timeout_seconds, const test::TransportKind::Body& body) {
    const auto t = session().make_transport(timeout_seconds);
    CHECK(t->name() == "mpi");
    CHECK(t->world().local_size() == t->size());
    CHECK(t->world().local_rank() == t->rank());
    body(*t, *backend);
  };
  check_transport(kind);
  check_flows(kind, true);
  kind.run = [&](int, double timeout_seconds, const test::TransportKind::Body& body) {
    test::LateDevice device(*backend);  // outlives the transport, which keeps host memory of it
    const auto t = make_staged_transport(session().make_transport(timeout_seconds));
    CHECK(t->name() == "mpi, through host memory");
    body(*t, device);
  };
  check_transport(kind);
  check_jobs(kind);
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
  const Tensor in(*backend, Shape{300'000}, DType::kFloat32), out(*backend, in.shape(), in.dtype());
  backend->fill(in, session().rank());
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

TEST_CASE(
    "comm/mpi: a device that stands still, and a rank that does not come, end a wait through host "
    "memory at its limit") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  for (const bool by_device : {true, false}) {
    CAPTURE(by_device);
    test::LateDevice device(*backend);
    const auto t =
        make_staged_transport(session().make_transport(session().rank() == 0 ? 1.0 : 20.0));
    const int n = t->size(), r = t->rank();
    const Tensor own(device, Shape{2 * test::kPieceElements}, DType::kFloat32),
        came(device, own.shape(), own.dtype());
    device.fill(own, r);
    if (by_device && r == 0) device.allow(1);
    if (!by_device && r == n - 1) std::this_thread::sleep_for(std::chrono::milliseconds(4000));
    Exchange ring;
    ring.kind = Exchange::Kind::kNeighbours;
    ring.send_to = {(r + 1) % n};
    ring.receive_from = {(r + n - 1) % n};
    const Ticket ticket = t->start_exchange(ring, own, {came}, {8, 4, 7});
    const auto begin = std::chrono::steady_clock::now();
    const std::string text = test::error_text([&] { t->wait(ticket); });
    CAPTURE(text);
    if (r == 0) {
      CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
      for (const char* part : {"rank 0 waited 1 s", "step 8, bucket 4, round 7"})
        CHECK(text.find(part) != std::string::npos);
      CHECK((text.find("(the device has copied 1048576 of 2097152 bytes)") != std::string::npos) ==
            by_device);
      if (!by_device)
        CHECK(text.find("missing: rank " + std::to_string(n - 1)) != std::string::npos);
      device.let_go();
      std::this_thread::sleep_for(std::chrono::milliseconds(by_device ? 1000 : 5000));
    } else {
      CHECK(text.empty());
    }
  }
}
