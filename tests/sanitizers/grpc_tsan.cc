// Tells ThreadSanitizer that what was done before an operation of gRPC was started comes before what follows
// its completion. The distribution's gRPC is not instrumented: between threads, its completion queues would
// order nothing. Programs built with the tsan preset link this file, whose definitions take the place of
// gRPC's and pass each call on.
#include <dlfcn.h>
#include <grpc/grpc.h>

#include <cstdio>
#include <cstdlib>

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}

namespace {

template <typename Function>
Function* Next(const char* name) {
  void* next = dlsym(RTLD_NEXT, name);
  if (next == nullptr) {
    std::fprintf(stderr, "grpc_tsan: no %s to pass on to\n", name);
    std::abort();
  }
  return reinterpret_cast<Function*>(next);
}

}  // namespace

extern "C" {

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t count, void* tag,
                                      void* reserved) {
  static auto* const next = Next<decltype(grpc_call_start_batch)>("grpc_call_start_batch");
  if (tag != nullptr) __tsan_release(tag);
  return next(call, ops, count, tag, reserved);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline, void* reserved) {
  static auto* const next = Next<decltype(grpc_completion_queue_next)>("grpc_completion_queue_next");
  const grpc_event event = next(queue, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE && event.tag != nullptr) __tsan_acquire(event.tag);
  return event;
}

int grpc_completion_queue_thread_local_cache_flush(grpc_completion_queue* queue, void** tag, int* ok) {
  static auto* const next = Next<decltype(grpc_completion_queue_thread_local_cache_flush)>(
      "grpc_completion_queue_thread_local_cache_flush");
  const int found = next(queue, tag, ok);
  if (found != 0 && *tag != nullptr) __tsan_acquire(*tag);
  return found;
}
}
