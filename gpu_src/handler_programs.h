// Programs on GPUs: checked, loaded once per context or device, and the kernel and grid that fit chosen.
//
// A program has two kernels. `ck_resident` keeps what is a unit's own in its shared memory; if those are
// parts of the weights, it wants exactly the planned number of blocks. `ck_portable` runs with any number.
// Blocks that wait for each other must all be on the device at once: how many can be is asked of the driver.
// The blocks of `ck_resident` may be planned as one cluster, which is on the device at once by itself.
#ifndef COCKTAIL_HANDLER_PROGRAMS_H
#define COCKTAIL_HANDLER_PROGRAMS_H

#include <stdarg.h>

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
      return "the driver's installation is at fault; see whether " CK_TOOL " works";
    case kNoDevice:
      return CK_NO_DEVICE;
    case kInvalidImage:
    case kNoBinaryForGpu:
    case kInvalidPtx:
    case kJitCompilerNotFound:
    case kUnsupportedPtxVersion:
    case kJitCompilationDisabled:
    case kInvalidSource:
    case kSharedObjectInitFailed:
      return "the program was compiled for another GPU or a newer driver; compile it again on this machine, "
             "or update " CK_DRIVER_OF_VENDOR;
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
             "said (" CK_REFUSERS "); use the option force=\"stock\" or another device";
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

bool Check(const Driver& driver, const Call& call, const Outcome& outcome, Problem* problem) {
  Result result = outcome.result;
  if (result == kSuccess) return true;
  const char *name = nullptr, *text = nullptr, *version = strstr(outcome.symbol, "_v2");
  driver.GetErrorName(result, &name);
  driver.GetErrorString(result, &text);
  int length = int(version != nullptr ? version - outcome.symbol : strlen(outcome.symbol));
  return Refuse(call, problem, CodeOf(result), "%.*s: %s (%d, %s): %s", length, outcome.symbol,
                name ? name : "unknown error", result, text ? text : "no description", Advice(result));
}

// ---- the kernel and the grid ----------------------------------------------------------------------------

// A program of a place. Never removed: a stream may hold it, and what it is found by keeps its meaning.
struct Program {
  char digest[64];
  Numbers plan;
  Signature signature;
  Place place;
  Launch launch;
  size_t parameter_bytes;  // what the kernel takes, 0 if the driver cannot say
  size_t parameter_limit;
  uint32_t* error_word;  // pinned host memory, or null
  DevicePointer error_address;
  Program* next;
};

// How many blocks of a kernel can be on the device at once, 0 if not even one fits; -1: see `problem`.
int64_t Room(const Driver& driver, const Call& call, const DeviceFacts& facts, const Launch& launch,
             Problem* problem) {
  if (int64_t(launch.shared_bytes) > facts.shared_bytes) return 0;
  if (launch.cluster) {
    bool fits = false;
    if (!Check(driver, call, FitsCluster(driver, facts, launch, &fits), problem)) return -1;
    return fits ? launch.grid : 0;
  }
  int blocks = 0;
  if (!Check(driver, call, CoResident(driver, launch, &blocks), problem)) return -1;
  return int64_t(blocks) * facts.units;
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
    if (!Check(driver, call, CK_CALL(ModuleGetFunction, &function, module, kernel.name), problem)) {
      return false;
    }
    Launch launch = {function, unsigned(plan.most_units), unsigned(plan.threads),
                     unsigned(kernel.shared_bytes), false, kernel.cluster};
    int64_t fit = Room(driver, call, facts, launch, problem);
    if (fit < 0) return false;
    // Without cooperative launches nobody promises that two blocks run at once. Blocks that do not wait for
    // each other need not: those that find no room run after the others.
    if (plan.cooperative && !kernel.cluster && !facts.cooperative && fit > 1) fit = 1;
    if (!plan.cooperative && fit > 0) fit = plan.most_units;
    if (fit < kernel.least) continue;
    launch.grid = unsigned(fit < kernel.most ? fit : kernel.most);
    launch.cluster = kernel.cluster && launch.grid > 1;
    launch.cooperative = plan.cooperative && launch.grid > 1 && !launch.cluster;
    program->launch = launch;
    program->parameter_bytes = ParameterBytes(driver, function);
    return true;
  }
  return Refuse(call, problem, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
                "no block of %lld threads with %lld bytes of shared memory fits this device (%s, %d "
                "multiprocessors, %d bytes per block); compile it again on this machine, or use the option "
                "force=\"stock\"",
                static_cast<long long>(plan.threads), static_cast<long long>(plan.portable_shared_bytes),
                facts.name, facts.units, facts.shared_bytes);
}

// ---- loading --------------------------------------------------------------------------------------------

bool NewErrorWord(const Driver& driver, const Call& call, Program* program, Problem* problem) {
  void* word = nullptr;
  if (!Check(driver, call, CK_CALL(HostAlloc, &word, sizeof(uint32_t), kHostFlags), problem)) return false;
  program->error_word = static_cast<uint32_t*>(word);
  *program->error_word = 0;
  return Check(driver, call, CK_CALL(HostGetDevicePointer, &program->error_address, word, 0), problem);
}

bool Fill(const Driver& driver, const Call& call, Program* program, Module* module, Problem* problem) {
  DeviceFacts facts = {};
  if (!Check(driver, call, Describe(driver, &facts), problem)) return false;
  Outcome loaded = CK_CALL(ModuleLoadData, module, call.binary);
  if (loaded.result == kNoBinaryForGpu) {
    const char* name = nullptr;
    driver.GetErrorName(loaded.result, &name);
    return Refuse(call, problem, XLA_FFI_Error_Code_FAILED_PRECONDITION,
                  "%s: %s: it was compiled for another GPU than this one (%s); compile it again on this "
                  "machine",
                  loaded.symbol, name ? name : "unknown error", facts.name);
  }
  if (!Check(driver, call, loaded, problem)) return false;
  program->parameter_limit = facts.parameter_limit;
  if (!Choose(driver, call, facts, *module, program, problem)) return false;
  return !call.plan.can_fail || NewErrorWord(driver, call, program, problem);
}

int64_t load_count = 0;

Numbers Copied(const Numbers& from, int64_t* to) {
  memcpy(to, from.numbers, from.size * sizeof(int64_t));
  return {to, from.size};
}

// Called with the mutex held and the place current. nullptr: see `problem`.
Program* Load(const Driver& driver, const Call& call, const Place& place, Problem* problem) {
  size_t count = call.launch.size + call.signature.size;
  // The numbers follow.
  auto* program = static_cast<Program*>(calloc(1, sizeof(Program) + count * sizeof(int64_t)));
  if (program == nullptr) {
    Refuse(call, problem, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "the host is out of memory");
    return nullptr;
  }
  memcpy(program->digest, call.digest, 64);
  auto* numbers = reinterpret_cast<int64_t*>(program + 1);
  program->plan = Copied(call.launch, numbers);
  program->signature = Copied(call.signature, numbers + call.launch.size);
  program->place = place;
  Module module = nullptr;
  int mode = kCaptureRelaxed;  // another thread's or this one's capture does not mind what is done here
  driver.ExchangeCaptureMode(&mode);
  bool loaded = Fill(driver, call, program, &module, problem);
  if (!loaded) {
    if (program->error_word != nullptr) driver.HostFree(program->error_word);
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

Program* Known(Program* const* bucket, const Call& call, const Place& place) {
  Program* program = __atomic_load_n(bucket, __ATOMIC_ACQUIRE);
  for (; program != nullptr; program = program->next) {
    if (program->place.where == place.where && program->place.identity == place.identity &&
        memcmp(program->digest, call.digest, 64) == 0 &&
        IsSame(program->plan, call.launch) && IsSame(program->signature, call.signature)) {
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

// The program of a call in a place, which must be current; loaded if it is new. nullptr: see `problem`.
Program* Find(const Driver& driver, const Call& call, const Place& place, Problem* problem) {
  unsigned hash = unsigned(place.identity);
  for (int i = 0; i < 16; ++i) hash = hash * 31 + static_cast<unsigned char>(call.digest[i]);
  Program** bucket = &programs[hash % kBuckets];
  Program* program = Known(bucket, call, place);
  if (program != nullptr) return program;
  if (!IsTrusted(call, problem)) return nullptr;
  pthread_mutex_lock(&programs_mutex);
  program = Known(bucket, call, place);
  if (program == nullptr) {
    program = Load(driver, call, place, problem);
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
