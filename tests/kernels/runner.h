// How the kernel cases reach a device. Each test program that links the cases defines MakeRunner().
#ifndef ATTEND_TESTS_KERNELS_RUNNER_H_
#define ATTEND_TESTS_KERNELS_RUNNER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "kernels/attention.h"

namespace attend::test {

// Host memory that a launch's problems point into.
struct Region {
  struct Span {
    int64_t offset, bytes;
  };
  void* data = nullptr;  // 256-byte aligned
  int64_t bytes = 0;
  bool output = false;  // else input
  // The parts that matter; empty: all of it. A device of its own memory copies these alone, and has zeros in
  // the rest of an input.
  std::vector<Span> touched = {};
};

class Runner {
 public:
  virtual ~Runner() = default;
  // Why this device cannot run here ("no GPU"), which skips the tests; empty where it can.
  virtual std::string Unavailable() const { return ""; }
  // Whether memory and speed allow tensors of full size in cases about size (tens of gigabytes).
  virtual bool large() const { return false; }
  // Bytes of regions, most of them never touched, that a launch may have.
  virtual int64_t sparse_bytes_max() const { return int64_t{1} << 40; }
  // Runs a launch whose pointers are host pointers into the regions, and waits. A device of its own
  // memory copies every region there (outputs too: they hold poison), runs Remap()ped problems and
  // copies the output regions back.
  virtual absl::Status Run(const Launch& launch, std::span<const Region> regions) = 0;
};

std::unique_ptr<Runner> MakeRunner();

// The problem with each non-null pointer p replaced by map(p), map: const void* -> void*.
template <typename Map>
Problem Remap(Problem p, const Map& map) {
  const auto move = [&map](auto*& pointer) {
    using T = std::remove_reference_t<decltype(pointer)>;
    if (pointer != nullptr) pointer = static_cast<T>(map(static_cast<const void*>(pointer)));
  };
  move(p.q);
  move(p.k);
  move(p.v);
  move(p.out);
  move(p.pages.table);
  move(p.lse);
  move(p.bias);
  move(p.mask);
  move(p.alibi_slopes);
  move(p.sinks);
  move(p.weights);
  move(p.weight_rows);
  return p;
}

}  // namespace attend::test

#endif  // ATTEND_TESTS_KERNELS_RUNNER_H_
