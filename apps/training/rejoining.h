#pragma once

#include <string>

#include "apps/training/config/options.h"

// Ranks of a run that others may join (`elastic.join`) which come back by themselves: each is a
// child of a process that starts it again, as a joiner, where it dies. Whatever started that
// process (mpirun, srun, a shell) sees none of it.

namespace starling {

/// Where the config has `elastic.join`: continues in a child process. This one passes signals on to
/// it, starts another where it is lost, `elastic.rejoin` times at most, and ends as the last one
/// does; it never returns. A child that joins gets the options for that. To be called before any
/// thread is started.
void train_in_child(TrainOptions& options);
/// From now on this process, if it is such a child, comes back where it is lost, and joins the run
/// in this folder. Empty: it ends for good, however it ends.
void come_back_to(const std::string& folder);

}  // namespace starling
