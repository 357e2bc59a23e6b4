// Watches the heap: replaces the global operator new of the program that links it.
#ifndef ATTEND_TESTS_SERVER_WIRE_ALLOCATION_METER_H_
#define ATTEND_TESTS_SERVER_WIRE_ALLOCATION_METER_H_

#include <cstddef>

namespace attend::server {

// The largest single allocation since it was last reset. For one thread.
void ResetLargestAllocation();
size_t LargestAllocation();

}  // namespace attend::server

#endif  // ATTEND_TESTS_SERVER_WIRE_ALLOCATION_METER_H_
