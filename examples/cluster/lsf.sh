#!/bin/bash
#BSUB -n 8 -R "span[ptile=2]" -W 8:00
#BSUB -wa USR1 -wt 2 -Q 75 -r
#BSUB -o one.log
cd "$LS_SUBCWD" || exit
exec scripts/launch.sh build/bin/starling-train configs/cifar10_resnet18.json \
  --output /shared/runs/one --resume latest
