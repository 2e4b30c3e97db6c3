#pragma once

// For authors of data sets, collates, augmentations and samplers, with the random numbers that
// depend on seed and sample alone.

#include "apps/pictures/picture.h"
#include "apps/pictures/pixels.h"
#include "apps/trainer/data/augment.h"
#include "apps/trainer/data/collate.h"
#include "apps/trainer/data/dataset.h"
#include "apps/trainer/data/image_collate.h"
#include "apps/trainer/data/image_dataset.h"
#include "apps/trainer/data/sampler.h"
#include "core/config.h"
#include "core/error.h"
#include "core/random.h"
#include "core/registry.h"
