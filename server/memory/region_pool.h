// The pool that the server uses: best fit with coalescing inside one region.
//
// Every size is rounded up to 256 bytes. A block comes from the smallest free range that holds it (the
// lowest address among equals): small ones from the range's low end, large ones (a 64th of the region or
// more) from its high end, so that long-lived small blocks do not cut up what large ones need. Both
// operations are O(log n) in the free ranges. Nothing waits here: a caller that gets nothing is refused,
// and fairness is the scheduler's.
//
// Memory that was touched and is free stays resident up to resident_bytes_max, since touching it anew
// costs more than the copy into it; what is above is given back, in whole chunks of 2 MiB, as blocks are
// freed. Resident memory therefore never exceeds max(resident_bytes_max, blocks in use) by more than two
// chunks a block.
#ifndef ATTEND_SERVER_MEMORY_REGION_POOL_H_
#define ATTEND_SERVER_MEMORY_REGION_POOL_H_

#include <cstdint>
#include <limits>
#include <memory>

#include "server/memory/host_pool.h"
#include "server/memory/host_region.h"

namespace attend::server {

struct RegionPoolOptions {
  int64_t resident_bytes_max = std::numeric_limits<int64_t>::max();  // default: gives nothing back
};

std::unique_ptr<HostPool> CreateRegionPool(std::unique_ptr<HostRegion> region,
                                           const RegionPoolOptions& options = {});

}  // namespace attend::server

#endif  // ATTEND_SERVER_MEMORY_REGION_POOL_H_
