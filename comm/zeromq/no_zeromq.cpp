#include "comm/agreement.h"
#include "comm/zeromq/transport.h"

namespace starling {

std::unique_ptr<Transport> make_zeromq_transport(std::unique_ptr<Transport>, const ZeroMqSettings&,
                                                 double) {
  fail_on_all_ranks(ExitCode::kUsage, "transport", {},
                    "sync.transport is zeromq, and this build has no ZeroMQ; install libzmq3-dev "
                    "and build again, or take sync.transport mpi");
}

}  // namespace starling
