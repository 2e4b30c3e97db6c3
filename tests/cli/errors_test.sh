#!/usr/bin/env bash
# What programs' main() makes of an error: exit status 2 and one line, told once by all ranks. What
# errors there are is tests/apps/refusals_test.cpp's.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
small_config
one_line() { [ "$(grep -c . .stderr)" = 1 ]; }
bench=$build/bin/starling-bench

check "an argument that is wrong" 2 "did you mean '--output'.*see starling-train --help" "$train" small.json --ouput x
verify "is told in one line" one_line
check "a config that is wrong" 2 "^\[config\] .*batchsize" "$train" small.json --dry-run --set batchsize=4
verify "is told in one line" one_line
check "on three ranks" 2 "one-peer-exp.*3.*base-2" ranks 3 "$train" small.json --dry-run --set sync.topology.type=one-peer-exp
verify "it is told once" bash -c '[ "$(grep -c "one-peer-exp" .stderr)" = 1 ]'
for n in 1 3; do # mpirun would add a dozen lines to a rank that ends by itself
  check "the cause of an end on $n ranks" 2 "batchsize: unknown key" ranks $n "$train" small.json --dry-run --set batchsize=4
  verify "is all that is there, under mpirun too" one_line
  check "before MPI is up" 2 "give --set optimizer.lr=0.1" ranks $n "$train" small.json --lr 0.1
  verify "as well" one_line
done
check "of another program" 2 "unknown topology" ranks 1 "$build/bin/starling-topo" show none -n 4
verify "as well" one_line
# mpirun answers 1 for a rank that ends while it still starts the others.
check "an argument on two ranks" "1|2" "modles" ranks 2 "$train" --list modles
verify "is told once" bash -c '[ "$(grep -c modles .stderr)" = 1 ]'
check "ranks that MPI does not bring together" 2 "^\[mpi\] 2 processes were started \(SLURM_STEP_NUM_TASKS\).*srun --mpi=pmix" env SLURM_STEP_NUM_TASKS=2 "$train" small.json --output apart
check "of another MPI" 2 "^\[mpi\] 3 processes were started \(PMI_SIZE\).*Open MPI's mpirun" env PMI_SIZE=3 PMI_RANK=0 "$train" small.json --output apart
check "each by itself, on purpose" 0 "1 rank on" env STARLING_ALONE=1 PMI_SIZE=3 PMI_RANK=2 "$train" small.json --output apart
check "a misspelt option of a benchmark" 2 "did you mean '--optimizer'.*see starling-bench exchange --help" "$bench" exchange --optimiser adamw
check "a benchmark that there is not" 2 "^starling-bench: \[arguments\] unknown subcommand 'exchang'; did you mean 'exchange'\?; known: " "$bench" exchang
check "no benchmark" 2 "^starling-bench: \[arguments\] .*see starling-bench --help" "$bench"
check "a benchmark's number out of range" 2 "^starling-bench: \[arguments\] --repeats: .*see starling-bench augment --help" "$bench" augment --repeats 0
check "a GPU whose ceilings nobody knows" 2 "^starling-bench: \[arguments\] --on: the ceilings of RTX 1 are not known; known: H200, H100; others are given by" "$bench" floor --on "RTX 1"
check "a benchmark's config that is not there" 2 "^starling-bench: \[.*none\.json" "$bench" floor none.json
verify "in one line" one_line
finish
