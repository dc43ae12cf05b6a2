// The part of HIP's interface that the handler needs, and what only HIP does so. Names, layouts and numbers
// are those of hip_runtime_api.h. They are the same in ROCm 5.2 and 7: between the two, the enumerations that
// are used here were only appended to.
//
// HIP has no contexts: a stream belongs to a device, which must be the current one of the thread that
// launches. A block may use all shared memory of a compute unit without asking for it first. HIP 6.2 starts a
// cooperative launch at once while a stream is captured, so lowering keeps such programs out of command
// buffers.
#ifndef COCKTAIL_HANDLER_DRIVER_H
#define COCKTAIL_HANDLER_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#define CK_PLATFORM "HIP"
#define CK_OLDEST "6.0"
#define CK_MAJOR(version) ((version) / 10000000)
#define CK_MINOR(version) ((version) / 100000 % 100)
#define CK_DRIVER "HIP runtime"
#define CK_DRIVER_OF_VENDOR "AMD's ROCm"
#define CK_LIBRARIES "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"
#define CK_LIBRARY_VARIABLE "JAX_COCKTAIL_HIP_LIBRARY"
#define CK_NO_DEVICE "there is no AMD GPU here, or HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES hides it"
#define CK_TOOL "rocm-smi"
#define CK_REFUSERS "a partition, a mask of compute units, a debugger?"

namespace {

typedef int Device;
typedef uint64_t DevicePointer;  // void* in the header
typedef struct StreamTag* Stream;
typedef struct ModuleTag* Module;
typedef struct FunctionTag* Function;

enum : int {
  kDeviceCooperativeLaunch = 10,
  kDeviceMultiprocessors = 63,
  kDeviceSharedMemory = 74,
};
// Coherent: the host reads the error word while kernels run.
enum : unsigned { kHostPortable = 1, kHostDeviceMap = 2, kHostCoherent = 1 << 30 };
const unsigned kHostFlags = kHostPortable | kHostDeviceMap | kHostCoherent;

}  // namespace

// Field, symbol, parameters: function, grid, block, shared bytes, stream, parameters of a launch.
#define CK_THREE unsigned, unsigned, unsigned
#define CK_LAUNCH Function, CK_THREE, CK_THREE, unsigned, Stream, void**
#define CK_DRIVER_CALLS(REQUIRED, OPTIONAL)                                                               \
  REQUIRED(Init, "hipInit", (unsigned))                                                                   \
  REQUIRED(GetVersion, "hipRuntimeGetVersion", (int*))                                                    \
  REQUIRED(GetErrorName, "hipDrvGetErrorName", (Result, const char**))                                    \
  REQUIRED(GetErrorString, "hipDrvGetErrorString", (Result, const char**))                                \
  REQUIRED(StreamGetDevice, "hipStreamGetDevice", (Stream, Device*))                                      \
  REQUIRED(StreamSynchronize, "hipStreamSynchronize", (Stream))                                           \
  REQUIRED(GetDevice, "hipGetDevice", (Device*))                                                          \
  REQUIRED(SetDevice, "hipSetDevice", (Device))                                                           \
  REQUIRED(DeviceGetName, "hipDeviceGetName", (char*, int, Device))                                       \
  REQUIRED(DeviceGetAttribute, "hipDeviceGetAttribute", (int*, int, Device))                              \
  REQUIRED(ModuleLoadData, "hipModuleLoadData", (Module*, const void*))                                   \
  REQUIRED(ModuleUnload, "hipModuleUnload", (Module))                                                     \
  REQUIRED(ModuleGetFunction, "hipModuleGetFunction", (Function*, Module, const char*))                   \
  REQUIRED(MaxActiveBlocks, "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor",                         \
           (int*, Function, int, size_t))                                                                 \
  REQUIRED(HostAlloc, "hipHostMalloc", (void**, size_t, unsigned))                                        \
  REQUIRED(HostFree, "hipHostFree", (void*))                                                              \
  REQUIRED(HostGetDevicePointer, "hipHostGetDevicePointer", (DevicePointer*, void*, unsigned))            \
  REQUIRED(MemsetD8Async, "hipMemsetD8Async", (DevicePointer, unsigned char, size_t, Stream))             \
  REQUIRED(LaunchKernel, "hipModuleLaunchKernel", (CK_LAUNCH, void**))                                    \
  REQUIRED(LaunchCooperative, "hipModuleLaunchCooperativeKernel", (CK_LAUNCH))                            \
  REQUIRED(ExchangeCaptureMode, "hipThreadExchangeStreamCaptureMode", (int*))

#include "handler_library.h"

namespace {

// The place of a stream, and the device that was current before, if it is another one.
struct Entered {
  Place place;
  bool changed;
  Device before;
};

// Makes the device of a stream current, until `Leave`.
Outcome Enter(const Driver& driver, Stream stream, Entered* entered) {
  Device device = 0;
  Outcome outcome = CK_CALL(StreamGetDevice, stream, &device);
  if (outcome.result != kSuccess) return outcome;
  entered->place = {uint64_t(device), 0};
  outcome = CK_CALL(GetDevice, &entered->before);
  if (outcome.result != kSuccess || entered->before == device) return outcome;
  outcome = CK_CALL(SetDevice, device);
  entered->changed = outcome.result == kSuccess;
  return outcome;
}

void Leave(const Driver& driver, const Entered& entered) {
  if (entered.changed) driver.SetDevice(entered.before);
}

// Says what the current device is. HIP names no limit for the parameters of a kernel; this is the one that
// every release of CUDA has.
Outcome Describe(const Driver& driver, DeviceFacts* facts) {
  Device device = 0;
  Outcome outcome = CK_CALL(GetDevice, &device);
  const struct {
    int* value;
    int attribute;
  } wanted[] = {{&facts->units, kDeviceMultiprocessors},
                {&facts->shared_bytes, kDeviceSharedMemory},
                {&facts->cooperative, kDeviceCooperativeLaunch}};
  for (const auto& one : wanted) {
    if (outcome.result != kSuccess) return outcome;
    outcome = CK_CALL(DeviceGetAttribute, one.value, one.attribute, device);
  }
  if (outcome.result != kSuccess) return outcome;
  facts->clusters = false;
  facts->parameter_limit = 4096;
  return CK_CALL(DeviceGetName, facts->name, int(sizeof(facts->name)), device);
}

// How many blocks can be on a compute unit at once.
Outcome CoResident(const Driver& driver, const Launch& launch, int* blocks) {
  return CK_CALL(MaxActiveBlocks, blocks, launch.function, int(launch.threads), launch.shared_bytes);
}

// There are no clusters.
Outcome FitsCluster(const Driver&, const DeviceFacts& facts, const Launch&, bool* fits) {
  *fits = facts.clusters;
  return {kSuccess, ""};
}

// What a kernel takes: HIP does not say.
size_t ParameterBytes(const Driver&, Function) { return 0; }

Outcome Start(const Driver& driver, const Launch& launch, Stream stream, void** parameters) {
  const Function function = launch.function;
  const unsigned grid = launch.grid, threads = launch.threads, shared = launch.shared_bytes;
  if (launch.cooperative) {
    return CK_CALL(LaunchCooperative, function, grid, 1, 1, threads, 1, 1, shared, stream, parameters);
  }
  return CK_CALL(LaunchKernel, function, grid, 1, 1, threads, 1, 1, shared, stream, parameters, nullptr);
}

}  // namespace

#endif  // COCKTAIL_HANDLER_DRIVER_H
