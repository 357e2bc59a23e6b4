#include "tests/server/wire/allocation_meter.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace {
size_t largest = 0;
}  // namespace

void* operator new(size_t size) {
  largest = std::max(largest, size);
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace attend::server {

void ResetLargestAllocation() { largest = 0; }
size_t LargestAllocation() { return largest; }

}  // namespace attend::server
