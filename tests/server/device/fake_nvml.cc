// A libnvidia-ml.so.1 that knows one GPU, or fails where FAKE_NVML_FAILS says; with FAKE_NVML_OLD it knows no
// UUIDs.
#include <cstdlib>
#include <cstring>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kUnknownError = 999;

bool Fails(const char* call) {
  const char* const fails = getenv("FAKE_NVML_FAILS");
  return fails != nullptr && strcmp(fails, call) == 0;
}

int device;

}  // namespace

struct Memory {
  unsigned long long total, free, used;
};

EXPORTED int fake_nvml_users;
int fake_nvml_users = 0;

EXPORTED int nvmlInit_v2() {
  if (Fails("init")) return kUnknownError;
  ++fake_nvml_users;
  return 0;
}

EXPORTED int nvmlShutdown() {
  --fake_nvml_users;
  return 0;
}

#ifndef FAKE_NVML_OLD
EXPORTED int nvmlDeviceGetHandleByUUID(const char* uuid, void** handle) {
  if (Fails("handle") || strcmp(uuid, "GPU-fake") != 0) return kUnknownError;
  *handle = &device;
  return 0;
}
#endif

EXPORTED int nvmlDeviceGetMemoryInfo(void* handle, Memory* memory) {
  if (Fails("memory") || handle != &device) return kUnknownError;
  *memory = {129ULL << 20, 5ULL << 20, 124ULL << 20};
  return 0;
}
