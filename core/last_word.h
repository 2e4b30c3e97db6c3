#pragma once

namespace starling {

/// Makes Open MPI 4's mpirun end the job with this exit status, like MPI_Abort() but without
/// mpirun's message: if a process just exits with an error, mpirun prints a dozen lines that hide
/// the cause. Does not need MPI. Returns false under another launcher or none. mpirun's signal may
/// end this process before it returns.
bool end_mpirun(int status);

/// To be called at the end of main(), after MPI_Finalize. Returns the exit status, and makes sure
/// that under mpirun the cause of an error is the last line on the terminal. `told`: whether this
/// rank has printed the cause; other ranks wait until mpirun ends them.
int last_word(int status, bool told);

}  // namespace starling
