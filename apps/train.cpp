#include "apps/training/run.h"
#include "kernels/cpu/parallel.h"

int main(int argc, char** argv) {
  starling::cpu::wait_with_short_spins("starling-train", argv);
  return starling::train_main(argc, argv);
}
