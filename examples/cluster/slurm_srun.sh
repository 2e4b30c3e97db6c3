#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=2 --cpus-per-task=8
#SBATCH --time=08:00:00 --requeue --open-mode=append
#SBATCH --signal=USR1@120
cd /shared/starling || exit
srun --mpi=pmix --cpus-per-task=8 build/bin/starling-train configs/cifar10_resnet18.json \
  --output /shared/runs/one --resume latest
status=$?
if [ $status = 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $status
