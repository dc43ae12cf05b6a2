// The part of the CUDA driver's interface that the handler needs, reached by dlopen: building it takes no
// CUDA, and loading it takes no GPU. Names, layouts and numbers are those of cuda.h (CUDA 11.8 to 13).
#ifndef COCKTAIL_HANDLER_DRIVER_H
#define COCKTAIL_HANDLER_DRIVER_H

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

namespace {

typedef int Result;
typedef int Device;
typedef uint64_t DevicePointer;
typedef struct ContextTag* Context;
typedef struct StreamTag* Stream;
typedef struct ModuleTag* Module;
typedef struct FunctionTag* Function;

enum : Result {
  kSuccess = 0,
  kOutOfMemory = 2,
  kStubLibrary = 34,
  kNoDevice = 100,
  kInvalidImage = 200,
  kNoBinaryForGpu = 209,
  kInvalidPtx = 218,
  kJitCompilerNotFound = 221,
  kUnsupportedPtxVersion = 222,
  kJitCompilationDisabled = 223,
  kInvalidSource = 300,
  kNotFound = 500,
  kIllegalAddress = 700,
  kLaunchOutOfResources = 701,
  kLaunchTimeout = 702,
  kAssert = 710,
  kHardwareStackError = 714,
  kIllegalInstruction = 715,
  kMisalignedAddress = 716,
  kInvalidAddressSpace = 717,
  kInvalidPc = 718,
  kLaunchFailed = 719,
  kCooperativeLaunchTooLarge = 720,
  kNotSupported = 801,
  kSystemNotReady = 802,
  kSystemDriverMismatch = 803,
  kCompatNotSupportedOnDevice = 804,
  kStreamCaptureUnsupported = 900,
  kStreamCaptureWrongThread = 908,
};

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
  kCaptureRelaxed = 2,
};
enum : unsigned { kHostPortable = 1, kHostDeviceMap = 2 };

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

// Field, symbol, parameters. Old drivers may lack what stands under OPTIONAL.
#define CK_DRIVER_CALLS(REQUIRED, OPTIONAL)                                                               \
  REQUIRED(Init, "cuInit", (unsigned))                                                                    \
  REQUIRED(DriverGetVersion, "cuDriverGetVersion", (int*))                                                \
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
  REQUIRED(MemHostAlloc, "cuMemHostAlloc", (void**, size_t, unsigned))                                    \
  REQUIRED(MemFreeHost, "cuMemFreeHost", (void*))                                                         \
  REQUIRED(MemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2", (DevicePointer*, void*, unsigned))    \
  REQUIRED(MemsetD8Async, "cuMemsetD8Async", (DevicePointer, unsigned char, size_t, Stream))              \
  REQUIRED(LaunchKernelEx, "cuLaunchKernelEx", (const LaunchConfig*, Function, void**, void**))           \
  REQUIRED(ExchangeCaptureMode, "cuThreadExchangeStreamCaptureMode", (int*))                              \
  OPTIONAL(MaxActiveClusters, "cuOccupancyMaxActiveClusters", (int*, Function, const LaunchConfig*))      \
  OPTIONAL(CtxGetId, "cuCtxGetId", (Context, unsigned long long*))                                        \
  OPTIONAL(FuncGetParamInfo, "cuFuncGetParamInfo", (Function, size_t, size_t*, size_t*))

// `problem`: why there is no driver to use, "" if there is one.
struct Driver {
  char problem[768];
  int version;
#define CK_FIELD(field, symbol, parameters) Result(*field) parameters;
  CK_DRIVER_CALLS(CK_FIELD, CK_FIELD)
#undef CK_FIELD
};

Driver the_driver;
pthread_once_t driver_once = PTHREAD_ONCE_INIT;

void OpenDriver() {
  Driver& driver = the_driver;
  const char* chosen = getenv("JAX_COCKTAIL_CUDA_DRIVER");
  const char* path = chosen && *chosen ? chosen : "libcuda.so.1";
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    snprintf(driver.problem, sizeof(driver.problem),
             "the CUDA driver cannot be loaded (%.400s): install NVIDIA's driver, or name its library in "
             "JAX_COCKTAIL_CUDA_DRIVER",
             reason ? reason : path);
    return;
  }
  const char* missing = nullptr;
#define CK_FIND(field, symbol, parameters) \
  driver.field = reinterpret_cast<Result(*) parameters>(dlsym(library, symbol));
#define CK_NEED(field, symbol, parameters)  \
  CK_FIND(field, symbol, parameters)        \
  if (driver.field == nullptr) missing = symbol;
  CK_DRIVER_CALLS(CK_NEED, CK_FIND)
#undef CK_NEED
#undef CK_FIND
  if (driver.DriverGetVersion != nullptr) driver.DriverGetVersion(&driver.version);
  if (missing != nullptr) {
    snprintf(driver.problem, sizeof(driver.problem),
             "the CUDA driver %.300s is too old (CUDA %d.%d, without %s): CUDA 11.8 or newer is needed; "
             "update NVIDIA's driver",
             path, driver.version / 1000, driver.version % 1000 / 10, missing);
    return;
  }
  Result result = driver.Init(0);
  if (result == kSuccess) return;
  const char* name = nullptr;
  driver.GetErrorName(result, &name);
  snprintf(driver.problem, sizeof(driver.problem),
           "the CUDA driver does not start: cuInit: %s: %s", name ? name : "unknown error",
           result == kNoDevice ? "there is no NVIDIA GPU here, or CUDA_VISIBLE_DEVICES hides it"
                               : "see whether nvidia-smi works");
}

// The driver, opened once per process.
const Driver& TheDriver() {
  pthread_once(&driver_once, OpenDriver);
  return the_driver;
}

}  // namespace

#endif  // COCKTAIL_HANDLER_DRIVER_H
