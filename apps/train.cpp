#include "apps/trainer/run.h"

int main(int argc, char** argv) { return starling::train_main(argc, argv); }
