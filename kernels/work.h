// Counts of what a kernel computes and carries: the lecture's arithmetic, kept apart from the kernels.
#ifndef ATTEND_KERNELS_WORK_H_
#define ATTEND_KERNELS_WORK_H_

#include "kernels/attention.h"

namespace attend {

// Rows of queries and columns of keys that a tile holds; a kernel's own choice, a function of the
// launch's dtype and head_dims alone.
struct TileShape {
  int32_t rows = 64;
  int32_t keys = 64;
};

// The work of a launch with FLASH (and ONLINE) walking tiles of this shape. NAIVE: the scores are
// written once, read for the maximum, read and written for exp, read for the sum, read and written by
// the division, read by the weighted sum. ONLINE: written once, read twice. FLASH: neither.
WorkCount CountWork(const Launch& launch, TileShape tile);

}  // namespace attend

#endif  // ATTEND_KERNELS_WORK_H_
