#pragma once

namespace starling {

/// Has Open MPI 4's mpirun end the job with this exit status, as MPI_Abort() does, but without a
/// word of mpirun's own: after a process that ends with an error by itself, mpirun prints a dozen
/// lines, which hide the cause. Needs no MPI. Returns false where another launcher, or none,
/// started this process. The signal that mpirun then sends may end this process first.
bool end_mpirun(int status);

/// For the end of a program that MPI is not up in any more: its exit status, whose cause stands
/// last on a terminal under mpirun, too. `told`: whether this rank has told the cause; the others
/// wait until mpirun ends them.
int last_word(int status, bool told);

}  // namespace starling
