// A device that runs batches of calls: a GPU, the CPU, or nothing at all. The server above knows no more
// of it than this.
//
// How a GPU fits behind it: OpenSlot gives a stream with its scratch. Run enqueues the copies in, one
// launch over the problems of all items, the copies out and an event, and returns without waiting; one
// thread per device waits for the events in order and calls done. Several slots overlap the copies of one
// batch with the kernel of another. The device memory that Run takes from the device's pool has been
// counted by the caller, so that it fits but for fragmentation, which fails single items. A call that
// would hold the device for long is Run as several launches, whose times add up in kernel_ns.
#ifndef ATTEND_SERVER_DEVICE_DEVICE_H_
#define ATTEND_SERVER_DEVICE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/attention.h"
#include "kernels/call.h"

namespace attend::server {

struct DeviceInfo {
  std::string name;   // "cpu", "cuda:0", "null"
  std::string kind;   // "cpu", "cuda", "null"
  std::string model;  // "NVIDIA H200"; the CPU's instruction set
  std::string uuid;   // of a GPU; else empty
  int64_t memory_bytes = 0;
  int slots = 1;        // batches in flight at once
  int short_slots = 0;  // of short requests, which gather while so many are in flight; 0: as many as slots
  std::string memory_source = {};  // of a GPU: who tells total and free memory, and why not NVML
};

// What a call takes of a device.
struct CallCost {
  // Of its memory, at once, workspace included; a batch needs at most the sum of its calls'.
  int64_t device_bytes = 0;
  // About how long it holds the device, by its FLOPs and bytes: its cost in fair shares and in the choice of
  // a device, and what a hung launch is measured by. More than zero.
  absl::Duration time;
};

// Bytes of a device's memory; what is not known or does not exist is left out.
struct DeviceMemory {
  std::optional<int64_t> total = {};
  std::optional<int64_t> free = {};  // of the whole device, by its driver
  std::optional<int64_t> pool = {};  // taken at start for tensors and workspace
  std::optional<int64_t> used = {};  // of the pool
  std::optional<int64_t> peak = {};  // the most of it so far
  // The same three of what was taken at start, apart from the pool, for tensors ahead of their batch.
  std::optional<int64_t> staging = {};
  std::optional<int64_t> staging_used = {};
  std::optional<int64_t> staging_peak = {};
};

// Tensors of one request on their way to a device before its batch is formed: a gain of time alone, since
// they stay in host memory as well. What cannot be copied ahead is copied by the batch. Thread-safe.
// Destroyed at any time, on any thread: the device's memory is free again once the copies have passed, for
// which the destructor waits only where a copy has failed. The host memory may be used anew at once, because
// what a copy then carries nobody reads.
class Staging {
 public:
  virtual ~Staging() = default;
  // A whole tensor is in place, among the bytes that were staged: its copy begins. Does not wait.
  virtual void CopyIn(std::span<const std::byte> tensor) = 0;
};

// One call of a batch, its tensors in host memory. The pointees outlive the batch.
struct BatchItem {
  const Call* call = nullptr;
  const CallTensors* tensors = nullptr;
  // Its kernels go before those of others, where the device can order them. The same in all of a batch.
  bool short_request = false;
  Staging* staging = nullptr;  // by this device, every tensor said; null: nothing was copied ahead
};

struct ItemResult {
  absl::Status status;  // a fault of this item alone (out of memory) leaves the others right
  WorkCount work;
  int64_t saved_bytes = 0;  // what NAIVE would have carried more than this kernel, by the same count
};

struct BatchResult {
  std::vector<ItemResult> items;  // in the order of the batch, one each
  int64_t copy_in_ns = 0;  // until all inputs were there: of what was copied ahead, what was left to wait for
  int64_t kernel_ns = 0;   // the launch's, shared by all items
  int64_t copy_out_ns = 0;
  int64_t copying_in_ns = 0;  // of the copies in themselves, those ahead of the batch included
  int64_t copy_in_bytes = 0;  // by them, between host and device; 0 where there is one memory
  int64_t copy_out_bytes = 0;
};

// Room for one batch in flight: on a GPU, a stream with its scratch. Run may be called again once done
// has been called. Destroyed when idle.
class DeviceSlot {
 public:
  using Done = std::function<void(BatchResult)>;
  virtual ~DeviceSlot() = default;
  // Runs the calls, which share dtype, head_dims and resolved kernel, and calls done exactly once, on
  // any thread, possibly before Run returns, when every out, lse and weights is in host memory and
  // neither batch nor tensors are touched any more. The span lives until then. Does not block for long:
  // the caller may be a thread that serves requests.
  virtual void Run(std::span<const BatchItem> batch, Done done) = 0;
};

// Thread-safe.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  // InvalidArgument that says what is supported, where this device can never run the call. A pure function.
  virtual absl::StatusOr<CallCost> Measure(const Call& call) const = 0;
  // Most bytes that calls in flight may need together.
  virtual int64_t device_bytes_max() const = 0;
  virtual std::unique_ptr<DeviceSlot> OpenSlot() = 0;
  // Room to copy a request's tensors ahead of its batch, which lie in these bytes of host memory, 256-byte
  // aligned. Null where the device copies nothing ahead, has no room, or it would not be worth it. Does not
  // wait, and takes nothing from batches.
  virtual std::unique_ptr<Staging> Stage(std::span<const std::byte> /*inputs*/) { return nullptr; }
  // As it is now. Called when metrics are read.
  virtual DeviceMemory memory() const = 0;
  // OK, or the sticky fault that makes the device useless.
  virtual absl::Status Health() const = 0;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_DEVICE_DEVICE_H_
