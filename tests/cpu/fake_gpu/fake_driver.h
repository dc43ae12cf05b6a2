// What the fake drivers, fake_cuda.cc and fake_hip.cc, have in common. A driver without a GPU keeps the rules
// that the handler has to keep (a current context or device, capture modes, room on the device), writes down
// what is enqueued, fails where it is told to, and runs the "kernels" of modules that are shared objects of
// the host.
//
// A module is text, `FAKE arch=90 parameters=40` (both optional), whose kernels do nothing, a shared object
// with `ck_resident` and `ck_portable` of type Kernel, or a program built for tests/cpu/emulation.
#include <dlfcn.h>
#include <elf.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "handler_driver.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

typedef void Kernel(void* const* pointers, unsigned grid, unsigned threads, unsigned shared_bytes);
// Of the emulation, which brings an error word of its own, and a workspace if it is given none; `pointers`:
// operands and results.
struct Order {
  void* const* pointers;
  void* const* sizes;
  void* workspace;
  int64_t shared_bytes;
  uint64_t seed;
  int64_t stack_bytes;
  char* report;
  int64_t report_bytes;
  int32_t units, resident, cluster;
  uint32_t error;
};
typedef int Emulation(Order* order);
typedef unsigned long long Id;

namespace {

struct ContextTag {  // to HIP, a device
  int device;
  Id id;
};
typedef ContextTag* Context;
struct StreamTag {
  Context context;
  bool capturing, invalid;
  std::vector<std::function<void()>> captured;
};
struct ModuleTag {
  Context context;
  void* library;
  size_t parameter_bytes;  // 0: not known
  size_t sizes;            // of an emulated program: its launch parameters
};
struct FunctionTag {
  Module module;
  std::string name;
  Kernel* kernel;        // null: does nothing
  Emulation* emulation;  // or null
  int64_t shared_limit, most_in_cluster;
};

struct Failure {
  Result result;
  int64_t times;
};

std::recursive_mutex mutex;
std::map<std::string, int64_t> facts = {{"version", 13000}, {"sms", 132},        {"shared", 232448},
                                        {"major", 9},       {"minor", 0},        {"cooperative", 1},
                                        {"per_sm", 2048},   {"ids", 1},          {"pointers", 1},
                                        {"in_cluster", 16}};
std::map<std::string, Failure> failures;
std::string log_text;
std::atomic<int> launches{0};
std::atomic<bool> kernel_failed{false};  // an emulated one: the context is lost, as on a card
thread_local int capture_mode = 0;
thread_local bool thread_captures = false;

int64_t Fact(const char* name, int device) {
  std::string special = std::string(name) + ":" + std::to_string(device);
  return facts.count(special) ? facts[special] : facts[name];
}

#if defined(FAKE_QUIET)
void Log(const std::string&) {}
#else
void Log(const std::string& line) { log_text += line + "\n"; }
#endif

std::string Number(uint64_t value) {
  char text[32];
  snprintf(text, sizeof(text), "%#llx", static_cast<unsigned long long>(value));
  return text;
}

bool Fails(const char* symbol, Result* result) {
  auto found = failures.find(symbol);
  if (found == failures.end() || found->second.times == 0) return false;
  --found->second.times;
  *result = found->second.result;
  return true;
}

// Does a stream's work, or keeps it for the replay.
void Enqueue(Stream stream, std::function<void()> work) {
  if (stream->capturing) {
    stream->captured.push_back(std::move(work));
  } else {
    work();
  }
}

// What must not be called while this thread captures.
bool Unsafe(Result* result) {
  if (!thread_captures || capture_mode == kCaptureRelaxed) return false;
  *result = kStreamCaptureUnsupported;
  return true;
}

// The image says itself how long it is: linkers put the table of sections at the end.
size_t ImageBytes(const void* image) {
  auto* header = static_cast<const Elf64_Ehdr*>(image);
  return header->e_shoff + size_t(header->e_shnum) * header->e_shentsize;
}

void* OpenImage(const void* image) {
  size_t bytes = ImageBytes(image);
  int fd = memfd_create("fake_module", 0);
  bool written = fd >= 0 && write(fd, image, bytes) == ssize_t(bytes);
  std::string path = "/proc/self/fd/" + std::to_string(fd);
  // The descriptor stays open: the loader takes equal paths for equal libraries.
  return written ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
}

void Emulate(const FunctionTag& function, const std::vector<void*>& pointers, int grid, int cluster) {
  std::string report(1 << 16, '\0');
  int resident = function.name == "ck_resident";
  const size_t sizes = function.module->sizes, count = pointers.size() - sizes;
  auto* word = static_cast<uint32_t*>(pointers[count - 1]);
  Order order = {};
  order.pointers = pointers.data();
  order.sizes = pointers.data() + count;
  order.workspace = sizes > 0 ? pointers[count - 2] : nullptr;  // the program does not say how large it is
  order.stack_bytes = 1 << 16;
  order.report = &report[0];
  order.report_bytes = int64_t(report.size());
  order.units = grid;
  order.resident = resident;
  order.cluster = cluster;
  function.emulation(&order);
  if (report[0] != 0) {
    Log("emulation: " + std::string(report.c_str()));
    kernel_failed = true;
  }
  if (word != nullptr) *word = order.error;
}

}  // namespace

// ---- for tests --------------------------------------------------------------------------------------------

FAKE_EXPORT void fake_set(const char* fact, int64_t value) { facts[fact] = value; }
FAKE_EXPORT void fake_fail(const char* symbol, int result, int64_t times) {
  failures[symbol] = {result, times};
}
FAKE_EXPORT const char* fake_log() { return log_text.c_str(); }
FAKE_EXPORT int fake_launches() { return launches; }
FAKE_EXPORT void fake_clear_log() { log_text.clear(); }
FAKE_EXPORT void* fake_stream(Context context) { return new StreamTag{context, false, false, {}}; }
FAKE_EXPORT void fake_capture(Stream stream, int on) {
  stream->capturing = thread_captures = on != 0;
  capture_mode = 1;  // of this thread alone, as XLA captures
}
FAKE_EXPORT int fake_replay(Stream stream) {
  for (const auto& work : stream->captured) work();
  return int(stream->captured.size());
}

// ---- of both drivers --------------------------------------------------------------------------------------

// Quiet: nothing is ordered between threads but by the handler, for a sanitizer to see.
#if defined(FAKE_QUIET)
#define GUARD
#else
#define GUARD std::lock_guard<std::recursive_mutex> guard(mutex);
#endif
#define BEGIN(symbol)                                    \
  GUARD                                                  \
  Result failure;                                        \
  if (Fails(#symbol, &failure)) return failure;

namespace {

// A module of a context.
Result LoadImage(Module* module, const void* image, Context context) {
  Result failure;
  if (Unsafe(&failure)) return failure;
  auto* text = static_cast<const char*>(image);
  int arch = 0, parameters = 0, sizes = 0;
  void* library = nullptr;
  if (memcmp(text, "\177ELF", 4) == 0) {
    library = OpenImage(image);
    if (library == nullptr) return kInvalidImage;
    auto* pointers = reinterpret_cast<int (*)()>(dlsym(library, "ck_emulation_pointers"));
    auto* more = reinterpret_cast<int (*)()>(dlsym(library, "ck_emulation_sizes"));
    if (more != nullptr) sizes = more();
    if (pointers != nullptr) parameters = (pointers() + sizes) * int(sizeof(void*));
  } else {
    if (memcmp(text, "FAKE", 4) != 0) return kInvalidImage;
    if (const char* found = strstr(text, "arch=")) arch = atoi(found + 5);
    if (const char* found = strstr(text, "parameters=")) parameters = atoi(found + 11);
    int device = context->device;
    if (arch && arch != Fact("major", device) * 10 + Fact("minor", device)) return kNoBinaryForGpu;
  }
  *module = new ModuleTag{context, library, size_t(parameters), size_t(sizes)};
  Log("load");
  return kSuccess;
}

Result Unload(Module module) {
  Log("unload");
  delete module;
  return kSuccess;
}

// `shared_limit`: bytes of shared memory that the kernel may ask for.
Result FindKernel(Function* function, Module module, const char* name, int64_t shared_limit) {
  void* library = module->library;
  auto* kernel = reinterpret_cast<Kernel*>(library ? dlsym(library, name) : nullptr);
  auto* emulation = reinterpret_cast<Emulation*>(library ? dlsym(library, "ck_emulation_launch") : nullptr);
  if (library != nullptr && kernel == nullptr && emulation == nullptr) return kNotFound;
  *function = new FunctionTag{module, name, kernel, emulation, shared_limit, 8};
  return kSuccess;
}

int MostBlocks(Function function, unsigned threads, size_t shared) {
  int device = function->module->context->device;
  int64_t by_threads = Fact("per_sm", device) / threads, limit = Fact("shared", device) + 1024;
  int64_t by_shared = int64_t(shared) > function->shared_limit ? 0 : limit / (int64_t(shared) + 1024);
  return int(by_threads < by_shared ? by_threads : by_shared);
}

Result Pinned(void** memory, size_t bytes, bool flags_are_right) {
  Result failure;
  if (Unsafe(&failure)) return failure;
  if (!flags_are_right) return 1;
  *memory = calloc(1, bytes);
  Log("pinned");
  return kSuccess;
}

Result Unpinned(void* memory) {
  Log("unpinned");
  free(memory);
  return kSuccess;
}

Result Synchronize(Stream stream) {
  Log("synchronize");
  if (kernel_failed) return kLaunchFailed;
  return stream->capturing ? Result(kStreamCaptureUnsupported) : Result(kSuccess);
}

Result ExchangeMode(int* mode) {
  int before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return kSuccess;
}

Result Memset(DevicePointer at, unsigned char value, size_t bytes, Stream stream) {
  Log("memset at=" + Number(at) + " bytes=" + std::to_string(bytes) + " value=" + std::to_string(value) +
      " stream=" + Number(reinterpret_cast<uint64_t>(stream)));
  Enqueue(stream, [=] { memset(reinterpret_cast<void*>(at), value, bytes); });
  return kSuccess;
}

// Checks and enqueues a launch, whose context is the current one. `cluster`: blocks of one.
Result Run(const Launch& launch, Stream stream, unsigned cluster, void** parameters) {
  Function function = launch.function;
  int device = stream->context->device, blocks = MostBlocks(function, launch.threads, launch.shared_bytes);
  if (function->module->context != stream->context) return 201;
  if (blocks == 0 || launch.shared_bytes > function->shared_limit) return 1;
  if (launch.cooperative && !Fact("cooperative", device)) return kNotSupported;
  if (launch.cooperative && launch.grid > blocks * Fact("sms", device)) return kCooperativeLaunchTooLarge;
  size_t bytes = function->module->parameter_bytes;
  std::string line = "launch kernel=" + function->name + " grid=" + std::to_string(launch.grid) +
                     " threads=" + std::to_string(launch.threads) +
                     " shared=" + std::to_string(launch.shared_bytes) +
                     " cooperative=" + std::to_string(launch.cooperative) +
                     " cluster=" + std::to_string(cluster) +
                     " stream=" + Number(reinterpret_cast<uint64_t>(stream)) + " pointers=";
  auto* pointers = static_cast<void* const*>(parameters[0]);
  if (bytes == 0) bytes = size_t(facts["pointers"]) * sizeof(void*);
  std::vector<void*> copy(pointers, pointers + bytes / sizeof(void*));  // by value, as a launch keeps them
  for (size_t i = 0; i < copy.size(); ++i) {
    line += (i ? "," : "") + Number(reinterpret_cast<uint64_t>(copy[i]));
  }
  Log(line);
  launches.fetch_add(1, std::memory_order_relaxed);
  unsigned grid = launch.grid, threads = launch.threads, shared = launch.shared_bytes;
  Enqueue(stream, [=] {
    if (function->emulation != nullptr) {
      Emulate(*function, copy, int(grid), int(cluster));
    } else if (function->kernel != nullptr) {
      function->kernel(copy.data(), grid, threads, shared);
    }
  });
  return kSuccess;
}

// The name of an error as the driver has it.
Result NameOf(const std::map<int, const char*>& names, Result result, const char** name) {
  auto found = names.find(result);
  *name = found == names.end() ? nullptr : found->second;
  return found == names.end() ? 1 : kSuccess;
}

Result TextOf(const char** text) {
  *text = "as the driver puts it";
  return kSuccess;
}

}  // namespace
