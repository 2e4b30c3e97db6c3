#pragma once

// Arithmetic that the CPU and a GPU share is written once, as functions marked STARLING_HD. They
// must be inlined always: the CPU's kernels are compiled for several instruction sets in one
// program, and an out-of-line copy of an inline function could be taken by the linker from the file
// compiled for AVX-512 and then run on an older machine.
#if defined(__CUDACC__)
#define STARLING_HD __host__ __device__ __forceinline__
#else
#define STARLING_HD [[gnu::always_inline]] inline
#endif
