// The CPU runtime: two XLA FFI handlers that run any compiled program.
//
// A program is a shared object that travels as an attribute of the call, so that an executable is complete
// in itself (persistent cache, export, second process). `instantiate` checks its SHA-256 digest and loads it
// once per process; `execute` calls its entry point. Only XLA's C API is used, and API 0.1 is reported: one
// binary serves every jaxlib. No C++ library: builds with any C++17 compiler, also with -nostdlib++.
//
// Attributes of the call (XLA sorts them by name):
//   binary            u8 array  the program's shared object
//   digest            string    its SHA-256, lower-case hexadecimal
//   workspace         i64       bytes of scratch memory to lend to every call, or 0
//   workspace_result  i64       1: the last result buffer is the scratch memory
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "xla/ffi/api/c_api.h"

#define CK_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// ---- processor features ---------------------------------------------------------------------------------

#if defined(__x86_64__)
// Where CPUID shows a feature: leaf 1 ECX, leaf 7 EBX, leaf 7 ECX. Order: cocktail_features.h.
enum Register { kLeaf1C, kLeaf7B, kLeaf7C };
struct Feature {
  Register source;
  int bit;
};
const Feature kFeatures[] = {
    {kLeaf1C, 20}, // SSE4_2
    {kLeaf1C, 12}, // FMA
    {kLeaf1C, 28}, // AVX
    {kLeaf7B, 3},  // BMI
    {kLeaf7B, 5},  // AVX2
    {kLeaf7B, 8},  // BMI2
    {kLeaf7B, 16}, // AVX512F
    {kLeaf7B, 17}, // AVX512DQ
    {kLeaf7B, 21}, // AVX512IFMA
    {kLeaf7B, 28}, // AVX512CD
    {kLeaf7B, 30}, // AVX512BW
    {kLeaf7B, 31}, // AVX512VL
    {kLeaf7C, 1},  // AVX512VBMI
    {kLeaf7C, 6},  // AVX512VBMI2
    {kLeaf7C, 11}, // AVX512VNNI
    {kLeaf7C, 12}, // AVX512BITALG
    {kLeaf7C, 14}, // AVX512VPOPCNTDQ
};
const int kFirstAvx512 = 6;

// By CPUID itself: __builtin_cpu_supports needs a library that not every compiler links into shared objects.
unsigned MachineFeatures() {
  unsigned a, b, c, d, sources[3] = {0, 0, 0};
  uint32_t saved = 0, saved_high = 0;
  if (__get_cpuid(1, &a, &b, &c, &d)) {
    sources[kLeaf1C] = c;
    if (c >> 27 & 1) __asm__("xgetbv" : "=a"(saved), "=d"(saved_high) : "c"(0));
  }
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    sources[kLeaf7B] = b;
    sources[kLeaf7C] = c;
  }
  unsigned features = 0;
  for (int i = 0; i < int(sizeof(kFeatures) / sizeof(kFeatures[0])); ++i) {
    // The operating system must keep the registers: bits 1, 2 for AVX and 5 to 7 for AVX-512.
    uint32_t needed = i >= kFirstAvx512 ? 0xe6 : i > 0 ? 6 : 0;
    bool present = (sources[kFeatures[i].source] >> kFeatures[i].bit & 1) && (saved & needed) == needed;
    if (present) features |= 1u << i;
  }
  return features;
}
#else
unsigned MachineFeatures() { return 0; }
#endif

// ---- SHA-256 (FIPS 180-4) -------------------------------------------------------------------------------

const uint32_t kRoundConstants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t RotateRight(uint32_t x, int n) { return (x >> n) | (x << (32 - n)); }

void HashBlock(uint32_t state[8], const uint8_t* block) {
  uint32_t w[64], s[8];
  for (int i = 0; i < 16; ++i) {
    const uint8_t* p = block + 4 * i;
    w[i] = uint32_t(p[0]) << 24 | uint32_t(p[1]) << 16 | uint32_t(p[2]) << 8 | p[3];
  }
  for (int i = 16; i < 64; ++i) {
    uint32_t a = RotateRight(w[i - 15], 7) ^ RotateRight(w[i - 15], 18) ^ (w[i - 15] >> 3);
    uint32_t b = RotateRight(w[i - 2], 17) ^ RotateRight(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  memcpy(s, state, sizeof(s));
  for (int i = 0; i < 64; ++i) {
    uint32_t e = RotateRight(s[4], 6) ^ RotateRight(s[4], 11) ^ RotateRight(s[4], 25);
    uint32_t choose = (s[4] & s[5]) ^ (~s[4] & s[6]);
    uint32_t first = s[7] + e + choose + kRoundConstants[i] + w[i];
    uint32_t a = RotateRight(s[0], 2) ^ RotateRight(s[0], 13) ^ RotateRight(s[0], 22);
    uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    memmove(s + 1, s, 7 * sizeof(uint32_t));
    s[4] += first;
    s[0] = first + a + majority;
  }
  for (int i = 0; i < 8; ++i) state[i] += s[i];
}

void Sha256Hex(const uint8_t* data, size_t size, char hex[65]) {
  uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  size_t whole = size / 64 * 64;
  for (size_t i = 0; i < whole; i += 64) HashBlock(state, data + i);
  uint8_t tail[128] = {};
  size_t rest = size - whole, length = rest < 56 ? 64 : 128;
  if (rest) memcpy(tail, data + whole, rest);
  tail[rest] = 0x80;
  for (int i = 0; i < 8; ++i) tail[length - 1 - i] = uint8_t(uint64_t(size) * 8 >> (8 * i));
  for (size_t i = 0; i < length; i += 64) HashBlock(state, tail + i);
  for (int i = 0; i < 8; ++i) snprintf(hex + 8 * i, 9, "%08x", state[i]);
}

// ---- errors and attributes ------------------------------------------------------------------------------

XLA_FFI_Error* Fail(XLA_FFI_CallFrame* frame, XLA_FFI_Error_Code code, const char* text) {
  XLA_FFI_Error_Create_Args args;
  memset(&args, 0, sizeof(args));
  args.struct_size = sizeof(args);
  args.message = text;
  args.errc = code;
  return frame->api->XLA_FFI_Error_Create(&args);
}

const void* Attribute(const XLA_FFI_CallFrame* frame, const char* name, XLA_FFI_AttrType type) {
  size_t length = strlen(name);
  for (int64_t i = 0; i < frame->attrs.size; ++i) {
    const XLA_FFI_ByteSpan* span = frame->attrs.names[i];
    if (span->len == length && memcmp(span->ptr, name, length) == 0) {
      return frame->attrs.types[i] == type ? frame->attrs.attrs[i] : nullptr;
    }
  }
  return nullptr;
}

bool IntegerAttribute(const XLA_FFI_CallFrame* frame, const char* name, int64_t* value) {
  auto* scalar = static_cast<const XLA_FFI_Scalar*>(Attribute(frame, name, XLA_FFI_AttrType_SCALAR));
  if (scalar == nullptr || scalar->dtype != XLA_FFI_DataType_S64) return false;
  memcpy(value, scalar->value, sizeof(*value));
  return true;
}

// ---- programs -------------------------------------------------------------------------------------------

typedef int ProgramFunction(const void* const* inputs, void* const* outputs, unsigned char* workspace);
typedef const char* ErrorTextFunction(int code);

// Loaded programs stay loaded: code may be running in any thread, and a digest never changes its meaning.
struct Program {
  char digest[65];
  ProgramFunction* function;
  ErrorTextFunction* error_text;  // optional
  Program* next;
};

const int kBuckets = 1024;
Program* programs[kBuckets];
pthread_mutex_t programs_mutex = PTHREAD_MUTEX_INITIALIZER;
int64_t load_count = 0;

bool WriteAll(int fd, const uint8_t* data, size_t size) {
  while (size > 0) {
    ssize_t written = write(fd, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data += written;
    size -= size_t(written);
  }
  return true;
}

// The dynamic loader takes two libraries of one path for the same, and file descriptors are reused: the path
// spells the number of the load in binary ("./" or ".//"), which names the same file.
void* OpenFromMemory(const uint8_t* data, size_t size, char* problem, size_t problem_size) {
  int fd = memfd_create("jax_cocktail", MFD_CLOEXEC);
  if (fd < 0) {
    snprintf(problem, problem_size, "memfd_create: %s", strerror(errno));
    return nullptr;
  }
  void* library = nullptr;
  if (WriteAll(fd, data, size)) {
    char path[160];
    size_t end = size_t(snprintf(path, sizeof(path), "/proc/self/fd/"));
    for (int bit = 0; bit < 32; ++bit) {
      end += size_t(snprintf(path + end, sizeof(path) - end, (load_count >> bit) & 1 ? ".//" : "./"));
    }
    snprintf(path + end, sizeof(path) - end, "%d", fd);
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) snprintf(problem, problem_size, "%s", dlerror());
  } else {
    snprintf(problem, problem_size, "write: %s", strerror(errno));
  }
  close(fd);
  return library;
}

void* OpenFromFile(const uint8_t* data, size_t size, char* problem, size_t problem_size) {
  const char* folder = getenv("TMPDIR");
  char path[4096];
  snprintf(path, sizeof(path), "%s/jax_cocktail_%d_%lld_XXXXXX", folder && *folder ? folder : "/tmp",
           int(getpid()), static_cast<long long>(load_count));
  int fd = mkstemp(path);
  if (fd < 0) {
    snprintf(problem, problem_size, "mkstemp: %s", strerror(errno));
    return nullptr;
  }
  void* library = nullptr;
  bool written = WriteAll(fd, data, size);
  if (!written) snprintf(problem, problem_size, "write: %s", strerror(errno));
  close(fd);
  if (written) {
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) snprintf(problem, problem_size, "%s", dlerror());
  }
  unlink(path);
  return library;
}

// Called with the mutex held. On failure `problem` says why.
Program* LoadProgram(const char* digest, const XLA_FFI_Array* binary, char* problem, size_t problem_size) {
  auto* data = static_cast<const uint8_t*>(binary->data);
  char actual[65];
  Sha256Hex(data, binary->size, actual);
  if (memcmp(actual, digest, 64) != 0) {
    snprintf(problem, problem_size, "the program's binary is damaged (SHA-256 %.16s..., expected %.16s...)",
             actual, digest);
    return nullptr;
  }
  ++load_count;
  char memory[512] = "", file[512] = "";
  void* library = OpenFromMemory(data, binary->size, memory, sizeof(memory));
  if (library == nullptr) library = OpenFromFile(data, binary->size, file, sizeof(file));
  if (library == nullptr) {
    snprintf(problem, problem_size, "the program cannot be loaded (%.400s; %.400s)", memory, file);
    return nullptr;
  }
  auto* required = static_cast<const unsigned*>(dlsym(library, "ck_required_features"));
  unsigned missing = required ? *required & ~MachineFeatures() : 0;
  if (missing != 0) {
    snprintf(problem, problem_size,
             "the program was compiled for another processor (it lacks features %#x); compile it again here",
             missing);
    dlclose(library);
    return nullptr;
  }
  auto* function = reinterpret_cast<ProgramFunction*>(dlsym(library, "ck_program"));
  auto* program = static_cast<Program*>(calloc(1, sizeof(Program)));
  if (function == nullptr || program == nullptr) {
    snprintf(problem, problem_size, function ? "out of memory" : "the program has no entry point ck_program");
    free(program);
    dlclose(library);
    return nullptr;
  }
  memcpy(program->digest, digest, 64);
  program->function = function;
  program->error_text = reinterpret_cast<ErrorTextFunction*>(dlsym(library, "ck_error_text"));
  return program;
}

Program* FindProgram(const char* digest, const XLA_FFI_Array* binary, char* problem, size_t problem_size) {
  unsigned hash = 0;
  for (int i = 0; i < 16; ++i) hash = hash * 31 + static_cast<unsigned char>(digest[i]);
  Program** bucket = &programs[hash % kBuckets];
  pthread_mutex_lock(&programs_mutex);
  Program* program = *bucket;
  while (program != nullptr && memcmp(program->digest, digest, 64) != 0) program = program->next;
  if (program == nullptr) {
    program = LoadProgram(digest, binary, problem, problem_size);
    if (program != nullptr) {
      program->next = *bucket;
      *bucket = program;
    }
  }
  pthread_mutex_unlock(&programs_mutex);
  return program;
}

// ---- scratch memory -------------------------------------------------------------------------------------
// Arenas are leased per call and kept: fresh pages cost more than most programs run.

struct Arena {
  unsigned char* memory;
  size_t size;
};

const int kMaxIdleArenas = 16;
const size_t kHugePage = size_t(2) << 20;
Arena idle_arenas[kMaxIdleArenas];
int num_idle_arenas = 0;
pthread_mutex_t arena_mutex = PTHREAD_MUTEX_INITIALIZER;

// The smallest idle arena that fits, else a new one. {nullptr, 0} when memory is exhausted.
Arena LeaseArena(size_t size) {
  pthread_mutex_lock(&arena_mutex);
  int best = -1;
  for (int i = 0; i < num_idle_arenas; ++i) {
    if (idle_arenas[i].size >= size && (best < 0 || idle_arenas[i].size < idle_arenas[best].size)) best = i;
  }
  Arena arena = {nullptr, 0};
  if (best >= 0) {
    arena = idle_arenas[best];
    idle_arenas[best] = idle_arenas[--num_idle_arenas];
  }
  pthread_mutex_unlock(&arena_mutex);
  if (arena.memory != nullptr) return arena;
  size_t alignment = size >= kHugePage ? kHugePage : 64;
  if (size > SIZE_MAX - alignment) return arena;
  size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, rounded) != 0) return arena;
#ifdef MADV_HUGEPAGE
  if (alignment == kHugePage) (void)madvise(memory, rounded, MADV_HUGEPAGE);
#endif
  return Arena{static_cast<unsigned char*>(memory), rounded};
}

// When too many are idle, the smallest goes.
void ReturnArena(Arena arena) {
  if (arena.memory == nullptr) return;
  pthread_mutex_lock(&arena_mutex);
  if (num_idle_arenas < kMaxIdleArenas) {
    idle_arenas[num_idle_arenas++] = arena;
    arena.memory = nullptr;
  } else {
    int smallest = 0;
    for (int i = 1; i < num_idle_arenas; ++i) {
      if (idle_arenas[i].size < idle_arenas[smallest].size) smallest = i;
    }
    if (idle_arenas[smallest].size < arena.size) {
      Arena evicted = idle_arenas[smallest];
      idle_arenas[smallest] = arena;
      arena = evicted;
    }
  }
  pthread_mutex_unlock(&arena_mutex);
  free(arena.memory);
}

// ---- the state of an instantiated call ------------------------------------------------------------------

struct State {
  const Program* program;
  int64_t workspace;
  bool workspace_result;
};

XLA_FFI_TypeId state_type_id = {0};
XLA_FFI_TypeInfo state_type_info;

void DeleteState(void* state) { free(state); }

// Answers XLA's question for the API version.
bool AnswerMetadata(XLA_FFI_CallFrame* frame) {
  auto* start = frame->extension_start;
  if (start == nullptr || start->type != XLA_FFI_Extension_Metadata) return false;
  auto* extension = reinterpret_cast<XLA_FFI_Metadata_Extension*>(start);
  extension->metadata->api_version.major_version = 0;
  extension->metadata->api_version.minor_version = 1;
  extension->metadata->traits = 0;
  extension->metadata->state_type_id = state_type_id;
  return true;
}

XLA_FFI_Error* Run(XLA_FFI_CallFrame* frame, const State* state) {
  int64_t num_inputs = frame->args.size, num_outputs = frame->rets.size;
  size_t num_bytes = size_t(num_inputs + num_outputs + 1) * sizeof(void*);
  void** inputs = static_cast<void**>(__builtin_alloca(num_bytes));
  void** outputs = inputs + num_inputs;
  for (int64_t i = 0; i < num_inputs; ++i) {
    inputs[i] = static_cast<const XLA_FFI_Buffer*>(frame->args.args[i])->data;
  }
  for (int64_t i = 0; i < num_outputs; ++i) {
    outputs[i] = static_cast<const XLA_FFI_Buffer*>(frame->rets.rets[i])->data;
  }
  Arena arena = {nullptr, 0};
  unsigned char* workspace = nullptr;
  if (state->workspace_result) {
    if (num_outputs == 0) {
      return Fail(frame, XLA_FFI_Error_Code_INTERNAL, "jax_cocktail: no workspace result");
    }
    workspace = static_cast<unsigned char*>(outputs[num_outputs - 1]);
  } else if (state->workspace > 0) {
    arena = LeaseArena(size_t(state->workspace));
    workspace = arena.memory;
    if (workspace == nullptr) {
      return Fail(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "jax_cocktail: no memory for the workspace");
    }
  }
  int code = state->program->function(inputs, outputs, workspace);
  ReturnArena(arena);
  if (code == 0) return nullptr;
  const char* reason = state->program->error_text ? state->program->error_text(code) : nullptr;
  char text[512];
  if (reason != nullptr) {
    snprintf(text, sizeof(text), "jax_cocktail: %s (code %d)", reason, code);
  } else {
    snprintf(text, sizeof(text), "jax_cocktail: the program stopped with code %d", code);
  }
  return Fail(frame, XLA_FFI_Error_Code_INTERNAL, text);
}

}  // namespace

CK_EXPORT XLA_FFI_Error* ck_cpu_instantiate(XLA_FFI_CallFrame* frame) {
  if (AnswerMetadata(frame)) return nullptr;
  auto* binary = static_cast<const XLA_FFI_Array*>(Attribute(frame, "binary", XLA_FFI_AttrType_ARRAY));
  auto* digest = static_cast<const XLA_FFI_ByteSpan*>(Attribute(frame, "digest", XLA_FFI_AttrType_STRING));
  int64_t workspace = 0, workspace_result = 0;
  if (binary == nullptr || binary->dtype != XLA_FFI_DataType_U8 || digest == nullptr || digest->len != 64 ||
      !IntegerAttribute(frame, "workspace", &workspace) || workspace < 0 ||
      !IntegerAttribute(frame, "workspace_result", &workspace_result)) {
    return Fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                "jax_cocktail: the call needs the attributes binary (u8[]), digest (64 hexadecimal digits), "
                "workspace (i64) and workspace_result (i64)");
  }
  char problem[1024] = "", text[1200];
  const Program* program = FindProgram(digest->ptr, binary, problem, sizeof(problem));
  if (program == nullptr) {
    snprintf(text, sizeof(text), "jax_cocktail: %s", problem);
    return Fail(frame, XLA_FFI_Error_Code_FAILED_PRECONDITION, text);
  }
  auto* state = static_cast<State*>(malloc(sizeof(State)));
  if (state == nullptr) {
    return Fail(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "jax_cocktail: out of memory");
  }
  *state = State{program, workspace, workspace_result != 0};
  XLA_FFI_State_Set_Args args;
  memset(&args, 0, sizeof(args));
  args.struct_size = sizeof(args);
  args.ctx = frame->ctx;
  args.stage = XLA_FFI_ExecutionStage_INSTANTIATE;
  args.type_id = &state_type_id;
  args.state = state;
  XLA_FFI_Error* error = frame->api->XLA_FFI_State_Set(&args);
  if (error != nullptr) free(state);
  return error;
}

CK_EXPORT XLA_FFI_Error* ck_cpu_execute(XLA_FFI_CallFrame* frame) {
  if (AnswerMetadata(frame)) return nullptr;
  XLA_FFI_State_Get_Args args;
  memset(&args, 0, sizeof(args));
  args.struct_size = sizeof(args);
  args.ctx = frame->ctx;
  args.stage = XLA_FFI_ExecutionStage_INSTANTIATE;
  args.type_id = &state_type_id;
  XLA_FFI_Error* error = frame->api->XLA_FFI_State_Get(&args);
  if (error != nullptr) return error;
  return Run(frame, static_cast<const State*>(args.state));
}

// For jax.ffi.register_ffi_type, which must precede the registration of the handlers and fills in the id.
CK_EXPORT void* ck_cpu_state_type_id(void) { return &state_type_id; }
CK_EXPORT void* ck_cpu_state_type_info(void) {
  memset(&state_type_info, 0, sizeof(state_type_info));
  state_type_info.struct_size = sizeof(state_type_info);
  state_type_info.deleter = DeleteState;
  return &state_type_info;
}

// For tests: programs loaded so far in this process.
CK_EXPORT int64_t ck_cpu_load_count(void) {
  pthread_mutex_lock(&programs_mutex);
  int64_t count = load_count;
  pthread_mutex_unlock(&programs_mutex);
  return count;
}
