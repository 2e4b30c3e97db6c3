#!/bin/bash
#PBS -l select=4:ncpus=8:mpiprocs=2 -l walltime=08:00:00
#PBS -r y -j oe
cd "$PBS_O_WORKDIR" || exit
exec scripts/launch.sh build/bin/starling-train configs/cifar10_resnet18.json \
  --output /shared/runs/one --resume latest
