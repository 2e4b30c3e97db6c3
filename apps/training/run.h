#pragma once

#include <functional>
#include <memory>

#include "apps/training/config/options.h"
#include "comm/mpi/session.h"
#include "comm/transport.h"
#include "core/error.h"

namespace starling {

/// starling-train's main().
int train_main(int argc, char** argv);

/// Runs another program that mpirun may have started on several ranks: an error that all have is
/// told by the lowest rank that it happened on, any other ends all. Returns the exit status.
int run_under_mpirun(const char* name, const std::function<int(MpiSession&)>& work);

/// Answers options that need neither other ranks nor a valid config. True if the program is done.
bool answer_question(const TrainOptions& options, bool first_rank);

/// Makes this rank's transport; called again if the config sets another timeout.
using MakeTransport = std::function<std::unique_ptr<Transport>(double timeout_seconds)>;
/// Does what starling-train does, as one of several ranks, which may be threads: leaves out what
/// concerns the process (signals, crash reports, flight records, MPI).
ExitCode run_ranks(const TrainOptions& options, const MakeTransport& make_transport);

}  // namespace starling
