#include "comm/agreement.h"
#include "comm/zeromq/transport.h"

namespace starling {

std::shared_ptr<Membership> join_zeromq_job(const std::string&, const ZeroMqSettings&, double,
                                            const StatePieces&) {
  fail(ExitCode::kUsage, "join",
       "ranks join over ZeroMQ, which this build has not; install libzmq3-dev and build again");
}

std::unique_ptr<Transport> make_zeromq_transport(std::unique_ptr<Transport>, const ZeroMqSettings&,
                                                 double, std::shared_ptr<Membership>*) {
  fail_on_all_ranks(ExitCode::kUsage, "transport", {},
                    "sync.transport is zeromq, and this build has no ZeroMQ; install libzmq3-dev "
                    "and build again, or take sync.transport mpi");
}

}  // namespace starling
