// The compiled programs of the process: each is checked, loaded once, and kept.
#ifndef COCKTAIL_RUNTIME_LOAD_H
#define COCKTAIL_RUNTIME_LOAD_H

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

#include "runtime_features.h"
#include "runtime_sha256.h"
#include "runtime_units.h"

namespace {

// Loaded programs stay loaded: code may be running in any thread, and a digest never changes its meaning.
struct Program {
  char digest[65];
  Entry entry;
  int64_t calls, exits;  // of a program with an exit flag: all calls, and those that left by a side exit
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

// The caller holds the mutex. On failure `problem` is the reason.
Program* LoadProgram(const char* digest, const uint8_t* data, size_t size, Origin origin, char* problem,
                     size_t problem_size) {
  char actual[65];
  Sha256Hex(data, size, actual);
  if (memcmp(actual, digest, 64) != 0) {
    snprintf(problem, problem_size, "the program's binary is damaged (SHA-256 %.16s..., expected %.16s...)",
             actual, digest);
    return nullptr;
  }
  ++load_count;
  char memory[512] = "", file[512] = "";
  void* library = OpenFromMemory(data, size, memory, sizeof(memory));
  if (library == nullptr) library = OpenFromFile(data, size, file, sizeof(file));
  if (library == nullptr) {
    snprintf(problem, problem_size, "the program cannot be loaded (%.400s; %.400s)", memory, file);
    return nullptr;
  }
  auto* features = static_cast<const char*>(dlsym(library, "ck_features"));
  char lacking[600] = "";
  if (LacksFeatures(features ? features : "unknown", origin, lacking, sizeof(lacking))) {
    snprintf(problem, problem_size,
             "the program was compiled for another processor: this one lacks, or is not known to have, %s; "
             "compile it again here",
             lacking);
    dlclose(library);
    return nullptr;
  }
  auto* version = static_cast<const u32*>(dlsym(library, "ck_units_version"));
  if (version != nullptr && *version != CK_UNITS_VERSION) {
    snprintf(problem, problem_size,
             "the program was compiled for another version of jax_cocktail (units %u, here %u); "
             "compile it again",
             *version, u32(CK_UNITS_VERSION));
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
  auto* most_units = static_cast<const i64*>(dlsym(library, "ck_most_units"));
  auto* own_bytes = static_cast<const i64*>(dlsym(library, "ck_own_bytes"));
  program->entry = Entry{function, most_units ? *most_units : 1, own_bytes ? *own_bytes : 0, 0, 0};
  return program;
}

// A fork during a load would leave the child with a mutex that is never released.
void LockPrograms() { pthread_mutex_lock(&programs_mutex); }
void UnlockPrograms() { pthread_mutex_unlock(&programs_mutex); }
void WatchForks() { pthread_atfork(LockPrograms, UnlockPrograms, UnlockPrograms); }
pthread_once_t watch_forks_once = PTHREAD_ONCE_INIT;

int64_t LoadCount() {
  LockPrograms();
  int64_t count = load_count;
  UnlockPrograms();
  return count;
}

// The list that holds the program with this digest, if it is loaded.
Program** BucketOf(const char* digest) {
  unsigned hash = 0;
  for (int i = 0; i < 16; ++i) hash = hash * 31 + static_cast<unsigned char>(digest[i]);
  return &programs[hash % kBuckets];
}

// The loaded program with this digest, or nullptr. The caller holds the mutex.
Program* LoadedProgram(const char* digest) {
  Program* program = *BucketOf(digest);
  while (program != nullptr && memcmp(program->digest, digest, 64) != 0) program = program->next;
  return program;
}

// The number of side exits so far of the program with this digest, and in `calls` that of its calls.
int64_t CountExits(const char* digest, int64_t* calls) {
  int64_t exits = 0;
  *calls = 0;
  LockPrograms();
  const Program* program = LoadedProgram(digest);
  if (program != nullptr) {
    *calls = __atomic_load_n(&program->calls, __ATOMIC_RELAXED);
    exits = __atomic_load_n(&program->exits, __ATOMIC_RELAXED);
  }
  UnlockPrograms();
  return exits;
}

// The program with this digest; loads it if it is new. nullptr on failure: `problem` is the reason.
Program* FindProgram(const char* digest, const uint8_t* data, size_t size, Origin origin, char* problem,
                     size_t problem_size) {
  pthread_once(&watch_forks_once, WatchForks);
  Program** bucket = BucketOf(digest);
  LockPrograms();
  Program* program = LoadedProgram(digest);
  if (program == nullptr) {
    program = LoadProgram(digest, data, size, origin, problem, problem_size);
    if (program != nullptr) {
      program->next = *bucket;
      *bucket = program;
    }
  }
  UnlockPrograms();
  return program;
}

}  // namespace

#endif  // COCKTAIL_RUNTIME_LOAD_H
