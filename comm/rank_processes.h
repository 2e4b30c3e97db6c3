#pragma once

#include <map>
#include <string>

namespace starling {

/// The processes of the other ranks of this host, by rank; those that watch them say so
/// (comm/mpi/watch.h).
void set_rank_processes(std::map<int, int> processes);
/// Text of what the kernel says of a rank's process, where it is on this host: "its process 4711 is
/// stopped, by SIGSTOP or a debugger"; empty where nobody knows. What is out of the ordinary is
/// noted for the flight record too. Any thread may ask.
std::string state_of_rank(int rank);

}  // namespace starling
