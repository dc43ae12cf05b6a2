// Programs on GPUs: checked, loaded once per context, and the kernel and grid that fit the device chosen.
//
// A program has two kernels. `ck_resident` keeps what is a unit's own in its shared memory; if those are
// parts of the weights, it wants exactly the planned number of blocks. `ck_portable` runs with any number.
// Blocks that wait for each other must all be on the device at once: how many can be is asked of the driver.
// The blocks of `ck_resident` may be planned as one cluster, which is on the device at once by itself.
#ifndef COCKTAIL_HANDLER_PROGRAMS_H
#define COCKTAIL_HANDLER_PROGRAMS_H

#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "handler_driver.h"
#include "runtime_trust.h"
#include "xla/ffi/api/c_api.h"

namespace {

// The attribute `launch`, in its order; the launch parameters follow. Bytes; `cooperative`, `can_fail` and
// `cluster` are 0 or 1.
struct LaunchPlan {
  int64_t version, header_bytes, most_units, threads, resident_shared_bytes, portable_shared_bytes;
  int64_t workspace_bytes, cooperative, can_fail, resident_units, portable_units, cluster;
};
const size_t kPlanSize = sizeof(LaunchPlan) / sizeof(int64_t);
const int64_t kPlanVersion = 2;
const int64_t kPortableCluster = 8;  // blocks that every device with clusters has room for
const int kFirstWithClusters = 9;    // the major compute capability

// What a call is: its attributes.
struct Call {
  const char* name;  // not terminated
  int name_size;
  const char* digest;  // 64 hexadecimal digits
  const uint8_t* binary;
  size_t binary_size;
  LaunchPlan plan;
  Numbers launch;  // the plan, and behind it the launch parameters
  Signature signature;
  bool sync;
  bool log;  // tells when it begins and ends
  const XLA_FFI_ByteSpan* failures;  // a line for every code that the program leaves, or null
};

struct Problem {
  XLA_FFI_Error_Code code;
  char text[2048];
};

// Says what is wrong, and is false.
__attribute__((format(printf, 4, 5))) bool Refuse(const Call& call, Problem* problem,
                                                  XLA_FFI_Error_Code code, const char* format, ...) {
  int used = snprintf(problem->text, sizeof(problem->text),
                      "jax_cocktail: the program %.*s: ", call.name_size, call.name);
  va_list values;
  va_start(values, format);
  if (used > 0 && size_t(used) < sizeof(problem->text)) {
    vsnprintf(problem->text + used, sizeof(problem->text) - size_t(used), format, values);
  }
  va_end(values);
  problem->code = code;
  return false;
}

// ---- what the driver says, and what to do about it ------------------------------------------------------

const char* Advice(Result result) {
  switch (result) {
    case kOutOfMemory:
      return "the device or the pinned host memory is full; lower XLA_PYTHON_CLIENT_MEM_FRACTION, so that "
             "the driver has some left, or free arrays";
    case kStubLibrary:
    case kSystemNotReady:
    case kSystemDriverMismatch:
    case kCompatNotSupportedOnDevice:
      return "the driver's installation is at fault; see whether nvidia-smi works";
    case kNoDevice:
      return "there is no NVIDIA GPU here, or CUDA_VISIBLE_DEVICES hides it";
    case kInvalidImage:
    case kNoBinaryForGpu:
    case kInvalidPtx:
    case kJitCompilerNotFound:
    case kUnsupportedPtxVersion:
    case kJitCompilationDisabled:
    case kInvalidSource:
      return "the program was compiled for another GPU or a newer driver; compile it again on this machine, "
             "or update NVIDIA's driver";
    case kLaunchOutOfResources:
      return "the kernel wants more registers or shared memory than this device has; compile it again on "
             "this machine";
    case kIllegalAddress:
    case kLaunchTimeout:
    case kAssert:
    case kHardwareStackError:
    case kIllegalInstruction:
    case kMisalignedAddress:
    case kInvalidAddressSpace:
    case kInvalidPc:
    case kLaunchFailed:
      return "a kernel of this process failed, ours or another; start again with the option errors=\"sync\", "
             "which finds out whether it is ours";
    case kCooperativeLaunchTooLarge:
    case kNotSupported:
      return "the cooperative launch was refused: fewer blocks can be on the device at once than the driver "
             "said (MPS, a partition, a debugger?); use the option force=\"stock\" or another device";
    default:
      if (result >= kStreamCaptureUnsupported && result <= kStreamCaptureWrongThread) {
        return "not allowed while XLA captures a command buffer; XLA_FLAGS=--xla_gpu_enable_command_buffer= "
               "switches capturing off; please report this";
      }
      return "the option force=\"stock\" runs stock XLA";
  }
}

XLA_FFI_Error_Code CodeOf(Result result) {
  if (result == kOutOfMemory || result == kLaunchOutOfResources) return XLA_FFI_Error_Code_RESOURCE_EXHAUSTED;
  bool fatal = result >= kIllegalAddress && result <= kLaunchFailed && result != kLaunchTimeout;
  return fatal ? XLA_FFI_Error_Code_INTERNAL : XLA_FFI_Error_Code_FAILED_PRECONDITION;
}

bool Check(const Driver& driver, const Call& call, Result result, const char* what, Problem* problem) {
  if (result == kSuccess) return true;
  const char *name = nullptr, *text = nullptr;
  driver.GetErrorName(result, &name);
  driver.GetErrorString(result, &text);
  return Refuse(call, problem, CodeOf(result), "%s: %s (%d, %s): %s", what, name ? name : "unknown error",
                result, text ? text : "no description", Advice(result));
}

// ---- the kernel and the grid ----------------------------------------------------------------------------

// A program of a context. Never removed: a stream may hold it, and what it is found by keeps its meaning.
struct Program {
  char digest[64];
  Numbers launch;
  Signature signature;
  Context context;
  uint64_t context_id;  // contexts may come back at the same address
  Function function;
  unsigned grid, shared_bytes;
  bool cooperative, cluster;  // or all blocks are one cluster
  size_t parameter_bytes;  // what the kernel takes, 0 if the driver cannot say
  size_t parameter_limit;
  uint32_t* error_word;     // pinned host memory, or null
  DevicePointer error_address;
  Program* next;
};

struct DeviceFacts {
  int units, shared_bytes, cooperative, major, minor;
};

bool Ask(const Driver& driver, const Call& call, DeviceFacts* facts, Problem* problem) {
  Device device = 0;
  if (!Check(driver, call, driver.CtxGetDevice(&device), "cuCtxGetDevice", problem)) return false;
  const struct {
    int* value;
    int attribute;
  } wanted[] = {{&facts->units, kDeviceMultiprocessors},
                {&facts->shared_bytes, kDeviceSharedMemoryOptIn},
                {&facts->cooperative, kDeviceCooperativeLaunch},
                {&facts->major, kDeviceMajor},
                {&facts->minor, kDeviceMinor}};
  for (const auto& one : wanted) {
    Result result = driver.DeviceGetAttribute(one.value, one.attribute, device);
    if (!Check(driver, call, result, "cuDeviceGetAttribute", problem)) return false;
  }
  return true;
}

// How many blocks of a kernel can be on the device at once, 0 if not even one fits; -1: see `problem`.
int64_t CoResident(const Driver& driver, const Call& call, const DeviceFacts& facts, Function function,
                   int64_t shared_bytes, Problem* problem) {
  if (shared_bytes > facts.shared_bytes) return 0;
  Result result = driver.FuncSetAttribute(function, kFunctionDynamicSharedBytes, int(shared_bytes));
  if (!Check(driver, call, result, "cuFuncSetAttribute", problem)) return -1;
  int blocks = 0;
  result = driver.MaxActiveBlocks(&blocks, function, int(call.plan.threads), size_t(shared_bytes));
  if (!Check(driver, call, result, "cuOccupancyMaxActiveBlocksPerMultiprocessor", problem)) return -1;
  return int64_t(blocks) * facts.units;
}

// How a kernel is launched. `attribute` has room for one.
LaunchConfig ConfigOf(const LaunchPlan& plan, unsigned grid, unsigned shared_bytes, bool cooperative,
                      bool cluster, Stream stream, LaunchAttribute* attribute) {
  *attribute = {};
  attribute->id = cluster ? kLaunchCluster : kLaunchCooperative;
  if (cluster) {
    for (int i = 0; i < 3; ++i) attribute->value.cluster[i] = i == 0 ? grid : 1;
  } else {
    attribute->value.cooperative = 1;
  }
  return {grid, 1, 1, unsigned(plan.threads), 1, 1, shared_bytes, stream, attribute,
          cluster || cooperative ? 1u : 0u};
}

// All blocks, if the device has room for them as one cluster, else 0; -1: see `problem`. Devices without
// clusters, old drivers and small slices of a device say no in ways of their own.
int64_t InOneCluster(const Driver& driver, const Call& call, const DeviceFacts& facts, Function function,
                     int64_t shared_bytes, Problem* problem) {
  if (driver.MaxActiveClusters == nullptr || facts.major < kFirstWithClusters) return 0;
  if (shared_bytes > facts.shared_bytes) return 0;
  Result result = driver.FuncSetAttribute(function, kFunctionDynamicSharedBytes, int(shared_bytes));
  if (!Check(driver, call, result, "cuFuncSetAttribute", problem)) return -1;
  int64_t blocks = call.plan.most_units;
  if (blocks > kPortableCluster &&
      driver.FuncSetAttribute(function, kFunctionNonPortableCluster, 1) != kSuccess) {
    return 0;
  }
  LaunchAttribute attribute;
  LaunchConfig config =
      ConfigOf(call.plan, unsigned(blocks), unsigned(shared_bytes), false, true, nullptr, &attribute);
  int clusters = 0;
  return driver.MaxActiveClusters(&clusters, function, &config) == kSuccess && clusters > 0 ? blocks : 0;
}

bool Choose(const Driver& driver, const Call& call, const DeviceFacts& facts, Module module, Program* program,
            Problem* problem) {
  const LaunchPlan& plan = call.plan;
  const struct {
    const char* name;
    int64_t shared_bytes, least, most;  // and numbers of blocks
    bool cluster;
  } kernels[] = {
      {"ck_resident", plan.resident_shared_bytes, plan.resident_units, plan.most_units, plan.cluster != 0},
      {"ck_portable", plan.portable_shared_bytes, 1, plan.portable_units, false}};
  for (const auto& kernel : kernels) {
    Function function = nullptr;
    Result result = driver.ModuleGetFunction(&function, module, kernel.name);
    if (!Check(driver, call, result, "cuModuleGetFunction", problem)) return false;
    int64_t fit = (kernel.cluster ? InOneCluster : CoResident)(driver, call, facts, function,
                                                               kernel.shared_bytes, problem);
    if (fit < 0) return false;
    // Without cooperative launches nobody promises that two blocks run at once. Blocks that do not wait for
    // each other need not: those that find no room run after the others.
    if (plan.cooperative && !kernel.cluster && !facts.cooperative && fit > 1) fit = 1;
    if (!plan.cooperative && fit > 0) fit = plan.most_units;
    if (fit < kernel.least) continue;
    program->function = function;
    program->grid = unsigned(fit < kernel.most ? fit : kernel.most);
    program->shared_bytes = unsigned(kernel.shared_bytes);
    program->cluster = kernel.cluster && program->grid > 1;
    program->cooperative = plan.cooperative && program->grid > 1 && !program->cluster;
    size_t offset = 0;
    if (driver.FuncGetParamInfo == nullptr ||
        driver.FuncGetParamInfo(function, 0, &offset, &program->parameter_bytes) != kSuccess) {
      program->parameter_bytes = 0;
    }
    return true;
  }
  return Refuse(call, problem, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
                "no block of %lld threads with %lld bytes of shared memory fits this device (sm_%d%d, %d "
                "multiprocessors, %d bytes per block); compile it again on this machine, or use the option "
                "force=\"stock\"",
                static_cast<long long>(plan.threads), static_cast<long long>(plan.portable_shared_bytes),
                facts.major, facts.minor, facts.units, facts.shared_bytes);
}

// ---- loading --------------------------------------------------------------------------------------------

bool NewErrorWord(const Driver& driver, const Call& call, Program* program, Problem* problem) {
  void* word = nullptr;
  Result result = driver.MemHostAlloc(&word, sizeof(uint32_t), kHostPortable | kHostDeviceMap);
  if (!Check(driver, call, result, "cuMemHostAlloc", problem)) return false;
  program->error_word = static_cast<uint32_t*>(word);
  *program->error_word = 0;
  result = driver.MemHostGetDevicePointer(&program->error_address, word, 0);
  return Check(driver, call, result, "cuMemHostGetDevicePointer", problem);
}

bool Fill(const Driver& driver, const Call& call, Program* program, Module* module, Problem* problem) {
  DeviceFacts facts = {};
  if (!Ask(driver, call, &facts, problem)) return false;
  Result result = driver.ModuleLoadData(module, call.binary);
  if (result == kNoBinaryForGpu) {
    return Refuse(call, problem, XLA_FFI_Error_Code_FAILED_PRECONDITION,
                  "cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU: it was compiled for another GPU than this "
                  "one (sm_%d%d); compile it again on this machine",
                  facts.major, facts.minor);
  }
  if (!Check(driver, call, result, "cuModuleLoadData", problem)) return false;
  // Since CUDA 12.1 a kernel may have more parameters (from Volta on).
  program->parameter_limit = driver.version >= 12010 && facts.major >= 7 ? 32764 : 4096;
  if (!Choose(driver, call, facts, *module, program, problem)) return false;
  return !call.plan.can_fail || NewErrorWord(driver, call, program, problem);
}

int64_t load_count = 0;

Numbers Copied(const Numbers& from, int64_t* to) {
  memcpy(to, from.numbers, from.size * sizeof(int64_t));
  return {to, from.size};
}

// Called with the mutex held and the context current. nullptr: see `problem`.
Program* Load(const Driver& driver, const Call& call, Context context, uint64_t context_id,
              Problem* problem) {
  size_t count = call.launch.size + call.signature.size;
  // The numbers follow.
  auto* program = static_cast<Program*>(calloc(1, sizeof(Program) + count * sizeof(int64_t)));
  if (program == nullptr) {
    Refuse(call, problem, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "the host is out of memory");
    return nullptr;
  }
  memcpy(program->digest, call.digest, 64);
  auto* numbers = reinterpret_cast<int64_t*>(program + 1);
  program->launch = Copied(call.launch, numbers);
  program->signature = Copied(call.signature, numbers + call.launch.size);
  program->context = context;
  program->context_id = context_id;
  Module module = nullptr;
  int mode = kCaptureRelaxed;  // another thread's or this one's capture does not mind what is done here
  driver.ExchangeCaptureMode(&mode);
  bool loaded = Fill(driver, call, program, &module, problem);
  if (!loaded) {
    if (program->error_word != nullptr) driver.MemFreeHost(program->error_word);
    if (module != nullptr) driver.ModuleUnload(module);
    free(program);
  }
  driver.ExchangeCaptureMode(&mode);
  if (loaded) ++load_count;
  return loaded ? program : nullptr;
}

// ---- the table ------------------------------------------------------------------------------------------

const unsigned kBuckets = 1024;
Program* programs[kBuckets];  // lists that only grow, at their heads: read without the mutex
pthread_mutex_t programs_mutex = PTHREAD_MUTEX_INITIALIZER;

Program* Known(Program* const* bucket, const Call& call, Context context, uint64_t context_id) {
  Program* program = __atomic_load_n(bucket, __ATOMIC_ACQUIRE);
  for (; program != nullptr; program = program->next) {
    if (program->context == context && program->context_id == context_id &&
        memcmp(program->digest, call.digest, 64) == 0 &&
        IsSame(program->launch, call.launch) && IsSame(program->signature, call.signature)) {
      return program;
    }
  }
  return nullptr;
}

bool IsTrusted(const Call& call, Problem* problem) {
  Digests digests = DigestsOf(call.launch.numbers, call.launch.size * sizeof(int64_t), call.signature,
                              call.binary, call.binary_size);
  const char* actual = digests.call;
  if (memcmp(actual, call.digest, 64) != 0) {
    return Refuse(call, problem, XLA_FFI_Error_Code_DATA_LOSS,
                  "it is damaged (SHA-256 %.16s..., expected %.16s...); remove the executable from the cache",
                  actual, call.digest);
  }
  if (PermissionOf(actual) != kRefused) return true;
  return Refuse(call, problem, XLA_FFI_Error_Code_PERMISSION_DENIED, CK_NOT_PERMITTED, actual);
}

// The program of a call in a context, which must be current; loaded if it is new. nullptr: see `problem`.
Program* Find(const Driver& driver, const Call& call, Context context, Problem* problem) {
  unsigned long long context_id = 0;
  if (driver.CtxGetId != nullptr) driver.CtxGetId(context, &context_id);
  unsigned hash = unsigned(context_id);
  for (int i = 0; i < 16; ++i) hash = hash * 31 + static_cast<unsigned char>(call.digest[i]);
  Program** bucket = &programs[hash % kBuckets];
  Program* program = Known(bucket, call, context, context_id);
  if (program != nullptr) return program;
  if (!IsTrusted(call, problem)) return nullptr;
  pthread_mutex_lock(&programs_mutex);
  program = Known(bucket, call, context, context_id);
  if (program == nullptr) {
    program = Load(driver, call, context, context_id, problem);
    if (program != nullptr) {
      program->next = *bucket;
      __atomic_store_n(bucket, program, __ATOMIC_RELEASE);
    }
  }
  pthread_mutex_unlock(&programs_mutex);
  return program;
}

}  // namespace

#endif  // COCKTAIL_HANDLER_PROGRAMS_H
