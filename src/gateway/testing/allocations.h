// Counts the allocations of the test program that links it, and fails chosen ones: operator new,
// and aligned_alloc, which Asio uses for its operations.
#pragma once

#include <cstdint>

namespace sixfold::gateway {

int64_t LiveBytes();  // allocated and not freed, of all threads
int64_t PeakBytes();  // the most that LiveBytes has been since ResetPeak
void ResetPeak();

// From here on allocations of the calling thread may fail.
void MarkThread();
// Of those of marked threads that follow, the one after `skipped` others fails, once.
void FailAllocation(int64_t skipped);
// Ends that; whether one has failed.
bool StopFailing();

}  // namespace sixfold::gateway
