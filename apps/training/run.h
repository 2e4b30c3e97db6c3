#pragma once

#include <functional>
#include <memory>

#include "apps/training/config/options.h"
#include "comm/transport.h"
#include "core/error.h"

namespace starling {

/// The whole of starling-train: arguments to exit status.
int train_main(int argc, char** argv);

/// Answers, on the first rank, what needs neither ranks nor a valid config. True if that was all
/// that was asked for.
bool answer_question(const TrainOptions& options, bool first_rank);

/// Gives this rank its end of the world that trains; called again where the config wants another
/// limit on waits.
using MakeTransport = std::function<std::unique_ptr<Transport>(double timeout_seconds)>;
/// All that starling-train does between its arguments and its exit status, as one of several ranks,
/// which may be threads: nothing here is of the process (signals, crashes, flight records, MPI).
ExitCode run_ranks(const TrainOptions& options, const MakeTransport& make_transport);

}  // namespace starling
