// The part of the CUDA driver's interface that the handler needs, and what only this driver does so. Names,
// layouts and numbers are those of cuda.h (CUDA 11.8 to 13).
#ifndef COCKTAIL_HANDLER_DRIVER_H
#define COCKTAIL_HANDLER_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#define CK_PLATFORM "CUDA"
#define CK_OLDEST "11.8"
#define CK_MAJOR(version) ((version) / 1000)
#define CK_MINOR(version) ((version) % 1000 / 10)
#define CK_DRIVER "CUDA driver"
#define CK_DRIVER_OF_VENDOR "NVIDIA's driver"
#define CK_LIBRARIES "libcuda.so.1"
#define CK_LIBRARY_VARIABLE "JAX_COCKTAIL_CUDA_DRIVER"
#define CK_NO_DEVICE "there is no NVIDIA GPU here, or CUDA_VISIBLE_DEVICES hides it"
#define CK_TOOL "nvidia-smi"
#define CK_REFUSERS "MPS, a partition, a debugger?"

namespace {

typedef int Device;
typedef uint64_t DevicePointer;
typedef struct ContextTag* Context;
typedef struct StreamTag* Stream;
typedef struct ModuleTag* Module;
typedef struct FunctionTag* Function;

enum : int {
  kDeviceMultiprocessors = 16,
  kDeviceMajor = 75,
  kDeviceMinor = 76,
  kDeviceCooperativeLaunch = 95,
  kDeviceSharedMemoryOptIn = 97,
  kFunctionDynamicSharedBytes = 8,
  kFunctionNonPortableCluster = 14,
  kLaunchCooperative = 2,
  kLaunchCluster = 4,
};
enum : unsigned { kHostPortable = 1, kHostDeviceMap = 2, kHostFlags = kHostPortable | kHostDeviceMap };

struct LaunchAttribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    int cooperative;
    unsigned cluster[3];
  } value;
};

struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned num_attributes;
};

}  // namespace

// Field, symbol, parameters. Old drivers may lack what stands under OPTIONAL.
#define CK_DRIVER_CALLS(REQUIRED, OPTIONAL)                                                               \
  REQUIRED(Init, "cuInit", (unsigned))                                                                    \
  REQUIRED(GetVersion, "cuDriverGetVersion", (int*))                                                      \
  REQUIRED(GetErrorName, "cuGetErrorName", (Result, const char**))                                        \
  REQUIRED(GetErrorString, "cuGetErrorString", (Result, const char**))                                    \
  REQUIRED(StreamGetCtx, "cuStreamGetCtx", (Stream, Context*))                                            \
  REQUIRED(StreamSynchronize, "cuStreamSynchronize", (Stream))                                            \
  REQUIRED(CtxGetCurrent, "cuCtxGetCurrent", (Context*))                                                  \
  REQUIRED(CtxPushCurrent, "cuCtxPushCurrent_v2", (Context))                                              \
  REQUIRED(CtxPopCurrent, "cuCtxPopCurrent_v2", (Context*))                                               \
  REQUIRED(CtxGetDevice, "cuCtxGetDevice", (Device*))                                                     \
  REQUIRED(DeviceGetAttribute, "cuDeviceGetAttribute", (int*, int, Device))                               \
  REQUIRED(ModuleLoadData, "cuModuleLoadData", (Module*, const void*))                                    \
  REQUIRED(ModuleUnload, "cuModuleUnload", (Module))                                                      \
  REQUIRED(ModuleGetFunction, "cuModuleGetFunction", (Function*, Module, const char*))                    \
  REQUIRED(FuncSetAttribute, "cuFuncSetAttribute", (Function, int, int))                                  \
  REQUIRED(MaxActiveBlocks, "cuOccupancyMaxActiveBlocksPerMultiprocessor", (int*, Function, int, size_t)) \
  REQUIRED(HostAlloc, "cuMemHostAlloc", (void**, size_t, unsigned))                                       \
  REQUIRED(HostFree, "cuMemFreeHost", (void*))                                                            \
  REQUIRED(HostGetDevicePointer, "cuMemHostGetDevicePointer_v2", (DevicePointer*, void*, unsigned))       \
  REQUIRED(MemsetD8Async, "cuMemsetD8Async", (DevicePointer, unsigned char, size_t, Stream))              \
  REQUIRED(LaunchKernelEx, "cuLaunchKernelEx", (const LaunchConfig*, Function, void**, void**))           \
  REQUIRED(ExchangeCaptureMode, "cuThreadExchangeStreamCaptureMode", (int*))                              \
  OPTIONAL(MaxActiveClusters, "cuOccupancyMaxActiveClusters", (int*, Function, const LaunchConfig*))      \
  OPTIONAL(CtxGetId, "cuCtxGetId", (Context, unsigned long long*))                                        \
  OPTIONAL(FuncGetParamInfo, "cuFuncGetParamInfo", (Function, size_t, size_t*, size_t*))

#include "handler_library.h"

namespace {

const unsigned kPortableCluster = 8;  // blocks that every device with clusters has room for
const int kFirstWithClusters = 9;     // the major compute capability

// The place of a stream, and whether it was made current.
struct Entered {
  Place place;
  bool pushed;
};

// Makes the context of a stream current, until `Leave`.
Outcome Enter(const Driver& driver, Stream stream, Entered* entered) {
  Context context = nullptr, before = nullptr;
  Outcome outcome = CK_CALL(StreamGetCtx, stream, &context);
  if (outcome.result != kSuccess) return outcome;
  unsigned long long identity = 0;
  if (driver.CtxGetId != nullptr) driver.CtxGetId(context, &identity);
  entered->place = {reinterpret_cast<uint64_t>(context), identity};
  driver.CtxGetCurrent(&before);
  if (before == context) return outcome;
  outcome = CK_CALL(CtxPushCurrent, context);
  entered->pushed = outcome.result == kSuccess;
  return outcome;
}

void Leave(const Driver& driver, const Entered& entered) {
  Context popped = nullptr;
  if (entered.pushed) driver.CtxPopCurrent(&popped);
}

// Says what the current device is.
Outcome Describe(const Driver& driver, DeviceFacts* facts) {
  Device device = 0;
  Outcome outcome = CK_CALL(CtxGetDevice, &device);
  int major = 0, minor = 0;
  const struct {
    int* value;
    int attribute;
  } wanted[] = {{&facts->units, kDeviceMultiprocessors},
                {&facts->shared_bytes, kDeviceSharedMemoryOptIn},
                {&facts->cooperative, kDeviceCooperativeLaunch},
                {&major, kDeviceMajor},
                {&minor, kDeviceMinor}};
  for (const auto& one : wanted) {
    if (outcome.result != kSuccess) return outcome;
    outcome = CK_CALL(DeviceGetAttribute, one.value, one.attribute, device);
  }
  facts->clusters = major >= kFirstWithClusters;
  // Since CUDA 12.1 a kernel may have more parameters (from Volta on).
  facts->parameter_limit = driver.version >= 12010 && major >= 7 ? 32764 : 4096;
  snprintf(facts->name, sizeof(facts->name), "sm_%d%d", major, minor);
  return outcome;
}

Outcome AllowShared(const Driver& driver, const Launch& launch) {
  return CK_CALL(FuncSetAttribute, launch.function, kFunctionDynamicSharedBytes, int(launch.shared_bytes));
}

// How many blocks can be on a multiprocessor at once.
Outcome CoResident(const Driver& driver, const Launch& launch, int* blocks) {
  Outcome outcome = AllowShared(driver, launch);
  if (outcome.result != kSuccess) return outcome;
  return CK_CALL(MaxActiveBlocks, blocks, launch.function, int(launch.threads), launch.shared_bytes);
}

// `attribute` has room for one.
LaunchConfig ConfigOf(const Launch& launch, Stream stream, LaunchAttribute* attribute) {
  *attribute = {};
  attribute->id = launch.cluster ? kLaunchCluster : kLaunchCooperative;
  if (launch.cluster) {
    for (int i = 0; i < 3; ++i) attribute->value.cluster[i] = i == 0 ? launch.grid : 1;
  } else {
    attribute->value.cooperative = 1;
  }
  unsigned attributes = launch.cluster || launch.cooperative;
  return {launch.grid, 1, 1, launch.threads, 1, 1, launch.shared_bytes, stream, attribute, attributes};
}

// Whether the device has room for all blocks as one cluster. Devices without clusters, old drivers and small
// slices of a device say no in ways of their own.
Outcome FitsCluster(const Driver& driver, const DeviceFacts& facts, const Launch& launch, bool* fits) {
  *fits = false;
  if (driver.MaxActiveClusters == nullptr || !facts.clusters) return {kSuccess, ""};
  Outcome outcome = AllowShared(driver, launch);
  if (outcome.result != kSuccess) return outcome;
  if (launch.grid > kPortableCluster &&
      driver.FuncSetAttribute(launch.function, kFunctionNonPortableCluster, 1) != kSuccess) {
    return outcome;
  }
  LaunchAttribute attribute;
  LaunchConfig config = ConfigOf(launch, nullptr, &attribute);
  int clusters = 0;
  *fits = driver.MaxActiveClusters(&clusters, launch.function, &config) == kSuccess && clusters > 0;
  return outcome;
}

// What a kernel takes, 0 if the driver cannot say.
size_t ParameterBytes(const Driver& driver, Function function) {
  size_t offset = 0, bytes = 0;
  bool known = driver.FuncGetParamInfo != nullptr &&
               driver.FuncGetParamInfo(function, 0, &offset, &bytes) == kSuccess;
  return known ? bytes : 0;
}

Outcome Start(const Driver& driver, const Launch& launch, Stream stream, void** parameters) {
  LaunchAttribute attribute;
  LaunchConfig config = ConfigOf(launch, stream, &attribute);
  return CK_CALL(LaunchKernelEx, &config, launch.function, parameters, nullptr);
}

}  // namespace

#endif  // COCKTAIL_HANDLER_DRIVER_H
