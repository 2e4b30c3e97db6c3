#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=2 --cpus-per-task=8
#SBATCH --time=08:00:00 --requeue --open-mode=append
#SBATCH --signal=B:USR1@120
cd /shared/starling || exit
exec scripts/launch.sh --requeue --restarts 3 build/bin/starling-train \
  configs/cifar10_resnet18.json --output /shared/runs/one --resume latest
