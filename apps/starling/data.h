#pragma once

// For authors of data sets, collates, augmentations and samplers, with the random numbers that
// depend on seed and sample alone.

#include "apps/data/augment.h"
#include "apps/data/collate.h"
#include "apps/data/dataset.h"
#include "apps/data/image_collate.h"
#include "apps/data/image_dataset.h"
#include "apps/data/sampler.h"
#include "apps/pictures/picture.h"
#include "apps/pictures/pixels.h"
#include "core/config.h"
#include "core/error.h"
#include "core/random.h"
#include "core/registry.h"
