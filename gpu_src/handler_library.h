// A driver's library, opened at first use, and what both vendors' drivers have in common. Building this takes
// no part of CUDA or ROCm, and loading it takes no GPU. A vendor's handler_driver.h includes it below its
// table of entry points, CK_DRIVER_CALLS, and its words. Then it says how that driver does what differs:
// Enter, Leave, Describe, CoResident, FitsCluster, ParameterBytes and Start.
#ifndef COCKTAIL_HANDLER_LIBRARY_H
#define COCKTAIL_HANDLER_LIBRARY_H

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace {

typedef int Result;

// HIP gives its errors the numbers that CUDA's driver has for them. Some are of CUDA alone.
enum : Result {
  kSuccess = 0,
  kOutOfMemory = 2,
  kStubLibrary = 34,
  kNoDevice = 100,
  kInvalidImage = 200,
  kNoBinaryForGpu = 209,
  kInvalidPtx = 218,  // an invalid kernel file, to HIP
  kJitCompilerNotFound = 221,
  kUnsupportedPtxVersion = 222,
  kJitCompilationDisabled = 223,
  kInvalidSource = 300,
  kSharedObjectInitFailed = 303,  // what HIP says of a code object that it cannot use
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
const int kCaptureRelaxed = 2;

// A call of the driver: what it returned, and its symbol.
struct Outcome {
  Result result;
  const char* symbol;
};
#define CK_CALL(field, ...) (Outcome{driver.field(__VA_ARGS__), kSymbols.field})

// Where programs are loaded to: a context of CUDA and its identity, as contexts may come back at the same
// address; or a device of HIP.
struct Place {
  uint64_t where, identity;
};

// What the device of a stream is. `name`: for people.
struct DeviceFacts {
  int units, shared_bytes, cooperative;
  bool clusters;
  size_t parameter_limit;  // bytes of a kernel's parameters
  char name[128];
};

// How a kernel is launched. `cluster`: all blocks are one.
struct Launch {
  Function function;
  unsigned grid, threads, shared_bytes;
  bool cooperative, cluster;
};

#define CK_FIELD(field, symbol, parameters) Result(*field) parameters;
#define CK_NAME(field, symbol, parameters) const char* field;
#define CK_SYMBOL(field, symbol, parameters) symbol,
const struct {
  CK_DRIVER_CALLS(CK_NAME, CK_NAME)
} kSymbols = {CK_DRIVER_CALLS(CK_SYMBOL, CK_SYMBOL)};

// `problem`: why there is no driver to use, "" if there is one.
struct Driver {
  char problem[768];
  int version;
  CK_DRIVER_CALLS(CK_FIELD, CK_FIELD)
};
#undef CK_FIELD
#undef CK_NAME
#undef CK_SYMBOL

Driver the_driver;
pthread_once_t driver_once = PTHREAD_ONCE_INIT;

// The library that this process has loaded already, under any of its names, else the first one that is there:
// a second release of HIP beside XLA's would not know its streams.
void* OpenLibrary(const char** path) {
  const char* const names[] = {CK_LIBRARIES};
  const char* chosen = getenv(CK_LIBRARY_VARIABLE);
  *path = chosen && *chosen ? chosen : names[0];
  if (*path == chosen) return dlopen(chosen, RTLD_NOW | RTLD_LOCAL);
  for (int loaded = RTLD_NOLOAD;; loaded = 0) {
    for (const char* name : names) {
      void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL | loaded);
      if (library == nullptr) continue;
      *path = name;
      return library;
    }
    if (loaded == 0) return nullptr;
  }
}

void OpenDriver() {
  Driver& driver = the_driver;
  const char* path = nullptr;
  void* library = OpenLibrary(&path);
  if (library == nullptr) {
    const char* reason = dlerror();
    snprintf(driver.problem, sizeof(driver.problem),
             "the " CK_DRIVER " cannot be loaded (%.400s): install " CK_DRIVER_OF_VENDOR
             ", or name its library in " CK_LIBRARY_VARIABLE,
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
  if (driver.GetVersion != nullptr) driver.GetVersion(&driver.version);
  if (missing != nullptr) {
    snprintf(driver.problem, sizeof(driver.problem),
             "the " CK_DRIVER " %.300s is too old (" CK_PLATFORM " %d.%d, without %s): " CK_PLATFORM
             " " CK_OLDEST " or newer is needed; update " CK_DRIVER_OF_VENDOR,
             path, CK_MAJOR(driver.version), CK_MINOR(driver.version), missing);
    return;
  }
  Result result = driver.Init(0);
  if (result == kSuccess) return;
  const char* name = nullptr;
  driver.GetErrorName(result, &name);
  snprintf(driver.problem, sizeof(driver.problem), "the " CK_DRIVER " does not start: %s: %s: %s",
           kSymbols.Init, name ? name : "unknown error",
           result == kNoDevice ? CK_NO_DEVICE : "see whether " CK_TOOL " works");
}

// The driver, opened once per process.
const Driver& TheDriver() {
  pthread_once(&driver_once, OpenDriver);
  return the_driver;
}

}  // namespace

#endif  // COCKTAIL_HANDLER_LIBRARY_H
