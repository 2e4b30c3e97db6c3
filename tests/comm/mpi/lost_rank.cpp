// A job in which one rank fails: `lost_rank throw` (rank 1 ends the job with status 2 while the
// others wait), `lost_rank all` (all ranks fail at once), `lost_rank stop` (rank 1 stops; the
// others' waits pass their limit of one second). The ctest entry checks status, text and time.
#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include "comm/mpi/session.h"

int main(int argc, char** argv) {
  using namespace starling;
  const std::string what = argc > 1 ? argv[1] : "";
  MpiSession session;
  try {
    const auto transport = session.make_transport(what == "stop" ? 1.0 : 60.0);
    transport->world().barrier();
    if (what == "all") fail(ExitCode::kUsage, "config", "every rank sees this");
    if (session.rank() == 1) {
      if (what == "stop") std::this_thread::sleep_for(std::chrono::seconds(30));
      fail(ExitCode::kUsage, "config", "rank 1 sees this");
    }
    std::signal(SIGTERM, SIG_IGN);  // as a program does that saves a checkpoint on SIGTERM
    transport->world().barrier();
  } catch (const Error& error) {
    session.abort(error.code(), error.what());
  }
  return 0;
}
